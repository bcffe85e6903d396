"""Shortest makespan over unlike GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats
from horae.core.snapshot import Snapshot
from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.policies.gavel.rounds import TimeShares
from horae.solve.allocation.problem import AllocationProblem, Solution

#: Who runs gives way to shorter jobs if it has a round to spare, or this part of what is left until the end.
_PRESSING = 0.1
#: Less to spare than this is nothing; and to look again before this part of a round is over is for nothing.
_INSTANT_S, _BLINK = 1e-3, 0.1
#: In claims: before everybody who can wait, and after everybody who is entitled to a type.
_FIRST_S, _LAST_S = 1e9, -1e12
#: How much of what a job is owed on one type rather than another counts.
_MIX = 0.01


@dataclass(frozen=True)
class Makespan(AllocationPolicy):
    """Let the last job end as soon as possible; short jobs go first while the others have time to spare.

    Gavel, section 4.2; its plain optimum starves whoever does not matter for the end.
    """

    objective: ClassVar = "time until the last job ends, then the last but one"
    unit: ClassVar = "s"
    timeless: ClassVar = False

    def allocate(self, problem: AllocationProblem) -> Solution:
        """Shorten level by level."""
        from horae.solve.allocation.programs import makespan

        return makespan(problem)

    def least_share(self, solution: Solution) -> Floats:
        """Everybody is to end, so the share of a short job may be tiny beside long ones: it counts by its own size."""
        greatest = solution.share.max(axis=1, initial=0.0)
        for side in range(2 if len(solution.pairs) else 0):
            np.maximum.at(greatest, solution.pairs[:, side], solution.pair_share.max(axis=1))
        least: Floats = 1e-6 * np.minimum(greatest, 1.0)
        return least

    def claims(self, now: Snapshot, shares: TimeShares, owed_s: Floats) -> Floats:
        """Those first that have no time to spare until the end, then the shortest.

        TimeShares say how much of which GPUs each job gets until the end, not in which order: who has
        time to spare may wait for shorter jobs, and the end comes no later. What somebody has
        missed it has left to do, so the next solution makes up for it, and no debt is kept but
        between types.
        """
        spare_s = _spare_s(now, shares)
        claim_s = np.where(spare_s < self._needed_s(now, shares, spare_s), _FIRST_S - spare_s, -now.remaining_s)
        return np.where(shares.total > 0, claim_s[:, None] + _MIX * owed_s, _LAST_S)

    def next_claim_s(self, now: Snapshot, shares: TimeShares) -> float:
        """When the first of those that wait has no more time to spare."""
        if now.has_gpus.all():
            return np.inf
        spare_s = _spare_s(now, shares)
        waits = spare_s >= np.maximum(self._needed_s(now, shares, spare_s), _INSTANT_S)
        return now.now_s + max(float(np.min(spare_s, where=waits, initial=np.inf)), _BLINK * self.round)

    def _needed_s(self, now: Snapshot, shares: TimeShares, spare_s: Floats) -> Floats:
        """Time to spare below which a job must not wait.

        Who runs gives way for a round at least, or for all of a shorter job. Who waits already can wait
        until none is left, unless it may then get the slower ones of its GPU types first.
        """
        shortest_s = np.min(now.remaining_s, where=~now.has_gpus, initial=np.inf)
        round_s = min(_PRESSING * (spare_s + now.remaining_s).max(initial=0.0), self.round)
        waiting_s = np.maximum(round_s * _unevenness(now, shares), _INSTANT_S)
        needed_s: Floats = np.where(now.has_gpus, min(round_s, shortest_s), waiting_s)
        return needed_s


def _spare_s(now: Snapshot, shares: TimeShares) -> Floats:
    """How long each job can wait so that it still ends with the last one."""
    total = shares.total
    speed = np.maximum((now.rates * total).sum(axis=1), 1e-300)
    ends_s = np.where(total.any(axis=1), now.work_left / speed, 0.0)
    spare_s: Floats = ends_s.max(initial=0.0) - ends_s * total.sum(axis=1)
    return spare_s


def _unevenness(now: Snapshot, shares: TimeShares) -> Floats:
    """By which part of its speed a job is slower on the slowest type it has a share of than on the fastest."""
    own = shares.total > 0
    fastest = np.max(now.rates, axis=1, where=own, initial=0.0)
    slowest = np.min(now.rates, axis=1, where=own, initial=np.inf)
    uneven: Floats = 1.0 - np.divide(slowest, fastest, out=np.ones(len(now)), where=fastest > 0)
    return uneven
