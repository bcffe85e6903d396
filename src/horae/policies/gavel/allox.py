"""The least average completion time, by matching."""

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

#: A job that is about to end still takes some time.
_LEAST_S = 1e-3


@dataclass(frozen=True)
class AlloX:
    """Match jobs to queues of GPUs so that completion times add up to the least; who is first in its queue runs.

    AlloX (EuroSys '20) as Gavel has it, with gangs and preemption: all jobs are matched anew,
    by what is left of them, at every event. A gang queues for slots of its size, cut as
    `solve/slots.py` says. A running job counts as `gain` seconds shorter where it is, and
    whatever is left idle goes to those that wait, on any type that they can use.
    """

    objective: ClassVar = "sum of completion times"
    unit: ClassVar = "s"
    paper: ClassVar = "AlloX, EuroSys '20"
    memory: ClassVar = MemorySpec()
    gain: float = setting(60.0, GAIN, least=0)
    aware: bool = setting(True, "whether speeds on the GPU types are told apart")

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """First those that are first in a queue, the largest gangs before what fills up; then everybody."""
        held = held_type(now)
        time_s = less_where_held(times_left(now, self.aware), held, self.gain)
        runs_now = _first_in_queues(now, time_s, held)
        job, gpu_type = np.nonzero(now.rates > 0)
        stays = held[job] == gpu_type
        gang = np.where(runs_now[job, gpu_type], now.gpus[job], 0)
        order = np.lexsort((time_s[job, gpu_type], ~stays, -gang))
        return Wishes(now.rows[job[order]], gpu_type=gpu_type[order], waiting=Reason.BEHIND_SHORTER)


def _first_in_queues(now: Snapshot, time_s: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Who (rows) is first in a queue for which GPU type (columns); gangs that no type can hold now queue nowhere."""
    from horae.solve.matching import match

    time_s = np.where(now.open_gpus >= now.gpus[:, None], np.maximum(time_s, _LEAST_S), np.inf)
    first = np.zeros(time_s.shape, np.bool_)
    queues = np.flatnonzero((time_s < np.inf).any(axis=1))
    if len(queues):
        matching = match(time_s[queues], now.gpus[queues], now.open_gpus, held[queues])
        first[queues, matching.gpu_type] = matching.first
    return first
