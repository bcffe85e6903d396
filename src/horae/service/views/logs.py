"""What jobs print, read from their files: the end of one, or line by line as it grows.

A job may do to its own log what it likes, so nothing but a plain file is read, and never more at a time than a block.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from horae.service.tokens import TOKEN

#: Bytes read at a time; of a log without `tail`, at most so many from its end.
BLOCK, MOST = 64 * 1024, 16 * 1024 * 1024

#: Characters that a secret has at least where it is hidden.
SHORTEST_SECRET = 6
_HIDDEN = "[hidden]"


def read_log(path: Path, tail: int | None) -> str:
    """A log, or its last lines."""
    with _PlainFile(path) as file:
        begin = _start_of_tail(file, tail) if tail is not None else max(0, file.size - MOST)
        return b"".join(file.blocks(begin)).decode("utf-8", "replace")


def masked(text: str, secrets: Iterable[str]) -> str:
    """A text without tokens and secrets. Lines of these are looked for one by one; short ones would hide words."""
    text = TOKEN.sub(_HIDDEN, text)
    lines = {line.strip() for secret in secrets for line in secret.splitlines()}
    for line in sorted((line for line in lines if len(line) >= SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(line, _HIDDEN)
    return text


class Log:
    """A log that is followed, from its last lines on."""

    def __init__(self, path: Path, tail: int | None) -> None:
        self._path, self._tail = path, tail
        self._at, self._rest = -1, b""
        #: Whether everything that was there has been read.
        self.at_end = False

    def lines(self, finished: bool) -> list[str]:
        """Whole lines that came since last asked, some at a time; of a finished log also what ends without one."""
        with _PlainFile(self._path) as file:
            if self._at < 0:
                self._at = _start_of_tail(file, self._tail) if self._tail is not None else 0
            block = next(file.blocks(self._at), b"")
            self._at += len(block)
            self.at_end = self._at >= file.size
        *whole, self._rest = (self._rest + block).split(b"\n")
        if self._rest and (len(self._rest) >= BLOCK or (finished and self.at_end)):
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode("utf-8", "replace").removesuffix("\r") for line in whole]


class _PlainFile:
    """A plain file; one that is not there, or is none, counts as empty."""

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
        """What stands from some byte on, up to what was the end when the file was opened."""
        while begin < self.size:
            block = os.pread(self._handle, min(BLOCK, self.size - begin), begin)
            if not block:
                return
            begin += len(block)
            yield block

    def block_before(self, end: int) -> bytes:
        """The block that ends at some byte."""
        begin = max(0, end - BLOCK)
        return os.pread(self._handle, end - begin, begin)


def _start_of_tail(file: _PlainFile, lines: int) -> int:
    """Where the last so many lines begin; a last one that is not finished counts."""
    end = file.size
    if lines == 0:
        return end
    # Behind how many line feeds, counted from the end, the first wanted line begins.
    wanted = lines + file.block_before(end).endswith(b"\n")
    while end > 0 and (block := file.block_before(end)):
        feeds = [at for at, byte in enumerate(block) if byte == 0x0A]
        if len(feeds) >= wanted:
            return end - len(block) + feeds[-wanted] + 1
        wanted -= len(feeds)
        end -= len(block)
    return 0
