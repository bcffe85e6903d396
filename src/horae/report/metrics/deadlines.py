"""Which deadlines were met, missed, and relaxed by the policy before they passed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.history import History
from horae.core.states import State

#: A job that is late by less than this is in time: it is rounding.
_TOLERANCE_S = 1e-6


@dataclass(frozen=True)
class Deadlines:
    """Jobs that had a deadline and were not cancelled. Each of them met it or missed it."""

    jobs: int
    met: int
    #: Ended too late, failed, or never ended.
    missed: int
    #: Deadlines that the policy gave up before they passed. A relaxed deadline may still have been met.
    relaxed: int
    relaxed_jobs: tuple[str, ...]

    @staticmethod
    def of(history: History, inside: slice) -> Deadlines:
        """Count the deadlines of the jobs at the positions `inside`."""
        numbers = [
            number
            for number in range(inside.start, inside.stop)
            if history.jobs[number].deadline_s is not None and history.state[number] != State.CANCELLED
        ]
        due_s = np.array([history.jobs[k].submit_s + (history.jobs[k].deadline_s or 0.0) for k in numbers])
        # The end of a job that never ended is NaN, which is never in time.
        met = (
            int((history.finished[numbers] & (history.end_s[numbers] <= due_s + _TOLERANCE_S)).sum()) if numbers else 0
        )
        given_up = set(history.relaxed)
        relaxed = tuple(history.jobs[k].id for k in numbers if history.jobs[k].id in given_up)
        return Deadlines(len(numbers), met, len(numbers) - met, len(relaxed), relaxed)


def names(jobs: tuple[str, ...], most: int = 50) -> str:
    """The first `most` job names, and the number of the others."""
    more = f" and {len(jobs) - most:,} more" if len(jobs) > most else ""
    return ", ".join(jobs[:most]) + more
