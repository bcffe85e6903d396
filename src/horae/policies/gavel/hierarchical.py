"""Fairness among organisations, teams and users: a tree of queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.solve.allocation.problem import AllocationProblem, Solution


@dataclass(frozen=True)
class Hierarchical(AllocationPolicy):
    """Share by weight among queues, and inside each among its queues and jobs, or first come, first served.

    Gavel's hierarchical policy (section 4.3), for trees of any depth. Everybody is raised in
    proportion to the weight that the tree hands down; a job that cannot rise, because it has its
    fastest or because the GPUs it could use are used up, passes its weight to its siblings first.
    A queue is `fairness` or `fifo`, as configured, and has what it gets however many jobs it has.
    With one fairness queue this is `max-min`.
    """

    objective: ClassVar = "least throughput over that of a proportional share, by weight, of the queues at the top"
    unit: ClassVar = "shares"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Pour down the tree."""
        from horae.solve.allocation.hierarchy import hierarchical

        return hierarchical(problem)
