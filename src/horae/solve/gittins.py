"""The Gittins index from samples of total service, for many jobs at once (Tiresias, NSDI '19, section 3.3).

Of a job that has had the service a and may get D more, the index is the chance that D is enough
over the service that this is expected to take:

    G(a, D) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

Let F(a) be the number of samples up to a, and M(a) the sum of min(S, a) over all samples: the service
that all of them together have had by the age a. Both conditions on S > a cancel out, and

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
    """How much service jobs take in all, by samples; at least one, each finite and above 0."""

    samples: Floats

    @cached_property
    def _curve(self) -> tuple[Floats, Floats, Floats]:
        """The different samples in order, with F and M at each."""
        ends, count = np.unique(self.samples, return_counts=True)
        ended = np.cumsum(count).astype(np.float64)
        alive = ended[-1] - np.append(0.0, ended[:-1])
        spent = np.cumsum(alive * np.diff(ends, prepend=0.0))
        # Samples that differ by less than a sum as large as M can tell are one.
        apart = np.append(np.diff(spent) > 0, True)
        return ends[apart], ended[apart], spent[apart]

    def _at(self, age: Floats) -> tuple[Ints, Floats, Floats]:
        """How many different samples lie at or below an age, and F and M there."""
        ends, ended, spent = self._curve
        passed = np.searchsorted(ends, age, side="right")
        before = np.maximum(passed - 1, 0)
        count = np.where(passed > 0, ended[before], 0.0)
        had = np.where(passed > 0, spent[before], 0.0)
        # Beyond the last sample nobody is left, so that nothing is added.
        beyond = np.minimum(age, ends[-1]) - np.where(passed > 0, ends[before], 0.0)
        return passed, count, had + (ended[-1] - count) * beyond

    def _least(self, age: Floats, passed: Ints, begun: Floats) -> Floats:
        """Service from an age to the next sample. It is known to all digits, where sums as large as M are not."""
        ends, ended, _ = self._curve
        least: Floats = (ends[np.minimum(passed, len(ends) - 1)] - age) * (ended[-1] - begun)
        return least

    def index(self, age: Floats, quantum: Floats) -> Floats:
        """The index of each job with the service that it may get next; 0 where no sample is above its age."""
        passed, begun, had = self._at(age)
        _, ended, had_then = self._at(age + quantum)
        way = np.maximum(had_then - had, self._least(age, passed, begun))
        return np.divide(ended - begun, way, out=np.zeros(len(age)), where=ended > begun)

    def best_index(self, age: Floats) -> Floats:
        """The index of each job with the quantum that makes it highest; 0 where no sample is above its age."""
        ends, ended, spent = self._curve
        passed, begun, had = self._at(age)
        known, least = passed < len(ends), self._least(age, passed, begun)

        def slope(at: Ints) -> Floats:
            """Of the chord that ends at a sample."""
            way = np.maximum(spent[at] - had, least)
            return np.divide(ended[at] - begun, way, out=np.zeros(len(age)), where=known)

        at = np.minimum(passed, len(ends) - 1)
        for jump in self._jumps[::-1]:
            further = jump[at]
            at = np.where(self._rise[further] > slope(further), further, at)
        at = np.where(self._rise[at] > slope(at), self._jumps[0][at], at)
        return slope(at)

    def equal_parts(self, parts: int) -> Floats:
        """The ages between which equal parts of all service are given: M there is 1/parts of the whole, 2/parts ..."""
        ends, _, spent = self._curve
        wanted = spent[-1] * np.arange(1, parts) / parts
        return np.asarray(np.interp(wanted, np.append(0.0, spent), np.append(0.0, ends)), np.float64)

    @cached_property
    def _hull(self) -> tuple[Ints, Floats]:
        """The next corner of the upper hull of each sample and all after it, and the slope of the edge to it.

        Going from right to left, a corner is dropped while the way past it is at least as steep. The last
        sample has no edge.
        """
        _, ended, spent = self._curve
        last = len(ended) - 1
        following, rise = np.full(len(ended), last), np.full(len(ended), -1.0)
        for at in range(last - 1, -1, -1):
            to = at + 1
            steepest = (ended[to] - ended[at]) / (spent[to] - spent[at])
            while rise[to] >= steepest:
                to = following[to]
                steepest = (ended[to] - ended[at]) / (spent[to] - spent[at])
            following[at], rise[at] = to, steepest
        return following, rise

    @property
    def _rise(self) -> Floats:
        return self._hull[1]

    @cached_property
    def _jumps(self) -> list[Ints]:
        """Where 1, 2, 4, 8 ... edges of the hull lead from each sample."""
        jumps = [self._hull[0]]
        while (jumps[-1] != len(jumps[-1]) - 1).any():
            jumps.append(jumps[-1][jumps[-1]])
        return jumps
