"""Units: ways to use GPUs of a type, by one kind of job alone or by two kinds side by side.

Jobs of a kind are equally fast wherever they run and beside whomever, so it does not matter
to a unit which of them it holds; `division.py` hands its time to jobs in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.solve.allocation.equal_jobs import Classes, find_classes
from horae.solve.allocation.problem import AllocationProblem, Sharing

#: In place of a neighbour.
NOBODY = -1


@dataclass(frozen=True)
class Kinds:
    """Kinds of jobs: `count` jobs of `gpus` GPUs each, steps/s by GPU type, and their number in a table of pairs."""

    speed: Floats
    gpus: Floats
    count: Floats
    #: Row of `Sharing.beside`, or -1.
    shares_as: Ints
    #: One job of each.
    job: Ints


@dataclass(frozen=True)
class Units:
    """Position u of every column is one unit: kind `one`, beside kind `other` or NOBODY, on a GPU type.

    A kind that stands in both places is two jobs of it.
    """

    one: Ints
    other: Ints
    gpu_type: Ints
    #: GPUs it takes.
    gpus: Floats
    #: Steps/s of the job in each place.
    own: Floats
    others: Floats

    def __len__(self) -> int:
        return len(self.one)

    def take(self, chosen: Ints | NDArray[np.bool_]) -> Units:
        """Some of them, in this order."""
        return Units(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def and_also(self, more: Units) -> Units:
        """These, then others."""
        names = (field.name for field in fields(self))
        return Units(*(np.concatenate((getattr(self, name), getattr(more, name))) for name in names))


@dataclass(frozen=True)
class Sides:
    """What units hold: position i is a kind in a unit, its steps/s there, and how many jobs of it (2 or 1)."""

    unit: Ints
    kind: Ints
    speed: Floats
    jobs: Floats


def find_kinds(problem: AllocationProblem, apart: Ints, wants: Floats | None = None) -> tuple[Classes, Kinds, Ints]:
    """Classes of jobs that cannot be told apart, the kinds of these classes, and the kind of each class.

    Classes differ by what they want, if anything; kinds do not. Jobs with different numbers in
    `apart` are kept apart.
    """
    shares_as = problem.sharing.kind if problem.sharing else np.full(len(problem), -1)
    columns = np.column_stack((problem.speed, problem.gpus, shares_as, apart))
    if wants is None:
        classes = find_classes(columns)
        first, count, of_kind = classes.first, classes.count, np.arange(len(classes.count))
    else:
        classes = find_classes(np.column_stack((columns, wants)))
        kinds = find_classes(columns[classes.first])
        first, of_kind = classes.first[kinds.first], kinds.of_job
        count = tally(of_kind, classes.count, len(first))
    return classes, Kinds(problem.speed[first], problem.gpus[first], count, shares_as[first], first), of_kind


def find_units(kinds: Kinds, sharing: Sharing | None) -> tuple[Units, Units]:
    """All units of one kind, and all of two that are of any use.

    Jobs share GPUs only where each could run alone: a type that is closed, or too small for one
    of them, is so for two as well.
    """
    one, gpu_type = np.nonzero(kinds.speed > 0)
    own = kinds.speed[one, gpu_type]
    alone = Units(one, np.full(len(one), NOBODY), gpu_type, kinds.gpus[one], own, np.zeros(len(one)))
    if sharing is None or not (kinds.shares_as >= 0).any():
        return alone, alone.take(np.empty(0, np.int64))
    return alone, _pairs(kinds, sharing)


def _pairs(kinds: Kinds, sharing: Sharing) -> Units:
    """Two kinds of equal size, both with a speed beside the other."""
    social = np.flatnonzero(kinds.shares_as >= 0)
    number, gpus, speed = kinds.shares_as[social], kinds.gpus[social], kinds.speed[social]
    own = np.where(speed[:, None] > 0, sharing.beside[number[:, None], number[None, :]], 0.0)
    others = own.transpose(1, 0, 2)
    possible = (own > 0) & (others > 0) & (gpus[:, None] == gpus)[:, :, None]
    # Each pair once, and nobody beside itself.
    place = np.arange(len(social))
    possible &= (place[:, None] <= place)[:, :, None]
    possible[place, place] &= (kinds.count[social] >= 2)[:, None]
    one, other, gpu_type = np.nonzero(possible)
    own, others = own[one, other, gpu_type], others[one, other, gpu_type]
    # Two that would do as well taking turns need not share.
    better = own / speed[one, gpu_type] + others / speed[other, gpu_type] > 1.0
    return Units(social[one], social[other], gpu_type, gpus[one], own, others).take(better)


def sides_of(units: Units) -> Sides:
    """The kinds in units, a kind once where it fills both places."""
    twice = units.one == units.other
    second = np.flatnonzero((units.other != NOBODY) & ~twice)
    unit = np.concatenate((np.arange(len(units)), second))
    kind = np.concatenate((units.one, units.other[second]))
    speed = np.concatenate((units.own, units.others[second]))
    return Sides(unit, kind, speed, np.where(np.append(twice, np.zeros(len(second), np.bool_)), 2.0, 1.0))


def fastest(kinds: Kinds, units: Units) -> Floats:
    """The most steps/s a job of each kind has in any unit."""
    sides, most = sides_of(units), np.zeros(len(kinds.count))
    np.maximum.at(most, sides.kind, sides.speed)
    return most


def tally(number: Ints, weight: Floats, size: int) -> Floats:
    """The sum of weights for each number below `size`."""
    return np.bincount(number, weight, size).astype(np.float64, copy=False)


def matches(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """All positions at which two columns hold the same number, by the first column."""
    order = np.argsort(other, kind="stable")
    start = np.searchsorted(other[order], one)
    count = np.searchsorted(other[order], one, side="right") - start
    first = np.repeat(np.arange(len(one)), count)
    nth = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count)
    return first, order[start[first] + nth]
