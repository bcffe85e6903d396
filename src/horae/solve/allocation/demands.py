"""Demands: the throughput that each job must reach at a level, one class for each kind of fairness."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from horae.core.arrays import Floats
from horae.core.jit import FLOATS, compiled
from horae.solve.allocation.price_search import PriceDemand

#: Throughputs this close to the fastest count as the fastest.
_ALMOST = 1.0 - 1e-12
#: A moment, as a fraction of the time since a job came: ending sooner than that does not lower rho.
_MOMENT = 1e-8


@compiled("void", FLOATS, FLOATS, FLOATS, FLOATS)
def limit(least: Floats, most: Floats, q: Floats, growth: Floats) -> None:
    """Keep throughputs q between `least` and `most`, in place; throughputs at a limit do not grow."""
    for m in range(len(q)):
        at_most = q[m] >= most[m] * _ALMOST
        if at_most or q[m] <= least[m]:
            growth[m] = 0.0
        q[m] = most[m] if at_most else max(q[m], least[m])


@dataclass(frozen=True)
class Proportional:
    """Throughput proportional to the level: the level is the objective of max-min fairness, or 1 / makespan."""

    rate: Floats
    fastest: Floats
    lowest: float = 0.0

    @property
    def highest(self) -> float:
        """The level at which the last job reaches its fastest."""
        return float((self.fastest / self.rate).max())

    def throughputs(self, level: float) -> tuple[Floats, Floats]:
        """Steps/s of each job at a level, and their derivative by the level."""
        q, growth = self.rate * level, self.rate.copy()
        limit(self._no_least, self.fastest, q, growth)
        return q, growth

    @cached_property
    def _no_least(self) -> Floats:
        return np.full(len(self.rate), -np.inf)


@dataclass(frozen=True)
class FinishTimeDemand:
    """Throughput that finishes a job at rho = 1 / level times its finish time alone on its share.

    rho = (elapsed + steps / throughput) / alone, so throughput = steps / (alone / level - elapsed).

    The demand of a job with almost no work left is 0 up to the rho that no throughput can lower, and jumps to its
    fastest there, at a level that floating point hardly represents. So a throughput that ends the job in a moment
    counts as enough. The job gets more only after all others have their fastest.
    """

    steps: Floats
    elapsed_s: Floats
    alone_s: Floats
    fastest: Floats
    lowest: float = 0.0

    @property
    def highest(self) -> float:
        """The level at which the last job reaches its fastest."""
        return 2 * self._last if (self._enough < self.fastest).any() else self._last

    @cached_property
    def _enough(self) -> Floats:
        """Throughput that ends each job in a moment, or its fastest."""
        moment_s = _MOMENT * self.elapsed_s
        sooner = moment_s > self.steps / self.fastest
        return np.where(sooner, self.steps / np.where(sooner, moment_s, 1.0), self.fastest)

    @cached_property
    def _last(self) -> float:
        """The level at which all jobs have enough."""
        return float((self.alone_s / (self.elapsed_s + self.steps / self._enough)).max())

    def throughputs(self, level: float) -> tuple[Floats, Floats]:
        """Steps/s of each job at a level, and their derivative by the level."""
        if level <= 0:
            return np.zeros_like(self.steps), np.zeros_like(self.steps)
        if level > self._last:
            more = self.fastest - self._enough
            return self._enough + min(level / self._last - 1.0, 1.0) * more, more / self._last
        left_s = self.alone_s / level - self.elapsed_s
        most = left_s * _ALMOST <= self.steps / self._enough
        left_s = np.where(most, 1.0, left_s)
        q = np.where(most, self._enough, self.steps / left_s)
        return q, np.where(most, 0.0, self.steps / left_s**2 * self.alone_s / level**2)


@dataclass(frozen=True)
class BoundedDemand:
    """A demand with a least and a most throughput for each job; they are equal for a job that is fixed."""

    demand: PriceDemand
    least: Floats
    most: Floats
    lowest: float

    @property
    def highest(self) -> float:
        """The highest level of the demand without bounds."""
        return self.demand.highest

    def throughputs(self, level: float) -> tuple[Floats, Floats]:
        """Steps/s of each job at a level, and their derivative by the level."""
        q, growth = self.demand.throughputs(level)
        limit(self.least, self.most, q, growth)
        return q, growth
