"""The Gittins index from samples of total service, for many jobs at once (Tiresias, NSDI '19, section 3.3).

For a job with attained service a that may get D more, the index is the probability that D is enough, over the
expected service until the job ends or D is used up:

    G(a, D) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

Let F(a) be the number of samples up to a, and M(a) the sum of min(S, a) over all samples: the service that all
sampled jobs together have had by the age a. The conditions on S > a cancel out, and

    G(a, D) = (F(a + D) - F(a)) / (M(a + D) - M(a)),

the slope of a chord of the curve (M(a), F(a)). The best D is the end of the steepest chord that
begins at a, which is a tangent to the upper hull of the samples after a.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from horae.core.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class ServiceDistribution:
    """The distribution of the total service of jobs, by samples: at least one sample, each finite and above 0."""

    samples: Floats

    @cached_property
    def _curve(self) -> tuple[Floats, Floats, Floats]:
        """The distinct samples in order, with F and M at each."""
        ends, count = np.unique(self.samples, return_counts=True)
        ended = np.cumsum(count).astype(np.float64)
        alive = ended[-1] - np.append(0.0, ended[:-1])
        spent = np.cumsum(alive * np.diff(ends, prepend=0.0))
        # Samples that differ by less than the rounding of M are merged.
        apart = np.append(np.diff(spent) > 0, True)
        return ends[apart], ended[apart], spent[apart]

    def _curve_at(self, age: Floats) -> tuple[Ints, Floats, Floats]:
        """Number of distinct samples up to an age, and F and M there."""
        ends, ended, spent = self._curve
        passed = np.searchsorted(ends, age, side="right")
        before = np.maximum(passed - 1, 0)
        count = np.where(passed > 0, ended[before], 0.0)
        had = np.where(passed > 0, spent[before], 0.0)
        # Beyond the last sample no job is left, so M does not grow.
        beyond = np.minimum(age, ends[-1]) - np.where(passed > 0, ends[before], 0.0)
        return passed, count, had + (ended[-1] - count) * beyond

    def _least(self, age: Floats, passed: Ints, begun: Floats) -> Floats:
        """M from an age to the next sample, without the rounding errors of sums as large as M."""
        ends, ended, _ = self._curve
        least: Floats = (ends[np.minimum(passed, len(ends) - 1)] - age) * (ended[-1] - begun)
        return least

    def index(self, age: Floats, quantum: Floats) -> Floats:
        """G(age, quantum) of each job; 0 where no sample is above the age."""
        passed, begun, had = self._curve_at(age)
        _, ended, had_then = self._curve_at(age + quantum)
        service = np.maximum(had_then - had, self._least(age, passed, begun))
        return np.divide(ended - begun, service, out=np.zeros(len(age)), where=ended > begun)

    def best_index(self, age: Floats) -> Floats:
        """The highest G(age, D) over all D of each job; 0 where no sample is above the age."""
        ends, ended, spent = self._curve
        passed, begun, had = self._curve_at(age)
        below_last, least = passed < len(ends), self._least(age, passed, begun)

        def slope(end: Ints) -> Floats:
            """Slope of the chord from the age to a sample."""
            service = np.maximum(spent[end] - had, least)
            return np.divide(ended[end] - begun, service, out=np.zeros(len(age)), where=below_last)

        end = np.minimum(passed, len(ends) - 1)
        for jump in self._jumps[::-1]:
            further = jump[end]
            end = np.where(self._rise[further] > slope(further), further, end)
        end = np.where(self._rise[end] > slope(end), self._jumps[0][end], end)
        return slope(end)

    @cached_property
    def _hull(self) -> tuple[Ints, Floats]:
        """The next corner of the upper hull of each sample and all after it, and the slope of the edge to it.

        From right to left; a corner is dropped while the chord past it is at least as steep. The last sample has
        no edge.
        """
        _, ended, spent = self._curve
        last = len(ended) - 1
        following, rise = np.full(len(ended), last), np.full(len(ended), -1.0)
        for start in range(last - 1, -1, -1):
            end = start + 1
            steepest = (ended[end] - ended[start]) / (spent[end] - spent[start])
            while rise[end] >= steepest:
                end = following[end]
                steepest = (ended[end] - ended[start]) / (spent[end] - spent[start])
            following[start], rise[start] = end, steepest
        return following, rise

    @property
    def _rise(self) -> Floats:
        return self._hull[1]

    @cached_property
    def _jumps(self) -> list[Ints]:
        """The samples that 1, 2, 4, 8 ... edges of the hull lead to from each sample."""
        jumps = [self._hull[0]]
        while (jumps[-1] != len(jumps[-1]) - 1).any():
            jumps.append(jumps[-1][jumps[-1]])
        return jumps
