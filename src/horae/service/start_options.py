"""Options of a service's start: which of the last start still hold, and which may not change while jobs run."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horae.backends import BACKENDS, CLUSTER_OPTIONS
from horae.service.listening import CannotServe

if TYPE_CHECKING:
    from horae.service.server import ServeOptions

DEFAULT_BACKEND = "local"
#: Options by which a running job is found again, and which may not change while one runs.
_FIND_JOBS = ("adopt", "shared", "volume")
#: Options of a cluster that mean the same whether users' jobs are adopted or not.
_EITHER_WAY = frozenset({"context"})
#: Backends whose options are known.
_BUILT_IN = frozenset(BACKENDS)


def cluster_options(asked: ServeOptions, before: Mapping[str, Any], backend: str) -> dict[str, str]:
    """What was said of the cluster, and the URL for jobs: as requested, or as at the last start, if ever given."""
    shared = str(asked.shared.resolve()) if asked.shared else None
    given = {name: getattr(asked, name) for name in (*CLUSTER_OPTIONS, "url")} | {"shared": shared}
    given = {name: value for name, value in given.items() if value}
    for name in given.keys() & CLUSTER_OPTIONS.keys():
        if not _is_known_to(backend, name):
            raise CannotServe(f"--{name} is for --backend {' or '.join(CLUSTER_OPTIONS[name])}, not {backend}.")
    return {**_remembered(before, given, backend), **given}


def _is_known_to(backend: str, option: str) -> bool:
    return backend not in _BUILT_IN or backend in CLUSTER_OPTIONS[option]


def _remembered(before: Mapping[str, Any], given: Mapping[str, str], backend: str) -> dict[str, str]:
    """Options of the last start that still hold: not those of another backend, nor of the other way to get jobs."""
    kept = {"url": before["url"]} if "url" in before else {}
    if backend != before.get("backend", DEFAULT_BACKEND):
        return kept
    kept |= {name: before[name] for name in CLUSTER_OPTIONS if name in before and _is_known_to(backend, name)}
    adopts = "adopt" in given
    if adopts != ("adopt" in kept) and given.keys() & (CLUSTER_OPTIONS.keys() - _EITHER_WAY):
        # A service adopts users' jobs, or has jobs of its own: the options of the other way are over.
        kept = {name: value for name, value in kept.items() if name in (*_EITHER_WAY, "url")}
    return kept


def what_loses_jobs(
    asked: ServeOptions, before: Mapping[str, Any], chosen: str, cluster: Mapping[str, str], state: Path
) -> str:
    """Why running jobs would not be found with these options, and so be started twice; empty if they would."""
    if not before:
        return ""
    last = before.get("backend", DEFAULT_BACKEND)
    changes = [
        _changed_folder(state, before.get("state", str(state)), asked.database),
        _changed_backend(chosen, last),
        # Earlier versions also stored what the backend does not know.
        *(
            _changed_option(name, cluster.get(name), before.get(name))
            for name in _FIND_JOBS
            if _is_known_to(last, name)
        ),
    ]
    return next(filter(None, changes), "")


def _changed_folder(state: Path, last: str, database: str | None) -> str:
    """What is wrong with another state folder. A SQLite journal moves with it, so this concerns `--database` only."""
    if not database or last == str(state):
        return ""
    return f"Running jobs of this service use the folder {last}: start it with --state {shlex.quote(last)}."


def _changed_backend(chosen: str, last: str) -> str:
    """Jobs that run are known to the backend that started them alone."""
    return f"Jobs of this service run under the backend {last}: start it with --backend {last}." * (chosen != last)


def _changed_option(name: str, now: str | None, last: str | None) -> str:
    """Jobs that run are found where they were started."""
    if now == last or (name == "adopt" and last and _names(last) <= _names(now or "")):
        return ""
    with_it = f"with --{name} {shlex.quote(last)}" if last else f"without --{name}"
    return f"Jobs of this service run: start it {with_it}, as they were started, and change that when they have ended."


def check_standby(database: str | None) -> None:
    """Refuse a standby whose journal is a file: only a database server knows when a service on another machine ends."""
    if not database or not database.startswith("postgres"):
        raise CannotServe(
            "--standby needs a journal in PostgreSQL, the same as that of the active service: --database URL."
        )


def what_parts_services(asked: ServeOptions, before: Mapping[str, Any], chosen: str, active_host: str) -> str:
    """Why this service cannot be the standby of the active one; empty if it can."""
    if chosen == DEFAULT_BACKEND and active_host not in ("", socket.gethostname()):
        return f"Jobs of the active service are processes of {active_host}: start its standby on that machine."
    if "url" in before and not asked.url:
        return (
            f"Jobs reach the active service at {before['url']}: say with --url where they reach this one, or give the "
            "same address again if it moves with the active service."
        )
    return ""


def _names(namespaces: str) -> set[str]:
    """The namespaces of `--adopt`: one more loses sight of nothing."""
    return {name for name in namespaces.split(",") if name}
