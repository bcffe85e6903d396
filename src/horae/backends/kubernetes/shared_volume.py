"""The shared folder as pods get it: a claim, or a folder that all nodes have. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from horae.core.errors import UserError


class BadVolume(UserError):
    """A shared volume that cannot be used."""


@dataclass(frozen=True, slots=True)
class SharedVolume:
    """A volume with the shared folder. The path is the same in pods and where the service runs."""

    #: Name of a PersistentVolumeClaim; empty for a folder of the nodes.
    claim: str
    path: Path

    def __str__(self) -> str:
        return f"{self.claim or 'host'}:{self.path}"


def read_volume(text: str) -> SharedVolume:
    """A volume from `--volume`: `host:/path` for a folder of all nodes, else `claim:/path`."""
    claim, _, path = text.partition(":")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", claim) or not re.fullmatch(r"/[^:]+", path):
        raise BadVolume(
            f"{text!r} is no shared volume: write NAME:/mnt/horae with the name of a PersistentVolumeClaim, or "
            "host:/mnt/horae for a folder that all nodes have."
        )
    return SharedVolume("" if claim == "host" else claim, Path(path))
