"""Levels where jobs share GPUs: the highest that everybody can reach, in one linear program over kinds of jobs.

It is found from above. At prices of GPUs, time and floors no demand can be met that costs more
than everything is worth; the level at which it costs just that is the next to try. Only what
floors ask for changes between tries, so each takes HiGHS few steps. A level is reached when
the program's answer holds there, and then the prices prove that none is higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.allocation.floors import Floors
from horae.solve.allocation.lexicographic import Demanding, fill
from horae.solve.allocation.price_search import PriceDemand
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.allocation.time_division import BesideItself, Divided, Division
from horae.solve.allocation.time_lp import TOLERANCE, Prices, TimeProgram
from horae.solve.allocation.units import find_kinds, find_units

_MOST_STEPS = 1000
#: So close to the fastest that it is the fastest; so close to the last level that it is the same.
_ALMOST = 1.0 - 1e-12
#: What everybody has of its fastest at least: less than that a solver cannot tell from nothing.
_LEAST = 1e-7
#: What sums of a cluster's times may be off by.
_ROUNDING = 1e-14
#: What was possible may be missed by the solver's tolerance; so much less of it is possible again.
_STEP_BACK = 1.0 - 4 * TOLERANCE
#: How far above a level that is possible the search for the next begins.
_STRIDE = 1.05


@dataclass(frozen=True)
class Reached:
    """A level, the throughput of each class there, and how it is reached."""

    level: float
    throughput: Floats
    #: Time of each unit.
    time: Floats
    #: Worth of one GPU of each type; all that there is, time too, is worth 1, or nothing binds and all are 0.
    price: Floats
    #: What one more step/s of each class would cost; infinite where it has its fastest.
    marginal: Floats
    #: By how much the time misses what the level asks for or exceeds what there is, relative to it.
    gap: float
    #: The prices that prove that no level is higher.
    proof: Prices


class Packing:
    """The kinds of a problem's jobs, their units, and the program over the time of these."""

    def __init__(self, problem: AllocationProblem, wants: Floats | None, apart: Ints) -> None:
        """Jobs of a kind may differ in `wants`; those with unlike numbers in `apart` are unlike kinds."""
        self.classes, self.kinds, self.of_kind = find_kinds(problem, apart, wants)
        self._capacity = problem.capacity
        alone, pairs = find_units(self.kinds, problem.sharing)
        self._pairs, self._program = len(pairs), TimeProgram(self.kinds, alone, pairs, problem.capacity)
        self.fastest = self._program.fastest[self.of_kind]
        self._floors = Floors(self._program, self.classes.count, self.of_kind)
        # One more column: how far all floors rise together, each by its part, the first one alone so far.
        self._program.add_extras(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1))
        self._part = np.append(1.0, np.zeros(len(self._floors) - 1))

    def highest_level(self, demand: PriceDemand) -> Reached:
        """The highest level that everybody can reach together."""
        self._program.set_gain(np.zeros_like(self.kinds.speed))
        # Some floor rises by 1 if any does, and none by more than there are jobs.
        self._let_rise(1.0, -np.inf, 1.0 + self.kinds.count.max())
        level = aim = self._guess(demand)
        bound, proof, doubt = np.inf, None, 0.0
        for step in range(_MOST_STEPS):
            from_below = step == 0 and demand.lowest > 0
            level = demand.lowest if from_below else level
            self._rise_towards(demand, aim)
            self._program.set_floors(self._floors.asked(demand.at(level)[0]))
            self._program.solve(from_below)
            found = self._bound(demand, level)
            # Prices that say what others said before leave nothing but rounding.
            known = found >= bound * _ALMOST
            if proof is None or found < bound:
                bound, proof = found, self._program.prices
            level = max(bound * (1.0 - doubt), min(bound, demand.lowest))
            throughput = demand.at(level)[0]
            if self._floors.complete(throughput):
                if self._holds(throughput, exactly=known):
                    return self._found(level, throughput, proof, 1.0 - level / bound)
                doubt = max(2 * doubt, TOLERANCE) if known else doubt
            # Nobody has to rise from what cannot be raised.
            aim = level if known and level <= demand.lowest else max(level, aim)
        raise AssertionError(f"no level after {_MOST_STEPS} programs")

    @property
    def least(self) -> Floats:
        """What everybody has at least."""
        return self.fastest * _LEAST

    def fill(self, demanding: Demanding) -> Reached:
        """Raise all, level by level, until nobody can rise; prices are of the first level."""
        first, last = fill(self, demanding)
        return replace(last, price=first.price, gap=max(first.gap, last.gap))

    def settle(self, reached: Reached) -> tuple[Floats, float]:
        """Keep to a level that was just found, whatever comes next.

        Gives the most steps/s that classes can still have, and the part of what they have that those
        that rest surely keep. Those whose step/s have a price use up all that has one, for good. So
        units that do not pay will have no time again, and whoever is not over a floor that has a
        price will not rise over it.
        """
        prices = reached.proof.among(len(self._floors))
        most = np.minimum(
            self._program.fastest_now(prices)[self.of_kind], self._floors.ceiling(reached.throughput, prices.sure)
        )
        # What the answer may still miss would otherwise be missed for good.
        self._program.refine()
        self._program.settle(prices, self._stands())
        return np.maximum(most, reached.throughput), _STEP_BACK - self._gap(reached.throughput)

    def possible(self, least: Floats) -> bool:
        """Whether every class can have at least these throughputs."""
        self._program.set_gain(np.zeros_like(self.kinds.speed))
        self._let_rise(1.0, -1.0, 0.0)
        least = self._enough(least)
        while True:
            asked = self._floors.asked(least)
            self._rise_by(asked)
            self._program.set_floors(asked)
            self._program.solve()
            self._program.refine()
            if self._program.extra[0] < -TOLERANCE:
                return False
            if self._floors.complete(least):
                return True

    def most(self, gain: Floats, least: Floats | None = None) -> Reached:
        """The times worth most, if a step/s of a kind on a type is worth `gain`, and every class has its `least`.

        The level is what they are worth.
        """
        # Steps/s may be worth anything, and what the solver takes to be nothing, or infinite, is absolute.
        unit = _power_of_two(float((gain * self.kinds.speed).max()))
        self._program.set_gain(gain / unit)
        self._let_rise(0.0, 0.0, 0.0)
        least = np.zeros(len(self.fastest)) if least is None else self._enough(least) * _STEP_BACK
        while True:
            self._rise_by(np.zeros(len(self._floors)))
            self._program.set_floors(self._floors.asked(least))
            self._program.solve()
            if self._floors.complete(least):
                self._holds(least, exactly=True)
                return self._found(self._program.value * unit, least, self._program.prices, self._program.gap())

    def _enough(self, least: Floats) -> Floats:
        """What whoever is to have at least something is to have."""
        return np.where(least > 0, np.maximum(least, self.fastest * _LEAST), 0.0)

    def divide(self, reached: Reached) -> Divided:
        """Shares of jobs."""
        units = self._program.units
        division = Division(self.classes, self.of_kind, self.kinds, units, reached.time, reached.throughput)
        return division.among_jobs(len(self._capacity))

    def certificate(self, reached: Reached) -> dict[str, object]:
        """What shows that an answer is right."""
        return {
            "prices": reached.price.tolist(),
            "gap": reached.gap,
            "classes": len(self.classes.count),
            "kinds": len(self.kinds.count),
            "pairs": self._pairs,
        }

    def _guess(self, demand: PriceDemand) -> float:
        """Where to begin: a little above what is possible, or where everybody on its fastest would fill the cluster."""
        if demand.lowest > 0:
            return max(demand.lowest, min(demand.lowest * _STRIDE, demand.highest))
        weight = self.classes.count * self.kinds.gpus[self.of_kind] / self.fastest
        everybody, gpus = np.arange(len(weight)), float(self._capacity.sum())
        return _root(demand, demand.highest, weight, np.zeros(len(weight)), everybody, gpus)

    def _rise_towards(self, demand: PriceDemand, level: float) -> None:
        """Floors are to rise from the lowest level towards this one, so that a fall to there is always possible."""
        rise = self._floors.asked(demand.at(level)[0]) - self._floors.asked(demand.at(demand.lowest)[0])
        self._rise_by(rise / max(float(rise.max()), 1e-300))

    def _rise_by(self, part: Floats) -> None:
        """What each floor rises by when they rise by 1."""
        known = np.append(self._part, np.zeros(len(part) - len(self._part)))
        changed = np.flatnonzero(part != known)
        self._program.set_lowers(0, changed, part[changed])
        self._part = part

    def _let_rise(self, gain: float, least: float, most: float) -> None:
        """What it gains that floors rise by 1, and how far they may."""
        self._program.set_extras(np.zeros(1, np.int64), np.array([gain]), np.array([least]), np.array([most]))

    def _bound(self, demand: PriceDemand, start: float) -> float:
        """The level at which the demand costs what everything is worth, at the program's prices."""
        floors, prices = self._floors, self._program.prices
        priced = np.flatnonzero(prices.floor[floors.floor])
        weight = prices.floor[floors.floor[priced]] * floors.weight[priced]
        return _root(demand, start, weight, floors.over[priced], floors.member[priced], prices.worth)

    def _holds(self, throughput: Floats, exactly: bool) -> bool:
        """Whether the program's answer, made exact if need be, is enough for this."""
        if exactly and not self._holds(throughput, exactly=False):
            self._program.refine()
        asked = self._floors.asked(throughput)
        enough = asked - self._stands() <= TOLERANCE * asked[self._program.floor_kind] + _ROUNDING
        return bool(enough.all()) and self._program.excess() <= TOLERANCE

    def _stands(self) -> Floats:
        """How high the program's answer has every floor."""
        return np.asarray(self._program.floor_value + self._program.extra[0] * self._part)

    def _found(self, level: float, throughput: Floats, proof: Prices, gap: float) -> Reached:
        """The program's answer, and what it proves, up to a gap."""
        program, worth = self._program, proof.turnover or 1.0
        marginal = self._floors.paid(throughput, proof.among(len(self._floors)).sure) / worth
        marginal[throughput >= self.fastest * _ALMOST] = np.inf
        gap = max(gap, self._gap(throughput))
        return Reached(level, throughput, program.time, proof.gpu / worth, marginal, gap, proof)

    def _gap(self, throughput: Floats) -> float:
        """The worst of all rows; what floors miss is relative to the kind's throughput."""
        asked = self._floors.asked(throughput)
        short = (asked - self._stands()) / np.maximum(asked[self._program.floor_kind], _LEAST)
        return max(0.0, float(short.max()), self._program.excess())


