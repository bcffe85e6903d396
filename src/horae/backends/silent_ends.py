"""Ends without a word: a runner that was killed is no fault of its job, unless the job does it."""

from __future__ import annotations

from horae.backends.protocol import Attempt
from horae.core.events import Event, JobStopped


class SilentEnds:
    """Attempts in a row that ended without a word and without progress: a job may kill its own runner."""

    #: So many, and the job has failed.
    LIMIT = 3

    def __init__(self) -> None:
        #: By job: how many there are, the work done at the last one, and its number.
        self._ends: dict[str, tuple[int, float, int]] = {}

    def add(self, attempt: Attempt, done: float) -> bool:
        """Note such an end; whether the job has failed by it."""
        job, number = attempt
        ends, before, _ = self._ends.get(job, (0, done, 0))
        ends = 1 if done > before else ends + 1
        self._ends[job] = (ends, done, number)
        return ends >= self.LIMIT

    def note_end(self, attempt: Attempt, end: Event) -> None:
        """Begin anew if the attempt ended in another way, or for good."""
        job, number = attempt
        if job in self._ends and (self._ends[job][2] != number or not isinstance(end, JobStopped)):
            del self._ends[job]
