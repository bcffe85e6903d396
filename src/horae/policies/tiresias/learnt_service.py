"""The distribution of total service, learnt from the jobs that finished on this cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from horae.core.job_table import JobTable
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.tiresias.attained_service import attained_by_finished
from horae.solve.gittins import ServiceDistribution

#: Memory (stored): when the distribution was last learnt, and from how many finished jobs.
SCALARS = {"learnt_s": 0.0, "learnt_from": 0.0}

#: Finished jobs that are needed. With fewer the longest jobs are unknown, and the order of old jobs depends on those.
LEAST = 100
#: The distribution is learnt again when the number of finished jobs has grown by this factor.
_GROWTH = 1.1


@dataclass(frozen=True)
class LearntService:
    """Distribution of the service of the jobs that had finished when it was last learnt.

    Only that moment is remembered. The job table has the rest, so a restarted scheduler has the same distribution.
    Learning costs a sort; it happens once for every tenth more finished jobs.
    """

    normalise: bool

    def distribution(self, now: Snapshot, memory: Memory) -> ServiceDistribution | None:
        """The distribution as last learnt, learnt anew if due; None while too few jobs have finished."""
        if now.has_finished(max(LEAST, _GROWTH * memory.scalar("learnt_from"))):
            memory.put_scalar("learnt_s", now.now_s)
            memory.put_scalar("learnt_from", now.finished)
        return self._learnt_before(now, memory.scalar("learnt_s"))

    def _learnt_before(self, now: Snapshot, when_s: float) -> ServiceDistribution | None:
        for table, learnt_s, distribution in self._last:
            if table is now.table and learnt_s == when_s:
                return distribution
        service = attained_by_finished(now, when_s, self.normalise)
        learnt = ServiceDistribution(service) if len(service) >= LEAST else None
        self._last[:] = [(now.table, when_s, learnt)]
        return learnt

    @cached_property
    def _last(self) -> list[tuple[JobTable, float, ServiceDistribution | None]]:
        """A cache of one entry; it can be lost at any time."""
        return []
