"""Nash welfare: the allocation with the largest product of throughputs, and the payments that make it strategy-proof.

The logarithm of a throughput lies below its tangents. A few tangents make a piecewise linear bound, which a linear
program handles: each stretch between two bends is a column, with the tangent's slope as its gain. The solution is an
upper bound on the welfare. Then the tangents move closer to the solution, until bound and welfare agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.arrays import Floats
from horae.core.errors import UserError
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.allocation.time_division import Divided, Division
from horae.solve.allocation.time_lp import TimeProgram
from horae.solve.allocation.units import find_profiles, find_units

#: Gap of the welfare to its bound, for each unit of weight: the aim, and what is accepted. The error of throughputs
#: is the square root of the gap.
TOLERANCE, _ENOUGH = 1e-10, 1e-8
#: Relative error of the fraction of its shares that a job keeps.
_KEPT_TOLERANCE = 1e-6
_MOST_ROUNDS = 200
#: Largest widening of the tangents; beyond it the search starts again with close tangents.
_WIDEST = 64.0
#: Where tangents touch, relative to `reach`: evenly around the expected solution, and a few farther away.
_TOUCH = np.concatenate(([-16.0, -4.0], np.linspace(-1.0, 1.0, 9), [4.0, 16.0]))


def strategy_proof(problem: AllocationProblem) -> Solution:
    """The largest Nash welfare, which is the objective; then each job pays with shares for its cost to the others.

    The fraction of its shares that a job keeps is the product over all other jobs of their throughput with the job
    over that without it, each to the power of its weight over the job's weight (partial allocation: Cole, Gkatzelis
    and Goel, EC '13; Gavel, section 4.4). So a job's result is the welfare of all less that of the others alone; a
    misreport can only lower the first and does not change the second.

    Sharing GPUs leaves one gap: of two jobs of a pair, the job that keeps more goes on alone, for a time that follows
    from the speeds that it reported. So it may gain by reporting a smaller slow-down than the true one.
    """
    program = NashProgram(problem)
    best = program.largest()
    divided = program.divide(best)
    kept = np.array([program.kept(best, profile) for profile in range(len(program.profiles.count))])[
        program.profile_of_job
    ]
    divided = _pay(problem, divided, kept)
    certificate: dict[str, object] = {
        "prices": best.price.tolist(),
        "gap": best.gap,
        "classes": len(program.profiles.count),
        "pairs": program.pairs,
        "kept": dict(zip(problem.ids, kept.tolist(), strict=True)),
    }
    return Solution(divided.share, best.value, certificate, divided.pairs, divided.pair_share)


@dataclass(frozen=True)
class Welfare:
    """The largest welfare, the throughput of each job, and the time of units."""

    value: float
    throughput: Floats
    #: Time of each unit.
    time: Floats
    #: Welfare gained by one more GPU of each type.
    price: Floats
    #: Bound less welfare, for each unit of weight.
    gap: float


class NashProgram:
    """The program of a problem.

    Throughputs are relative to the profile's fastest, and so are logarithms. Every extra column is a stretch of a
    profile's logarithm; all profiles have the same number of stretches.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        _require_speed(problem)
        _, by_weight = np.unique(problem.weight, return_inverse=True)
        self._classes, self.profiles, self._profile_of = find_profiles(problem, by_weight)
        self.profile_of_job = self._profile_of[self._classes.of_job]
        self._weight, self._types = problem.weight[self.profiles.job], len(problem.capacity)
        alone, pairs = find_units(self.profiles, problem.sharing)
        self.pairs, self._program = len(pairs), TimeProgram(self.profiles, alone, pairs, problem.capacity)
        #: Number of jobs of each profile in the program.
        self._count = self.profiles.count.copy()
        # No job has less than its share of the weight of what it would have with the cluster to itself.
        least = self._weight / problem.weight.sum() * _speed_alone(problem)[self.profiles.job] / self._program.fastest
        self._least = np.log(least)
        nothing = np.zeros(len(least) * len(_TOUCH))
        self._program.add_extras(np.repeat(np.arange(len(least)), len(_TOUCH)), nothing, nothing, nothing)

    def largest(self) -> Welfare:
        """The largest welfare, to the tolerance."""
        return self._search(self._least / 2, -self._least / 2, TOLERANCE)

    def kept(self, best: Welfare, profile: int) -> float:
        """The fraction of its shares that a job of a profile keeps."""
        weight, of_job = float(self._weight[profile]), best.throughput[self.profiles.job]
        if self._count.sum() == 1:
            return 1.0
        self._set_count(profile, self._count[profile] - 1)
        # The others take over its time, in proportion to their weight.
        fraction = weight / float(self._weight @ self._count)
        log_throughput, reach = np.log(of_job / self._program.fastest), np.full(len(of_job), fraction)
        without = self._search(log_throughput, reach, _KEPT_TOLERANCE * fraction)
        self._set_count(profile, self._count[profile] + 1)
        return float(np.exp(min(0.0, (best.value - without.value) / weight - np.log(of_job[profile]))))

    def _set_count(self, profile: int, count: float) -> None:
        self._count[profile] = count
        self._program.set_count(profile, count)

    def _search(self, expected: Floats, reach: Floats, tolerance: float) -> Welfare:
        """The largest welfare, if logarithms of throughputs are expected within `reach` of `expected`."""
        weight, before, wide = self._weight * self._count, np.inf, 1.0
        for _ in range(_MOST_ROUNDS):
            touch, last = self._touch(expected, reach), expected
            self._program.solve()
            expected, bound = self._reached(touch)
            gap = float(weight @ (bound - expected) / weight.sum())
            # Below the tolerance of the linear program tangents do not help any more.
            if gap <= tolerance or before / 2 < gap <= _ENOUGH:
                return self._welfare(expected, max(gap, 0.0))
            # The error of the bound is of second order in the distance to the solution.
            wide = 2 * wide if gap > before / 2 else max(wide / 2, 1.0)
            wide = wide if wide < _WIDEST else 1.0
            before, reach = gap, np.maximum(np.abs(expected - last), wide * np.sqrt(gap))
            # Tangents must not all touch at the ends of the range.
            reach = np.minimum(reach, -self._least / 2)
        raise AssertionError(f"the welfare is {gap} below its bound after {_MOST_ROUNDS} rounds")

    def _touch(self, expected: Floats, reach: Floats) -> Floats:
        """Set tangents that touch within `reach`; returns the logarithms where they touch, by profile in rows.

        A tangent counts between its bends, where it meets the next on either side: log(q) <= log(t) - 1 + q / t.
        """
        touch = np.clip(expected[:, None] + reach[:, None] * _TOUCH, self._least[:, None], 0.0)
        slope, apart = np.exp(-touch), np.diff(touch, axis=1)
        ratio = np.divide(apart, -np.expm1(-apart), out=np.ones_like(apart), where=apart > 0)
        bend = np.pad(ratio / slope[:, :-1], ((0, 0), (1, 0)))
        length = np.where(self._count[:, None] > 0, np.diff(bend, axis=1, append=np.inf), 0.0)
        length *= np.maximum(self._count, 1.0)[:, None]
        gain, columns = self._weight[:, None] * slope, np.arange(touch.size)
        self._program.set_extras(columns, gain.reshape(-1), np.zeros(touch.size), length.reshape(-1))
        return np.asarray(touch)

    def _reached(self, touch: Floats) -> tuple[Floats, Floats]:
        """Logarithm of the throughput of a job of each profile, and its upper bound."""
        taken, count = self._program.extra.reshape(touch.shape), np.maximum(self._count, 1.0)
        log_throughput = np.log(np.maximum(taken.sum(axis=1) / count, 1e-12))
        return log_throughput, touch[:, 0] - 1.0 + (taken * np.exp(-touch)).sum(axis=1) / count

    def _welfare(self, log_throughput: Floats, gap: float) -> Welfare:
        throughput = np.exp(log_throughput) * self._program.fastest
        value = float((self._weight * self._count) @ np.log(throughput))
        return Welfare(value, throughput[self.profile_of_job], self._program.time, self._program.prices.gpu, gap)

    def divide(self, best: Welfare) -> Divided:
        """Divide the time of units into shares of jobs."""
        want = best.throughput[self._classes.first]
        division = Division(self._classes, self._profile_of, self.profiles, self._program.units, best.time, want)
        return division.among_jobs(self._types)


