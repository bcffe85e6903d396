"""The highest level that all jobs can reach together where jobs share GPUs: one linear program over profiles.

The level is found from above. At prices of GPUs, time and floors, no demand can be met that costs more than all GPUs
and all time are worth; the level at which the demand costs just that is the next to try. Only the floors change between
tries, so each takes HiGHS few steps. A level is reached when the program's solution is enough for it; the prices then
prove that no level is higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.allocation.floors import Floors
from horae.solve.allocation.lexicographic import DemandMaker, fill
from horae.solve.allocation.price_search import PriceDemand
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.allocation.time_division import BesideItself, Divided, Division
from horae.solve.allocation.time_lp import TOLERANCE, Prices, TimeProgram
from horae.solve.allocation.units import find_profiles, find_units

_MOST_STEPS = 1000
#: Throughputs this close to the fastest count as the fastest; levels this close count as equal.
_ALMOST = 1.0 - 1e-12
#: Least throughput relative to the fastest: less than that is 0 to the solver.
_LEAST = 1e-7
#: Rounding error of sums over the times of a cluster.
_ROUNDING = 1e-14
#: Factor after which throughputs that the solver found are possible for certain, despite its tolerance.
_STEP_BACK = 1.0 - 4 * TOLERANCE
#: Factor above a possible level at which the search for the next level begins.
_STRIDE = 1.05


@dataclass(frozen=True)
class Reached:
    """A level that was reached: the throughput of each class, the time of units, and the proof."""

    level: float
    throughput: Floats
    #: Time of each unit.
    time: Floats
    #: Price of one GPU of each type; all GPUs and all time together are worth 1. All 0 if nothing binds.
    price: Floats
    #: Price of one more step/s of each class; infinite at its fastest.
    marginal: Floats
    #: Largest relative error: of floors that the time misses, or of limits that it exceeds.
    gap: float
    #: Prices that prove that no level is higher.
    proof: Prices


class Packing:
    """The profiles and units of a problem, and the program over the time of units."""

    def __init__(self, problem: AllocationProblem, wants: Floats | None, separate: Ints) -> None:
        """Jobs of a profile may differ in `wants`. Different numbers in `separate` make different profiles."""
        self.classes, self.profiles, self.profile_of = find_profiles(problem, separate, wants)
        self._capacity = problem.capacity
        alone, pairs = find_units(self.profiles, problem.sharing)
        self._pairs, self._program = len(pairs), TimeProgram(self.profiles, alone, pairs, problem.capacity)
        self.fastest = self._program.fastest[self.profile_of]
        self._floors = Floors(self._program, self.classes.count, self.profile_of)
        # One extra column: the rise. All floors rise with it, each by its factor; at first the first floor alone.
        self._program.add_extras(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1))
        self._rise_factor = np.append(1.0, np.zeros(len(self._floors) - 1))

    def highest_level(self, demand: PriceDemand) -> Reached:
        """The highest level that all classes can reach together."""
        self._program.set_gain(np.zeros_like(self.profiles.speed))
        # Factors are at most 1, and no floor rises by more than the number of jobs.
        self._set_rise(1.0, -np.inf, 1.0 + self.profiles.count.max())
        level = aim = self._guess(demand)
        bound, proof, doubt = np.inf, None, 0.0
        for step in range(_MOST_STEPS):
            from_below = step == 0 and demand.lowest > 0
            level = demand.lowest if from_below else level
            self._aim_at(demand, aim)
            self._program.set_floors(self._floors.asked(demand.throughputs(level)[0]))
            self._program.solve(from_below)
            found = self._level_bound(demand, level)
            # If new prices give the same bound, only rounding errors are left.
            repeated = found >= bound * _ALMOST
            if proof is None or found < bound:
                bound, proof = found, self._program.prices
            level = max(bound * (1.0 - doubt), min(bound, demand.lowest))
            throughput = demand.throughputs(level)[0]
            if self._floors.complete(throughput):
                if self._holds(throughput, exactly=repeated):
                    return self._found(level, throughput, proof, 1.0 - level / bound)
                doubt = max(2 * doubt, TOLERANCE) if repeated else doubt
            # At the lowest level no floor has to rise.
            aim = level if repeated and level <= demand.lowest else max(level, aim)
        raise AssertionError(f"no level after {_MOST_STEPS} programs")

    @property
    def least(self) -> Floats:
        """Steps/s that each class has at least."""
        return self.fastest * _LEAST

    def fill(self, make_demand: DemandMaker) -> Reached:
        """Raise all classes, level by level, until none can rise. Prices are those of the first level."""
        first, last = fill(self, make_demand)
        return replace(last, price=first.price, gap=max(first.gap, last.gap))

    def fix_level(self, reached: Reached) -> tuple[Floats, float]:
        """Fix the bottlenecks of a level that was just found; see `lexicographic.Search`.

        Classes whose steps/s have a price use up everything that has a price. So units that do not pay for their
        time and GPUs stay empty from now on, and a class below a floor that has a price cannot rise above it.
        """
        prices = reached.proof.extended(len(self._floors))
        most = np.minimum(
            self._program.fastest_now(prices)[self.profile_of], self._floors.ceiling(reached.throughput, prices.sure)
        )
        # Errors of the solution would otherwise stay.
        self._program.refine()
        self._program.fix(prices, self._floor_heights())
        return np.maximum(most, reached.throughput), _STEP_BACK - self._gap(reached.throughput)

    def possible(self, least: Floats) -> bool:
        """Whether every class can have at least these throughputs."""
        self._program.set_gain(np.zeros_like(self.profiles.speed))
        self._set_rise(1.0, -1.0, 0.0)
        least = self._solvable(least)
        while True:
            asked = self._floors.asked(least)
            self._set_rise_factors(asked)
            self._program.set_floors(asked)
            self._program.solve()
            self._program.refine()
            if self._program.extra[0] < -TOLERANCE:
                return False
            if self._floors.complete(least):
                return True

    def most(self, gain: Floats, least: Floats | None = None) -> Reached:
        """The times of largest gain, where every class has its `least`; `gain` of a step/s is by profile and GPU type.

        The level of the result is the gain.
        """
        # Gains have any size, and the solver's limits of zero and infinity are absolute.
        unit = _power_of_two(float((gain * self.profiles.speed).max()))
        self._program.set_gain(gain / unit)
        self._set_rise(0.0, 0.0, 0.0)
        least = np.zeros(len(self.fastest)) if least is None else self._solvable(least) * _STEP_BACK
        while True:
            self._set_rise_factors(np.zeros(len(self._floors)))
            self._program.set_floors(self._floors.asked(least))
            self._program.solve()
            if self._floors.complete(least):
                self._holds(least, exactly=True)
                return self._found(self._program.value * unit, least, self._program.prices, self._program.gap())

    def _solvable(self, least: Floats) -> Floats:
        """The same least throughputs, raised to what the solver can tell from 0."""
        return np.where(least > 0, np.maximum(least, self.fastest * _LEAST), 0.0)

    def divide(self, reached: Reached) -> Divided:
        """Divide the time of units into shares of jobs."""
        units = self._program.units
        division = Division(self.classes, self.profile_of, self.profiles, units, reached.time, reached.throughput)
        return division.among_jobs(len(self._capacity))

    def certificate(self, reached: Reached) -> dict[str, object]:
        """The proof of a solution, as `horae solve` prints it."""
        return {
            "prices": reached.price.tolist(),
            "gap": reached.gap,
            "classes": len(self.classes.count),
            "kinds": len(self.profiles.count),
            "pairs": self._pairs,
        }

    def _guess(self, demand: PriceDemand) -> float:
        """The first level to try: a little above a possible level, or where jobs at full speed fill the cluster."""
        if demand.lowest > 0:
            return max(demand.lowest, min(demand.lowest * _STRIDE, demand.highest))
        weight = self.classes.count * self.profiles.gpus[self.profile_of] / self.fastest
        all_classes, gpus = np.arange(len(weight)), float(self._capacity.sum())
        return _root(demand, demand.highest, weight, np.zeros(len(weight)), all_classes, gpus)

    def _aim_at(self, demand: PriceDemand, level: float) -> None:
        """Make floors rise from the lowest level towards this level; a fall to the lowest is always possible.

        Fixed floors do not rise. The demand of their classes may still rise by a rounding error, which would stop the
        rise of all other floors.
        """
        rise = self._floors.asked(demand.throughputs(level)[0]) - self._floors.asked(
            demand.throughputs(demand.lowest)[0]
        )
        rise[self._program.exact_floor] = 0.0
        self._set_rise_factors(rise / max(float(rise.max()), 1e-300))

    def _set_rise_factors(self, factor: Floats) -> None:
        """Set by how much each floor rises for a rise of 1."""
        before = np.append(self._rise_factor, np.zeros(len(factor) - len(self._rise_factor)))
        changed = np.flatnonzero(factor != before)
        self._program.set_lowers(0, changed, factor[changed])
        self._rise_factor = factor

    def _set_rise(self, gain: float, least: float, most: float) -> None:
        """Set the gain of a rise of 1, and the bounds of the rise."""
        self._program.set_extras(np.zeros(1, np.int64), np.array([gain]), np.array([least]), np.array([most]))

    def _level_bound(self, demand: PriceDemand, start: float) -> float:
        """The level at which the demand costs as much as all GPUs and time are worth, at the program's prices."""
        floors, prices = self._floors, self._program.prices
        priced = np.flatnonzero(prices.floor[floors.floor])
        # Nothing limits the level, even if rounding errors make the worth negative.
        if not len(priced):
            return max(demand.lowest, demand.highest)
        weight = prices.floor[floors.floor[priced]] * floors.weight[priced]
        return _root(demand, start, weight, floors.over[priced], floors.member[priced], prices.worth)

    def _holds(self, throughput: Floats, exactly: bool) -> bool:
        """Whether the program's solution, refined if `exactly`, is enough for these throughputs."""
        if exactly and not self._holds(throughput, exactly=False):
            self._program.refine()
        asked = self._floors.asked(throughput)
        enough = asked - self._floor_heights() <= TOLERANCE * asked[self._program.floor_profile] + _ROUNDING
        return bool(enough.all()) and self._program.excess() <= TOLERANCE

    def _floor_heights(self) -> Floats:
        """Value of every floor in the program's solution."""
        return np.asarray(self._program.floor_value + self._program.extra[0] * self._rise_factor)

    def _found(self, level: float, throughput: Floats, proof: Prices, gap: float) -> Reached:
        """The program's solution as a level, with its proof."""
        program, worth = self._program, proof.turnover or 1.0
        marginal = self._floors.marginal_price(throughput, proof.extended(len(self._floors)).sure) / worth
        marginal[throughput >= self.fastest * _ALMOST] = np.inf
        gap = max(gap, self._gap(throughput))
        return Reached(level, throughput, program.time, proof.gpu / worth, marginal, gap, proof)

    def _gap(self, throughput: Floats) -> float:
        """Largest relative error of all rows; of floors, relative to the profile's throughput."""
        asked = self._floors.asked(throughput)
        short = (asked - self._floor_heights()) / np.maximum(asked[self._program.floor_profile], _LEAST)
        return max(0.0, float(short.max()), self._program.excess())


