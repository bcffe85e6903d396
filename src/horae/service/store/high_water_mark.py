"""The high-water mark: a small file, apart from the journal, that says how far the journal had come.

It is written after each commit and before anything is answered or performed, so the journal is never behind it: a
journal that is has lost something. Two slots are written in turn, in place, each with one `fdatasync`; a slot that was
torn by a power cut leaves the other. Stored: change by addition.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as entries
from pathlib import Path

from horae.service.store.chain import JournalDamaged
from horae.service.store.connection import StoreTrouble

#: Name of the file in the state folder.
MARK_FILE = "journal.mark"
#: Bytes of a slot: a block of the disk, so that writing one slot cannot damage the other.
_SLOT = 4096
VERSION = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a journal had come."""

    #: Identity of the journal.
    identity: str
    #: Number of the last record, and the head of the chain after it.
    seq: int
    head: str
    #: The highest job number given, and the highest attempt number launched.
    job_number: int = 0
    attempt: int = 0
    #: Number of the last act of the audit trail, and how often tokens were made or revoked.
    acts: int = 0
    tokens: int = 0


class HighWaterMark:
    """The file of the mark. Not thread-safe: the store writes it under its own lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        #: Count of writes, which tells the newer slot.
        self._count = 0
        self._mark = self._read()

    @property
    def mark(self) -> Mark | None:
        """The last mark; None if there is none yet."""
        return self._mark

    def covered_seq(self, identity: str, last: int) -> int:
        """Number of the last record that the mark covers of a journal that ends with record `last`.

        0 if it is the mark of another journal, or of one that had come further: then none may be covered.
        """
        mark = self._mark
        return mark.seq if mark and mark.identity == identity and mark.seq <= last else 0

    def write(self, mark: Mark) -> None:
        """Write the mark durably. Numbers never fall, whatever journal the mark is of."""
        if self._mark:
            mark = replace(
                mark,
                job_number=max(mark.job_number, self._mark.job_number),
                attempt=max(mark.attempt, self._mark.attempt),
            )
        if mark == self._mark:
            return
        slot = _slot({"v": VERSION, "count": self._count + 1, **asdict(mark)})
        try:
            if self._file < 0:
                self._file = self._open()
            os.pwrite(self._file, slot, _SLOT * ((self._count + 1) % 2))
            os.fdatasync(self._file)
        except OSError as why:
            raise StoreTrouble(
                f"The file {self.path} cannot be written ({why.strerror}): fix that and try again."
            ) from why
        self._mark, self._count = mark, self._count + 1

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        """Open the file. A new file gets both slots at once: later writes change neither its size nor its blocks."""
        try:
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        draft = self.path.with_name(f".{self.path.name}")
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.pwrite(file, bytes(2 * _SLOT), 0)
        os.fsync(file)
        draft.rename(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return file

    def _read(self) -> Mark | None:
        try:
            with self.path.open("rb") as file:
                content = file.read(2 * _SLOT)
        except FileNotFoundError:
            return None
        except OSError as why:
            raise StoreTrouble(f"The file {self.path} cannot be read ({why.strerror}): fix that.") from why
        marks = [found for start in (0, _SLOT) if (found := _parsed(content[start : start + _SLOT]))]
        if not marks and any(content):
            raise JournalDamaged(f"The high-water mark {self.path} is damaged.")
        if not marks:
            return None
        self._count, mark = max(marks, key=lambda found: found[0])
        return mark


def _slot(fields: dict[str, object]) -> bytes:
    text = json.dumps(fields).encode()
    line = hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"
    assert len(line) <= _SLOT, f"a mark of {len(line)} bytes"
    return line.ljust(_SLOT, b"\0")


def _parsed(slot: bytes) -> tuple[int, Mark] | None:
    """Count and mark of a slot; None if the slot is empty, torn or damaged."""
    digest, _, text = slot.partition(b"\n")[0].partition(b" ")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    with suppress(ValueError, KeyError, TypeError):
        fields = json.loads(text)
        values = {entry.name: fields[entry.name] for entry in entries(Mark) if entry.name in fields}
        return int(fields["count"]), Mark(**values)
    return None