def _pay(problem: AllocationProblem, divided: Divided, kept: Floats) -> Divided:
    """The shares that jobs keep: `kept[m]` is the fraction of job m.

    A pair runs for the lesser of its two fractions. The job that keeps more goes on alone on the same GPUs until it
    has its fraction of the work, which takes less time because it is faster alone. If it cannot run there alone, it
    gets no more than the other job.
    """
    share, pairs = divided.share * kept[:, None], divided.pairs
    if not len(pairs):
        return Divided(share, pairs, divided.pair_share)
    assert problem.sharing is not None, "pairs without speeds of pairs"
    more = np.where(kept[pairs[:, 0]] >= kept[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
    less, row = pairs.sum(axis=1) - more, problem.sharing.pair_row
    alone = problem.speed[more]
    slower = np.minimum(problem.sharing.pair_speed[row[more], row[less]], alone) / np.where(alone > 0, alone, 1.0)
    np.add.at(share, more, divided.pair_share * (kept[more] - kept[less])[:, None] * slower)
    return Divided(share, pairs, divided.pair_share * kept[less][:, None])


def _speed_alone(problem: AllocationProblem) -> Floats:
    """Steps/s of each job with the cluster to itself, on its fastest type."""
    most: Floats = (problem.speed * np.minimum(1.0, problem.capacity / problem.gpus[:, None])).max(axis=1)
    return most


def _require_speed(problem: AllocationProblem) -> None:
    stuck = np.flatnonzero(~(_speed_alone(problem) > 0))
    if len(stuck):
        name = problem.ids[int(stuck[0])]
        raise UserError(f"Job {name!r} has no throughput on any GPU type that is there; give it one, or leave it out.")
