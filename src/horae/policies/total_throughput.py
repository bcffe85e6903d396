"""Maximum total throughput over unlike GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.allocation import AllocationPolicy
from horae.solve.problem import Problem, Solution


@dataclass(frozen=True)
class TotalThroughput(AllocationPolicy):
    """Get the most work done: the largest sum of throughputs, each over that of a proportional share.

    It is fair to nobody: a job that is nowhere faster than others waits for idle GPUs.
    """

    objective: ClassVar = "sum of throughput over that of a proportional share"
    unit: ClassVar = "shares"

    def allocate(self, problem: Problem) -> Solution:
        """One linear program."""
        from horae.solve.programs import total_throughput

        return total_throughput(problem)
