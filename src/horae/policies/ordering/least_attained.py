"""Least attained service, compared by the second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from horae.core.compared_by import ComparedBy
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.next_quantum import next_quantum_s
from horae.policies.settings import RESERVE, setting


@dataclass(frozen=True)
class LeastAttainedService:
    """Run the jobs that have had the least GPU time; ties by arrival.

    Continuous 2D-LAS (Tiresias, NSDI '19, section 3.1): durations need not be known. Attained service is compared
    exactly, at every event and every quantum, so jobs of like service take turns; `tiresias` avoids that.
    """

    objective: ClassVar = "attained GPU time, least first"
    unit: ClassVar = "GPU-s"
    paper: ClassVar = "Tiresias, NSDI '19, section 3.1"
    type_aware: ClassVar = False
    memory: ClassVar = MemorySpec()
    quantum: float = setting(600.0, "seconds between decisions when nothing else happens", least=0.001)
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By attained service, in GPU-seconds."""
        any_waiting = not now.has_gpus.all()
        return Wishes(
            now.rows,
            now.gpu_seconds,
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_LESS_SERVED,
            compared_by=ComparedBy.SERVICE,
            wake_s=next_quantum_s(now.now_s, self.quantum) if any_waiting else math.inf,
        )
