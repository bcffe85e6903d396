"""A small file system that a test can fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int = 8) -> Iterator[None]:
    """A file system of a few megabytes at a folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount the small file system that is to be filled")
    folder.mkdir()
    size = f"size={megabytes}m,mode=700"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("the small file system that is to be filled cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
