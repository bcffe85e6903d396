"""First come, first served and shortest job first, aware of GPU types: each job on the fastest type that it can get."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.compared_by import ComparedBy
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.type_preference import GAIN, free_gpus, held_type, less_where_held, times_left
from horae.policies.settings import RESERVE, setting

#: Help text of the setting `aware`.
AWARE = "whether each GPU type has its own speed; false takes one average speed for all"


@dataclass(frozen=True)
class FifoAware:
    """Let jobs choose in order of arrival: each gets its fastest GPU type that is free or held by later jobs.

    Gavel's heterogeneity-aware FIFO (section 4.2), planned anew at every event: jobs move to faster types as those
    come free, the earliest job first. Jobs that fit pass a gang that does not fit, and give their GPUs back as
    soon as these and the free GPUs are enough for the gang; so no job starves.
    """

    objective: ClassVar = "order of arrival, each job on its fastest GPU type"
    unit: ClassVar = "-"
    paper: ClassVar = "Gavel, OSDI '20, section 4.2"
    type_aware: ClassVar = True
    memory: ClassVar = MemorySpec()
    gain: float = setting(60.0, GAIN, least=0)
    aware: bool = setting(True, AWARE)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """All jobs in order of arrival, each on its fastest type first."""
        time_s = less_where_held(times_left(now, self.aware), held_type(now), self.gain)
        job, gpu_type = by_preference(now, np.arange(len(now)), time_s)
        return Wishes(now.rows[job], gpu_type=gpu_type, waiting=Reason.BEHIND_EARLIER)


@dataclass(frozen=True)
class ShortestAware:
    """Let jobs choose in order of time left on their fastest GPU type, least first; each gets the fastest it can.

    Gavel's heterogeneity-aware shortest job first (section 4.2), preemptive. A running job counts as `gain`
    seconds shorter than it is. With `reserve`, GPUs are reserved for a gang that has waited too long.
    """

    objective: ClassVar = "time left on the fastest GPU type, least first"
    unit: ClassVar = "s"
    paper: ClassVar = "Gavel, OSDI '20, section 4.2"
    type_aware: ClassVar = True
    memory: ClassVar = MemorySpec()
    gain: float = setting(60.0, GAIN, least=0)
    aware: bool = setting(True, AWARE)
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """All jobs in order of time left, each on its fastest type first."""
        held, time_s = held_type(now), times_left(now, self.aware)
        order = np.argsort(time_s.min(axis=1) - np.where(held >= 0, self.gain, 0.0), kind="stable")
        job, gpu_type = by_preference(now, order, less_where_held(time_s, held, self.gain))
        return Wishes(
            now.rows[job],
            gpu_type=gpu_type,
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_SHORTER,
            compared_by=ComparedBy.TIME_LEFT,
        )


def by_preference(
    now: Snapshot, order: NDArray[np.int64], time_s: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(Job, GPU type) pairs: jobs in this order, each with its types by time left, ties by most free GPUs."""
    emptiest_first = np.argsort(-free_gpus(now), kind="stable")
    fastest_first = np.argsort(time_s[order][:, emptiest_first], axis=1, kind="stable")
    gpu_type = emptiest_first[fastest_first].ravel()
    job = np.repeat(order, time_s.shape[1])
    usable = now.rates[job, gpu_type] > 0
    return job[usable], gpu_type[usable]
