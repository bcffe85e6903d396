"""What jobs are to reach at a level, for the policies that make the worst-off as well off as possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: So close to the fastest that it is the fastest.
_ALMOST = 1.0 - 1e-12
#: A moment: this part of the time since a job came. Levels that differ by less than that are one.
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
class FinishTime:
    """Throughput that finishes a job at rho = 1 / level times its finish time alone on its share.

    rho = (elapsed + steps / throughput) / alone, so throughput = steps / (alone / level - elapsed).

    A job that has next to nothing left wants nothing until rho is what no throughput can lower,
    and then at once all that it can have, at a level that numbers hardly hold. So from the last
    moment on its throughput rises in proportion to the level instead: rho is not lower for more.
    """

    steps: Floats
    elapsed_s: Floats
    alone_s: Floats
    fastest: Floats
    lowest: float = 0.0

    @property
    def highest(self) -> float:
        """The level at which the last job has its fastest."""
        needed_s = self.steps / self.fastest
        return float((self.alone_s * np.maximum(1.0 / (self.elapsed_s + needed_s), _MOMENT / needed_s)).max())

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Throughputs, and how they grow."""
        if level <= 0:
            return np.zeros_like(self.steps), np.zeros_like(self.steps)
        whole_s, needed_s = self.alone_s / level, self.steps / self.fastest
        part = np.where(whole_s * (1.0 - _MOMENT) > self.elapsed_s, 1.0, _MOMENT)
        left_s = np.where(part == 1.0, whole_s - self.elapsed_s, _MOMENT * whole_s)
        most = left_s * _ALMOST <= needed_s
        left_s = np.where(most, 1.0, left_s)
        q = np.where(most, self.fastest, self.steps / left_s)
        return q, np.where(most, 0.0, self.steps / left_s**2 * part * whole_s / level)
