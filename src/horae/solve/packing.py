"""Levels where jobs share GPUs: the highest that everybody can reach, in one linear program over kinds of jobs.

Jobs of a kind differ in what they want, not in what they can do, so one set of variables is
enough for all of them: the time of the kind in each unit. Their throughputs q are possible if
and only if the speeds majorise them: for every speed w, (speed - w)+ summed over the kind's
time is at least (q - w)+ summed over its jobs. That is linear in time, holds between speeds if
it holds at them, and w = 0 alone nearly always suffices. So the program starts with one floor
for each kind, and gets another where its answer would not do (`division.py` divides it).

The highest level is found from above. At prices of GPUs, time and floors no demand can be met
that costs more than everything is worth; the level at which it costs just that is the next to
try. Only floors change between tries, so each takes HiGHS few steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from horae.solve.division import BesideItself, Divided, Division
from horae.solve.linear import TOLERANCE, TimeProgram
from horae.solve.prices import Demand
from horae.solve.problem import Problem, Solution
from horae.solve.units import find_kinds, find_units, matches, tally

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_STEPS = 1000
#: So close to the fastest that it is the fastest; so close to the last level that it is the same.
_ALMOST = 1.0 - 1e-12
#: What one more step/s may cost, relative to the worth of everything, and still count as nothing.
_NOTHING = 1e-9
#: A level may miss its floors by the solver's tolerance; the next one starts this much lower, so that it exists.
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


class Packing:
    """The kinds of a problem's jobs, their units, and the program over the time of these."""

    def __init__(self, problem: Problem, wants: Floats, apart: Ints | None = None) -> None:
        """`wants` are columns by which jobs of a kind differ; jobs with unlike numbers in `apart` are unlike kinds."""
        apart = np.zeros(len(problem), np.int64) if apart is None else apart
        self.classes, self.kinds, self.of_kind = find_kinds(problem, apart, wants)
        self._capacity = problem.capacity
        # One column of our own: by how much all floors rise.
        alone, pairs = find_units(self.kinds, problem.sharing)
        self._program = TimeProgram(self.kinds, alone, pairs, problem.capacity, own=1)
        self.fastest = self._program.fastest[self.of_kind]
        self._several = np.bincount(self.of_kind) > 1
        self._rise = np.zeros(len(self.kinds.count))
        self._index_floors()

    def highest_level(self, demand: Demand) -> Reached:
        """The highest level that everybody can reach together."""
        program = self._program
        program.set_gain(np.zeros_like(self.kinds.speed))
        # Some floor rises as fast as this column, and none by more than there are jobs, if any rises at all.
        program.set_own(0, 1.0, -np.inf, 1.0 + self.kinds.count.max())
        aim = self._guess(demand)
        level = demand.lowest or aim
        self._rise_towards(demand, aim)
        for step in range(_MOST_STEPS):
            program.set_floors(self._floors(demand.at(level)[0]))
            program.solve(from_below=step == 0 and demand.lowest > 0)
            bound = self._bound(demand, level)
            throughput = demand.at(bound)[0]
            holds = self._holds(throughput) or abs(bound - level) <= (1 - _ALMOST) * level
            added = self._add_floors(throughput)
            if holds and not added:
                return self._found(bound, throughput)
            if added or bound > aim:
                aim = max(aim, bound)
                self._rise_towards(demand, aim)
            level = bound
        raise AssertionError(f"no level after {_MOST_STEPS} programs")

    def fill(self, demand: Demand) -> Reached:
        """Raise all, let those that cannot rise rest, raise the others, until nobody can; prices of the first level.

        A job rests when one more step/s of it costs something at the prices of the level, or when
        it has its fastest (`lexicographic.py` does the same where nobody shares).
        """
        rests, most = np.zeros(len(self.fastest), np.bool_), self.fastest
        level = first = self.highest_level(demand)
        while True:
            stuck = ~rests & ((level.marginal * self.fastest > _NOTHING) | (level.throughput >= most * _ALMOST))
            rests |= stuck
            if rests.all() or not stuck.any():
                return replace(level, price=first.price, gap=max(first.gap, level.gap))
            free = np.maximum(self._free(level.throughput), level.throughput)
            most = np.where(stuck, level.throughput * _STEP_BACK, np.where(rests, most, np.minimum(most, free)))
            level = self.highest_level(_Capped(demand, most, level.level * _STEP_BACK))

    def _free(self, throughput: Floats) -> Floats:
        """The most steps/s of each class from now on: those that come to rest use up all that has a price, for good.

        So units that cost more than they are worth will have no time again, and whoever is not
        over a floor that has a price will not rise over it.
        """
        most = self._program.fastest_worth_it()[self.of_kind]
        priced = self._program.floor_price[self._floor] > 0
        below = priced & (self._over > 0) & (throughput[self._member] <= self._over)
        np.minimum.at(most, self._member[below], self._over[below])
        return most

    def possible(self, least: Floats) -> bool:
        """Whether every class can have at least these throughputs."""
        program = self._program
        program.set_gain(np.zeros_like(self.kinds.speed))
        program.set_own(0, 1.0, -1.0, 0.0)
        while True:
            self._rise_by(self._floors(least))
            program.set_floors(self._rise)
            program.solve()
            if program.own[0] < -TOLERANCE:
                return False
            if not self._add_floors(least):
                return True

    def most(self, gain: Floats, least: Floats | None = None) -> Reached:
        """The times worth most, if a step/s of a kind on a type is worth `gain`, and every class has its `least`."""
        least = np.zeros(len(self.fastest)) if least is None else least
        program = self._program
        program.set_gain(gain)
        program.set_own(0, 0.0, 0.0, 0.0)
        while True:
            program.set_floors(self._floors(least * _STEP_BACK))
            program.solve()
            if not self._add_floors(least * _STEP_BACK):
                found = self._found(program.value, least * _STEP_BACK)
                return replace(found, gap=max(found.gap, program.gap()))

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
            "pairs": self._program.pairs,
        }

    def _guess(self, demand: Demand) -> float:
        """Where to begin: a little above what is possible, or where everybody on its fastest would fill the cluster."""
        if demand.lowest > 0:
            return max(demand.lowest, min(demand.lowest * _STRIDE, demand.highest))
        weight = self.classes.count * self.kinds.gpus[self.of_kind] / self.fastest
        everybody, gpus = np.arange(len(weight)), float(self._capacity.sum())
        return _root(demand, demand.highest, weight, np.zeros(len(weight)), everybody, gpus)

    def _rise_towards(self, demand: Demand, level: float) -> None:
        """Floors are to rise from the lowest level towards this one, so that a fall to there is always possible."""
        rise = self._floors(demand.at(level)[0]) - self._floors(demand.at(demand.lowest)[0])
        self._rise_by(rise / max(float(rise.max()), 1e-300))

    def _rise_by(self, rise: Floats) -> None:
        """What floors rise by when they rise by 1."""
        changed = np.flatnonzero(rise != self._rise)
        self._program.set_share(changed, np.zeros(len(changed), np.int64), rise[changed])
        self._rise = rise

    def _index_floors(self) -> None:
        """Which classes each floor counts, and from which throughput on."""
        self._floor, self._member = matches(self._program.floor_kind, self.of_kind)
        self._over = self._program.floor_over[self._floor]
        self._weight = (self.classes.count / self.fastest)[self._member]

    def _floors(self, throughput: Floats) -> Floats:
        """How much every floor asks for if classes are to have these throughputs."""
        above = np.maximum(throughput[self._member] - self._over, 0.0)
        return tally(self._floor, self._weight * above, len(self._program.floor_kind))

    def _bound(self, demand: Demand, start: float) -> float:
        """The level at which the demand costs what everything is worth, at the program's prices."""
        priced = np.flatnonzero(self._program.floor_price[self._floor])
        weight = self._program.floor_price[self._floor[priced]] * self._weight[priced]
        return _root(demand, start, weight, self._over[priced], self._member[priced], self._program.worth)

    def _holds(self, throughput: Floats) -> bool:
        """Whether the program's answer gives everybody this."""
        needed = self._floors(throughput)
        return bool((needed <= self._stands() * (1 + TOLERANCE) + (1 - _ALMOST)).all())

    def _stands(self) -> Floats:
        """Where the program's answer has every floor."""
        return np.asarray(self._program.floor_value + self._program.own[0] * self._rise)

    def _add_floors(self, throughput: Floats) -> bool:
        """Add the floors that the program's answer would break at these throughputs; false if there are none."""
        program = self._program
        known = set(zip(program.floor_kind.tolist(), program.floor_over.tolist(), strict=True))
        new = sorted(self._broken(throughput) - known)
        if new:
            program.add_floors(np.array([kind for kind, _ in new]), np.array([over for _, over in new]))
            self._rise = np.append(self._rise, np.zeros(len(new)))
            self._index_floors()
        return bool(new)

    def _broken(self, throughput: Floats) -> set[tuple[int, float]]:
        """Kinds, and speeds of them over which they have too little for these throughputs."""
        sides = self._program.sides
        time = sides.jobs * self._program.time[sides.unit]
        used = np.flatnonzero((time > 0) & self._several[sides.kind])
        kind, time, over = sides.kind[used], time[used], sides.speed[used]
        fastest = self._program.fastest[kind]
        above = np.where(kind[:, None] == kind, np.maximum(over[:, None] - over, 0.0), 0.0)
        wanted, doubt = self._wanted_over(throughput, kind, over / fastest)
        broken = wanted - time @ above / fastest > doubt
        return set(zip(kind[broken].tolist(), over[broken].tolist(), strict=True))

    def _wanted_over(self, throughput: Floats, kind: Ints, over: Floats) -> tuple[Floats, Floats]:
        """What jobs of kinds want over a speed, all relative to the fastest, and how little of that does not matter."""
        want = throughput / self.fastest
        order = np.lexsort((want, self.of_kind))
        # Sorted by kind and want, those that want more than a speed stand together, and sums tell.
        place, count = 2.0 * self.of_kind[order] + want[order], self.classes.count[order]
        start, end = np.searchsorted(place, 2.0 * kind + over), np.searchsorted(place, 2.0 * kind + 1.5)
        jobs, wants = np.append(0.0, np.cumsum(count)), np.append(0.0, np.cumsum(count * want[order]))
        whole = wants[end] - wants[start]
        return whole - over * (jobs[end] - jobs[start]), TOLERANCE * whole

    def _found(self, level: float, throughput: Floats) -> Reached:
        """The program's answer, and what it proves."""
        program = self._program
        worth = program.worth if program.worth > 0 else 1.0
        costs = (
            (throughput[self._member] >= self._over * (1 - TOLERANCE)) * self._weight * program.floor_price[self._floor]
        )
        marginal = tally(self._member, costs, len(throughput)) / worth
        marginal[throughput >= self.fastest * _ALMOST] = np.inf
        return Reached(level, throughput, program.time, program.price / worth, marginal, self._gap(throughput))

    def _gap(self, throughput: Floats) -> float:
        """The worst of all rows."""
        needed, has = self._floors(throughput), self._stands()
        short = (needed - has) / np.maximum(needed[self._program.floor_kind], 1e-300)
        return max(0.0, float(short.max()), self._program.excess())


