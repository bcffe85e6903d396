"""Reads what the shell of a batch job says when a runner could not be started. Runners have a log of their own."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

#: Bytes that are read from the end of the file, and characters of the line that is told.
_READ_BYTES, _MOST_CHARACTERS = 4096, 300
#: What `srun` says after the words that matter: only that a task has ended.
_TASK_ENDED = re.compile(r"srun: error: .*: tasks? .*: Exited with exit code")
#: The shell's own name and line in front of its words: `horae: 1: exec: ...`.
_SHELL = re.compile(r"^horae: (line )?\d+: ")


def last_line(path: Path) -> str:
    """The last line that says why something ended; empty if there is none, or no plain file that can be read."""
    lines = [line.strip() for line in _end_of(path).splitlines()]
    reasons = [line for line in lines if line and not _TASK_ENDED.match(line)]
    words = _SHELL.sub("", reasons[-1]) if reasons else ""
    return "".join(letter if letter.isprintable() else " " for letter in words)[:_MOST_CHARACTERS].rstrip(". ")


def _end_of(path: Path) -> str:
    """The end of a file. The account of the jobs may have put anything in its place."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return ""
        return os.pread(handle, _READ_BYTES, max(found.st_size - _READ_BYTES, 0)).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(handle)
