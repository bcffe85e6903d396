"""The linear program behind allocation problems: how much time each unit has. HiGHS keeps it and solves it again.

No kind of job has more time than its jobs have, no GPU type is used beyond its GPUs, and
floors hold: a floor asks of a kind that (speed - over)+ * time, summed over its units, is at
least so much. With `over` 0 that is throughput; `packing.py` says what the others are for.
"""

from __future__ import annotations

from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from horae.solve.units import Kinds, Sides, Units, fastest, matches, sides_of, tally

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: How far the solver may miss a row, or a price.
TOLERANCE = 1e-9
#: Pairs are left out until prices say which are worth their GPUs; so many of those come in at once, or one for a row.
_AT_ONCE = 100
#: Numbers by which HiGHS knows the simplex method from above, and from below.
_DUAL, _PRIMAL = 1, 4
#: A unit whose worth is closer to its cost than this, relatively, is worth it.
_DOUBT = 1e-6


class TimeProgram:
    """Rows: time of kinds, GPUs of types, floors, the caller's own. Columns: the caller's own, then units."""

    def __init__(self, kinds: Kinds, alone: Units, pairs: Units, capacity: Floats, own: int) -> None:
        count, types = len(kinds.count), len(capacity)
        self._kinds, self._types, self._own, self._capacity = kinds, types, own, capacity
        self._gain = np.zeros((count, types))
        #: Steps/s in which the floors of a kind are measured.
        self.fastest = fastest(kinds, alone.and_also(pairs))
        #: The kind of each floor, what speeds must be over, the row, and how much it asks for.
        self.floor_kind, self.floor_over = np.arange(count), np.zeros(count)
        self._floor_row, self._floor = count + types + np.arange(count), np.zeros(count)
        self._highs = _solver()
        self._highs.addCols(own, np.zeros(own), np.full(own, -np.inf), np.full(own, np.inf), *_empty(own))
        rows = 2 * count + types
        least, most = np.zeros(rows), np.full(rows, np.inf)
        least[: count + types], most[: count + types] = -np.inf, np.concatenate((kinds.count, capacity))
        self._highs.addRows(rows, least, most, *_empty(rows))
        self.units, self.sides, self._left_out = alone.take(np.empty(0, np.int64)), sides_of(alone), pairs
        self._add_units(alone)

    @property
    def pairs(self) -> int:
        """Units of two, in the program or left out of it."""
        return int((self.units.other >= 0).sum()) + len(self._left_out)

    def solve(self, from_below: bool = False) -> None:
        """Find the best times; pairs come in until none that is left out is worth its price.

        `from_below` says that the last answer still holds, and is to become better.
        """
        while True:
            self._run(_PRIMAL if from_below else _DUAL)
            solution = self._highs.getSolution()
            values, self._dual = np.array(solution.col_value), np.array(solution.row_dual)
            self.own, self.time = values[: self._own], np.maximum(values[self._own :], 0.0)
            self.floor_value = np.array(solution.row_value)[self._floor_row]
            better = self._worth_more(self._left_out)
            if not len(better):
                return
            self._add_units(self._left_out.take(better))
            self._left_out = self._left_out.take(np.setdiff1d(np.arange(len(self._left_out)), better))
            from_below = True

    def _run(self, simplex: int) -> None:
        """Go on from the last answer, or from the start if that leads nowhere."""
        optimal = highspy.HighsModelStatus.kOptimal
        self._highs.setOptionValue("simplex_strategy", simplex)
        self._highs.run()
        if self._highs.getModelStatus() != optimal:
            self._highs.clearSolver()
            self._highs.setOptionValue("simplex_strategy", _DUAL)
            self._highs.run()
        status = self._highs.getModelStatus()
        assert status == optimal, f"the time of units has no optimum: {status}"

    @property
    def price(self) -> Floats:
        """Worth of one GPU of each type."""
        count = len(self._kinds.count)
        return np.asarray(np.maximum(self._dual[count : count + self._types], 0.0))

    @property
    def time_price(self) -> Floats:
        """Worth of all the time of one more job of each kind."""
        return np.asarray(np.maximum(self._dual[: len(self._kinds.count)], 0.0))

    @property
    def floor_price(self) -> Floats:
        """What it costs to raise each floor by one."""
        return np.asarray(np.maximum(-self._dual[self._floor_row], 0.0))

    @property
    def worth(self) -> float:
        """Worth of all GPUs and all time."""
        return float(self.price @ self._capacity + self.time_price @ self._kinds.count)

    @property
    def value(self) -> float:
        """Worth of the units' time."""
        return float(_worth(self.units, self._gain) @ self.time)

    def gap(self) -> float:
        """By how much prices would allow the units' time to be worth more, relative to it."""
        bound = self.worth - float(self.floor_price @ self._floor)
        return max(0.0, bound - self.value) / max(self.value, 1e-300)

    def excess(self) -> float:
        """By how much the units take more GPUs or time than there is, relative to it."""
        sides = self.sides
        taken = tally(self.units.gpu_type, self.units.gpus * self.time, self._types)
        used = tally(sides.kind, sides.jobs * self.time[sides.unit], len(self._kinds.count))
        over = np.concatenate(
            ((taken - self._capacity) / np.maximum(self._capacity, 1.0), used / self._kinds.count - 1)
        )
        return max(0.0, float(over.max()))

    def set_gain(self, gain: Floats) -> None:
        """What a step/s of each kind on each type is worth; at first nothing is."""
        if np.array_equal(gain, self._gain):
            return
        self._gain = gain
        columns = self._own + np.arange(len(self.units))
        self._highs.changeColsCost(len(columns), columns.astype(np.int32), _worth(self.units, gain))

    def set_own(self, column: int, cost: float, least: float, most: float) -> None:
        """Worth and bounds of one of the caller's columns."""
        self._highs.changeColCost(column, cost)
        self._highs.changeColBounds(column, least, most)

    def set_share(self, floor: Ints, column: Ints, share: Floats) -> None:
        """How much floors take from columns of the caller's own."""
        for row, at, value in zip(self._floor_row[floor].tolist(), column.tolist(), share.tolist(), strict=True):
            self._highs.changeCoeff(row, at, -value)

    def set_floors(self, least: Floats) -> None:
        """How much each floor asks for."""
        for k in np.flatnonzero(least != self._floor).tolist():
            self._highs.changeRowBounds(int(self._floor_row[k]), float(least[k]), np.inf)
        self._floor = least.copy()

    def set_count(self, kind: int, count: float) -> None:
        """How many jobs a kind has; one alone is no pair."""
        self._highs.changeRowBounds(kind, -np.inf, count)
        twice = self._own + np.flatnonzero((self.units.one == kind) & (self.units.other == kind))
        most = np.full(len(twice), np.inf if count >= 2 else 0.0)
        self._highs.changeColsBounds(len(twice), twice.astype(np.int32), np.zeros(len(twice)), most)

    def add_floors(self, kind: Ints, over: Floats) -> None:
        """More floors, which ask for nothing yet."""
        new = len(self.floor_kind) + np.arange(len(kind))
        self.floor_kind, self.floor_over = np.append(self.floor_kind, kind), np.append(self.floor_over, over)
        self._floor_row = np.append(self._floor_row, self._highs.getNumRow() + np.arange(len(kind)))
        self._floor = np.append(self._floor, np.zeros(len(kind)))
        side, floor, height = self._heights(self.sides, new)
        entries = _by_first(floor - new[0], self._own + self.sides.unit[side], height, len(kind))
        self._highs.addRows(len(kind), np.zeros(len(kind)), np.full(len(kind), np.inf), *entries)

    def add_rows(self, most: Floats, columns: Ints, values: Floats) -> Ints:
        """Rows of the caller's columns, each as many entries as it has columns here; gives their numbers."""
        rows, width = columns.shape
        row = np.repeat(np.arange(rows), width)
        first = self._highs.getNumRow()
        self._highs.addRows(rows, np.full(rows, -np.inf), most, *_by_first(row, columns.ravel(), values.ravel(), rows))
        return np.asarray(first + np.arange(rows))

    def set_most(self, row: int, most: float) -> None:
        """The bound of one of the caller's rows."""
        self._highs.changeRowBounds(row, -np.inf, most)

    def _add_units(self, units: Units) -> None:
        sides, count = sides_of(units), len(self._kinds.count)
        side, floor, height = self._heights(sides, np.arange(len(self.floor_kind)))
        unit = np.concatenate((sides.unit, np.arange(len(units)), sides.unit[side]))
        row = np.concatenate((sides.kind, count + units.gpu_type, self._floor_row[floor]))
        value = np.concatenate((sides.jobs, units.gpus, height))
        nothing, no_end = np.zeros(len(units)), np.full(len(units), np.inf)
        entries = _by_first(unit, row, value, len(units))
        self._highs.addCols(len(units), _worth(units, self._gain), nothing, no_end, *entries)
        self.units = self.units.and_also(units)
        self.sides = sides_of(self.units)

    def _heights(self, sides: Sides, floors: Ints) -> tuple[Ints, Ints, Floats]:
        """Every side that counts for one of these floors: the side, the floor, and how much it counts."""
        side, floor = matches(sides.kind, self.floor_kind[floors])
        floor = floors[floor]
        over = np.maximum(sides.speed[side] - self.floor_over[floor], 0.0)
        height = sides.jobs[side] * over / self.fastest[sides.kind[side]]
        counts = height > 0
        return side[counts], floor[counts], height[counts]

    def fastest_worth_it(self) -> Floats:
        """The most steps/s a job of each kind has in units that are worth their time and GPUs."""
        worth, cost = self._balance(self.units)
        return fastest(self._kinds, self.units.take(worth >= cost * (1 - _DOUBT)))

    def _worth_more(self, units: Units) -> Ints:
        """Those units that are worth more than their time and GPUs; the best, if there are many."""
        worth, cost = self._balance(units)
        better = np.flatnonzero(worth - cost > TOLERANCE)
        at_once = max(_AT_ONCE, self._highs.getNumRow())
        return better[np.argsort((cost - worth)[better], kind="stable")[:at_once]]

    def _balance(self, units: Units) -> tuple[Floats, Floats]:
        """What the time of each unit is worth at today's prices, for its gain and for floors, and what it costs."""
        sides = sides_of(units)
        side, floor, height = self._heights(sides, np.arange(len(self.floor_kind)))
        worth = _worth(units, self._gain) + tally(sides.unit[side], height * self.floor_price[floor], len(units))
        time = tally(sides.unit, sides.jobs * self.time_price[sides.kind], len(units))
        return worth, time + units.gpus * self.price[units.gpu_type]


