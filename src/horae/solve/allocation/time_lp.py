"""The time program: a linear program over the time of each unit, kept in HiGHS and solved again after changes.

Rows are limits and floors. No profile has more time than its jobs have, and no GPU type is used beyond its GPUs. A
floor is a lower bound on (speed - over)+ * time, summed over the units of a profile. With `over` = 0 that is
throughput; `floors.py` explains the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import highspy
import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.solve.allocation.units import Profiles, Sides, Units, fastest, matches, sides_of, tally

#: Tolerance of the solver, for rows and prices.
TOLERANCE = 1e-9
#: Tolerance after levels were fixed, whose values were rounded, too.
_LOOSE = 1e-7
#: Column generation: pairs are left out until prices show a gain; this many, or as many as rows, come in at once.
_AT_ONCE = 100
#: Factor on the errors of a solution in the program that corrects them.
_MAGNIFIED = 1e6
#: HiGHS' numbers of the dual and of the primal simplex method.
_DUAL, _PRIMAL = 1, 4
#: A unit with a relative loss below this breaks even.
_EVEN = 1e-7
#: A price below this fraction of the turnover counts as 0.
_ZERO_PRICE = 1e-9


@dataclass(frozen=True)
class Prices:
    """The dual solution of a time program."""

    #: Price of one GPU of each type.
    gpu: Floats
    #: Price of raising each floor by one; 0 for a fixed floor.
    floor: Floats
    #: The same, without prices that may be rounding errors.
    sure: Floats
    #: Worth of all time and all GPUs, less the cost of fixed floors.
    worth: float
    #: Sum of all payments.
    turnover: float
    #: The solver's row duals: limits, then floors (negative).
    dual: Floats

    def extended(self, floors: int) -> Prices:
        """The same prices for more floors; new floors have price 0."""
        more = np.zeros(floors - len(self.floor))
        floor, sure = np.append(self.floor, more), np.append(self.sure, more)
        return replace(self, floor=floor, sure=sure, dual=np.append(self.dual, more))


class TimeProgram:
    """Columns: time of units, and extra columns. Rows: time of profiles, GPUs of types, and floors.

    The solution is in `time` (of units), `extra`, `floor_value` and `prices`.
    """

    def __init__(self, profiles: Profiles, alone: Units, pairs: Units, capacity: Floats) -> None:
        count, rows = len(profiles.count), len(profiles.count) + len(capacity)
        self._profiles = profiles
        #: Time of each profile, then GPUs of each type.
        self._limits = np.concatenate((profiles.count, capacity))
        #: Unit of the floors of each profile, in steps/s: its fastest.
        self.fastest = fastest(profiles, alone.joined_with(pairs))
        #: Of each floor: profile, `over`, lower bound. The first floors are those with `over` = 0.
        self.floor_profile, self.floor_over, self._floor = np.arange(count), np.zeros(count), np.zeros(count)
        #: Limits and floors that are fixed: they hold exactly.
        self._exact, self.exact_floor = np.zeros(rows, np.bool_), np.zeros(count, np.bool_)
        self._gain = np.zeros((count, len(capacity)))
        self._highs = _solver()
        self._highs.addRows(rows, np.full(rows, -np.inf), self._limits, *_empty(rows))
        self._highs.addRows(count, np.zeros(count), np.full(count, np.inf), *_empty(count))
        #: Column numbers of units and of extra columns.
        self._unit_column, self._extra_column = np.empty(0, np.int64), np.empty(0, np.int64)
        self.units, self._left_out = alone.take(np.empty(0, np.int64)), pairs
        self._cache: list[tuple[Units, int, tuple[Sides, Ints, Ints, Floats]]] = []
        self._add_units(alone)

    def solve(self, from_below: bool = False) -> None:
        """Solve the program; pairs come in until no pair that is left out gains.

        `from_below`: the last solution is still feasible, so the primal simplex method starts from it.
        """
        while True:
            self._run(_PRIMAL if from_below else _DUAL)
            self._read()
            better = self._gaining(self._left_out)
            if not len(better):
                return
            self._let_in(better)
            from_below = True

    def _let_in(self, chosen: Ints) -> None:
        """Add pairs that were left out."""
        self._add_units(self._left_out.take(chosen))
        self._left_out = self._left_out.take(np.setdiff1d(np.arange(len(self._left_out)), chosen))

    def _run(self, simplex: int) -> None:
        """Run the solver from the last basis; if that fails, by the other simplex method, or from the start."""
        for method, restart in ((simplex, False), (_PRIMAL, False), (_DUAL, True), (_PRIMAL, True)):
            if restart:
                self._highs.clearSolver()
            if self._attempt(method):
                return
        if self._attempt_loosely():
            return
        raise AssertionError(f"the time of units has no optimum: {self._highs.getModelStatus()}")

    def _attempt_loosely(self) -> bool:
        """Run with a larger tolerance: fixed floors of an earlier solution may be infeasible by its rounding."""
        self._highs.setOptionValue("primal_feasibility_tolerance", _LOOSE)
        try:
            return self._attempt(_DUAL) or self._attempt(_PRIMAL)
        finally:
            self._highs.setOptionValue("primal_feasibility_tolerance", TOLERANCE)

    def _attempt(self, simplex: int) -> bool:
        self._highs.setOptionValue("simplex_strategy", simplex)
        self._highs.run()
        return bool(self._highs.getModelStatus() == highspy.HighsModelStatus.kOptimal)

    def _read(self) -> None:
        """Read the solution and its prices."""
        solution = self._highs.getSolution()
        self._read_values(np.array(solution.col_value), np.array(solution.row_value))
        self.prices = self._priced(np.array(solution.row_dual))

    def _read_values(self, values: Floats, rows: Floats) -> None:
        limits = len(self._limits)
        self.extra, self.time = values[self._extra_column], np.maximum(values[self._unit_column], 0.0)
        self._used, self.floor_value = rows[:limits], rows[limits:]

    def refine(self) -> None:
        """Correct the errors of the solution, at the same prices: the magnified errors are a program like this one.

        The solver may miss a row by its tolerance, which is a large error for a small throughput (Gleixner,
        Steffy and Wolter, Iterative Refinement for Linear Programming, 2016).
        """
        lp, values = self._highs.getLp(), np.array(self._highs.getSolution().col_value)
        columns = np.array(lp.col_lower_), np.array(lp.col_upper_)
        rows = np.array(lp.row_lower_), np.array(lp.row_upper_)
        reached = _products(lp.a_matrix_, values, len(rows[0]))
        self._bound(*((bound - values) * _MAGNIFIED for bound in columns))
        self._bound_rows(*((bound - reached) * _MAGNIFIED for bound in rows))
        if self._attempt(_DUAL) or self._attempt(_PRIMAL):
            values = values + np.array(self._highs.getSolution().col_value) / _MAGNIFIED
            self._read_values(values, _products(lp.a_matrix_, values, len(rows[0])))
        self._bound(*columns)
        self._bound_rows(*rows)

    def _bound(self, least: Floats, most: Floats) -> None:
        self._highs.changeColsBounds(len(least), np.arange(len(least), dtype=np.int32), least, most)

    def _bound_rows(self, least: Floats, most: Floats) -> None:
        self._highs.changeRowsBounds(len(least), np.arange(len(least), dtype=np.int32), least, most)

    def _priced(self, dual: Floats) -> Prices:
        """Prices from row duals. A price with the wrong sign, by rounding, counts as 0 unless its row is fixed."""
        profiles, rows, exact = len(self._profiles.count), len(self._limits), self.exact_floor
        limit = np.where(self._exact, dual[:rows], np.maximum(dual[:rows], 0.0))
        fixed = np.where(exact, -dual[rows:] * self._floor, 0.0)
        worth, turnover = limit @ self._limits - fixed.sum(), np.abs(limit) @ self._limits + np.abs(fixed).sum()
        floor = np.where(exact, 0.0, np.maximum(-dual[rows:], 0.0))
        sure = np.where(floor * self._profiles.count[self.floor_profile] > _ZERO_PRICE * turnover, floor, 0.0)
        return Prices(limit[profiles:], floor, sure, float(worth), float(turnover), dual)

    @property
    def value(self) -> float:
        """Gain of the units' time."""
        return float(_gains(self.units, self._gain) @ self.time)

    def gap(self) -> float:
        """Upper bound by prices less the gain of the units' time, relative to the gain."""
        bound = self.prices.worth - float(self.prices.floor @ self._floor)
        return max(0.0, bound - self.value) / max(self.value, 1e-300)

    def excess(self) -> float:
        """Largest excess of units over time or GPUs, relative to the limit."""
        sides, profiles = self.sides, len(self._profiles.count)
        time = tally(sides.profile, sides.jobs * self.time[sides.unit], profiles)
        gpus = tally(self.units.gpu_type, self.units.gpus * self.time, len(self._limits) - profiles)
        over = (np.append(time, gpus) - self._limits) / np.maximum(self._limits, 1.0)
        return max(0.0, float(over.max()))

    def set_gain(self, gain: Floats) -> None:
        """Set the gain of a step/s by profile and GPU type; 0 at first."""
        if not np.array_equal(gain, self._gain):
            self._gain = gain
            self._highs.changeColsCost(len(self.units), self._unit_column.astype(np.int32), _gains(self.units, gain))

    def set_count(self, profile: int, count: float) -> None:
        """Change the number of jobs of a profile. A single job cannot share GPUs with itself."""
        self._limits[profile] = count
        self._highs.changeRowBounds(profile, -np.inf, count)
        with_itself = (self._left_out.first == profile) & (self._left_out.second == profile)
        if with_itself.any():
            self._let_in(np.flatnonzero(with_itself))
        pairs = self._unit_column[(self.units.first == profile) & (self.units.second == profile)].astype(np.int32)
        most = np.full(len(pairs), np.inf if count >= 2 else 0.0)
        self._highs.changeColsBounds(len(pairs), pairs, np.zeros(len(pairs)), most)

    def set_floors(self, least: Floats) -> None:
        """Set the lower bound of each floor."""
        changed = (least != self._floor) & ~self.exact_floor
        for floor in np.flatnonzero(changed).tolist():
            self._highs.changeRowBounds(len(self._limits) + floor, float(least[floor]), np.inf)
        self._floor = np.where(changed, least, self._floor)

    def add_extras(self, floor: Ints, gain: Floats, least: Floats, most: Floats) -> None:
        """Add extra columns, each of which lowers a floor by 1."""
        entries = _by_first(np.arange(len(floor)), len(self._limits) + floor, np.full(len(floor), -1.0), len(floor))
        self._extra_column = np.append(self._extra_column, self._highs.getNumCol() + np.arange(len(floor)))
        self._highs.addCols(len(floor), gain, least, most, *entries)

    def set_extras(self, extra: Ints, gain: Floats, least: Floats, most: Floats) -> None:
        """Set gains and bounds of extra columns."""
        columns = self._extra_column[extra].astype(np.int32)
        self._highs.changeColsCost(len(columns), columns, gain)
        self._highs.changeColsBounds(len(columns), columns, least, most)

    def set_lowers(self, extra: int, floor: Ints, lowers: Floats) -> None:
        """Set by how much an extra column lowers floors."""
        for row, by in zip((len(self._limits) + floor).tolist(), lowers.tolist(), strict=True):
            self._highs.changeCoeff(row, int(self._extra_column[extra]), -by)

    def add_floors(self, profile: Ints, over: Floats) -> None:
        """Add floors, with lower bound 0."""
        new = len(self.floor_profile) + np.arange(len(profile))
        self.floor_profile, self.floor_over = np.append(self.floor_profile, profile), np.append(self.floor_over, over)
        self._floor = np.append(self._floor, np.zeros(len(profile)))
        self.exact_floor = np.append(self.exact_floor, np.zeros(len(profile), np.bool_))
        side, floor, height = self._heights(self.sides, new)
        entries = _by_first(floor - new[0], self._unit_column[self.sides.unit[side]], height, len(profile))
        self._highs.addRows(len(profile), np.zeros(len(profile)), np.full(len(profile), np.inf), *entries)

    def fix(self, prices: Prices, floors: Floats) -> None:
        """Restrict the program to solutions as good as the present one, by its prices; `floors` are floor values.

        Every solution as good uses up each row that has a price. So such a row holds exactly from now on, and units
        that do not pay for their rows stay empty.
        """
        rows, prices = len(self._limits), prices.extended(len(self.floor_profile))
        paid = np.abs(prices.dual[:rows]) * self._limits
        for row in np.flatnonzero(paid > _ZERO_PRICE * prices.turnover).tolist():
            self._highs.changeRowBounds(row, min(self._used[row], self._limits[row]), self._limits[row])
            self._exact[row] = True
        for floor in np.flatnonzero(~self.exact_floor & (prices.sure > 0)).tolist():
            self._highs.changeRowBounds(rows + floor, floors[floor], floors[floor])
            self.exact_floor[floor], self._floor[floor] = True, floors[floor]
        empty = self._unit_column[~self._pays(prices)].astype(np.int32)
        self._highs.changeColsBounds(len(empty), empty, np.zeros(len(empty)), np.zeros(len(empty)))
        self._left_out = self._left_out.take(self._breaks_even(self._left_out, prices))

    def fastest_now(self, prices: Prices) -> Floats:
        """The most steps/s of a job of each profile in units that pay for their time and GPUs."""
        prices = prices.extended(len(self.floor_profile))
        left_out = self._left_out.take(self._breaks_even(self._left_out, prices))
        return fastest(self._profiles, self.units.take(self._pays(prices)).joined_with(left_out))

    def _pays(self, prices: Prices) -> Bools:
        return np.asarray((self.time > 0) | self._breaks_even(self.units, prices))

    def _breaks_even(self, units: Units, prices: Prices) -> Bools:
        terms = self._balance(units, prices)
        return np.asarray(sum(terms) >= -_EVEN * sum(np.abs(term) for term in terms) - TOLERANCE)

    def _gaining(self, units: Units) -> Ints:
        """Units that are worth more than their time and GPUs; the best of them, if there are many."""
        if not len(units):
            return np.empty(0, np.int64)
        profit = np.asarray(sum(self._balance(units, self.prices)))
        better = np.flatnonzero(profit > TOLERANCE)
        at_once = max(_AT_ONCE, self._highs.getNumRow())
        return better[np.argsort(-profit[better], kind="stable")[:at_once]]

    def _balance(self, units: Units, prices: Prices) -> tuple[Floats, ...]:
        """Profit terms of each unit's time: gain, worth to floors, and (negative) the price of time and of GPUs."""
        (sides, side, floor, height), size = self._sides_and_heights(units), len(units)
        gains = _gains(units, self._gain) if self._gain.any() else np.zeros(size)
        floors = tally(sides.unit[side], -height * prices.dual[len(self._limits) + floor], size)
        time = tally(sides.unit, -sides.jobs * prices.dual[sides.profile], size)
        return gains, floors, time, -units.gpus * prices.dual[len(self._profiles.count) + units.gpu_type]

    def _sides_and_heights(self, units: Units) -> tuple[Sides, Ints, Ints, Floats]:
        """The sides of units, and their heights on all floors; cached for the pairs that are left out."""
        for cached, floors, result in self._cache:
            if cached is units and floors == len(self.floor_profile):
                return result
        sides = sides_of(units)
        result = sides, *self._heights(sides, np.arange(len(self.floor_profile)))
        if units is self._left_out:
            self._cache = [(units, len(self.floor_profile), result)]
        return result

    def _add_units(self, units: Units) -> None:
        sides, count = sides_of(units), len(self._profiles.count)
        side, floor, height = self._heights(sides, np.arange(len(self.floor_profile)))
        unit = np.concatenate((sides.unit, np.arange(len(units)), sides.unit[side]))
        row = np.concatenate((sides.profile, count + units.gpu_type, len(self._limits) + floor))
        entries = _by_first(unit, row, np.concatenate((sides.jobs, units.gpus, height)), len(units))
        no_end = np.full(len(units), np.inf)
        self._unit_column = np.append(self._unit_column, self._highs.getNumCol() + np.arange(len(units)))
        self._highs.addCols(len(units), _gains(units, self._gain), np.zeros(len(units)), no_end, *entries)
        self.units = self.units.joined_with(units)
        self.sides = sides_of(self.units) if len(self.units) > len(units) else sides

    def _heights(self, sides: Sides, floors: Ints) -> tuple[Ints, Ints, Floats]:
        """Entries of sides in these floors: the side, the floor, and the coefficient."""
        side, nth = matches(sides.profile, self.floor_profile[floors])
        floor = floors[nth]
        over = np.maximum(sides.speed[side] - self.floor_over[floor], 0.0)
        height = sides.jobs[side] * over / self.fastest[sides.profile[side]]
        positive = height > 0
        return side[positive], floor[positive], height[positive]