@dataclass(frozen=True)
class Packed:
    """A solution of the program, divided among jobs."""

    packing: Packing
    reached: Reached
    divided: Divided

    def solution(self, objective: float, **proof: object) -> Solution:
        """The solution of the allocation problem; `proof` is added to the certificate."""
        divided, certificate = self.divided, self.packing.certificate(self.reached)
        return Solution(divided.share, objective, {**certificate, **proof}, divided.pairs, divided.pair_share)


def pack(problem: AllocationProblem, wants: Floats | None, answer: Callable[[Packing], Reached]) -> Packed:
    """Solve a problem with `answer`, and divide the time among jobs.

    The program over profiles does not know that a job cannot share GPUs with itself. Where the division would need
    that, the job becomes a profile of its own, and the problem is solved again.
    """
    separate = np.zeros(len(problem), np.int64)
    while True:
        packing = Packing(problem, wants, separate)
        reached = answer(packing)
        try:
            return Packed(packing, reached, packing.divide(reached))
        except BesideItself as found:
            jobs = packing.classes.first[found.classes]
            separate[jobs] = separate.max() + 1 + np.arange(len(jobs))


def _power_of_two(value: float) -> float:
    """The power of two just above a value: dividing by it causes no rounding error; 1 for 0."""
    return math.ldexp(1.0, math.frexp(value)[1])


