"""Counters of the daemon's loop, for metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from horae.core.commands import Decided, StopWhy

#: Upper bounds of the histogram of decision times, in seconds.
BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass
class LoopCounters:
    """Counts since the daemon started. One thread writes; others may read at any time."""

    #: When the last cycle started, by the daemon's clock.
    cycle_s: float = 0.0
    decisions: int = 0
    decision_s: float = 0.0
    last_decision_s: float = 0.0
    by_bound: list[int] = field(default_factory=lambda: [0] * len(BOUNDS_S))
    launches: int = 0
    #: Stops by cause.
    stops: dict[StopWhy, int] = field(default_factory=dict)
    #: Why the journal cannot be written; empty if it can.
    trouble: str = ""

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Measure the time of one decision."""
        begun = time.perf_counter()
        yield
        took_s = time.perf_counter() - begun
        self.decisions += 1
        self.decision_s += took_s
        self.last_decision_s = took_s
        for number, bound_s in enumerate(BOUNDS_S):
            self.by_bound[number] += took_s <= bound_s

    def count(self, record: Decided) -> None:
        """Count the launches and stops of a decision."""
        self.launches += len(record.launches)
        for stop in record.stops:
            self.stops[stop.why] = self.stops.get(stop.why, 0) + 1
