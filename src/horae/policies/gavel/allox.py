"""AlloX: the least average completion time, by matching jobs to positions in queues of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.type_preference import GAIN, held_type, less_where_held, times_left
from horae.policies.settings import setting

#: Least time left, in seconds, of a job that is about to end.
_LEAST_S = 1e-3


@dataclass(frozen=True)
class AlloX:
    """Match jobs to queues of GPUs so that completion times add up to the least; the first job of each queue runs.

    AlloX (EuroSys '20) as Gavel describes it, with gangs and preemption: all jobs are matched anew, by their
    time left, at every event. The choices that are ours: a gang queues for slots of its size, cut as in
    `solve/slots.py`; a running job counts as `gain` seconds shorter on the GPU type that it has; idle GPUs go
    to waiting jobs, on any type that they can use.
    """

    objective: ClassVar = "sum of completion times"
    unit: ClassVar = "s"
    paper: ClassVar = "AlloX, EuroSys '20"
    type_aware: ClassVar = True
    memory: ClassVar = MemorySpec()
    gain: float = setting(60.0, GAIN, least=0)
    aware: bool = setting(True, "whether each GPU type has its own speed; false takes one average speed for all")

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """The first jobs of the queues, largest gangs first; then all jobs on all types."""
        held = held_type(now)
        time_s = less_where_held(times_left(now, self.aware), held, self.gain)
        is_first = _first_in_queues(now, time_s, held)
        job, gpu_type = np.nonzero(now.rates > 0)
        stays = held[job] == gpu_type
        gang = np.where(is_first[job, gpu_type], now.gpus[job], 0)
        order = np.lexsort((time_s[job, gpu_type], ~stays, -gang))
        return Wishes(now.rows[job[order]], gpu_type=gpu_type[order], waiting=Reason.BEHIND_SHORTER)


def _first_in_queues(now: Snapshot, time_s: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each job (rows) is first in a queue of each GPU type (columns); never, if no type can hold it."""
    from horae.solve.matching import match

    time_s = np.where(now.open_gpus >= now.gpus[:, None], np.maximum(time_s, _LEAST_S), np.inf)
    first = np.zeros(time_s.shape, np.bool_)
    queued = np.flatnonzero((time_s < np.inf).any(axis=1))
    if len(queued):
        matching = match(time_s[queued], now.gpus[queued], now.open_gpus, held[queued])
        first[queued, matching.gpu_type] = matching.first
    return first
