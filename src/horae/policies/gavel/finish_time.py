"""Finish-time fairness as an allocation program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.policies.gavel.isolated_time import COLUMNS, isolated_s
from horae.policies.gavel.rounds import MEMORY
from horae.solve.allocation.problem import AllocationProblem, Solution


@dataclass(frozen=True)
class FinishTime(AllocationPolicy):
    """Lower the largest ratio of finish time here to finish time alone on 1/N of the cluster, then the next.

    Gavel's form of Themis' finish-time fairness (section 4.2). `isolated_time.py`
    keeps each job's time alone as the number of jobs changes.
    """

    objective: ClassVar = "largest rho = finish time here / finish time alone, lowered lexicographically"
    unit: ClassVar = "rho"
    timeless: ClassVar = False
    memory: ClassVar[MemorySpec] = MemorySpec(
        columns={**MEMORY.columns, **COLUMNS},
        by_type=MEMORY.by_type,
        scalars=MEMORY.scalars,
    )

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Shares that lower rho level by level."""
        from horae.solve.allocation.programs import finish_time

        return finish_time(problem)

    def _left(self, now: Snapshot) -> NDArray[np.float64]:
        return now.charged_left

    def _isolated_s(self, now: Snapshot, memory: Memory) -> NDArray[np.float64]:
        return isolated_s(now, memory)
