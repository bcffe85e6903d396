"""Makespan: the last job ends as soon as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats
from horae.core.snapshot import Snapshot
from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.policies.gavel.rounds import TimeShares
from horae.solve.allocation.problem import AllocationProblem, Solution

#: A running job gives way to shorter jobs if it has a round to spare, or this fraction of the time left to the end.
_SPARE_FRACTION = 0.1
#: Less time to spare than this counts as none; and the policy is not woken before this fraction of a round.
_INSTANT_S, _LEAST_WAKE = 1e-3, 0.1
#: Claims in seconds: before all jobs that can wait, and after all jobs with a share of the type.
_FIRST_S, _LAST_S = 1e9, -1e12
#: Weight of the time owed in a claim: it decides between the GPU types of one job.
_OWED_WEIGHT = 0.01


@dataclass(frozen=True)
class Makespan(AllocationPolicy):
    """Let the last job end as soon as possible; short jobs go first while the others have time to spare.

    Gavel, section 4.2. The choice that is ours: the minimum is lexicographic. The plain minimum would starve jobs
    that do not decide the makespan.
    """

    objective: ClassVar = "time until the last job ends, then the last but one"
    unit: ClassVar = "s"
    timeless: ClassVar = False

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Shares that shorten the makespan, then the next latest end, level by level."""
        from horae.solve.allocation.programs import makespan

        return makespan(problem)

    def least_share(self, solution: Solution) -> Floats:
        """Relative to the job's largest share: a short job beside long jobs has a tiny share, and needs it to end."""
        greatest = solution.share.max(axis=1, initial=0.0)
        for side in range(2 if len(solution.pairs) else 0):
            np.maximum.at(greatest, solution.pairs[:, side], solution.pair_share.max(axis=1))
        least: Floats = 1e-6 * np.minimum(greatest, 1.0)
        return least

    def claims(self, now: Snapshot, shares: TimeShares, owed_s: Floats) -> Floats:
        """Jobs without time to spare first, then the jobs with the least time left.

        Shares say how much of each type a job gets until the end, not in which order: a job with time to spare
        may wait for shorter jobs, and the end comes no later. Time that a job has missed is work left, which the
        next solution counts, so time owed matters only between the types of one job.
        """
        spare_s = _spare_s(now, shares)
        claim_s = np.where(spare_s < self._needed_s(now, shares, spare_s), _FIRST_S - spare_s, -now.remaining_s)
        return np.where(shares.total > 0, claim_s[:, None] + _OWED_WEIGHT * owed_s, _LAST_S)

    def claims_per_s(self, now: Snapshot, shares: TimeShares) -> None:
        """Not known: claims are by the time to spare, which changes with every solution."""

    def next_claim_s(self, now: Snapshot, shares: TimeShares) -> float:
        """When the first waiting job runs out of time to spare."""
        if now.has_gpus.all():
            return np.inf
        spare_s = _spare_s(now, shares)
        waits = spare_s >= np.maximum(self._needed_s(now, shares, spare_s), _INSTANT_S)
        return now.now_s + max(float(np.min(spare_s, where=waits, initial=np.inf)), _LEAST_WAKE * self.round)

    def _needed_s(self, now: Snapshot, shares: TimeShares, spare_s: Floats) -> Floats:
        """Least time to spare, in seconds, with which each job may wait.

        A running job that gives way waits for a round at least, or until a shorter job ends. A waiting job can wait
        until no time is left, unless it may get its slower GPU types first then.
        """
        shortest_s = np.min(now.remaining_s, where=~now.has_gpus, initial=np.inf)
        round_s = min(_SPARE_FRACTION * (spare_s + now.remaining_s).max(initial=0.0), self.round)
        waiting_s = np.maximum(round_s * _unevenness(now, shares), _INSTANT_S)
        needed_s: Floats = np.where(now.has_gpus, min(round_s, shortest_s), waiting_s)
        return needed_s


def _spare_s(now: Snapshot, shares: TimeShares) -> Floats:
    """Seconds that each job can wait and still end with the last job."""
    total = shares.total
    speed = np.maximum((now.rates * total).sum(axis=1), 1e-300)
    ends_s = np.where(total.any(axis=1), now.work_left / speed, 0.0)
    spare_s: Floats = ends_s.max(initial=0.0) - ends_s * total.sum(axis=1)
    return spare_s


def _unevenness(now: Snapshot, shares: TimeShares) -> Floats:
    """1 - slowest / fastest speed of each job over the GPU types of which it has a share."""
    has_share = shares.total > 0
    fastest = np.max(now.rates, axis=1, where=has_share, initial=0.0)
    slowest = np.min(now.rates, axis=1, where=has_share, initial=np.inf)
    uneven: Floats = 1.0 - np.divide(slowest, fastest, out=np.ones(len(now)), where=fastest > 0)
    return uneven
