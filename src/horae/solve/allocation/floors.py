"""Floors: rows of the time program that make the time of a profile sufficient for the throughputs of its jobs.

Jobs of a profile differ in demand, not in speed, so one set of variables is enough for all of them: the time of the
profile in each unit. Throughputs q are possible if and only if the speeds majorise them: for every speed w,
(speed - w)+ summed over the profile's time is at least (q - w)+ summed over its jobs. That is linear in time, holds
between the speeds of units if it holds at them, and w = 0 mostly suffices. So the program starts with one floor for
each profile, and gets another where its solution is not enough. `time_division.py` divides the time among jobs.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.allocation.time_lp import TOLERANCE, TimeProgram
from horae.solve.allocation.units import matches, tally


class Floors:
    """The floors of a program: class `member[i]` counts for floor `floor[i]` with its throughput above `over[i]`."""

    def __init__(self, program: TimeProgram, count: Floats, profile_of: Ints) -> None:
        self._program, self._count, self._profile_of = program, count, profile_of
        self._fastest = program.fastest[profile_of]
        self._several = np.bincount(profile_of) > 1
        self._index()

    def _index(self) -> None:
        self.floor, self.member = matches(self._program.floor_profile, self._profile_of)
        self.over = self._program.floor_over[self.floor]
        # A solution found before a floor was added may miss the floor by the tolerance, and must stay possible.
        self._eased = np.where(self.over > 0, 1.0 - 2 * TOLERANCE, 1.0)
        self.weight = (self._count / self._fastest)[self.member]

    def __len__(self) -> int:
        return len(self._program.floor_profile)

    def asked(self, throughput: Floats) -> Floats:
        """Lower bound of every floor for these throughputs of classes."""
        above = np.maximum(throughput[self.member] * self._eased - self.over, 0.0)
        return tally(self.floor, self.weight * above, len(self))

    def marginal_price(self, throughput: Floats, price: Floats) -> Floats:
        """Price of one more step/s of each class, at the prices of the floors that the class has reached."""
        reached = throughput[self.member] >= self.over * (1 - TOLERANCE)
        return tally(self.member, self.weight * np.where(reached, price[self.floor], 0.0), len(throughput))

    def ceiling(self, throughput: Floats, price: Floats) -> Floats:
        """The most steps/s of each class: a class cannot rise above a floor that has a price."""
        under = (self.over > 0) & (throughput[self.member] <= self.over) & (price[self.floor] > 0)
        most = np.full(len(throughput), np.inf)
        np.minimum.at(most, self.member[under], self.over[under])
        return most

    def complete(self, throughput: Floats) -> bool:
        """Whether the program's solution is enough for these throughputs; if not, adds the floors that it breaks."""
        if not self._several.any():
            return True
        program = self._program
        present = set(zip(program.floor_profile.tolist(), program.floor_over.tolist(), strict=True))
        new = sorted(self._broken(throughput) - present)
        if new:
            program.add_floors(np.array([profile for profile, _ in new]), np.array([over for _, over in new]))
            self._index()
        return not new

    def _broken(self, throughput: Floats) -> set[tuple[int, float]]:
        """(Profile, speed) pairs above which the profile has too little time for these throughputs."""
        sides = self._program.sides
        time = sides.jobs * self._program.time[sides.unit]
        used = np.flatnonzero((time > 0) & self._several[sides.profile])
        profile, time, over = sides.profile[used], time[used], sides.speed[used]
        fastest = self._program.fastest[profile]
        above = np.where(profile[:, None] == profile, np.maximum(over[:, None] - over, 0.0), 0.0)
        wanted, tolerance = self._wanted(throughput, profile, over / fastest)
        broken = wanted - time @ above / fastest > tolerance
        return set(zip(profile[broken].tolist(), over[broken].tolist(), strict=True))

    def _wanted(self, throughput: Floats, profile: Ints, over: Floats) -> tuple[Floats, Floats]:
        """Throughput of the jobs of profiles above a speed, relative to the fastest, and its tolerance."""
        want = throughput / self._fastest
        order = np.lexsort((want, self._profile_of))
        # Sorted by profile and want, the jobs that want more than a speed are neighbours: cumulative sums suffice.
        key, count = 2.0 * self._profile_of[order] + want[order], self._count[order]
        start, end = np.searchsorted(key, 2.0 * profile + over), np.searchsorted(key, 2.0 * profile + 1.5)
        jobs, wants = np.append(0.0, np.cumsum(count)), np.append(0.0, np.cumsum(count * want[order]))
        whole = wants[end] - wants[start]
        return whole - over * (jobs[end] - jobs[start]), TOLERANCE * whole
