"""Water filling, under its own name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.solve.allocation.problem import AllocationProblem, Solution


@dataclass(frozen=True)
class WaterFilling(AllocationPolicy):
    """Raise all jobs alike until some cannot rise, then the others, to the last: max-min fairness made lexicographic.

    Gavel has it apart from plain max-min fairness, and finds the jobs that cannot rise with an
    integer program (section 4.3). Our `max-min` is lexicographic to the last job already, so the
    two are one program here and give the same shares; the name is for those who look for it.
    """

    objective: ClassVar = "least throughput over that of a proportional share, raised lexicographically"
    unit: ClassVar = "shares"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Fill level by level."""
        from horae.solve.allocation.programs import max_min

        return max_min(problem)
