"""The disk reserve: space beside the journal that nobody else can take, for when the disk is full.

SQLite's log has blocks set aside beyond its end, so that the journal can be written on a full disk: jobs can be
cancelled, and their ends be recorded. A file of the same purpose is freed when even that is not enough. While the disk
is short of space, submits are refused; the file is made again once there is room.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from contextlib import suppress
from pathlib import Path

#: Name of the file in the state folder, and its size in bytes. The disk is short of space if less than this is free.
RESERVE_FILE, RESERVE_BYTES = "reserve", 16 * 2**20
#: The file is freed if less than this part of its size is free.
_ALMOST_NOTHING = 16
#: Set blocks aside without changing the size of the file (linux/falloc.h).
_KEEP_SIZE = 1


class DiskReserve:
    """The reserve of a state folder. `is_short` may be read by any thread."""

    def __init__(self, folder: Path, journal: Path | None, size: int = RESERVE_BYTES) -> None:
        """`journal` is the file of an SQLite journal; None if the journal is elsewhere."""
        self._folder, self._file, self._size = folder, folder / RESERVE_FILE, size
        self._log = journal.with_name(f"{journal.name}-wal") if journal else None
        #: Whether the disk is short of space, so that no more jobs are taken.
        self.is_short = False
        self.look()

    @property
    def free_bytes(self) -> int:
        """Free space of the disk, without the reserve."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return 0

    def free(self) -> None:
        """Free the file because the disk is full."""
        self.is_short = True
        with suppress(OSError):
            self._file.unlink()
        self._set_aside()

    def look(self) -> None:
        """See whether the disk is short of space; make the reserve if there is room for it twice over."""
        free = self.free_bytes
        if free >= 2 * self._size:
            self._make()
            self._set_aside()
        if free < self._size // _ALMOST_NOTHING:
            # What ends jobs needs some space beside the journal: their records, and at a start the service's address.
            self.free()
        # Between once and twice the size nothing changes, lest submits be refused and taken in turn.
        if free < self._size or free >= 2 * self._size:
            self.is_short = free < self._size

    def _make(self) -> None:
        with suppress(OSError):
            if self._file.exists() and self._file.stat().st_size >= self._size:
                return
            file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size)
            finally:
                os.close(file)

    def _set_aside(self) -> None:
        """Set blocks aside for SQLite's log. SQLite locks other files than the log: it is safe to open and close it."""
        if self._log is None:
            return
        with suppress(OSError, AttributeError):
            file = os.open(self._log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                libc.fallocate64(file, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(self._size // 2))
            finally:
                os.close(file)
