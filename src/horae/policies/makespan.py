"""Shortest makespan over unlike GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Snapshot
from horae.policies.allocation import AllocationPolicy
from horae.policies.rounds import Shares
from horae.solve.problem import Problem, Solution

Floats = NDArray[np.float64]

#: Who has less time to spare than a round, or than this part of what is left until the end, must not wait.
_PRESSING = 0.1
#: In claims: before everybody who can wait, and after everybody who is entitled to a type.
_FIRST_S, _LAST_S = 1e9, -1e12
#: How much of what a job is owed on one type rather than another counts.
_MIX = 0.01


@dataclass(frozen=True)
class Makespan(AllocationPolicy):
    """Let the last job end as soon as possible; short jobs go first while the others have a round to spare.

    Gavel, section 4.2; its plain optimum starves whoever does not matter for the end.
    """

    objective: ClassVar = "time until the last job ends, then the last but one"
    unit: ClassVar = "s"
    timeless: ClassVar = False

    def allocate(self, problem: Problem) -> Solution:
        """Shorten level by level."""
        from horae.solve.programs import makespan

        return makespan(problem)

    def claims(self, now: Snapshot, shares: Shares, owed_s: Floats) -> Floats:
        """Those first that have no time to spare until the end, then the shortest.

        Shares say how much of which GPUs each job gets until the end, not in which order: who has
        time to spare may wait for shorter jobs, and the end comes no later. What somebody has
        missed it has left to do, so the next solution makes up for it, and no debt is kept but
        between types.
        """
        total = shares.total
        speed = np.maximum((now.rates * total).sum(axis=1), 1e-300)
        ends_s = np.where(total.any(axis=1), now.work_left / speed, 0.0)
        end_s = ends_s.max(initial=0.0)
        spare_s = end_s - ends_s * total.sum(axis=1)
        pressing = spare_s < min(_PRESSING * end_s, self.round)
        claim_s = np.where(pressing, _FIRST_S - spare_s, -now.remaining_s)
        return np.where(total > 0, claim_s[:, None] + _MIX * owed_s, _LAST_S)
