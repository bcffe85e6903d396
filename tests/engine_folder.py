"""A folder for a small real engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def engine_folder(engine: str) -> Iterator[Path]:
    """A temporary folder with a short path, which the sockets of engines need.

    What a process writes there while the folder is removed fails no test: each test says itself what must be gone.
    """
    with TemporaryDirectory(prefix=f"horae-{engine}-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()
