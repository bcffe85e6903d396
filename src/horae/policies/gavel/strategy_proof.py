"""Fairness that does not pay those who lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.solve.allocation.problem import AllocationProblem, Solution


@dataclass(frozen=True)
class StrategyProof(AllocationPolicy):
    """Make the product of throughputs as large as possible, and let each job pay with time for what it costs others.

    Gavel's strategy-proof policy (section 4.4): a job that understates or overstates its speeds ends
    up with less. What is paid goes to whoever can use it, as idle GPUs always do. It takes one
    solution for each kind of job, so it is for clusters where people lie. With space sharing one lie
    may still pay: that company costs less than it does.
    """

    objective: ClassVar = "sum of weight * log(throughput), before each job pays"
    unit: ClassVar = "nats"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Nash welfare, then payments."""
        from horae.solve.allocation.nash import strategy_proof

        return strategy_proof(problem)
