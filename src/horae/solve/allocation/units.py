"""Profiles and units: the variables of the time program when jobs may share GPUs.

A profile is a GPU count with the speed on each GPU type, alone and beside other jobs. Jobs of one profile may differ in
weight or demand. A unit is one profile alone, or two profiles side by side, on one GPU type. It does not matter which
job of a profile a unit holds; `time_division.py` divides the time of units among jobs in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.solve.allocation.equal_jobs import Classes, find_classes
from horae.solve.allocation.problem import AllocationProblem, Sharing

#: Profile number of a unit without a second job.
NO_PARTNER = -1


@dataclass(frozen=True)
class Profiles:
    """The profiles of a problem, as columns: `count` jobs of `gpus` GPUs each, steps/s by GPU type."""

    speed: Floats
    gpus: Floats
    count: Floats
    #: Row in `Sharing.pair_speed`, or -1.
    pair_row: Ints
    #: Position of one job of each profile.
    job: Ints


@dataclass(frozen=True)
class Units:
    """Units, as columns: profile `first`, beside profile `second` or NO_PARTNER, on a GPU type.

    A unit with the same profile twice holds two jobs of it.
    """

    first: Ints
    second: Ints
    gpu_type: Ints
    #: GPU count of the unit.
    gpus: Floats
    #: Steps/s of the first and of the second job.
    first_speed: Floats
    second_speed: Floats

    def __len__(self) -> int:
        return len(self.first)

    def take(self, chosen: Ints | NDArray[np.bool_]) -> Units:
        """The chosen units, in this order."""
        return Units(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def joined_with(self, more: Units) -> Units:
        """These units, then more."""
        names = (field.name for field in fields(self))
        return Units(*(np.concatenate((getattr(self, name), getattr(more, name))) for name in names))


@dataclass(frozen=True)
class Sides:
    """The profiles in units, as columns: unit, profile, its steps/s there, number of its jobs in the unit (1 or 2)."""

    unit: Ints
    profile: Ints
    speed: Floats
    jobs: Floats


def find_profiles(
    problem: AllocationProblem, separate: Ints, wants: Floats | None = None
) -> tuple[Classes, Profiles, Ints]:
    """Classes of equal jobs, the profiles of these classes, and the profile of each class.

    Jobs of a class are equal in their row of `wants`, too; jobs of a profile need not be. Jobs with different
    numbers in `separate` are in different profiles.
    """
    pair_row = problem.sharing.pair_row if problem.sharing else np.full(len(problem), -1)
    columns = np.column_stack((problem.speed, problem.gpus, pair_row, separate))
    if wants is None:
        classes = find_classes(columns)
        first, count, profile_of = classes.first, classes.count, np.arange(len(classes.count))
    else:
        classes = find_classes(np.column_stack((columns, wants)))
        profiles = find_classes(columns[classes.first])
        first, profile_of = classes.first[profiles.first], profiles.of_job
        count = tally(profile_of, classes.count, len(first))
    return classes, Profiles(problem.speed[first], problem.gpus[first], count, pair_row[first], first), profile_of


def find_units(profiles: Profiles, sharing: Sharing | None) -> tuple[Units, Units]:
    """All units of one profile, and all useful units of two.

    Two jobs share GPUs only on a type on which each could run alone.
    """
    first, gpu_type = np.nonzero(profiles.speed > 0)
    no_partner = np.full(len(first), NO_PARTNER)
    speed = profiles.speed[first, gpu_type]
    alone = Units(first, no_partner, gpu_type, profiles.gpus[first], speed, np.zeros(len(first)))
    if sharing is None or not (profiles.pair_row >= 0).any():
        return alone, alone.take(np.empty(0, np.int64))
    return alone, _pairs(profiles, sharing)


def _pairs(profiles: Profiles, sharing: Sharing) -> Units:
    """Units of two profiles of equal GPU count, which have a speed beside each other and gain by sharing."""
    sharers = np.flatnonzero(profiles.pair_row >= 0)
    row, gpus, speed = profiles.pair_row[sharers], profiles.gpus[sharers], profiles.speed[sharers]
    first_speed = np.where(speed[:, None] > 0, sharing.pair_speed[row[:, None], row[None, :]], 0.0)
    second_speed = first_speed.transpose(1, 0, 2)
    possible = (first_speed > 0) & (second_speed > 0) & (gpus[:, None] == gpus)[:, :, None]
    # Each pair once, and no job beside itself.
    number = np.arange(len(sharers))
    possible &= (number[:, None] <= number)[:, :, None]
    possible[number, number] &= (profiles.count[sharers] >= 2)[:, None]
    first, second, gpu_type = np.nonzero(possible)
    first_speed, second_speed = first_speed[first, second, gpu_type], second_speed[first, second, gpu_type]
    # Two jobs that do as much by taking turns need not share.
    better = first_speed / speed[first, gpu_type] + second_speed / speed[second, gpu_type] > 1.0
    return Units(sharers[first], sharers[second], gpu_type, gpus[first], first_speed, second_speed).take(better)


def sides_of(units: Units) -> Sides:
    """The sides of units; a unit with the same profile twice has one side, of two jobs."""
    twice = units.first == units.second
    second = np.flatnonzero((units.second != NO_PARTNER) & ~twice)
    unit = np.concatenate((np.arange(len(units)), second))
    profile = np.concatenate((units.first, units.second[second]))
    speed = np.concatenate((units.first_speed, units.second_speed[second]))
    return Sides(unit, profile, speed, np.where(np.append(twice, np.zeros(len(second), np.bool_)), 2.0, 1.0))


def fastest(profiles: Profiles, units: Units) -> Floats:
    """The most steps/s of a job of each profile in any unit."""
    sides, most = sides_of(units), np.zeros(len(profiles.count))
    np.maximum.at(most, sides.profile, sides.speed)
    return most


def tally(number: Ints, weight: Floats, size: int) -> Floats:
    """The sum of weights for each number below `size`."""
    return np.bincount(number, weight, size).astype(np.float64, copy=False)


def matches(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """All pairs of positions at which two columns hold the same number, in order of the first column."""
    order = np.argsort(right, kind="stable")
    start = np.searchsorted(right[order], left)
    count = np.searchsorted(right[order], left, side="right") - start
    first = np.repeat(np.arange(len(left)), count)
    nth = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count)
    return first, order[start[first] + nth]
