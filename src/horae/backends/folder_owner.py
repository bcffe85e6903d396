"""Which service owns a folder that it shares with the nodes: two services with one folder would mix up their jobs."""

from __future__ import annotations

import socket
from pathlib import Path

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json
from horae.core.errors import UserError

OWNER = "owner.json"


class FolderTaken(UserError):
    """The shared folder belongs to another service."""


def claim_folder(shared: Path, state: Path) -> None:
    """Make a shared folder this service's own: the service on this machine with this state folder.

    Raises `FolderTaken` if it is another's.
    """
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    claim = {"host": socket.gethostname(), "state": str(state.resolve())}
    runner.write_atomically(str(shared), OWNER, claim, once=True)
    owner = read_json(shared / OWNER)
    if owner != claim:
        whose = f"with the state folder {owner['state']} on {owner['host']}" if owner else "that cannot be named"
        raise FolderTaken(
            f"The shared folder {shared} belongs to the service {whose}: give this one another --shared. If that "
            f"service is gone for good, or has moved here, delete {shared / OWNER} and start again."
        )