def divide_under(speed: Floats, time: Floats, length: Floats, want: Floats, most: Floats) -> Floats | None:
    """Time of each class (rows) on each side (columns) that uses up all time and gives the classes what they want.

    `length` is the time of each class, `most` its largest time on each side. None if that is impossible.
    """
    classes, sides = most.shape
    highs, column, ones = _solver(), np.arange(most.size), np.ones(most.size)
    of_class, of_side = np.repeat(np.arange(classes), sides), np.tile(np.arange(sides), classes)
    no_end = np.full(classes, np.inf)
    highs.addCols(most.size, np.zeros(most.size), np.zeros(most.size), most.reshape(-1), *_empty(most.size))
    highs.addRows(classes, -no_end, length, *_by_first(of_class, column, ones, classes))
    highs.addRows(classes, want, no_end, *_by_first(of_class, column, speed[of_side], classes))
    highs.addRows(sides, time, time, *_by_first(of_side, column, ones, sides))
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.asarray(np.maximum(highs.getSolution().col_value, 0.0).reshape(most.shape))


def _gains(units: Units, gain: Floats) -> Floats:
    """Gain of a second of each unit."""
    second_gain = np.where(units.second >= 0, gain[units.second, units.gpu_type], 0.0)
    return np.asarray(units.first_speed * gain[units.first, units.gpu_type] + units.second_speed * second_gain)


def _products(matrix: Any, values: Floats, rows: int) -> Floats:
    """Value of every row of a program."""
    column = np.repeat(np.arange(len(values)), np.diff(matrix.start_))
    return tally(np.array(matrix.index_), np.array(matrix.value_) * values[column], rows)


def _solver() -> Any:
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    options = {"output_flag": False, "threads": 1, "solver": "simplex", "presolve": "off"}
    tolerances = {f"{side}_feasibility_tolerance": TOLERANCE for side in ("primal", "dual")}
    for name, value in {**options, **tolerances}.items():
        highs.setOptionValue(name, value)
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    return highs


def _by_first(first: Ints, second: Ints, value: Floats, size: int) -> tuple[int, Any, Any, Any]:
    """Entries of a sparse matrix as HiGHS takes them: in order of `first`, with the start of its `size` rows."""
    order = np.argsort(first, kind="stable")
    start = np.searchsorted(first[order], np.arange(size))
    return len(order), start.astype(np.int32), second[order].astype(np.int32), value[order]


def _empty(size: int) -> tuple[int, Any, Any, Any]:
    return 0, np.zeros(size, np.int32), np.empty(0, np.int32), np.empty(0)
