"""Lexicographic max-min: raise all jobs, fix those that cannot rise, raise the others, and so on.

A job is fixed when one more step/s of it has a price at the prices of the level (raising it would lower another job),
or when it has the most that it can have. Each level takes one search, and each but the last exhausts a capacity that
has a price, so there are few levels. The prices find the bottlenecks, without an integer program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from horae.core.arrays import Floats
from horae.solve.allocation.demands import BoundedDemand
from horae.solve.allocation.price_search import TOLERANCE, Jobs, Level, PriceDemand, highest_level

#: Makes a demand from the least and the most steps/s of each class, and a level that is possible.
DemandMaker = Callable[[Floats, Floats, float], PriceDemand]

#: A price of one more step/s below this, relative to the job's whole worth, counts as 0.
_ZERO_PRICE = 1e-9
#: Throughputs this close to the most count as the most.
_ALMOST = 1.0 - 1e-12
#: Factor by which the next level starts lower: a level may exceed the capacity by the tolerance of the search.
_STEP_BACK = 1.0 - 4 * TOLERANCE


class LevelFound(Protocol):
    """The result of a search for the highest level."""

    @property
    def level(self) -> float:
        """The level."""
        ...

    @property
    def throughput(self) -> Floats:
        """Steps/s of a job of each class at the level."""
        ...

    @property
    def marginal(self) -> Floats:
        """Price of one more step/s of each class."""
        ...


F = TypeVar("F", bound=LevelFound)


class Search(Protocol[F]):
    """A search for the highest level of a demand, for classes of equal jobs."""

    @property
    def least(self) -> Floats:
        """Steps/s that each class has in any case."""
        ...

    @property
    def fastest(self) -> Floats:
        """The most steps/s of each class."""
        ...

    def highest_level(self, demand: PriceDemand) -> F:
        """The highest level that all classes can reach together."""
        ...

    def fix_level(self, found: F) -> tuple[Floats, float]:
        """Fix the bottlenecks of a level.

        Returns the most steps/s of each class from now on, and the fraction of their throughput that fixed classes
        keep for certain.
        """
        ...


def fill(search: Search[F], make_demand: DemandMaker) -> tuple[F, F]:
    """Raise all classes, level by level, until none can rise. Returns the first level and the last."""
    fixed, least, most = np.zeros(len(search.fastest), np.bool_), search.least, search.fastest
    level = first = search.highest_level(make_demand(least, most, 0.0))
    while True:
        worth = level.marginal * search.fastest
        stuck = ~fixed & ((worth > _ZERO_PRICE) | (level.throughput >= most * _ALMOST))
        fixed |= stuck
        if fixed.all() or not stuck.any():
            return first, level
        can_have, kept = search.fix_level(level)
        most = np.where(stuck, level.throughput * kept, np.where(fixed, most, np.minimum(most, can_have)))
        least = np.where(fixed, most, least)
        level = search.highest_level(make_demand(least, most, level.level * kept))


def bounded(demand: PriceDemand) -> DemandMaker:
    """Makes this demand with the bounds of each class."""
    return lambda least, most, lowest: BoundedDemand(demand, least, most, lowest)


@dataclass(frozen=True)
class UnsharedSearch:
    """The search where jobs do not share GPUs: a price search over GPU types."""

    jobs: Jobs
    capacity: Floats

    @property
    def least(self) -> Floats:
        """0 for each class."""
        return np.zeros(len(self.jobs.count))

    @property
    def fastest(self) -> Floats:
        """Steps/s of each class on its fastest type."""
        return self.jobs.fastest

    def highest_level(self, demand: PriceDemand) -> Level:
        """The highest level that all classes can reach together."""
        return highest_level(self.jobs, self.capacity, demand)

    def fix_level(self, found: Level) -> tuple[Floats, float]:
        """Fixed classes use up all types that have a price, so the others are limited to types without a price.

        A class that has reached that limit is fixed with this level, without a search of its own.
        """
        jobs = self.jobs
        worth = (jobs.size * jobs.fastest)[:, None] * found.price
        free: Floats = np.where(worth <= _ZERO_PRICE * jobs.speed, jobs.speed, 0.0).max(axis=1)
        return np.maximum(free, found.throughput), _STEP_BACK
