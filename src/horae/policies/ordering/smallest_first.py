"""Smallest gang first: jobs by GPU count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.settings import RESERVE, setting


@dataclass(frozen=True)
class SmallestFirst:
    """Run the jobs that need the fewest GPUs, preempting larger ones; ties by arrival."""

    objective: ClassVar = "GPUs of the gang, fewest first"
    unit: ClassVar = "GPUs"
    paper: ClassVar = "baseline (Tiresias, NSDI '19)"
    type_aware: ClassVar = False
    memory: ClassVar = MemorySpec()
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By GPU count."""
        return Wishes(
            now.rows,
            now.gpus.astype(np.float64),
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_SMALLER,
        )
