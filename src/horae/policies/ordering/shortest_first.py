"""Shortest remaining time first (SRTF), or shortest remaining GPU time first (SRSF)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from horae.core.compared_by import ComparedBy
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.settings import RESERVE, setting


@dataclass(frozen=True)
class ShortestRemainingTime:
    """Run the jobs with the least time left, preempting longer ones; ties by arrival.

    The policy must know how long jobs take: it is a bound for what can be reached, not a policy for
    clusters where durations are unknown.
    """

    objective: ClassVar = "remaining time, least first"
    unit: ClassVar = "s"
    paper: ClassVar = "baseline (Tiresias, NSDI '19)"
    type_aware: ClassVar = False
    memory: ClassVar = MemorySpec()
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By remaining time on the job's fastest GPU type."""
        return Wishes(
            now.rows,
            now.remaining_s,
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_SHORTER,
            compared_by=ComparedBy.TIME_LEFT,
        )


@dataclass(frozen=True)
class ShortestRemainingService:
    """Run the jobs with the least GPU time left (time left times GPUs), preempting others; ties by arrival.

    2D-SRSF (Tiresias, NSDI '19, section 3.1). Like `srtf` it must know how long jobs take.
    """

    objective: ClassVar = "remaining GPU time, least first"
    unit: ClassVar = "GPU-s"
    paper: ClassVar = "Tiresias, NSDI '19, section 3.1"
    type_aware: ClassVar = False
    memory: ClassVar = MemorySpec()
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By remaining time on the fastest GPU type, times GPU count."""
        return Wishes(
            now.rows,
            now.remaining_s * now.gpus,
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_SHORTER,
            compared_by=ComparedBy.SERVICE_LEFT,
        )