def divide_under(speed: Floats, time: Floats, length: Floats, want: Floats, most: Floats) -> Floats | None:
    """Time on each side (columns) for each class (rows) that uses all time up and gives the classes what they want.

    `length` is the time of each class and `most` what it may have of each side. None if there is no way.
    """
    classes, sides = most.shape
    highs = _solver()
    highs.addCols(most.size, np.zeros(most.size), np.zeros(most.size), most.reshape(-1), *_empty(most.size))
    column = np.arange(most.size).reshape(most.shape)
    ones, empty = np.ones(most.size), np.full(classes, -np.inf)
    rows, width = np.repeat(np.arange(classes), sides), column.reshape(-1)
    highs.addRows(classes, empty, length, *_by_first(rows, width, ones, classes))
    highs.addRows(classes, want, np.full(classes, np.inf), *_by_first(rows, width, np.tile(speed, classes), classes))
    highs.addRows(sides, time, time, *_by_first(np.tile(np.arange(sides), classes), width, ones, sides))
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.asarray(np.maximum(highs.getSolution().col_value, 0.0).reshape(most.shape))


def _worth(units: Units, gain: Floats) -> Floats:
    """What a unit's time is worth."""
    other = np.where(units.other >= 0, gain[units.other, units.gpu_type], 0.0)
    return np.asarray(units.own * gain[units.one, units.gpu_type] + units.others * other)


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
