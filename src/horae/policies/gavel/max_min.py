"""Max-min fairness over unlike GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.solve.allocation.problem import AllocationProblem, Solution


@dataclass(frozen=True)
class MaxMin(AllocationPolicy):
    """Raise the job that gets the least of its proportional share of the cluster, then the next, to the last.

    Gavel's heterogeneity-aware least attained service (section 4.1); a plain optimum would leave
    whoever is not a bottleneck with any share at all, so ours is lexicographic.
    """

    objective: ClassVar = "least throughput over that of a proportional share, raised lexicographically"
    unit: ClassVar = "shares"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Fill level by level."""
        from horae.solve.allocation.programs import max_min

        return max_min(problem)