@dataclass(frozen=True)
class Packed:
    """An answer, divided among jobs."""

    packing: Packing
    reached: Reached
    divided: Divided

    def solution(self, objective: float, **proof: object) -> Solution:
        """For whoever asked."""
        divided, certificate = self.divided, self.packing.certificate(self.reached)
        return Solution(divided.share, objective, {**certificate, **proof}, divided.pairs, divided.pair_share)


def pack(problem: AllocationProblem, wants: Floats | None, answer: Callable[[Packing], Reached]) -> Packed:
    """Answer a problem and divide the answer; jobs that would be beside themselves become kinds of their own.

    The program over kinds does not know that a job cannot be its own neighbour. It seldom
    matters; where it does, the job leaves its kind and is then a neighbour like any other.
    """
    apart = np.zeros(len(problem), np.int64)
    while True:
        packing = Packing(problem, wants, apart)
        reached = answer(packing)
        try:
            return Packed(packing, reached, packing.divide(reached))
        except BesideItself as found:
            jobs = packing.classes.first[found.classes]
            apart[jobs] = apart.max() + 1 + np.arange(len(jobs))


def _power_of_two(value: float) -> float:
    """A unit near a value, by which numbers are divided without rounding; 1 for nothing."""
    return math.ldexp(1.0, math.frexp(value)[1])


