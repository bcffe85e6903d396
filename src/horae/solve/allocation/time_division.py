"""From the time of profiles in units to the time of jobs, alone and in pairs.

Jobs of a profile want different throughputs, and its units have different speeds. The job that wants most goes first:
lay out the profile's time in order of speed, idle time last, cut out the stretch that is as long as the job's time and
gives just the throughput that it wants, and close the gap. That succeeds if and only if the speeds majorise the wants,
as when jobs share machines of different speeds and may be moved (Gonzalez and Sahni, JACM 1978).

One case needs care: where two jobs of one profile share GPUs, no job can have more than half of the places of a unit,
or it would share GPUs with itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.jit import FLOATS, INT, INTS, compiled
from horae.solve.allocation.equal_jobs import Classes
from horae.solve.allocation.time_lp import divide_under
from horae.solve.allocation.units import NO_PARTNER, Profiles, Sides, Units, matches, sides_of, tally

#: Times below this are rounding errors.
_SLIVER = 1e-12
#: Relative error allowed in a class's throughput, and in its half of the places.
_TOLERANCE = 1e-8


class BesideItself(Exception):
    """Classes whose jobs would have to share GPUs with themselves, by this division of the time."""

    def __init__(self, classes: Ints) -> None:
        super().__init__(classes)
        self.classes = classes


@dataclass(frozen=True)
class TimePieces:
    """Time of classes on sides, as columns."""

    of_class: Ints
    side: Ints
    time: Floats


@dataclass(frozen=True)
class Line:
    """Jobs along a line, on which unit u is the stretch from u to u + 1, and where the stretch of each job ends."""

    job: Ints
    end: Floats


@dataclass(frozen=True)
class Divided:
    """Shares of time of jobs alone by GPU type, pairs of jobs, and shares of pairs."""

    share: Floats
    pairs: Ints
    pair_share: Floats


@dataclass(frozen=True)
class Division:
    """The division of the time of units among classes of jobs, each of which wants a throughput."""

    classes: Classes
    profile_of: Ints
    profiles: Profiles
    units: Units
    time: Floats
    want: Floats

    def among_jobs(self, types: int) -> Divided:
        """Shares of jobs; jobs of a class get equal shares."""
        sides, count = sides_of(self.units), self.classes.count
        pieces = self._pieces(sides)
        alone = self.units.second[sides.unit[pieces.side]] == NO_PARTNER
        cell = pieces.of_class[alone] * types + self.units.gpu_type[pieces.side[alone]]
        share = tally(cell, pieces.time[alone], len(count) * types).reshape(-1, types) / count[:, None]
        return Divided(share[self.classes.of_job], *self._pairs(sides, _chosen(pieces, ~alone), types))

    def _pieces(self, sides: Sides) -> TimePieces:
        """The time of classes on sides: by stretches, and by a linear program where a job would share with itself."""
        if len(self.want) == len(self.profiles.count):
            return self._one_class_each(sides)
        pieces = self._stretches(sides)
        most = self.classes.count[pieces.of_class] * self.time[sides.unit[pieces.side]] * (1 + _TOLERANCE)
        over = pieces.of_class[(sides.jobs[pieces.side] == 2) & (pieces.time > most + _SLIVER)]
        stuck = []
        for profile in np.unique(self.profile_of[over]).tolist():
            corrected = self._correct(sides, profile)
            if corrected is None:
                stuck += over[self.profile_of[over] == profile].tolist()
            else:
                pieces = _joined(_chosen(pieces, self.profile_of[pieces.of_class] != profile), corrected)
        if stuck:
            raise BesideItself(np.unique(stuck))
        return pieces

    def _one_class_each(self, sides: Sides) -> TimePieces:
        """The time of classes where every profile has one class, which has all of its time."""
        class_of_profile = np.argsort(self.profile_of)
        used = np.flatnonzero(self.time[sides.unit] > _SLIVER)
        return TimePieces(class_of_profile[sides.profile[used]], used, (sides.jobs * self.time[sides.unit])[used])

    def _correct(self, sides: Sides, profile: int) -> TimePieces | None:
        """The time of a profile's classes so that no job shares with itself; None if that is impossible."""
        classes = np.flatnonzero(self.profile_of == profile)
        used = np.flatnonzero((sides.profile == profile) & (self.time[sides.unit] > _SLIVER))
        twice, time = sides.jobs[used] == 2, self.time[sides.unit[used]]
        count, want = self.classes.count[classes], self.classes.count[classes] * self.want[classes]
        most = np.where(twice, count[:, None] * time, np.inf)
        amount = divide_under(sides.speed[used], sides.jobs[used] * time, count, want * (1 - _TOLERANCE), most)
        if amount is None:
            return None
        of_class, side = np.nonzero(amount > _SLIVER)
        return TimePieces(classes[of_class], used[side], amount[of_class, side])

    def _stretches(self, sides: Sides) -> TimePieces:
        """The time of classes, cut from the time of each profile as stretches."""
        profiles, classes = len(self.profiles.count), len(self.want)
        time = sides.jobs * self.time[sides.unit]
        idle = self.profiles.count - tally(sides.profile, time, profiles)
        profile = np.append(sides.profile, np.arange(profiles))
        speed, time = np.append(sides.speed, np.zeros(profiles)), np.append(time, np.maximum(idle, 0.0))
        used = np.flatnonzero((time > _SLIVER) | (np.arange(len(profile)) >= len(sides.profile)))
        used = used[np.lexsort((-speed[used], profile[used]))]
        by_want = np.lexsort((-self.want, self.profile_of))
        most = len(used) + 2 * classes
        of_class, from_side, amount = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
        class_start = np.searchsorted(self.profile_of[by_want], np.arange(profiles + 1))
        side_start = np.searchsorted(profile[used], np.arange(profiles + 1))
        count = self.classes.count
        of_classes, of_sides = (class_start, by_want, count, count * self.want), (side_start, speed[used], time[used])
        found = cut_stretches(*of_classes, *of_sides, of_class, from_side, amount)
        side = used[from_side[:found]]
        return _chosen(TimePieces(of_class[:found], side, amount[:found]), side < len(sides.profile))

    def _pairs(self, sides: Sides, pieces: TimePieces, types: int) -> tuple[Ints, Floats]:
        """Pairs of jobs that share GPUs, and the time of each pair on each type."""
        pieces = self._with_both_places(sides, pieces)
        if not len(pieces.side):
            return np.empty((0, 2), np.int64), np.empty((0, types))
        units, of_piece = np.unique(sides.unit[pieces.side], return_inverse=True)
        left, right = self._lines(sides, pieces, of_piece)
        first, second, unit, fraction = opposite_jobs(left, right)
        jobs = len(self.classes.of_job)
        key, pair = np.unique(np.minimum(first, second) * jobs + np.maximum(first, second), return_inverse=True)
        cell = pair * types + self.units.gpu_type[units[unit]]
        share = tally(cell, fraction * self.time[units[unit]], len(key) * types).reshape(-1, types)
        return np.column_stack((key // jobs, key % jobs)), share

    def _with_both_places(self, sides: Sides, pieces: TimePieces) -> TimePieces:
        """The same pieces, without units that rounding left with one of the two places empty."""
        unit, second = sides.unit[pieces.side], pieces.side >= len(self.units)
        kept = np.isin(unit, unit[~second]) & (np.isin(unit, unit[second]) | (sides.jobs[pieces.side] == 2))
        return _chosen(pieces, kept)

    def _lines(self, sides: Sides, pieces: TimePieces, unit: Ints) -> tuple[Line, Line]:
        """Lay out the jobs in the two places of every unit; a profile in both places is laid out as one, and folded."""
        order = np.lexsort((pieces.side >= len(self.units), unit))
        piece, job = matches(pieces.of_class[order], self.classes.of_job)
        piece = order[piece]
        unit, second = unit[piece], pieces.side[piece] >= len(self.units)
        time = pieces.time[piece] / self.classes.count[pieces.of_class[piece]]
        start, end = _lay_along(time, 2 * unit + second)
        twice = sides.jobs[pieces.side[piece]] == 2
        start, end = np.where(twice, 2 * start, start), np.where(twice, 2 * end, end)
        left, folded = ~second & (start < 1), twice & (end > 1)
        right = np.concatenate((np.flatnonzero(second), np.flatnonzero(folded)))
        right = right[np.argsort(unit[right], kind="stable")]
        end_right = np.where(folded, end - 1, end)
        return Line(job[left], np.minimum(end, 1.0)[left] + unit[left]), Line(
            job[right], end_right[right] + unit[right]
        )


def _chosen(pieces: TimePieces, kept: NDArray[np.bool_]) -> TimePieces:
    return TimePieces(pieces.of_class[kept], pieces.side[kept], pieces.time[kept])


def _joined(left: TimePieces, right: TimePieces) -> TimePieces:
    return TimePieces(
        np.append(left.of_class, right.of_class), np.append(left.side, right.side), np.append(left.time, right.time)
    )


def _lay_along(time: Floats, line: Ints) -> tuple[Floats, Floats]:
    """Start and end of times laid along lines of length 1; the times of a line are neighbours."""
    last = np.append(line[1:] != line[:-1], np.ones(min(len(line), 1), np.bool_))
    total = tally(line, time, line[-1] + 1)[line]
    sums = np.cumsum(time)
    end = np.minimum((sums - np.append(0.0, sums)[np.searchsorted(line, line)]) / total, 1.0)
    end[last] = 1.0
    return np.where(np.append(True, last)[:-1], 0.0, np.append(0.0, end)[:-1]), end


def opposite_jobs(left: Line, right: Line) -> tuple[Ints, Ints, Ints, Floats]:
    """Pair the jobs that are opposite each other on the two lines.

    The north-west corner rule of transport problems. Returns first jobs, second jobs, units, and fractions of the
    unit's time; a unit has fewer pairs than jobs.
    """
    ends = np.sort(np.concatenate((left.end, right.end)))
    start = np.append(0.0, ends[:-1])
    middle = (start + ends) / 2
    first, second = left.job[np.searchsorted(left.end, middle)], right.job[np.searchsorted(right.end, middle)]
    kept = (ends - start > _SLIVER) & (first != second)
    return first[kept], second[kept], middle[kept].astype(np.int64), (ends - start)[kept]


@compiled(INT, INTS, INTS, FLOATS, FLOATS, INTS, FLOATS, FLOATS, INTS, INTS, FLOATS)
def cut_stretches(
    class_start: Ints,
    classes: Ints,
    length: Floats,
    want: Floats,
    side_start: Ints,
    speed: Floats,
    time: Floats,
    of_class: Ints,
    from_side: Ints,
    amount: Floats,
) -> int:
    """Give each class the stretch of its profile's time that has its throughput, or the fastest stretch. Compiled.

    `classes[class_start[k]:class_start[k + 1]]` are the classes of profile k, by falling want of a job; in
    the same way `side_start` finds its sides, by falling speed, with idle time. `time` is used up. Writes the pieces
    (class, side, amount) and returns their number, at most that of sides plus twice that of classes.
    """
    pieces = 0
    for profile in range(len(class_start) - 1):
        begin, end = side_start[profile], side_start[profile + 1]
        for c in classes[class_start[profile] : class_start[profile + 1]]:
            # 1. The fastest stretch: all sides up to `head` of side `last`.
            last, left, total = begin, length[c], 0.0
            while last < end - 1 and left > time[last]:
                left -= time[last]
                total += time[last] * speed[last]
                last += 1
            head = min(left, time[last])
            total += head * speed[last]
            # 2. Slide the stretch down to the throughput that is wanted: it starts at `tail` of side `first`.
            first, tail = begin, 0.0
            while total > want[c]:
                if head >= time[last]:
                    if last == end - 1:
                        break
                    last, head = last + 1, 0.0
                elif tail >= time[first]:
                    first, tail = first + 1, 0.0
                else:
                    step, drop = min(time[first] - tail, time[last] - head), speed[first] - speed[last]
                    if drop * step < total - want[c]:
                        total -= drop * step
                    else:
                        step, total = (total - want[c]) / drop, want[c]
                    tail, head = tail + step, head + step
            # 3. Cut the stretch out.
            for side in range(first, last + 1):
                start, stop = tail if side == first else 0.0, head if side == last else time[side]
                if stop > start:
                    of_class[pieces], from_side[pieces], amount[pieces] = c, side, stop - start
                    pieces += 1
                    time[side] -= stop - start
    return pieces