@dataclass(frozen=True)
class _Capped:
    """A demand in which no class wants more than its most, and those that rest have that."""

    demand: Demand
    most: Floats
    lowest: float

    @property
    def highest(self) -> float:
        return self.demand.highest

    def at(self, level: float) -> tuple[Floats, Floats]:
        q, growth = self.demand.at(level)
        full = q >= self.most * _ALMOST
        return np.where(full, self.most, q), np.where(full, 0.0, growth)


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


def pack(problem: Problem, wants: Floats, answer: Callable[[Packing], Reached]) -> Packed:
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


def _root(demand: Demand, start: float, weight: Floats, over: Floats, member: Ints, worth: float) -> float:
    """The highest level at which (throughput - over)+, weighed and summed over members, is at most `worth`.

    Newton's method between two bounds: the sum grows with the level, convex but for bends
    where somebody has its fastest.
    """

    def look(level: float) -> tuple[float, float]:
        q, growth = demand.at(level)
        above = q[member] - over
        return float(weight @ np.maximum(above, 0.0)) - worth, float(weight @ np.where(above > 0, growth[member], 0.0))

    low, high = demand.lowest, demand.highest
    if high <= low or look(high)[0] <= 0:
        return max(low, high)
    level = min(max(start, low), high)
    for step in range(1, _MOST_STEPS):
        excess, slope = look(level)
        low, high = (level, high) if excess <= 0 else (low, level)
        if abs(excess) <= 1e-13 * worth or high - low <= 1e-15 * high:
            break
        newton = level - excess / slope if slope > 0 else low
        # A step in between, now and then, closes in where Newton's lead nowhere.
        level = newton if low < newton < high and step % 8 else (low + high) / 2
    return level
