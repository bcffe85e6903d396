"""Quantities that change over time, kept as the instants at which they change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints


@dataclass(frozen=True)
class StepFunction:
    """A step function: `values[i]` from `times[i]` to `times[i + 1]`; 0 before, the last value after."""

    times: Floats
    values: Floats

    def integral(self, upto_s: Floats) -> NDArray[np.longdouble]:
        """The area to the left of each time.

        Long doubles, because the mean over a job of seconds is the difference of
        two areas gathered over months.
        """
        if not len(self.times):
            return np.zeros(len(upto_s), dtype=np.longdouble)
        areas = np.cumsum(self.values[:-1] * np.diff(self.times).astype(np.longdouble))
        areas = np.concatenate(([np.longdouble(0)], areas))
        step = np.searchsorted(self.times, upto_s, side="right") - 1
        inside = np.maximum(step, 0)
        area = areas[inside] + self.values[inside] * (upto_s - self.times[inside]).astype(np.longdouble)
        return np.where(step < 0, np.longdouble(0), area)

    def means(self, begin_s: Floats, end_s: Floats) -> Floats:
        """The time average over each interval; 0 for an interval without length."""
        length = end_s - begin_s
        area = (self.integral(end_s) - self.integral(begin_s)).astype(np.float64)
        return np.divide(area, length, out=np.zeros(len(length)), where=length > 0)

    def binned(self, edges_s: Floats) -> Floats:
        """The time average in each bin between neighbouring edges."""
        return self.means(edges_s[:-1], edges_s[1:])


def overlap(begin_s: Floats, end_s: Floats, weight: Floats | Ints | None = None) -> StepFunction:
    """The sum of weights (by default, the number) of the intervals that cover each instant."""
    weights = np.ones(len(begin_s)) if weight is None else np.asarray(weight, dtype=np.float64)
    times, position = np.unique(np.concatenate((begin_s, end_s)), return_inverse=True)
    change = np.bincount(position, np.concatenate((weights, -weights)), minlength=len(times))
    return StepFunction(times, np.cumsum(change))


def sums(values: Floats | Ints, group: Ints, groups: int) -> Floats:
    """The sum of each group's values; 0 for a group without any."""
    return np.bincount(group, np.asarray(values, dtype=np.float64), minlength=groups).astype(np.float64, copy=False)


def counting(first: Ints, length: Ints) -> Ints:
    """Whole numbers from each `first` on, as many as `length` says, end to end: 5, 0 and 2, 3 give 5 6 0 1 2."""
    before = np.cumsum(length) - length
    numbers: Ints = np.arange(int(length.sum())) + np.repeat(first - before, length)
    return numbers
