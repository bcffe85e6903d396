"""The chain over the journal: a digest for each record, and heads that bind each digest to all before it.

Digests outlive the bodies that compaction drops, so that the chain can always be computed again from the first record.
Stored: change by addition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from horae.core.errors import UserError

#: What the operator can do after loss or damage.
WAYS_ON = (
    "Put a backup back with `horae restore`, or go on with what there is: `horae serve --accept-loss`. "
    "Until then nothing is started or stopped."
)


class JournalDamaged(UserError):
    """The journal, or something stored with it, is not what was written."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} {WAYS_ON}")


class JournalLost(JournalDamaged):
    """The journal holds less than was acknowledged, or is another journal."""


@dataclass(frozen=True, slots=True)
class Link:
    """A record's place in the chain."""

    seq: int
    digest: bytes
    #: Digest of all records up to this one.
    head: bytes
    #: Digest of the task that was submitted with the record; None if there was none.
    task: bytes | None = None


def text_digest(text: str) -> bytes:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def record_digest(seq: int, at_s: float, record_kind: str, body: str, task: bytes | None) -> bytes:
    """Digest of a record and its task. No part can hold a NUL character, which separates them."""
    parts = (str(seq), repr(float(at_s)), record_kind, body, task.hex() if task else "")
    return text_digest("\0".join(parts))


def first_head(identity: str) -> bytes:
    """Head of an empty journal."""
    return text_digest(f"horae journal {identity}")


def next_head(head: bytes, digest: bytes) -> bytes:
    """Head after one more record."""
    return hashlib.sha256(head + digest).digest()


def linked(seq: int, head: bytes, rows: Iterable[tuple[float, str, str, bytes | None]]) -> Iterator[Link]:
    """Links of records (time, record kind, body, digest of the task) that follow record `seq` with this head."""
    for at_s, record_kind, body, task in rows:
        seq += 1
        digest = record_digest(seq, at_s, record_kind, body, task)
        head = next_head(head, digest)
        yield Link(seq, digest, head, task)


def check_links(identity: str, links: Iterable[tuple[int, bytes, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Check links (number, digest, head): none is missing, and each head follows from all digests before.

    Gives number and head of each. There are hundreds of thousands in a long journal: plain tuples are fast.
    """
    head, sha256 = first_head(identity), hashlib.sha256
    for wanted, (seq, digest, stored) in enumerate(links, 1):
        head = sha256(head + digest).digest()
        if seq != wanted:
            raise JournalDamaged(f"The journal is damaged: the digest of record {wanted} is missing.")
        if stored != head:
            raise JournalDamaged(f"The journal is damaged: its chain of digests breaks at record {wanted}.")
        yield wanted, head
