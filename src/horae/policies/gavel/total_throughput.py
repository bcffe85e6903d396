"""Maximum total throughput over unlike GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.solve.allocation.problem import AllocationProblem, Solution


@dataclass(frozen=True)
class TotalThroughput(AllocationPolicy):
    """Get the most work done: the largest sum of throughputs, each over that of a proportional share.

    It is fair to nobody: a job that is nowhere faster than others waits for idle GPUs.
    """

    objective: ClassVar = "sum of throughput over that of a proportional share"
    unit: ClassVar = "shares"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """One linear program."""
        from horae.solve.allocation.programs import total_throughput

        return total_throughput(problem)
