"""Which service owns a folder that it shares with the nodes: two services with one folder would mix up their jobs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json
from horae.backends.shared_folder import SERVICE, service_id
from horae.core.errors import UserError

OWNER = "owner.json"
#: In the state folder: ids of the shared folders that the service has used, by path. Stored: change by addition.
USED_FOLDERS = "shared.json"
#: Files that container engines make in each container.
_CONTAINER_SIGNS = ("/.dockerenv", "/run/.containerenv")


class FolderTaken(UserError):
    """The shared folder belongs to another service."""


class FolderAway(UserError):
    """The shared folder is not the one that the service has used before."""


def own_folder(shared: Path, state: Path, journal: str = "") -> str:
    """Make a shared folder this service's own; returns its id. Raises if it is another's, or is not mounted.

    `journal` is the id of a journal that a standby on another machine may take over, one at a time.
    """
    service = _known_service_id(shared, state)
    _claim(shared, state, journal)
    return service


def _known_service_id(shared: Path, state: Path) -> str:
    """The id of the service that owns a shared folder, made when it is first used.

    Raises `FolderAway` if this service has used a folder at this path that had another id: where a file system is not
    mounted there is an empty folder, and jobs would begin again while they run.
    """
    used = read_json(state / USED_FOLDERS) or {}
    found = str((read_json(shared / SERVICE) or {}).get("id", ""))
    if used.get(str(shared), found) != found:
        raise FolderAway(
            f"The shared folder {shared} is not the one that this service has used: is its file system mounted? Mount "
            f"it and start again. If the folder is lost for good, make sure that none of its jobs runs any more, "
            f"delete {state / USED_FOLDERS} and start again."
        )
    made = service_id(shared)
    if used.get(str(shared)) != made:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        runner.write_atomically(str(state), USED_FOLDERS, {**used, str(shared): made})
    return made


def _claim(shared: Path, state: Path, journal: str) -> None:
    """Make a shared folder this service's own: the service with this state folder, on this machine.

    Raises `FolderTaken` if it is another's.
    """
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    claim = {"host": _machine(), "state": str(state.resolve()), "id": service_id(state)}
    claim |= {"journal": journal} if journal else {}
    runner.write_atomically(str(shared), OWNER, claim, once=True)
    owner = read_json(shared / OWNER)
    if owner is None or not _is_same(owner, claim):
        whose = f"with the state folder {owner['state']} on {owner['host']}" if owner else "that cannot be named"
        raise FolderTaken(
            f"The shared folder {shared} belongs to the service {whose}: give this one another --shared. If that "
            f"service is gone for good, or has moved here, delete {shared / OWNER} and start again."
        )
    if owner != claim:
        runner.write_atomically(str(shared), OWNER, claim)


def _is_same(owner: Mapping[str, Any], claim: Mapping[str, str]) -> bool:
    """Whether two claims are one service's.

    Claims of earlier versions have no id, and a name also in containers. A state folder that was copied to another
    machine would be a second service with the same id, unless both have one journal, which one of them owns.
    """
    if "journal" in claim and all(owner.get(name) == claim[name] for name in ("journal", "id")):
        return True
    hosts = (claim["host"],) if "id" in owner else (claim["host"], socket.gethostname())
    name = "id" if "id" in owner else "state"
    return bool(owner.get("host") in hosts and owner.get(name) == claim[name])


def _machine() -> str:
    """The name of this machine. Containers and pods have another name at each start."""
    is_container = any(Path(path).exists() for path in _CONTAINER_SIGNS) or "KUBERNETES_SERVICE_HOST" in os.environ
    return "a container" if is_container else socket.gethostname()
