"""Which deadlines were met, which were missed, and which the policy gave up in good time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.history import History
from horae.core.states import State

#: A job that is late by less than clocks can tell is in time.
_NOTHING_S = 1e-6


@dataclass(frozen=True)
class Deadlines:
    """Jobs that had a deadline and were not cancelled. Every one of them met it or missed it."""

    jobs: int
    met: int
    #: Ended too late, failed, or never ended.
    missed: int
    #: Given up by the policy while they still lay ahead; what was given up may have been met after all.
    relaxed: int
    relaxed_jobs: tuple[str, ...]

    @staticmethod
    def of(history: History, inside: slice) -> Deadlines:
        """Count those of the jobs at some positions."""
        numbers = [
            number
            for number in range(inside.start, inside.stop)
            if history.jobs[number].deadline_s is not None and history.state[number] != State.CANCELLED
        ]
        due_s = np.array([history.jobs[k].submit_s + (history.jobs[k].deadline_s or 0.0) for k in numbers])
        # What never ended is NaN, and NaN is never in time.
        met = int((history.finished[numbers] & (history.end_s[numbers] <= due_s + _NOTHING_S)).sum()) if numbers else 0
        given_up = set(history.relaxed)
        relaxed = tuple(history.jobs[k].id for k in numbers if history.jobs[k].id in given_up)
        return Deadlines(len(numbers), met, len(numbers) - met, len(relaxed), relaxed)


def names(jobs: tuple[str, ...], most: int = 50) -> str:
    """Jobs by name, those beyond so many by number."""
    more = f" and {len(jobs) - most:,} more" if len(jobs) > most else ""
    return ", ".join(jobs[:most]) + more
