"""Logs of jobs: the end of a file, or its lines as it grows.

A job can replace its own log by anything. So only regular files are read, one block at a time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from horae.service.tokens import TOKEN

#: Bytes read at a time; most bytes read from the end of a log without `tail`.
BLOCK_BYTES, MAX_BYTES = 64 * 1024, 16 * 1024 * 1024

#: Secrets shorter than this many characters are not hidden: they would hide ordinary words.
SHORTEST_SECRET = 6
_HIDDEN = "[hidden]"


def read_log(path: Path, tail: int | None) -> str:
    """The last `tail` lines of a log, or its last `MAX_BYTES`."""
    with _PlainFile(path) as file:
        begin = _start_of_tail(file, tail) if tail is not None else max(0, file.size - MAX_BYTES)
        return b"".join(file.blocks(begin)).decode("utf-8", "replace")


def masked(text: str, secrets: Iterable[str]) -> str:
    """A text with tokens and secrets replaced. Each line of a secret is hidden by itself."""
    text = TOKEN.sub(_HIDDEN, text)
    lines = {line.strip() for secret in secrets for line in secret.splitlines()}
    for line in sorted((line for line in lines if len(line) >= SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(line, _HIDDEN)
    return text


class FollowedLog:
    """A log that is read as it grows, from its last `tail` lines on."""

    def __init__(self, path: Path, tail: int | None) -> None:
        self._path, self._tail = path, tail
        self._position, self._partial_line = -1, b""
        #: Whether the last call of `lines` reached the end of the file.
        self.at_end = False

    def lines(self, finished: bool) -> list[str]:
        """New complete lines, up to one block. Of a finished log also a last line without line feed."""
        with _PlainFile(self._path) as file:
            if self._position < 0:
                self._position = _start_of_tail(file, self._tail) if self._tail is not None else 0
            block = next(file.blocks(self._position), b"")
            self._position += len(block)
            self.at_end = self._position >= file.size
        *whole, self._partial_line = (self._partial_line + block).split(b"\n")
        if self._partial_line and (len(self._partial_line) >= BLOCK_BYTES or (finished and self.at_end)):
            whole, self._partial_line = [*whole, self._partial_line], b""
        return [line.decode("utf-8", "replace").removesuffix("\r") for line in whole]


class _PlainFile:
    """A regular file. Anything else, or a missing file, counts as empty."""

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._handle = os.open(os.devnull, os.O_RDONLY)
        found = os.fstat(self._handle)
        self.size = found.st_size if stat.S_ISREG(found.st_mode) else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._handle)

    def blocks(self, begin: int) -> Iterator[bytes]:
        """Blocks from byte `begin` up to the end that the file had when it was opened."""
        while begin < self.size:
            block = os.pread(self._handle, min(BLOCK_BYTES, self.size - begin), begin)
            if not block:
                return
            begin += len(block)
            yield block

    def block_before(self, end: int) -> bytes:
        """The block that ends at byte `end`."""
        begin = max(0, end - BLOCK_BYTES)
        return os.pread(self._handle, end - begin, begin)


def _start_of_tail(file: _PlainFile, lines: int) -> int:
    """Byte at which the last `lines` lines start. A last line without line feed counts."""
    end = file.size
    if lines == 0:
        return end
    # The first wanted line starts after this line feed, counted from the end.
    feeds_before = lines + file.block_before(end).endswith(b"\n")
    while end > 0 and (block := file.block_before(end)):
        feeds = [index for index, byte in enumerate(block) if byte == 0x0A]
        if len(feeds) >= feeds_before:
            return end - len(block) + feeds[-feeds_before] + 1
        feeds_before -= len(feeds)
        end -= len(block)
    return 0
