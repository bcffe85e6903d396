"""Lexicographic max-min: raise everybody, let those that cannot rise rest, raise the others, and so on.

A job rests when one more step/s of it would cost something at the prices of the level
(then raising it would lower somebody else), or when it has its fastest. Each level takes one
price search, and each but the last exhausts a GPU type, so there are few; no integer program
finds the bottlenecks, the prices do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.solve.prices import TOLERANCE, Demand, Jobs, Level, highest_level

Floats = NDArray[np.float64]

#: What one more step/s may cost, relative to the job's whole worth, and still count as nothing.
_NOTHING = 1e-9
#: A level may exceed the capacity by the search's tolerance; the next one starts this much lower, so that it exists.
_STEP_BACK = 1.0 - 4 * TOLERANCE


@dataclass(frozen=True)
class _Resting:
    """A demand in which some jobs stay where they are."""

    demand: Demand
    rests: NDArray[np.bool_]
    stays: Floats
    lowest: float

    @property
    def highest(self) -> float:
        return self.demand.highest

    def at(self, level: float) -> tuple[Floats, Floats]:
        q, growth = self.demand.at(level)
        return np.where(self.rests, self.stays, q), np.where(self.rests, 0.0, growth)


@dataclass(frozen=True)
class Levels:
    """The last level's allocation, the level at which each job came to rest, and the first level of all."""

    last: Level
    first: Level
    of_job: Floats


def fill(jobs: Jobs, capacity: Floats, demand: Demand) -> Levels:
    """Raise all jobs level by level until nobody can rise."""
    rests = np.zeros(len(jobs.count), np.bool_)
    of_job = np.full(len(jobs.count), np.inf)
    level = first = highest_level(jobs, capacity, demand)
    while True:
        stays = level.throughput
        worth = level.marginal * jobs.fastest
        stuck = ~rests & ((worth > _NOTHING) | (stays >= jobs.fastest * (1 - 1e-12)))
        of_job[stuck] = level.level
        rests |= stuck
        if rests.all() or not stuck.any():
            return Levels(level, first, np.where(rests, of_job, level.level))
        resting = _Resting(demand, rests, stays * _STEP_BACK, level.level * _STEP_BACK)
        level = highest_level(jobs, capacity, resting)