def _root(demand: PriceDemand, start: float, weight: Floats, over: Floats, member: Ints, worth: float) -> float:
    """The highest level at which (throughput - over)+, weighed and summed over members, is at most `worth`.

    Newton's method between two bounds: the sum grows with the level, convex but for bends where
    somebody has its fastest, and may be flat at `worth` for a while.
    """

    def look(level: float) -> tuple[float, float, float]:
        q, growth = demand.at(level)
        above = np.maximum(q[member] - over, 0.0)
        cost = float(weight @ above)
        return cost - worth, float(weight @ np.where(above > 0, growth[member], 0.0)), 1e-14 * (cost + abs(worth))

    low, high = demand.lowest, demand.highest
    excess, _, nothing = look(high)
    if high <= low or excess <= nothing:
        return max(low, high)
    level = min(max(start, low), high)
    for step in range(1, _MOST_STEPS):
        excess, slope, nothing = look(level)
        low, high = (level, high) if excess <= nothing else (low, level)
        if (abs(excess) <= nothing and slope > 0) or high - low <= 1e-15 * high:
            break
        newton = level - excess / slope if slope > 0 else low
        # A step in between, now and then, closes in where Newton's lead nowhere.
        level = newton if low < newton < high and step % 8 else (low + high) / 2
    return low
