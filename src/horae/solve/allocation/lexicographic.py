"""Lexicographic max-min: raise everybody, let those that cannot rise rest, raise the others, and so on.

A job rests when one more step/s of it would cost something at the prices of the level
(then raising it would lower somebody else), or when it has the most that it can have. Each
level takes one search, and each but the last exhausts something that has a price, so there
are few; no integer program finds the bottlenecks, the prices do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from horae.core.arrays import Floats
from horae.solve.allocation.demands import Between
from horae.solve.allocation.price_search import TOLERANCE, Jobs, Level, PriceDemand, highest_level

#: The demand in which everybody has at least, and at most, so many steps/s, from a level that is possible.
Demanding = Callable[[Floats, Floats, float], PriceDemand]

#: What one more step/s may cost, relative to the job's whole worth, and still count as nothing.
_NOTHING = 1e-9
#: So close to the most that it is the most.
_ALMOST = 1.0 - 1e-12
#: A level may exceed the capacity by the search's tolerance; the next one starts this much lower, so that it exists.
_STEP_BACK = 1.0 - 4 * TOLERANCE


class LevelFound(Protocol):
    """What a search for the highest level finds."""

    @property
    def level(self) -> float:
        """The level."""
        ...

    @property
    def throughput(self) -> Floats:
        """Steps/s of a job of each class there."""
        ...

    @property
    def marginal(self) -> Floats:
        """What one more step/s of each class would cost."""
        ...


F = TypeVar("F", bound=LevelFound)


class Search(Protocol[F]):
    """A way to the highest level of a demand, for classes of equal jobs."""

    @property
    def least(self) -> Floats:
        """Steps/s that everybody has in any case."""
        ...

    @property
    def fastest(self) -> Floats:
        """The most steps/s that anybody can have."""
        ...

    def highest_level(self, demand: PriceDemand) -> F:
        """The highest level that everybody can reach together."""
        ...

    def settle(self, found: F) -> tuple[Floats, float]:
        """The most steps/s that classes can have beside those that rest now, and the part that these surely keep."""
        ...


def fill(search: Search[F], demanding: Demanding) -> tuple[F, F]:
    """Raise all, level by level, until nobody can rise; gives the first level and the last."""
    rests, least, most = np.zeros(len(search.fastest), np.bool_), search.least, search.fastest
    level = first = search.highest_level(demanding(least, most, 0.0))
    while True:
        worth = level.marginal * search.fastest
        stuck = ~rests & ((worth > _NOTHING) | (level.throughput >= most * _ALMOST))
        rests |= stuck
        if rests.all() or not stuck.any():
            return first, level
        can_have, kept = search.settle(level)
        most = np.where(stuck, level.throughput * kept, np.where(rests, most, np.minimum(most, can_have)))
        least = np.where(rests, most, least)
        level = search.highest_level(demanding(least, most, level.level * kept))


def within(demand: PriceDemand) -> Demanding:
    """A demand, for whoever has not come to rest."""
    return lambda least, most, lowest: Between(demand, least, most, lowest)


@dataclass(frozen=True)
class Alone:
    """The search where nobody shares GPUs: prices of GPU types tell what everybody does."""

    jobs: Jobs
    capacity: Floats

    @property
    def least(self) -> Floats:
        """Nothing."""
        return np.zeros(len(self.jobs.count))

    @property
    def fastest(self) -> Floats:
        """On the best type."""
        return self.jobs.fastest

    def highest_level(self, demand: PriceDemand) -> Level:
        """The highest level that everybody can reach together."""
        return highest_level(self.jobs, self.capacity, demand)

    def settle(self, found: Level) -> tuple[Floats, float]:
        """Those that rest use up all that has a price, for good: the others never have more than what costs nothing.

        Whoever reaches that is passed over at once, without a search of its own.
        """
        jobs = self.jobs
        worth = (jobs.size * jobs.fastest)[:, None] * found.price
        free: Floats = np.where(worth <= _NOTHING * jobs.speed, jobs.speed, 0.0).max(axis=1)
        return np.maximum(free, found.throughput), _STEP_BACK
