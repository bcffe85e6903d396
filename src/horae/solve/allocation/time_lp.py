"""The linear program behind allocation problems: how much time each unit has. HiGHS keeps it and solves it again.

No kind of job has more time than its jobs have, no GPU type is used beyond its GPUs, and
floors hold: a floor asks of a kind that (speed - over)+ * time, summed over its units, is at
least so much. With `over` 0 that is throughput; `packing.py` says what the others are for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import highspy
import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.solve.allocation.units import Kinds, Sides, Units, fastest, matches, sides_of, tally

#: How far the solver may miss a row, or a price.
TOLERANCE = 1e-9
#: The same where nothing holds exactly any more: what was settled before was rounded, too.
_LOOSE = 1e-7
#: Pairs are left out until prices say which are worth their GPUs; so many of those come in at once, or one for a row.
_AT_ONCE = 100
#: What an answer misses is made so many times larger, to be mended.
_MAGNIFIED = 1e6
#: Numbers by which HiGHS knows the simplex method from above, and from below.
_DUAL, _PRIMAL = 1, 4
#: A unit that loses less than this, relative to all that it is worth and costs, breaks even.
_EVEN = 1e-7
#: A price that makes less than this of all that is paid is none.
_NOTHING = 1e-9


@dataclass(frozen=True)
class Prices:
    """What an answer of a program says that things are worth."""

    #: One GPU of each type.
    gpu: Floats
    #: To raise each floor by one; nothing, for one that was settled.
    floor: Floats
    #: The same without what is so little that it may be an error.
    sure: Floats
    #: All time and all GPUs, less what floors cost that were settled.
    worth: float
    #: What is paid in all.
    turnover: float
    #: Rows as the solver has them: limits, and then floors, where a floor costs less than nothing.
    dual: Floats

    def among(self, floors: int) -> Prices:
        """The same prices, if there are more floors by now: those cost nothing."""
        more = np.zeros(floors - len(self.floor))
        floor, sure = np.append(self.floor, more), np.append(self.sure, more)
        return replace(self, floor=floor, sure=sure, dual=np.append(self.dual, more))


class TimeProgram:
    """Time of units as columns, beside extra ones; time of kinds, GPUs of types, and floors as rows.

    An answer is in the public columns: `time` of units, `extra`, `floor_value`, and `prices`.
    """

    def __init__(self, kinds: Kinds, alone: Units, pairs: Units, capacity: Floats) -> None:
        count, rows = len(kinds.count), len(kinds.count) + len(capacity)
        self._kinds = kinds
        #: Time of each kind, then GPUs of each type.
        self._limits = np.concatenate((kinds.count, capacity))
        #: Steps/s in which the floors of a kind are measured.
        self.fastest = fastest(kinds, alone.and_also(pairs))
        #: The kind of each floor, what speeds must be over, and how much it asks for. Throughputs come first.
        self.floor_kind, self.floor_over, self._floor = np.arange(count), np.zeros(count), np.zeros(count)
        #: Limits and floors that were settled, and hold exactly.
        self._exact, self._exact_floor = np.zeros(rows, np.bool_), np.zeros(count, np.bool_)
        self._gain = np.zeros((count, len(capacity)))
        self._highs = _solver()
        self._highs.addRows(rows, np.full(rows, -np.inf), self._limits, *_empty(rows))
        self._highs.addRows(count, np.zeros(count), np.full(count, np.inf), *_empty(count))
        #: Where units and extras stand among the columns.
        self._unit_at, self._extra_at = np.empty(0, np.int64), np.empty(0, np.int64)
        self.units, self._left_out = alone.take(np.empty(0, np.int64)), pairs
        self._kept: list[tuple[Units, int, tuple[Sides, Ints, Ints, Floats]]] = []
        self._add_units(alone)

    def solve(self, from_below: bool = False) -> None:
        """Find the best times; pairs come in until none that is left out is worth its price.

        `from_below` says that the last answer still holds, and is to become better.
        """
        while True:
            self._run(_PRIMAL if from_below else _DUAL)
            self._read()
            better = self._worth_more(self._left_out)
            if not len(better):
                return
            self._let_in(better)
            from_below = True

    def _let_in(self, chosen: Ints) -> None:
        """Pairs that were left out."""
        self._add_units(self._left_out.take(chosen))
        self._left_out = self._left_out.take(np.setdiff1d(np.arange(len(self._left_out)), chosen))

    def _run(self, simplex: int) -> None:
        """Go on from the last answer; if that leads nowhere, by the other method, or from the start."""
        for method, anew in ((simplex, False), (_PRIMAL, False), (_DUAL, True), (_PRIMAL, True)):
            if anew:
                self._highs.clearSolver()
            if self._attempt(method):
                return
        if self._attempt_loosely():
            return
        raise AssertionError(f"the time of units has no optimum: {self._highs.getModelStatus()}")

    def _attempt_loosely(self) -> bool:
        """Floors of an earlier answer may be over what there is by its rounding: then a little less will do."""
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
        """Look up the answer."""
        solution = self._highs.getSolution()
        self._note(np.array(solution.col_value), np.array(solution.row_value))
        self.prices = self._priced(np.array(solution.row_dual))

    def _note(self, values: Floats, rows: Floats) -> None:
        limits = len(self._limits)
        self.extra, self.time = values[self._extra_at], np.maximum(values[self._unit_at], 0.0)
        self._used, self.floor_value = rows[:limits], rows[limits:]

    def refine(self) -> None:
        """Mend what the answer misses, at the same prices: magnified, that is a program like this one.

        The solver may miss a row by its tolerance, which is much to those that ask for little
        (Gleixner, Steffy and Wolter, Iterative Refinement for Linear Programming, 2016).
        """
        lp, values = self._highs.getLp(), np.array(self._highs.getSolution().col_value)
        columns = np.array(lp.col_lower_), np.array(lp.col_upper_)
        rows = np.array(lp.row_lower_), np.array(lp.row_upper_)
        reached = _products(lp.a_matrix_, values, len(rows[0]))
        self._bound(*((bound - values) * _MAGNIFIED for bound in columns))
        self._bound_rows(*((bound - reached) * _MAGNIFIED for bound in rows))
        if self._attempt(_DUAL) or self._attempt(_PRIMAL):
            values = values + np.array(self._highs.getSolution().col_value) / _MAGNIFIED
            self._note(values, _products(lp.a_matrix_, values, len(rows[0])))
        self._bound(*columns)
        self._bound_rows(*rows)

    def _bound(self, least: Floats, most: Floats) -> None:
        self._highs.changeColsBounds(len(least), np.arange(len(least), dtype=np.int32), least, most)

    def _bound_rows(self, least: Floats, most: Floats) -> None:
        self._highs.changeRowsBounds(len(least), np.arange(len(least), dtype=np.int32), least, most)

    def _priced(self, dual: Floats) -> Prices:
        """Prices have the sign that their row tells, whatever rounding says; either, if it holds exactly."""
        kinds, rows, exact = len(self._kinds.count), len(self._limits), self._exact_floor
        limit = np.where(self._exact, dual[:rows], np.maximum(dual[:rows], 0.0))
        settled = np.where(exact, -dual[rows:] * self._floor, 0.0)
        worth, turnover = limit @ self._limits - settled.sum(), np.abs(limit) @ self._limits + np.abs(settled).sum()
        floor = np.where(exact, 0.0, np.maximum(-dual[rows:], 0.0))
        sure = np.where(floor * self._kinds.count[self.floor_kind] > _NOTHING * turnover, floor, 0.0)
        return Prices(limit[kinds:], floor, sure, float(worth), float(turnover), dual)

    @property
    def value(self) -> float:
        """What the units' time gains."""
        return float(_gains(self.units, self._gain) @ self.time)

    def gap(self) -> float:
        """By how much prices would allow the units' time to gain more, relative to what it does."""
        bound = self.prices.worth - float(self.prices.floor @ self._floor)
        return max(0.0, bound - self.value) / max(self.value, 1e-300)

    def excess(self) -> float:
        """By how much the units take more time or GPUs than there is, relative to it."""
        sides, kinds = self.sides, len(self._kinds.count)
        time = tally(sides.kind, sides.jobs * self.time[sides.unit], kinds)
        gpus = tally(self.units.gpu_type, self.units.gpus * self.time, len(self._limits) - kinds)
        over = (np.append(time, gpus) - self._limits) / np.maximum(self._limits, 1.0)
        return max(0.0, float(over.max()))

    def set_gain(self, gain: Floats) -> None:
        """What a step/s of each kind on each type gains; at first nothing does."""
        if not np.array_equal(gain, self._gain):
            self._gain = gain
            self._highs.changeColsCost(len(self.units), self._unit_at.astype(np.int32), _gains(self.units, gain))

    def set_count(self, kind: int, count: float) -> None:
        """Another number of jobs of a kind; none is its own neighbour."""
        self._limits[kind] = count
        self._highs.changeRowBounds(kind, -np.inf, count)
        with_itself = (self._left_out.one == kind) & (self._left_out.other == kind)
        if with_itself.any():
            self._let_in(np.flatnonzero(with_itself))
        pairs = self._unit_at[(self.units.one == kind) & (self.units.other == kind)].astype(np.int32)
        most = np.full(len(pairs), np.inf if count >= 2 else 0.0)
        self._highs.changeColsBounds(len(pairs), pairs, np.zeros(len(pairs)), most)

    def set_floors(self, least: Floats) -> None:
        """How much each floor asks for."""
        changed = (least != self._floor) & ~self._exact_floor
        for floor in np.flatnonzero(changed).tolist():
            self._highs.changeRowBounds(len(self._limits) + floor, float(least[floor]), np.inf)
        self._floor = np.where(changed, least, self._floor)

    def add_extras(self, floor: Ints, gain: Floats, least: Floats, most: Floats) -> None:
        """More columns, each of which lowers a floor."""
        entries = _by_first(np.arange(len(floor)), len(self._limits) + floor, np.full(len(floor), -1.0), len(floor))
        self._extra_at = np.append(self._extra_at, self._highs.getNumCol() + np.arange(len(floor)))
        self._highs.addCols(len(floor), gain, least, most, *entries)

    def set_extras(self, extra: Ints, gain: Floats, least: Floats, most: Floats) -> None:
        """Gains and bounds of extra columns."""
        columns = self._extra_at[extra].astype(np.int32)
        self._highs.changeColsCost(len(columns), columns, gain)
        self._highs.changeColsBounds(len(columns), columns, least, most)

    def set_lowers(self, extra: int, floor: Ints, lowers: Floats) -> None:
        """By how much an extra column lowers floors."""
        for row, by in zip((len(self._limits) + floor).tolist(), lowers.tolist(), strict=True):
            self._highs.changeCoeff(row, int(self._extra_at[extra]), -by)

    def add_floors(self, kind: Ints, over: Floats) -> None:
        """More floors, which ask for nothing yet."""
        new = len(self.floor_kind) + np.arange(len(kind))
        self.floor_kind, self.floor_over = np.append(self.floor_kind, kind), np.append(self.floor_over, over)
        self._floor = np.append(self._floor, np.zeros(len(kind)))
        self._exact_floor = np.append(self._exact_floor, np.zeros(len(kind), np.bool_))
        side, floor, height = self._heights(self.sides, new)
        entries = _by_first(floor - new[0], self._unit_at[self.sides.unit[side]], height, len(kind))
        self._highs.addRows(len(kind), np.zeros(len(kind)), np.full(len(kind), np.inf), *entries)

    def settle(self, prices: Prices, floors: Floats) -> None:
        """Keep to what these prices prove to be best, whatever else is asked for; floors stand where they are said to.

        What has a price is used up in every answer that is as good. So its row holds exactly, and
        units that do not pay for it stay empty.
        """
        rows, prices = len(self._limits), prices.among(len(self.floor_kind))
        paid = np.abs(prices.dual[:rows]) * self._limits
        for row in np.flatnonzero(paid > _NOTHING * prices.turnover).tolist():
            self._highs.changeRowBounds(row, min(self._used[row], self._limits[row]), self._limits[row])
            self._exact[row] = True
        for floor in np.flatnonzero(~self._exact_floor & (prices.sure > 0)).tolist():
            self._highs.changeRowBounds(rows + floor, floors[floor], floors[floor])
            self._exact_floor[floor], self._floor[floor] = True, floors[floor]
        empty = self._unit_at[~self._pays(prices)].astype(np.int32)
        self._highs.changeColsBounds(len(empty), empty, np.zeros(len(empty)), np.zeros(len(empty)))
        self._left_out = self._left_out.take(self._breaks_even(self._left_out, prices))

    def fastest_now(self, prices: Prices) -> Floats:
        """The most steps/s a job of each kind has in units that pay for their time and GPUs."""
        prices = prices.among(len(self.floor_kind))
        waiting = self._left_out.take(self._breaks_even(self._left_out, prices))
        return fastest(self._kinds, self.units.take(self._pays(prices)).and_also(waiting))

    def _pays(self, prices: Prices) -> Bools:
        return np.asarray((self.time > 0) | self._breaks_even(self.units, prices))

    def _breaks_even(self, units: Units, prices: Prices) -> Bools:
        parts = self._balance(units, prices)
        return np.asarray(sum(parts) >= -_EVEN * sum(np.abs(part) for part in parts) - TOLERANCE)

    def _worth_more(self, units: Units) -> Ints:
        """Those units that are worth more than their time and GPUs; the best, if there are many."""
        if not len(units):
            return np.empty(0, np.int64)
        profit = np.asarray(sum(self._balance(units, self.prices)))
        better = np.flatnonzero(profit > TOLERANCE)
        at_once = max(_AT_ONCE, self._highs.getNumRow())
        return better[np.argsort(-profit[better], kind="stable")[:at_once]]

    def _balance(self, units: Units, prices: Prices) -> tuple[Floats, ...]:
        """What the time of each unit gains, is worth to floors, and (less than nothing) takes of time and GPUs."""
        (sides, side, floor, height), size = self._counted(units), len(units)
        gains = _gains(units, self._gain) if self._gain.any() else np.zeros(size)
        floors = tally(sides.unit[side], -height * prices.dual[len(self._limits) + floor], size)
        time = tally(sides.unit, -sides.jobs * prices.dual[sides.kind], size)
        return gains, floors, time, -units.gpus * prices.dual[len(self._kinds.count) + units.gpu_type]

    def _counted(self, units: Units) -> tuple[Sides, Ints, Ints, Floats]:
        """The sides of units and what they count for all floors; kept for those left out, which are asked often."""
        for known, floors, counted in self._kept:
            if known is units and floors == len(self.floor_kind):
                return counted
        sides = sides_of(units)
        counted = sides, *self._heights(sides, np.arange(len(self.floor_kind)))
        if units is self._left_out:
            self._kept = [(units, len(self.floor_kind), counted)]
        return counted

    def _add_units(self, units: Units) -> None:
        sides, count = sides_of(units), len(self._kinds.count)
        side, floor, height = self._heights(sides, np.arange(len(self.floor_kind)))
        unit = np.concatenate((sides.unit, np.arange(len(units)), sides.unit[side]))
        row = np.concatenate((sides.kind, count + units.gpu_type, len(self._limits) + floor))
        entries = _by_first(unit, row, np.concatenate((sides.jobs, units.gpus, height)), len(units))
        no_end = np.full(len(units), np.inf)
        self._unit_at = np.append(self._unit_at, self._highs.getNumCol() + np.arange(len(units)))
        self._highs.addCols(len(units), _gains(units, self._gain), np.zeros(len(units)), no_end, *entries)
        self.units = self.units.and_also(units)
        self.sides = sides_of(self.units) if len(self.units) > len(units) else sides

    def _heights(self, sides: Sides, floors: Ints) -> tuple[Ints, Ints, Floats]:
        """Every side that counts for one of these floors: the side, the floor, and how much it counts."""
        side, nth = matches(sides.kind, self.floor_kind[floors])
        floor = floors[nth]
        over = np.maximum(sides.speed[side] - self.floor_over[floor], 0.0)
        height = sides.jobs[side] * over / self.fastest[sides.kind[side]]
        counts = height > 0
        return side[counts], floor[counts], height[counts]


def divide_under(speed: Floats, time: Floats, length: Floats, want: Floats, most: Floats) -> Floats | None:
    """Time on each side (columns) for each class (rows) that uses all time up and gives the classes what they want.

    `length` is the time of each class and `most` what it may have of each side. None if there is no way.
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
    """What a unit's time gains."""
    other = np.where(units.other >= 0, gain[units.other, units.gpu_type], 0.0)
    return np.asarray(units.own * gain[units.one, units.gpu_type] + units.others * other)


def _products(matrix: Any, values: Floats, rows: int) -> Floats:
    """What every row of a program comes to."""
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
    """Entries of a matrix as HiGHS takes them: in order of `first`, and where each of its `size` parts starts."""
    order = np.argsort(first, kind="stable")
    start = np.searchsorted(first[order], np.arange(size))
    return len(order), start.astype(np.int32), second[order].astype(np.int32), value[order]


def _empty(size: int) -> tuple[int, Any, Any, Any]:
    return 0, np.zeros(size, np.int32), np.empty(0, np.int32), np.empty(0)
