"""The newest records of the journal in memory, so that they are told to listeners without being read again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from horae.core.commands import Decided
from horae.core.events import Event

#: Most records kept.
MOST_RECORDS = 4096


class RecentRecords:
    """Records as they were appended, decisions without what nobody is told of: memory, reasons, evidence, leases."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._records: deque[tuple[int, Event | Decided]] = deque(maxlen=most)
        self._lock = threading.Lock()

    def add(self, records: Sequence[Event | Decided], last_seq: int) -> None:
        """Add records that were just written; `last_seq` is the number of the last one."""
        first = last_seq - len(records) + 1
        with self._lock:
            if self._records and self._records[-1][0] != first - 1:
                self._records.clear()
            self._records.extend((first + k, _slim(record)) for k, record in enumerate(records))

    def after(self, seq: int, upto: int) -> list[tuple[int, Event | Decided]] | None:
        """Records with numbers after `seq`, up to `upto`; None if they are not all here."""
        with self._lock:
            if not self._records or not self._records[0][0] - 1 <= seq or self._records[-1][0] < upto:
                return None
            first = self._records[0][0]
            return list(islice(self._records, seq + 1 - first, upto + 1 - first))


def _slim(record: Event | Decided) -> Event | Decided:
    if not isinstance(record, Decided):
        return record
    nothing = np.empty(0, np.int64)
    return replace(
        record,
        memory=(),
        evidence=None,
        leased=(),
        turns=(),
        reason_rows=nothing,
        reason_codes=nothing.astype(np.uint8),
    )
