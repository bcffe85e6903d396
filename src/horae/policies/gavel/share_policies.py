"""Gavel's policies that differ in the allocation program alone: a problem goes in, shares of time come out.

Everything else (rounds, time owed, settings) is `AllocationPolicy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.solve.allocation.problem import AllocationProblem, Solution


@dataclass(frozen=True)
class MaxMin(AllocationPolicy):
    """Raise the job that gets the least of its proportional share of the cluster, then the next, to the last.

    Gavel's heterogeneity-aware least attained service (section 4.1). The choice that is ours: the maximum is
    lexicographic. The plain maximum would leave a job that is no bottleneck with any share, down to none.
    """

    objective: ClassVar = "least throughput over that of a proportional share, raised lexicographically"
    unit: ClassVar = "shares"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Max-min fair shares, level by level."""
        from horae.solve.allocation.programs import max_min

        return max_min(problem)


@dataclass(frozen=True)
class WaterFilling(MaxMin):
    """Raise all jobs alike until some cannot rise, then the others, to the last: max-min fairness made lexicographic.

    Gavel has water filling apart from plain max-min fairness, and finds the jobs that cannot rise with an
    integer program (section 4.3). `MaxMin` is lexicographic already, so both policies give the same shares here;
    this name exists for readers who look for it.
    """


@dataclass(frozen=True)
class Hierarchical(AllocationPolicy):
    """Share by weight among queues, and inside each among its queues and jobs, or first come, first served.

    Gavel's hierarchical policy (section 4.3), for trees of any depth. Each job rises in proportion to the weight
    that the tree hands down. A job that cannot rise (it has all the time of its fastest type, or the GPUs that it
    can use are used up) passes its weight to its siblings first. A queue is `fairness` or `fifo`, as configured;
    its share does not depend on its number of jobs. With one fairness queue this is `max-min`.
    """

    objective: ClassVar = "least throughput over that of a proportional share, by weight, of the queues at the top"
    unit: ClassVar = "shares"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Shares by the weights of the queue tree."""
        from horae.solve.allocation.hierarchy import hierarchical

        return hierarchical(problem)


@dataclass(frozen=True)
class TotalThroughput(AllocationPolicy):
    """Get the most work done: the largest sum of throughputs, each over that of a proportional share.

    Gavel, section 4.2. The policy is not fair: a job that is nowhere faster than others waits for idle GPUs.
    """

    objective: ClassVar = "sum of throughput over that of a proportional share"
    unit: ClassVar = "shares"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """One linear program."""
        from horae.solve.allocation.programs import total_throughput

        return total_throughput(problem)


@dataclass(frozen=True)
class StrategyProof(AllocationPolicy):
    """Make the product of throughputs as large as possible, and let each job pay with time for what it costs others.

    Gavel's strategy-proof policy (section 4.4): a job that misstates its speeds ends up with less. The time that
    jobs pay goes to the jobs that can use it, as idle GPUs always do. The program is solved once for each class
    of equal jobs, so the policy is for clusters where users misreport. With space sharing one misreport may still
    pay: speeds beside other jobs that are higher than the true ones.
    """

    objective: ClassVar = "sum of weight * log(throughput), before each job pays"
    unit: ClassVar = "nats"

    def allocate(self, problem: AllocationProblem) -> Solution:
        """The allocation of largest Nash welfare, less each job's payment."""
        from horae.solve.allocation.nash import strategy_proof

        return strategy_proof(problem)
