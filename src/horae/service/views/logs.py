"""Logs of jobs: the end of what a job printed, or its lines as they come.

A log is `log.txt` and, of a job that prints much, later parts `log.txt.OFFSET` of which the oldest are dropped: OFFSET
is the number of bytes that were printed before. A job can replace its own files by anything. So only regular files are
read, none of them through a link, and a bounded number of bytes.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from horae.service.tokens import TOKEN

#: Bytes read at a time; most bytes read from the end of a log, with `tail` or without.
BLOCK_BYTES, MAX_BYTES = 64 * 1024, 16 * 1024 * 1024
#: Most parts that are read: the runner keeps fewer.
_MOST_PARTS = 64

#: Secrets shorter than this many characters are not hidden: they would hide ordinary words.
SHORTEST_SECRET = 6
#: Characters of a line that are kept back while its end is not there: a secret may begin in them, and go on.
LONGEST_SECRET = 8192
_HIDDEN = "[hidden]"


def read_log(path: Path, tail: int | None) -> str:
    """The last `tail` lines of a log, or all of it, but at most its last `MAX_BYTES`. What was left out is told."""
    with _OpenLog(path) as log:
        begin = _first_shown(log) if tail is None else _start_of_tail(log, tail)
        return b"".join(log.blocks(begin)).decode("utf-8", "replace")


def masked(text: str, secrets: Iterable[str]) -> str:
    """A text with tokens and secrets replaced, also in Base64. Each line of a secret is hidden by itself."""
    text = TOKEN.sub(_HIDDEN, text)
    for hidden in _hidden_texts(secrets):
        text = text.replace(hidden, _HIDDEN)
    return text


def _hidden_texts(secrets: Iterable[str]) -> list[str]:
    """What must not be shown, the longest first."""
    lines = {line.strip() for secret in secrets for line in secret.splitlines()}
    lines |= {secret.strip() for secret in secrets}
    long = {line for line in lines if len(line) >= SHORTEST_SECRET}
    encoded = {text for line in long for ending in ("", "\n") for text in _in_base64(f"{line}{ending}")}
    return sorted(long | encoded, key=len, reverse=True)


def _in_base64(text: str) -> Iterator[str]:
    """A text in Base64, alone or behind one or two other bytes: what does not depend on its neighbours."""
    content = text.encode()
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(b"\0" * before + content).decode().rstrip("=")
            first, last = (0, 2, 3)[before], len(whole) - ((before + len(content)) % 3 > 0)
            if last - first >= SHORTEST_SECRET:
                yield whole[first:last]


class FollowedLog:
    """A log that is read as it grows, from its last `tail` lines on."""

    def __init__(self, path: Path, tail: int | None, mask: Callable[[str], str] = str) -> None:
        """`mask` hides secrets: those in a line that is too long to be kept whole, before it is cut."""
        self._path, self._tail, self._mask = path, tail, mask
        #: Bytes of the job's output that were read or left out; those of a line whose end has not come.
        self._position, self._partial_line = -1, b""
        #: Whether the last call of `lines` reached the end of the file.
        self.at_end = False

    def lines(self, finished: bool) -> list[str]:
        """New complete lines, up to one block. Of a finished log also a last line without line feed.

        Of a line that is too long to be kept, all but its last `LONGEST_SECRET` bytes, in which a secret may begin.
        """
        with _OpenLog(self._path) as log:
            if self._position < 0:
                self._position = log.offset_of(_start_of_tail(log, self._tail)) if self._tail is not None else 0
            left_out, block = log.read_at(self._position)
            self._position += left_out + len(block)
            self.at_end = self._position >= log.end
        whole: list[bytes] = []
        if left_out:
            whole = [*([self._partial_line] if self._partial_line else []), _left_out(left_out).strip()]
            self._partial_line = b""
        *more, self._partial_line = (self._partial_line + block).split(b"\n")
        whole += more
        if self._partial_line and finished and self.at_end:
            whole, self._partial_line = [*whole, self._partial_line], b""
        elif len(self._partial_line) >= BLOCK_BYTES:
            line = self._mask(self._partial_line.decode("utf-8", "surrogateescape"))
            line_bytes = line.encode("utf-8", "surrogateescape")
            whole.append(line_bytes[:-LONGEST_SECRET])
            self._partial_line = line_bytes[-LONGEST_SECRET:]
        return [line.decode("utf-8", "replace").removesuffix("\r") for line in whole]


def _left_out(count: int) -> bytes:
    """What is shown in the place of bytes that are gone."""
    return f"\nhorae: {count} bytes of the output were left out here\n".encode()


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a log as it is shown: of a file, or a sentence on what is missing."""

    #: Where it begins in what is shown, and in the job's output; its bytes in both.
    begin: int
    offset: int
    size: int
    printed: int
    handle: int = -1
    sentence: bytes = b""

    def read(self, begin: int, count: int) -> bytes:
        """Some of its bytes, as they are shown."""
        if self.handle < 0:
            return self.sentence[begin : begin + count]
        return os.pread(self.handle, count, begin)


