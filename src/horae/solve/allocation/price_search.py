"""Price search: the highest level that everybody can reach, found through prices of GPU types.

Everybody is to reach the throughput q_m(level), which grows with the level. Whether that is
possible is a question about a few capacities, so it is answered in as many dimensions as
there are GPU types: throughputs q are possible if and only if at no prices p the cheapest
ways to them cost more than the capacity is worth. Prices that show otherwise (cutting
planes, chosen by a small linear program) also say how far the level has to fall (Newton's
step), and once none is left the program's multipliers mix the ways into an allocation.

The dual of Gavel's programs (OSDI '20, section 4), solved without a row for each job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import highspy
import numpy as np

from horae.core.arrays import Floats
from horae.solve.allocation.cheapest_mix import marginal_prices, respond

#: Relative to the worth of all capacity.
TOLERANCE = 1e-9
_MOST_STEPS = 1000


class PriceDemand(Protocol):
    """What everybody is to reach at a level."""

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Throughputs at a level, never above the fastest, and how fast they grow with it."""
        ...

    @property
    def lowest(self) -> float:
        """A level that is possible."""
        ...

    @property
    def highest(self) -> float:
        """A level at which everybody has the fastest that is possible for it."""
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
        """The most steps/s each can have."""
        fastest: Floats = self.speed.max(axis=1)
        return fastest


@dataclass(frozen=True)
class Level:
    """The highest level, and how it is reached."""

    level: float
    throughput: Floats
    share: Floats
    #: Worth of one GPU of each type; all capacity together is worth 1, or nothing binds and all are 0.
    price: Floats
    #: What one more step/s of each job would cost; infinite where it has its fastest.
    marginal: Floats
    #: By how much the shares exceed the capacity of a type, relative to it.
    gap: float


def highest_level(jobs: Jobs, capacity: Floats, demand: PriceDemand) -> Level:
    """The highest level that everybody can reach together."""
    search = _Search(jobs, capacity)
    level, proof = demand.highest, np.zeros(len(capacity))
    for _ in range(_MOST_STEPS):
        q, _growth = demand.at(level)
        price = search.refute(q)
        if price is None:
            return search.settle(level, q, proof)
        level, proof = _lower(jobs, capacity, demand, price, level), price
    raise AssertionError(f"no level after {_MOST_STEPS} prices")


def _lower(jobs: Jobs, capacity: Floats, demand: PriceDemand, price: Floats, above: float) -> float:
    """The highest level at which the demand costs no more than the capacity is worth.

    The cost grows with the level, convex but for bends where somebody has reached its
    fastest, and may be flat below the root. So Newton's method comes from above, between two
    bounds; where its step falls below the lower one the root must be close to that.
    """
    usage, share, marginal = np.empty(len(capacity)), np.empty_like(jobs.speed), np.empty(len(jobs.count))

    def look(level: float) -> tuple[float, float]:
        q, growth = demand.at(level)
        respond(q, jobs.speed, jobs.size, price, usage, share)
        marginal_prices(q, jobs.fastest, jobs.speed, jobs.size, price, marginal)
        grows = growth > 0
        return float(usage @ price - capacity @ price), float(marginal[grows] @ growth[grows])

    low, high = demand.lowest, above
    excess, slope = look(high)
    for step in range(_MOST_STEPS):
        if high - low <= 1e-12 * high:
            break
        level = high - excess / slope if 0 < slope < np.inf else -np.inf
        if not low < level < high:
            level = low + (high - low) * (1e-3 if level <= low and np.isfinite(level) and step % 3 else 0.5)
        found = look(level)
        if found[0] > TOLERANCE / 100:
            high, (excess, slope) = level, found
        else:
            low = level
    return low


class _Search:
    """The prices tried so far, and the small program that proposes the next ones."""

    def __init__(self, jobs: Jobs, capacity: Floats) -> None:
        self._jobs, self._capacity = jobs, capacity
        self._usable = capacity > 0
        worth = np.where(self._usable, capacity, 1.0)
        types = len(capacity)
        #: Each type alone, and all alike: a start that soon shows which capacity binds.
        self._tried: list[Floats] = [row / worth for row in np.eye(types)[self._usable]]
        self._tried.append(np.where(self._usable, 1.0, 0.0) / capacity.sum())
        self._program: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._shares: list[Floats] = []

    def refute(self, q: Floats) -> Floats | None:
        """Prices at which throughputs q cost more than the capacity is worth; None if there are none."""
        self._begin()
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
                # The program is as exact as it can be, and these are the worst prices there are.
                return None
        raise AssertionError(f"no answer after {_MOST_STEPS} cuts")

    def settle(self, level: float, q: Floats, proof: Floats) -> Level:
        """Mix the ways that were tried into one that keeps to the capacity; `proof` are prices that allow no more."""
        weight = np.abs(np.array(self._program.getSolution().row_dual)[1:])
        total = weight.sum()
        weight = weight / total if total > 0 else np.eye(len(self._shares))[0]
        share = np.zeros_like(self._jobs.speed)
        for part, one in zip(weight, self._shares, strict=True):
            if part > 0:
                share += part * one
        usage = self._jobs.size @ share
        marginal = np.empty(len(q))
        marginal_prices(q, self._jobs.fastest, self._jobs.speed, self._jobs.size, proof, marginal)
        over = (usage - self._capacity) / np.where(self._usable, self._capacity, 1.0)
        return Level(level, q, share, proof, marginal, max(0.0, float(over.max())))

    def _begin(self) -> None:
        """An empty program: prices that are worth all capacity together, and the least a cut allows, at most."""
        program, types = self._program, len(self._capacity)
        program.clear()
        program.setOptionValue("output_flag", False)
        program.setOptionValue("threads", 1)
        program.setOptionValue("primal_feasibility_tolerance", TOLERANCE / 10)
        program.setOptionValue("dual_feasibility_tolerance", TOLERANCE / 10)
        for usable in self._usable:
            program.addVar(0.0, highspy.kHighsInf if usable else 0.0)
        program.addVar(-highspy.kHighsInf, highspy.kHighsInf)
        program.changeColCost(types, 1.0)
        program.changeObjectiveSense(highspy.ObjSense.kMaximize)
        program.addRow(1.0, 1.0, types, np.arange(types, dtype=np.int32), self._capacity)
        self._shares = []

    def _cut(self, q: Floats, price: Floats) -> float:
        """Add what everybody does at these prices; gives by how much it costs more than the capacity is worth."""
        usage, share = np.empty(len(self._capacity)), np.empty_like(self._jobs.speed)
        respond(q, self._jobs.speed, self._jobs.size, price, usage, share)
        self._shares.append(share)
        types = len(price)
        row = np.append(usage - self._capacity, -1.0)
        self._program.addRow(0.0, highspy.kHighsInf, types + 1, np.arange(types + 1, dtype=np.int32), row)
        return float((usage - self._capacity) @ price)

    def _propose(self) -> tuple[float, Floats]:
        """The prices at which the cuts leave the most room, and how much that is."""
        self._program.run()
        values = np.array(self._program.getSolution().col_value)
        return float(values[-1]), np.maximum(values[:-1], 0.0)
