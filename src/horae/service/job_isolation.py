"""Which isolation the jobs of a service have (`horae serve --isolation`), and what is refused without one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import horae
from horae.backends.local.gpu_detection import find_minor_numbers
from horae.backends.local.isolation.modes import ACCOUNT, MODES, NONE, SANDBOX, Isolation, NoIsolation, nvidia_devices
from horae.core.cluster import Node
from horae.core.errors import did_you_mean
from horae.service.listening import CannotServe
from horae.service.start_options import DEFAULT_BACKEND
from horae.service.store.opening import file_of

if TYPE_CHECKING:
    from horae.service.server import ServeOptions

#: What an operator can do if more than one user has a token.
_CHOICES = (
    "choose --isolation account (as root: each job under its user's account), --isolation sandbox (with bubblewrap), "
    "or --isolation none if you trust all of them with this account"
)


def chosen_isolation(asked: ServeOptions, before: Mapping[str, Any], backend: str) -> str | None:
    """The mode that an operator chose, now or at an earlier start; None if nobody ever did."""
    if backend != DEFAULT_BACKEND:
        if asked.isolation not in (None, NONE):
            raise CannotServe(f"--isolation is for --backend {DEFAULT_BACKEND}: {backend} keeps jobs apart itself.")
        return NONE
    if asked.isolation is not None and asked.isolation not in MODES:
        raise CannotServe(
            f"No isolation is called {asked.isolation!r}.{did_you_mean(asked.isolation, MODES)} "
            f"There are: {', '.join(MODES)}."
        )
    mode: str | None = asked.isolation or before.get("isolation")
    if mode == ACCOUNT and asked.helper is None:
        raise CannotServe(
            "This service runs jobs under the accounts of their users: start it as root, with --isolation account "
            "--user NAME, or say --isolation sandbox or none."
        )
    return mode


def moved_folders(mode: str | None, before: Mapping[str, Any]) -> str:
    """Why jobs that have not ended would lose their checkpoints with this mode; empty if they would not."""
    last = before.get("isolation", NONE)
    if not before or last == (mode or NONE) or ACCOUNT not in (last, mode):
        return ""
    return (
        f"Jobs of this service that have not ended have their folders where --isolation {last} puts them: start it "
        f"with --isolation {last}, and change that when they have ended."
    )


def make_isolation(mode: str | None, asked: ServeOptions, state: Path, nodes: Collection[Node]) -> Isolation:
    """The isolation of a mode; refused if it does not work on this machine."""
    if mode in (None, NONE):
        return NoIsolation()
    minors = find_minor_numbers()

    def devices(numbers: Collection[int]) -> list[str]:
        return nvidia_devices(tuple(numbers), minors)

    if mode == SANDBOX:
        from horae.backends.local.isolation.sandbox import SandboxIsolation

        hidden = [state.resolve(), *([asked.secrets.resolve()] if asked.secrets else [])]
        # By the service's own socket, whoever has its account is an admin, as such a job does.
        files = {
            "--socket": asked.socket,
            "--database": file_of(asked.database) if asked.database else None,
            "--tls-key": asked.tls_key or asked.tls_cert,
        }
        for option, file in files.items():
            if file and not any(file.resolve().is_relative_to(folder) for folder in hidden):
                hidden.append(_folder_to_hide(option, file.resolve()))
        return SandboxIsolation(hidden, devices)
    from horae.backends.local.isolation.accounts import AccountIsolation

    assert asked.helper is not None, "checked with the mode"
    return AccountIsolation(asked.helper, tuple(nodes), asked.account_names, devices)


def _folder_to_hide(option: str, file: Path) -> Path:
    """The folder of a file that jobs must not reach; refused if they need what else is in it.

    A file alone cannot be hidden from a job that runs: if the service replaces it, the job sees the new one.
    """
    folder, needed = file.parent, (Path.home(), Path(sys.prefix), Path(sys.base_prefix), Path(horae.__file__))
    if len(folder.parts) <= 2 or any(path.resolve().is_relative_to(folder) for path in needed):
        raise CannotServe(
            f"--isolation sandbox hides the folder of {option} from jobs, and they need {folder}: put {file} into the "
            "state folder, or into a folder of its own."
        )
    return folder


def alone(mode: str | None, operator: str) -> str:
    """Why a second user gets no token, in a sentence, if nobody has chosen a mode; else empty."""
    if mode is not None:
        return ""
    return (
        f"Jobs of all users would run under the account {operator}, where each can read the admin's token and the "
        f"others' files: start the service again and {_CHOICES}."
    )


def check_alone(mode: str | None, operator: str, users: Collection[str]) -> None:
    """Refuse to start without a choice if several users can submit jobs."""
    others = sorted({*users} - {operator})
    if mode is None and others:
        names = ", ".join(others[:3]) + (" and others" if len(others) > 3 else "")
        raise CannotServe(
            f"Besides {operator}, {names} can submit jobs, and all jobs would run under the account {operator}, where "
            f"each can read the admin's token and the others' files: {_CHOICES}."
        )
