"""From the time of kinds in units to the time of jobs, alone and side by side.

Jobs of a kind want different throughputs, and its units have different speeds. Whoever
wants most goes first: lay out the kind's time in order of speed, idle time last, cut out the
stretch that is as long as the job's time and comes to just what it wants, and close the gap.
That succeeds if and only if the speeds majorise the wants, as when jobs share machines of
different speeds and may be moved (Gonzalez and Sahni, JACM 1978).

One thing can go wrong. Where two jobs of the same kind share GPUs, none of them can have more
than half of the places, or it would be beside itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.jit import FLOATS, INT, INTS, compiled
from horae.solve.allocation.equal_jobs import Classes
from horae.solve.allocation.time_lp import divide_under
from horae.solve.allocation.units import NOBODY, Kinds, Sides, Units, matches, sides_of, tally

#: Less time than this is none: what rounding leaves.
_SLIVER = 1e-12
#: By how much a class may miss what it wants, and have more than half of the places; relative.
_TOLERANCE = 1e-8


class BesideItself(Exception):
    """Classes of one job each that would have to be beside themselves, as the time was divided."""

    def __init__(self, classes: Ints) -> None:
        super().__init__(classes)
        self.classes = classes


@dataclass(frozen=True)
class TimePieces:
    """Who has how much time of which side."""

    of_class: Ints
    side: Ints
    time: Floats


@dataclass(frozen=True)
class Places:
    """Jobs in order along a line on which unit u is the stretch from u to u + 1, and where each ends."""

    job: Ints
    end: Floats


@dataclass(frozen=True)
class Divided:
    """Shares of jobs alone by GPU type, pairs of jobs, and shares of these."""

    share: Floats
    pairs: Ints
    pair_share: Floats


@dataclass(frozen=True)
class Division:
    """The time of units, to be divided among classes of jobs that want throughputs."""

    classes: Classes
    of_kind: Ints
    kinds: Kinds
    units: Units
    time: Floats
    want: Floats

    def among_jobs(self, types: int) -> Divided:
        """Divide it; jobs of a class get the same."""
        sides, count = sides_of(self.units), self.classes.count
        pieces = self._pieces(sides)
        alone = self.units.other[sides.unit[pieces.side]] == NOBODY
        cell = pieces.of_class[alone] * types + self.units.gpu_type[pieces.side[alone]]
        share = tally(cell, pieces.time[alone], len(count) * types).reshape(-1, types) / count[:, None]
        return Divided(share[self.classes.of_job], *self._pairs(sides, _chosen(pieces, ~alone), types))

    def _pieces(self, sides: Sides) -> TimePieces:
        """The time of classes on sides: stretches, and where these put somebody beside itself, whatever does not."""
        if len(self.want) == len(self.kinds.count):
            return self._whole(sides)
        pieces = self._stretches(sides)
        most = self.classes.count[pieces.of_class] * self.time[sides.unit[pieces.side]] * (1 + _TOLERANCE)
        over = pieces.of_class[(sides.jobs[pieces.side] == 2) & (pieces.time > most + _SLIVER)]
        stuck = []
        for kind in np.unique(self.of_kind[over]).tolist():
            mended = self._mend(sides, kind)
            if mended is None:
                stuck += over[self.of_kind[over] == kind].tolist()
            else:
                pieces = _joined(_chosen(pieces, self.of_kind[pieces.of_class] != kind), mended)
        if stuck:
            raise BesideItself(np.unique(stuck))
        return pieces

    def _whole(self, sides: Sides) -> TimePieces:
        """The only class of every kind has all of its time."""
        class_of_kind = np.argsort(self.of_kind)
        used = np.flatnonzero(self.time[sides.unit] > _SLIVER)
        return TimePieces(class_of_kind[sides.kind[used]], used, (sides.jobs * self.time[sides.unit])[used])

    def _mend(self, sides: Sides, kind: int) -> TimePieces | None:
        """The time of a kind's classes so that nobody is beside itself; None if there is no way."""
        classes = np.flatnonzero(self.of_kind == kind)
        used = np.flatnonzero((sides.kind == kind) & (self.time[sides.unit] > _SLIVER))
        twice, time = sides.jobs[used] == 2, self.time[sides.unit[used]]
        count, want = self.classes.count[classes], self.classes.count[classes] * self.want[classes]
        most = np.where(twice, count[:, None] * time, np.inf)
        amount = divide_under(sides.speed[used], sides.jobs[used] * time, count, want * (1 - _TOLERANCE), most)
        if amount is None:
            return None
        of_class, side = np.nonzero(amount > _SLIVER)
        return TimePieces(classes[of_class], used[side], amount[of_class, side])

    def _stretches(self, sides: Sides) -> TimePieces:
        """Cut the time of every kind into stretches for its classes."""
        kinds, classes = len(self.kinds.count), len(self.want)
        time = sides.jobs * self.time[sides.unit]
        idle = self.kinds.count - tally(sides.kind, time, kinds)
        kind = np.append(sides.kind, np.arange(kinds))
        speed, time = np.append(sides.speed, np.zeros(kinds)), np.append(time, np.maximum(idle, 0.0))
        used = np.flatnonzero((time > _SLIVER) | (np.arange(len(kind)) >= len(sides.kind)))
        used = used[np.lexsort((-speed[used], kind[used]))]
        by_want = np.lexsort((-self.want, self.of_kind))
        most = len(used) + 2 * classes
        of_class, from_side, amount = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
        class_start = np.searchsorted(self.of_kind[by_want], np.arange(kinds + 1))
        side_start = np.searchsorted(kind[used], np.arange(kinds + 1))
        count = self.classes.count
        of_classes, of_sides = (class_start, by_want, count, count * self.want), (side_start, speed[used], time[used])
        found = hand_out(*of_classes, *of_sides, of_class, from_side, amount)
        side = used[from_side[:found]]
        return _chosen(TimePieces(of_class[:found], side, amount[:found]), side < len(sides.kind))

    def _pairs(self, sides: Sides, pieces: TimePieces, types: int) -> tuple[Ints, Floats]:
        """Jobs that share GPUs, and the time of each two on each type."""
        pieces = self._both_places(sides, pieces)
        if not len(pieces.side):
            return np.empty((0, 2), np.int64), np.empty((0, types))
        units, of_piece = np.unique(sides.unit[pieces.side], return_inverse=True)
        left, right = self._places(sides, pieces, of_piece)
        one, other, unit, part = seat(left, right)
        jobs = len(self.classes.of_job)
        key, pair = np.unique(np.minimum(one, other) * jobs + np.maximum(one, other), return_inverse=True)
        cell = pair * types + self.units.gpu_type[units[unit]]
        share = tally(cell, part * self.time[units[unit]], len(key) * types).reshape(-1, types)
        return np.column_stack((key // jobs, key % jobs)), share

    def _both_places(self, sides: Sides, pieces: TimePieces) -> TimePieces:
        """Without units that rounding left with somebody in one place and nobody in the other."""
        unit, second = sides.unit[pieces.side], pieces.side >= len(self.units)
        kept = np.isin(unit, unit[~second]) & (np.isin(unit, unit[second]) | (sides.jobs[pieces.side] == 2))
        return _chosen(pieces, kept)

    def _places(self, sides: Sides, pieces: TimePieces, unit: Ints) -> tuple[Places, Places]:
        """Lay out the jobs in the two places of every unit. A kind that has both is laid out along two, and folded."""
        order = np.lexsort((pieces.side >= len(self.units), unit))
        piece, job = matches(pieces.of_class[order], self.classes.of_job)
        piece = order[piece]
        unit, second = unit[piece], pieces.side[piece] >= len(self.units)
        time = pieces.time[piece] / self.classes.count[pieces.of_class[piece]]
        start, end = _along(time, 2 * unit + second)
        twice = sides.jobs[pieces.side[piece]] == 2
        start, end = np.where(twice, 2 * start, start), np.where(twice, 2 * end, end)
        left, folded = ~second & (start < 1), twice & (end > 1)
        right = np.concatenate((np.flatnonzero(second), np.flatnonzero(folded)))
        right = right[np.argsort(unit[right], kind="stable")]
        end_right = np.where(folded, end - 1, end)
        return Places(job[left], np.minimum(end, 1.0)[left] + unit[left]), Places(
            job[right], end_right[right] + unit[right]
        )


def _chosen(pieces: TimePieces, kept: NDArray[np.bool_]) -> TimePieces:
    return TimePieces(pieces.of_class[kept], pieces.side[kept], pieces.time[kept])


def _joined(one: TimePieces, other: TimePieces) -> TimePieces:
    return TimePieces(
        np.append(one.of_class, other.of_class), np.append(one.side, other.side), np.append(one.time, other.time)
    )


def _along(time: Floats, line: Ints) -> tuple[Floats, Floats]:
    """Where times start and end that lie along lines of length 1; those of a line stand together."""
    last = np.append(line[1:] != line[:-1], np.ones(min(len(line), 1), np.bool_))
    total = tally(line, time, line[-1] + 1)[line]
    sums = np.cumsum(time)
    end = np.minimum((sums - np.append(0.0, sums)[np.searchsorted(line, line)]) / total, 1.0)
    end[last] = 1.0
    return np.where(np.append(True, last)[:-1], 0.0, np.append(0.0, end)[:-1]), end


def seat(left: Places, right: Places) -> tuple[Ints, Ints, Ints, Floats]:
    """Put jobs beside each other: whoever stands opposite on the two lines.

    The north-west corner rule of transport problems. Gives jobs, their neighbours, units, and
    which part of a unit's time; fewer for each unit than it has jobs.
    """
    ends = np.sort(np.concatenate((left.end, right.end)))
    start = np.append(0.0, ends[:-1])
    middle = (start + ends) / 2
    one, other = left.job[np.searchsorted(left.end, middle)], right.job[np.searchsorted(right.end, middle)]
    kept = (ends - start > _SLIVER) & (one != other)
    return one[kept], other[kept], middle[kept].astype(np.int64), (ends - start)[kept]


@compiled(INT, INTS, INTS, FLOATS, FLOATS, INTS, FLOATS, FLOATS, INTS, INTS, FLOATS)
def hand_out(
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
    """Give each class a stretch of its kind's time that comes to what it wants, or the fastest if none does. Compiled.

    `classes[class_start[k]:class_start[k + 1]]` are those of kind k, by falling want of a job; in
    the same way `side_start` finds its sides, by falling speed, idle time among them. `time` is
    used up. Writes who got how much of which side, and gives the number of pieces, at most that
    of sides and twice that of classes.
    """
    pieces = 0
    for kind in range(len(class_start) - 1):
        begin, end = side_start[kind], side_start[kind + 1]
        for c in classes[class_start[kind] : class_start[kind + 1]]:
            # 1. The fastest stretch: all sides up to `head` of side `last`.
            last, left, total = begin, length[c], 0.0
            while last < end - 1 and left > time[last]:
                left -= time[last]
                total += time[last] * speed[last]
                last += 1
            head = min(left, time[last])
            total += head * speed[last]
            # 2. Slide it down until it comes to no more than is wanted: it starts at `tail` of side `first`.
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
            # 3. Cut it out.
            for side in range(first, last + 1):
                start, stop = tail if side == first else 0.0, head if side == last else time[side]
                if stop > start:
                    of_class[pieces], from_side[pieces], amount[pieces] = c, side, stop - start
                    pieces += 1
                    time[side] -= stop - start
    return pieces
