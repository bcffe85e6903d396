"""Isolation: each of N jobs has 1/N of every GPU type, a yardstick for other policies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.rounds import MEMORY, TimeShares, next_round, owed, remember
from horae.policies.settings import setting
from horae.solve.allocation.problem import isolated_share


@dataclass(frozen=True)
class Isolated:
    """Give each of the N jobs 1/N of the time of every GPU type, in rounds.

    The share is that of Gavel (OSDI '20, section 4.2): (GPUs of the type / N) / GPUs of the job, in sum at most 1.
    The policy is a yardstick, so a running job has no preference for the GPUs that it has.
    """

    objective: ClassVar = "time owed on each GPU type, most first"
    unit: ClassVar = "s"
    paper: ClassVar = "Gavel, OSDI '20, section 4.2"
    type_aware: ClassVar = False
    memory: ClassVar[MemorySpec] = MEMORY
    round: float = setting(360.0, "length of a round in seconds", least=0.001)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Update the time owed, then wish for (job, GPU type) pairs by time owed, most first."""
        owed_s = owed(now, memory, math.inf)
        share = isolated_share(now.open_gpus, now.gpus, now.usable)
        remember(now, memory, TimeShares(share), owed_s)
        return next_round(now, TimeShares(share), owed_s, self.round, stay_s=0.0)
