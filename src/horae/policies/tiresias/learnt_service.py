"""What the jobs that finished on this cluster tell about those that will."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from horae.core.job_table import JobTable
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.tiresias.attained_service import attained_by_finished
from horae.solve.gittins import ServiceDistribution

#: What is remembered: when finished jobs were last looked at, and how many there were.
SCALARS = {"learnt_s": 0.0, "learnt_from": 0.0}

#: Fewer finished jobs tell nothing about the longest, and the order of old jobs depends on those.
LEAST = 100
#: They are looked at again whenever so many times as many have finished.
_MORE = 1.1


@dataclass(frozen=True)
class LearntService:
    """How much service jobs took that had finished by the last look.

    Only the moment of that look is remembered: the table of jobs has the rest, so that a scheduler that
    restarts knows what it knew before. A look costs a sort; there is one for every tenth more jobs.
    """

    normalise: bool

    def so_far(self, now: Snapshot, memory: Memory) -> ServiceDistribution | None:
        """The service that finished jobs took; None as long as there are too few."""
        if now.has_finished(max(LEAST, _MORE * memory.scalar("learnt_from"))):
            memory.put_scalar("learnt_s", now.now_s)
            memory.put_scalar("learnt_from", now.finished)
        return self._before(now, memory.scalar("learnt_s"))

    def _before(self, now: Snapshot, when_s: float) -> ServiceDistribution | None:
        for table, known_s, distribution in self._last:
            if table is now.table and known_s == when_s:
                return distribution
        service = attained_by_finished(now, when_s, self.normalise)
        known = ServiceDistribution(service) if len(service) >= LEAST else None
        self._last[:] = [(now.table, when_s, known)]
        return known

    @cached_property
    def _last(self) -> list[tuple[JobTable, float, ServiceDistribution | None]]:
        """A cache of one; it can be lost at any time."""
        return []
