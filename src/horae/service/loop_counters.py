"""What the daemon counts of itself, for metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from horae.core.commands import Decided, StopWhy

#: Upper bounds of the classes in which decision times are counted.
BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass
class LoopCounters:
    """Counts since the daemon started. One thread writes; others may read at any time."""

    #: When the last cycle began, by the daemon's clock.
    cycle_s: float = 0.0
    decisions: int = 0
    decision_s: float = 0.0
    last_decision_s: float = 0.0
    by_bound: list[int] = field(default_factory=lambda: [0] * len(BOUNDS_S))
    launches: int = 0
    #: Stops by why.
    stops: dict[StopWhy, int] = field(default_factory=dict)
    #: What is wrong with the journal; empty while all is well.
    trouble: str = ""
    #: What keeps a job from being stopped; empty while nothing does.
    unstopped: str = ""

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Time one decision."""
        begun = time.perf_counter()
        yield
        took_s = time.perf_counter() - begun
        self.decisions += 1
        self.decision_s += took_s
        self.last_decision_s = took_s
        for number, bound_s in enumerate(BOUNDS_S):
            self.by_bound[number] += took_s <= bound_s

    def count(self, record: Decided) -> None:
        """Count what a decision does."""
        self.launches += len(record.launches)
        for stop in record.stops:
            self.stops[stop.why] = self.stops.get(stop.why, 0) + 1
