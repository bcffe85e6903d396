"""Price search: the highest level that all jobs can reach together, found through prices of GPU types.

At a level, job m must reach the throughput q_m(level), which grows with the level. Whether all jobs can is decided in
as many dimensions as there are GPU types: throughputs q are possible if and only if at no prices p the cheapest shares
for them cost more than the capacity is worth. Prices that refute a level (cutting planes, proposed by a small linear
program) also tell how far the level must fall (a Newton step). Once no prices refute the level, the multipliers of the
program mix the shares at the prices tried into an allocation.

The dual of Gavel's programs (OSDI '20, section 4), solved without a row for each job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import highspy
import numpy as np

from horae.core.arrays import Floats
from horae.solve.allocation.cheapest_mix import cheapest_shares, marginal_prices, usage_and_slopes

#: Allowed error, relative to the worth of all capacity.
TOLERANCE = 1e-9
_MOST_STEPS = 1000


class PriceDemand(Protocol):
    """The throughput that each job must reach at a level."""

    def throughputs(self, level: float) -> tuple[Floats, Floats]:
        """Steps/s of each job at a level, at most its fastest, and their derivative by the level."""
        ...

    @property
    def lowest(self) -> float:
        """A level that all jobs can reach."""
        ...

    @property
    def highest(self) -> float:
        """A level at which each job has its fastest throughput."""
        ...


@dataclass(frozen=True)
class Jobs:
    """Jobs, or classes of equal jobs: `count` jobs of `gpus` GPUs each, and their steps/s by GPU type."""

    speed: Floats
    gpus: Floats
    count: Floats

    @cached_property
    def size(self) -> Floats:
        """GPUs of all jobs of a class together."""
        return self.gpus * self.count

    @cached_property
    def fastest(self) -> Floats:
        """The most steps/s of each job."""
        fastest: Floats = self.speed.max(axis=1)
        return fastest


@dataclass(frozen=True)
class Level:
    """The highest level, its throughputs and its shares."""

    level: float
    throughput: Floats
    share: Floats
    #: Price of one GPU of each type; all capacity together is worth 1. All 0 if no capacity binds.
    price: Floats
    #: Price of one more step/s of each job; infinite at its fastest.
    marginal: Floats
    #: Largest excess of the shares over the capacity of a type, relative to that.
    gap: float


def highest_level(jobs: Jobs, capacity: Floats, demand: PriceDemand) -> Level:
    """The highest level that all jobs can reach together."""
    search = _PriceSearch(jobs, capacity)
    level, proof = demand.highest, np.zeros(len(capacity))
    for _ in range(_MOST_STEPS):
        q, _growth = demand.throughputs(level)
        price = search.refute(q)
        if price is None:
            return search.found_level(level, q, proof)
        level, proof = _lower(jobs, capacity, demand, price, level), price
    raise AssertionError(f"no level after {_MOST_STEPS} prices")


def _lower(jobs: Jobs, capacity: Floats, demand: PriceDemand, price: Floats, above: float) -> float:
    """The highest level at which the demand costs no more than the capacity is worth.

    The cost grows with the level. It is convex except for bends where a job reaches its fastest, and may be
    flat below the root. So Newton's method comes from above, between two bounds; where its step falls below
    the lower bound, the root is close to that.
    """
    usage, marginal, slopes = np.empty(len(capacity)), np.empty(len(jobs.count)), np.empty(len(jobs.count))
    worth = capacity @ price

    def excess_at(level: float) -> tuple[float, float]:
        q, growth = demand.throughputs(level)
        growing = usage_and_slopes(q, growth, jobs.fastest, jobs.speed, jobs.size, price, usage, marginal, slopes)
        return float(usage @ price - worth), float(marginal[:growing] @ slopes[:growing])

    low, high = demand.lowest, above
    excess, slope = excess_at(high)
    for step in range(_MOST_STEPS):
        if high - low <= 1e-12 * high:
            break
        level = high - excess / slope if 0 < slope < np.inf else -np.inf
        if not low < level < high:
            level = low + (high - low) * (1e-3 if level <= low and np.isfinite(level) and step % 3 else 0.5)
        found = excess_at(level)
        if found[0] > TOLERANCE / 100:
            high, (excess, slope) = level, found
        else:
            low = level
    return low


def _solver() -> Any:
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    options = {"output_flag": False, "threads": 1}
    tolerances = {f"{side}_feasibility_tolerance": TOLERANCE / 10 for side in ("primal", "dual")}
    for name, value in {**options, **tolerances}.items():
        highs.setOptionValue(name, value)
    return highs


class _PriceSearch:
    """The prices tried so far, and the small program that proposes the next prices."""

    def __init__(self, jobs: Jobs, capacity: Floats) -> None:
        self._jobs, self._capacity = jobs, capacity
        self._usable = capacity > 0
        worth = np.where(self._usable, capacity, 1.0)
        types = len(capacity)
        #: At first a price on each type alone, and equal prices: these soon show which capacity binds.
        self._tried: list[Floats] = [row / worth for row in np.eye(types)[self._usable]]
        self._tried.append(np.where(self._usable, 1.0, 0.0) / capacity.sum())
        self._program = _solver()
        #: Shares at the prices tried for the present throughputs, and their cuts that are not in the program yet.
        self._shares: list[Floats] = []
        self._new_cuts: list[Floats] = []

    def refute(self, q: Floats) -> Floats | None:
        """Prices at which throughputs q cost more than the capacity is worth; None if no such prices exist."""
        self._shares, self._new_cuts = [], []
        for price in self._tried[-2 * len(self._capacity) - 2 :]:
            if self._cut(q, price) > TOLERANCE:
                return price
        for _ in range(_MOST_STEPS):
            worst, price = self._propose()
            if worst <= TOLERANCE:
                return None
            self._tried.append(price)
            excess = self._cut(q, price)
            if excess > TOLERANCE:
                return price
            if worst - excess <= TOLERANCE:
                # The program is exact to the tolerance, and these prices are the worst.
                return None
        raise AssertionError(f"no answer after {_MOST_STEPS} cuts")

    def found_level(self, level: float, q: Floats, proof: Floats) -> Level:
        """The level, with shares mixed from those at the prices tried so that they keep to the capacity.

        `proof`: prices at which no higher level is possible.
        """
        if self._new_cuts:
            self._add_cuts()
        weight = np.abs(np.array(self._program.getSolution().row_dual)[1:])
        total = weight.sum()
        weight = weight / total if total > 0 else np.eye(len(self._shares))[0]
        share = np.zeros_like(self._jobs.speed)
        for factor, tried in zip(weight, self._shares, strict=True):
            if factor > 0:
                share += factor * tried
        usage = self._jobs.size @ share
        marginal = np.empty(len(q))
        marginal_prices(q, self._jobs.fastest, self._jobs.speed, self._jobs.size, proof, marginal)
        over = (usage - self._capacity) / np.where(self._usable, self._capacity, 1.0)
        return Level(level, q, share, proof, marginal, max(0.0, float(over.max())))

    def _cut(self, q: Floats, price: Floats) -> float:
        """Add the cheapest shares at these prices as a cut. Returns their cost less the worth of the capacity."""
        usage, share = np.empty(len(self._capacity)), np.empty_like(self._jobs.speed)
        cheapest_shares(q, self._jobs.speed, self._jobs.size, price, usage, share)
        usage -= self._capacity
        self._shares.append(share)
        self._new_cuts.append(usage)
        return float(usage @ price)

    def _propose(self) -> tuple[float, Floats]:
        """The largest excess that the cuts allow, and the prices that have it."""
        if len(self._new_cuts) == len(self._shares):
            self._begin()
        self._add_cuts()
        self._program.run()
        values = np.array(self._program.getSolution().col_value)
        return float(values[-1]), np.maximum(values[:-1], 0.0)

    def _begin(self) -> None:
        """Start the program: prices at which all capacity is worth 1; the objective is the least excess of all cuts."""
        program, types = self._program, len(self._capacity)
        program.clearModel()
        infinite = np.full(types, highspy.kHighsInf)
        lower, upper = np.zeros(types), np.where(self._usable, infinite, 0.0)
        cost = np.append(np.zeros(types), 1.0)
        no_entries = (0, np.zeros(types + 1, np.int32), np.empty(0, np.int32), np.empty(0))
        lower, upper = np.append(lower, -highspy.kHighsInf), np.append(upper, highspy.kHighsInf)
        program.addCols(types + 1, cost, lower, upper, *no_entries)
        program.changeObjectiveSense(highspy.ObjSense.kMaximize)
        program.addRow(1.0, 1.0, types, np.arange(types, dtype=np.int32), self._capacity)

    def _add_cuts(self) -> None:
        """Add the new cuts to the program."""
        count, width = len(self._new_cuts), len(self._capacity) + 1
        rows = np.column_stack((np.array(self._new_cuts), np.full(count, -1.0)))
        start, column = np.arange(0, count * width, width, dtype=np.int32), np.arange(width, dtype=np.int32)
        no_end = np.full(count, highspy.kHighsInf)
        entries = (count * width, start, np.tile(column, count), rows.ravel())
        self._program.addRows(count, np.zeros(count), no_end, *entries)
        self._new_cuts.clear()
