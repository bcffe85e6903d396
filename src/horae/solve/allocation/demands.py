"""What jobs are to reach at a level, for the policies that make the worst-off as well off as possible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from horae.core.arrays import Floats
from horae.solve.allocation.price_search import PriceDemand

#: So close to the fastest that it is the fastest.
_ALMOST = 1.0 - 1e-12
#: A moment is this part of the time since a job came: rho is not lower for one less.
_MOMENT = 1e-8


@dataclass(frozen=True)
class Proportional:
    """Throughput in proportion to the level, which is the objective of max-min fairness and 1 / makespan."""

    rate: Floats
    fastest: Floats
    lowest: float = 0.0

    @property
    def highest(self) -> float:
        """The level at which the last job has its fastest."""
        return float((self.fastest / self.rate).max())

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Throughputs, and how they grow."""
        q = self.rate * level
        most = q >= self.fastest * _ALMOST
        return np.where(most, self.fastest, q), np.where(most, 0.0, self.rate)


@dataclass(frozen=True)
class FinishTimeDemand:
    """Throughput that finishes a job at rho = 1 / level times its finish time alone on its share.

    rho = (elapsed + steps / throughput) / alone, so throughput = steps / (alone / level - elapsed).

    A job that has next to nothing left wants nothing until rho is what no throughput can lower,
    and then at once all that it can have, at a level that numbers hardly hold. What ends it in a
    moment is enough for it. It has more only of what is left when the others have their fastest.
    """

    steps: Floats
    elapsed_s: Floats
    alone_s: Floats
    fastest: Floats
    lowest: float = 0.0

    @property
    def highest(self) -> float:
        """The level at which the last job has its fastest."""
        return 2 * self._last if (self._enough < self.fastest).any() else self._last

    @cached_property
    def _enough(self) -> Floats:
        """What ends each job in a moment, or its fastest."""
        moment_s = _MOMENT * self.elapsed_s
        sooner = moment_s > self.steps / self.fastest
        return np.where(sooner, self.steps / np.where(sooner, moment_s, 1.0), self.fastest)

    @cached_property
    def _last(self) -> float:
        """The level at which everybody has enough."""
        return float((self.alone_s / (self.elapsed_s + self.steps / self._enough)).max())

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Throughputs, and how they grow."""
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
class Between:
    """A demand in which nobody wants less than its least or more than its most; those that rest have that."""

    demand: PriceDemand
    least: Floats
    most: Floats
    lowest: float

    @property
    def highest(self) -> float:
        """As without limits."""
        return self.demand.highest

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Throughputs, and how they grow."""
        q, growth = self.demand.at(level)
        little, full = q <= self.least, q >= self.most * _ALMOST
        return np.where(full, self.most, np.maximum(q, self.least)), np.where(little | full, 0.0, growth)
