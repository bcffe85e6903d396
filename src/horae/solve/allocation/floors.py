"""What jobs of a kind ask of its time: floors.

Jobs of a kind differ in what they want, not in what they can do, so one set of variables is
enough for all of them: the time of the kind in each unit. Throughputs q are possible if and
only if the speeds majorise them: for every speed w, (speed - w)+ summed over the kind's time is
at least (q - w)+ summed over its jobs. That is linear in time, holds between the speeds of
units if it holds at them, and w = 0 mostly suffices. So a program has one floor for each kind
at first, and gets another where its answer would not do. `division.py` divides what does.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.allocation.time_lp import TOLERANCE, TimeProgram
from horae.solve.allocation.units import matches, tally


class Floors:
    """The floors of a program: class `member[i]` counts for floor `floor[i]` with what it wants over `over[i]`."""

    def __init__(self, program: TimeProgram, count: Floats, of_kind: Ints) -> None:
        self._program, self._count, self._of_kind = program, count, of_kind
        self._fastest = program.fastest[of_kind]
        self._several = np.bincount(of_kind) > 1
        self._index()

    def _index(self) -> None:
        self.floor, self.member = matches(self._program.floor_kind, self._of_kind)
        self.over = self._program.floor_over[self.floor]
        # An answer that was complete without a floor may have missed it by the tolerance, and is to stay possible.
        self._nearly = np.where(self.over > 0, 1.0 - 2 * TOLERANCE, 1.0)
        self.weight = (self._count / self._fastest)[self.member]

    def __len__(self) -> int:
        return len(self._program.floor_kind)

    def asked(self, throughput: Floats) -> Floats:
        """How much every floor asks for if classes are to have these throughputs."""
        above = np.maximum(throughput[self.member] * self._nearly - self.over, 0.0)
        return tally(self.floor, self.weight * above, len(self))

    def paid(self, throughput: Floats, price: Floats) -> Floats:
        """What one more step/s of each class costs, at prices of the floors that it is up to."""
        up_to = throughput[self.member] >= self.over * (1 - TOLERANCE)
        return tally(self.member, self.weight * np.where(up_to, price[self.floor], 0.0), len(throughput))

    def ceiling(self, throughput: Floats, price: Floats) -> Floats:
        """The most steps/s of each class, if there is no more to be had over floors that have a price."""
        under = (self.over > 0) & (throughput[self.member] <= self.over) & (price[self.floor] > 0)
        most = np.full(len(throughput), np.inf)
        np.minimum.at(most, self.member[under], self.over[under])
        return most

    def complete(self, throughput: Floats) -> bool:
        """Whether the program's answer can give everybody this; adds the floors that say otherwise."""
        if not self._several.any():
            return True
        program = self._program
        known = set(zip(program.floor_kind.tolist(), program.floor_over.tolist(), strict=True))
        new = sorted(self._broken(throughput) - known)
        if new:
            program.add_floors(np.array([kind for kind, _ in new]), np.array([over for _, over in new]))
            self._index()
        return not new

    def _broken(self, throughput: Floats) -> set[tuple[int, float]]:
        """Kinds, and speeds of them over which they have too little for these throughputs."""
        sides = self._program.sides
        time = sides.jobs * self._program.time[sides.unit]
        used = np.flatnonzero((time > 0) & self._several[sides.kind])
        kind, time, over = sides.kind[used], time[used], sides.speed[used]
        fastest = self._program.fastest[kind]
        above = np.where(kind[:, None] == kind, np.maximum(over[:, None] - over, 0.0), 0.0)
        wanted, doubt = self._wanted(throughput, kind, over / fastest)
        broken = wanted - time @ above / fastest > doubt
        return set(zip(kind[broken].tolist(), over[broken].tolist(), strict=True))

    def _wanted(self, throughput: Floats, kind: Ints, over: Floats) -> tuple[Floats, Floats]:
        """What jobs of kinds want over a speed, all relative to the fastest, and how little of it does not matter."""
        want = throughput / self._fastest
        order = np.lexsort((want, self._of_kind))
        # Sorted by kind and want, those that want more than a speed stand together, and sums tell.
        place, count = 2.0 * self._of_kind[order] + want[order], self._count[order]
        start, end = np.searchsorted(place, 2.0 * kind + over), np.searchsorted(place, 2.0 * kind + 1.5)
        jobs, wants = np.append(0.0, np.cumsum(count)), np.append(0.0, np.cumsum(count * want[order]))
        whole = wants[end] - wants[start]
        return whole - over * (jobs[end] - jobs[start]), TOLERANCE * whole