class _OpenLog:
    """The files of a log, and sentences where something is missing, as one sequence of bytes.

    Anything but regular files counts as empty. All files are opened at once: one that is dropped later can be read.
    """

    def __init__(self, path: Path) -> None:
        self._handles: list[int] = []
        self._parts: list[_Part] = []
        #: Bytes that are shown, and bytes that were printed.
        self.size = self.end = 0
        with suppress(OSError):
            folder = _open_folder(path.parent)
            try:
                self._open_files(folder, path.name)
            finally:
                os.close(folder)

    def _open_files(self, folder: int, name: str) -> None:
        later = re.compile(re.escape(name) + r"\.(\d{1,18})", re.ASCII)
        offsets = sorted(int(found[1]) for each in os.listdir(folder) if (found := later.fullmatch(each)))
        files = [(0, name), *((offset, f"{name}.{offset}") for offset in offsets[-_MOST_PARTS:])]
        for (offset, each), (following, _) in zip(files, [*files[1:], (1 << 62, "")], strict=True):
            with suppress(OSError):
                handle = os.open(each, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                self._handles.append(handle)
                status = os.fstat(handle)
                if stat.S_ISREG(status.st_mode):
                    self._add(handle, offset, min(status.st_size, following - offset))

    def _add(self, handle: int, offset: int, size: int) -> None:
        if offset > self.end and size:
            sentence = _left_out(offset - self.end)
            self._parts.append(_Part(self.size, self.end, len(sentence), offset - self.end, sentence=sentence))
            self.size, self.end = self.size + len(sentence), offset
        self._parts.append(_Part(self.size, offset, size, size, handle))
        self.size, self.end = self.size + size, self.end + size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            os.close(handle)

    def blocks(self, begin: int) -> Iterator[bytes]:
        """Blocks from byte `begin` of what is shown up to the end that it had when it was opened."""
        for part in self._parts:
            while part.begin <= begin < part.begin + part.size:
                block = part.read(begin - part.begin, min(BLOCK_BYTES, part.begin + part.size - begin))
                if not block:
                    begin = part.begin + part.size  # it has become shorter
                    break
                begin += len(block)
                yield block

    def block_before(self, end: int) -> bytes:
        """A block that ends at byte `end` of what is shown."""
        part = next(part for part in self._parts if part.begin < end <= part.begin + part.size)
        begin = max(part.begin, end - BLOCK_BYTES)
        return part.read(begin - part.begin, end - begin).ljust(end - begin, b"\0")

    def offset_of(self, position: int) -> int:
        """Where in the job's output a byte of what is shown is; for one of a sentence, where the gap begins."""
        for part in self._parts:
            if position < part.begin + part.size:
                return part.offset + (position - part.begin if part.handle >= 0 else 0)
        return self.end

    def read_at(self, offset: int) -> tuple[int, bytes]:
        """Bytes that were left out from this place of the job's output on, and a block of what comes then."""
        for part in self._parts:
            if part.handle >= 0 and offset < part.offset + part.size:
                left_out = max(part.offset - offset, 0)
                begin = offset + left_out - part.offset
                return left_out, part.read(begin, min(BLOCK_BYTES, part.size - begin))
        return 0, b""


def _open_folder(path: Path) -> int:
    """Open a folder without following a link on the way to it: a job may have put one in the place of its folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(path.anchor or ".", flags & ~os.O_NOFOLLOW)
    for name in path.parts[1:] if path.anchor else path.parts:
        try:
            inner = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _first_shown(log: _OpenLog) -> int:
    """Byte at which the last `MAX_BYTES` start, after a line feed if there is one: a secret must not be cut."""
    begin = max(0, log.size - MAX_BYTES)
    return begin + next(log.blocks(begin), b"").find(b"\n") + 1 if begin else 0


def _start_of_tail(log: _OpenLog, lines: int) -> int:
    """Byte at which the last `lines` lines start, within the last `MAX_BYTES`. One without line feed counts, too."""
    end, left = log.size, lines
    if lines == 0 or not end:
        return end
    # A line feed at the very end ends the last line: it begins none.
    left += log.block_before(end).endswith(b"\n")
    while end > log.size - MAX_BYTES and end > 0:
        block = log.block_before(end)
        feed = len(block)
        while (feed := block.rfind(b"\n", 0, feed)) >= 0:
            left -= 1
            if not left:
                return end - len(block) + feed + 1
        end -= len(block)
    return _first_shown(log)
