"""Shortest makespan over unlike GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.allocation import AllocationPolicy
from horae.solve.problem import Problem, Solution


@dataclass(frozen=True)
class Makespan(AllocationPolicy):
    """Let the last job end as soon as possible; then the last but one, so that short jobs do not starve.

    Gavel, section 4.2; its plain optimum starves whoever does not matter for the end.
    """

    objective: ClassVar = "time until the last job ends, then the last but one"
    unit: ClassVar = "s"

    def allocate(self, problem: Problem) -> Solution:
        """Shorten level by level."""
        from horae.solve.programs import makespan

        return makespan(problem)