def _root(demand: PriceDemand, start: float, weight: Floats, over: Floats, member: Ints, worth: float) -> float:
    """The highest level at which (throughput - over)+, weighed and summed over members, is at most `worth`.

    Newton's method between two bounds: the sum grows with the level. It is convex except for bends where a class
    reaches its fastest, and may be flat at `worth`.
    """

    def excess_at(level: float) -> tuple[float, float, float]:
        q, growth = demand.throughputs(level)
        above = np.maximum(q[member] - over, 0.0)
        cost = float(weight @ above)
        return cost - worth, float(weight @ np.where(above > 0, growth[member], 0.0)), 1e-14 * (cost + abs(worth))

    low, high = demand.lowest, demand.highest
    excess, _, rounding = excess_at(high)
    if high <= low or excess <= rounding:
        return max(low, high)
    level = min(max(start, low), high)
    for step in range(1, _MOST_STEPS):
        excess, slope, rounding = excess_at(level)
        low, high = (level, high) if excess <= rounding else (low, level)
        if (abs(excess) <= rounding and slope > 0) or high - low <= 1e-15 * high:
            break
        newton = level - excess / slope if slope > 0 else low
        # Every eighth step is a bisection, for where Newton's steps do not converge.
        level = newton if low < newton < high and step % 8 else (low + high) / 2
    return low
