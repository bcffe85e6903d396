"""Nash welfare: the allocation whose throughputs have the largest product, and what everybody pays for it.

The logarithm of a throughput lies below its tangents, and a few of them make a line with bends
that is no harder for a linear program than a straight one: each stretch between two bends is a
column, worth as much for a step/s as its tangent is steep. The answer is a bound on the
welfare. Then the tangents move closer to where it lies, until bound and welfare agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.arrays import Floats
from horae.core.errors import UserError
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.allocation.time_division import Divided, Division
from horae.solve.allocation.time_lp import TimeProgram
from horae.solve.allocation.units import find_kinds, find_units

#: How much less than its bound the welfare should be, and may be, for each unit of weight. Throughputs are off by
#: the square root of that, so theirs is small.
TOLERANCE, _ENOUGH = 1e-10, 1e-8
#: How far off the part of its shares that a job keeps may be; relative.
_KEPT_TOLERANCE = 1e-6
_MOST_ROUNDS = 200
#: Beyond this it begins again with tangents that are close to each other.
_WIDEST = 64.0
#: Where tangents touch: evenly within reach of where the answer should lie, and a few times as far from there.
_TOUCH = np.concatenate(([-16.0, -4.0], np.linspace(-1.0, 1.0, 9), [4.0, 16.0]))


def strategy_proof(problem: AllocationProblem) -> Solution:
    """The largest Nash welfare, which is the objective; then everybody pays with shares for what it costs others.

    A job keeps the product over all others of their throughput with the job there over that
    without it, each to the power of its weight over the job's (the partial allocation of Cole,
    Gkatzelis and Goel, EC '13; Gavel, section 4.4). What that leaves it is the welfare of all less
    that of the others alone, and lying can only lower the first and not touch the second.

    Sharing GPUs leaves one gap: of two neighbours, whoever keeps more goes on alone for what
    comes to its part by the speeds that it said, so it may pay to play down what company costs.
    """
    program = NashProgram(problem)
    best = program.largest()
    divided = program.divide(best)
    kept = np.array([program.kept(best, kind) for kind in range(len(program.kinds.count))])[program.kind_of_job]
    divided = _pay(problem, divided, kept)
    certificate: dict[str, object] = {
        "prices": best.price.tolist(),
        "gap": best.gap,
        "classes": len(program.kinds.count),
        "pairs": program.pairs,
        "kept": dict(zip(problem.ids, kept.tolist(), strict=True)),
    }
    return Solution(divided.share, best.value, certificate, divided.pairs, divided.pair_share)


@dataclass(frozen=True)
class Welfare:
    """The largest welfare, the throughput of each job, and how it is reached."""

    value: float
    throughput: Floats
    #: Time of each unit.
    time: Floats
    #: Welfare that one more GPU of each type would bring.
    price: Floats
    #: By how much the bound is higher, for each unit of weight.
    gap: float


class NashProgram:
    """The program for a problem.

    Throughputs are relative to the kind's fastest, and logarithms are of those. Every extra
    column is a stretch of a kind's logarithm; each kind has as many.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        _require_reach(problem)
        _, by_weight = np.unique(problem.weight, return_inverse=True)
        self._classes, self.kinds, self._of_kind = find_kinds(problem, by_weight)
        self.kind_of_job = self._of_kind[self._classes.of_job]
        self._weight, self._types = problem.weight[self.kinds.job], len(problem.capacity)
        alone, pairs = find_units(self.kinds, problem.sharing)
        self.pairs, self._program = len(pairs), TimeProgram(self.kinds, alone, pairs, problem.capacity)
        #: Jobs of each kind that take part.
        self._count = self.kinds.count.copy()
        # Nobody has less than its weight's part of what it would have alone.
        least = self._weight / problem.weight.sum() * _reach(problem)[self.kinds.job] / self._program.fastest
        self._least = np.log(least)
        nothing = np.zeros(len(least) * len(_TOUCH))
        self._program.add_extras(np.repeat(np.arange(len(least)), len(_TOUCH)), nothing, nothing, nothing)

    def largest(self) -> Welfare:
        """The largest welfare, to the tolerance."""
        return self._search(self._least / 2, -self._least / 2, TOLERANCE)

    def kept(self, best: Welfare, kind: int) -> float:
        """The part of its shares that a job of a kind keeps."""
        weight, of_job = float(self._weight[kind]), best.throughput[self.kinds.job]
        if self._count.sum() == 1:
            return 1.0
        self._take_part(kind, self._count[kind] - 1)
        # The others take over what it had, so much in proportion to their weight.
        part = weight / float(self._weight @ self._count)
        at, reach = np.log(of_job / self._program.fastest), np.full(len(of_job), part)
        without = self._search(at, reach, _KEPT_TOLERANCE * part)
        self._take_part(kind, self._count[kind] + 1)
        return float(np.exp(min(0.0, (best.value - without.value) / weight - np.log(of_job[kind]))))

    def _take_part(self, kind: int, count: float) -> None:
        self._count[kind] = count
        self._program.set_count(kind, count)

    def _search(self, at: Floats, reach: Floats, tolerance: float) -> Welfare:
        """The largest welfare, if logarithms should lie within reach of these."""
        weight, before, wide = self._weight * self._count, np.inf, 1.0
        for _ in range(_MOST_ROUNDS):
            touch, last = self._touch(at, reach), at
            self._program.solve()
            at, bound = self._reached(touch)
            gap = float(weight @ (bound - at) / weight.sum())
            # Below the tolerance of the linear program no tangent helps any more.
            if gap <= tolerance or before / 2 < gap <= _ENOUGH:
                return self._welfare(at, max(gap, 0.0))
            # What a bound is too high by is of second order in how far off the answer is.
            wide = 2 * wide if gap > before / 2 else max(wide / 2, 1.0)
            wide = wide if wide < _WIDEST else 1.0
            before, reach = gap, np.maximum(np.abs(at - last), wide * np.sqrt(gap))
            # Tangents that all touch at the ends of what is possible would say nothing about what is between.
            reach = np.minimum(reach, -self._least / 2)
        raise AssertionError(f"the welfare is {gap} below its bound after {_MOST_ROUNDS} rounds")

    def _touch(self, at: Floats, reach: Floats) -> Floats:
        """Let tangents touch within reach; gives the logarithms where they do, the kinds' in rows.

        Each counts between the bends where it meets the next on either side: log(q) is at most
        log(t) - 1 + q / t.
        """
        touch = np.clip(at[:, None] + reach[:, None] * _TOUCH, self._least[:, None], 0.0)
        slope, apart = np.exp(-touch), np.diff(touch, axis=1)
        ratio = np.divide(apart, -np.expm1(-apart), out=np.ones_like(apart), where=apart > 0)
        bend = np.pad(ratio / slope[:, :-1], ((0, 0), (1, 0)))
        length = np.where(self._count[:, None] > 0, np.diff(bend, axis=1, append=np.inf), 0.0)
        length *= np.maximum(self._count, 1.0)[:, None]
        gain, columns = self._weight[:, None] * slope, np.arange(touch.size)
        self._program.set_extras(columns, gain.reshape(-1), np.zeros(touch.size), length.reshape(-1))
        return np.asarray(touch)

    def _reached(self, touch: Floats) -> tuple[Floats, Floats]:
        """The logarithm of the throughput of a job of each kind, and the bound on it."""
        taken, count = self._program.extra.reshape(touch.shape), np.maximum(self._count, 1.0)
        at = np.log(np.maximum(taken.sum(axis=1) / count, 1e-12))
        return at, touch[:, 0] - 1.0 + (taken * np.exp(-touch)).sum(axis=1) / count

    def _welfare(self, at: Floats, gap: float) -> Welfare:
        throughput = np.exp(at) * self._program.fastest
        value = float((self._weight * self._count) @ np.log(throughput))
        return Welfare(value, throughput[self.kind_of_job], self._program.time, self._program.prices.gpu, gap)

    def divide(self, best: Welfare) -> Divided:
        """Shares of jobs."""
        want = best.throughput[self._classes.first]
        division = Division(self._classes, self._of_kind, self.kinds, self._program.units, best.time, want)
        return division.among_jobs(self._types)


def _pay(problem: AllocationProblem, divided: Divided, kept: Floats) -> Divided:
    """Everybody keeps a part of its shares.

    A pair runs for the lesser of its two parts. Whoever keeps more goes on alone on the same
    GPUs for as long as it takes to come to its part, which is less time as it is faster there;
    if it cannot run there alone, it has no more than the other.
    """
    share, pairs = divided.share * kept[:, None], divided.pairs
    if not len(pairs):
        return Divided(share, pairs, divided.pair_share)
    assert problem.sharing is not None, "pairs without speeds of pairs"
    more = np.where(kept[pairs[:, 0]] >= kept[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
    less, kind = pairs.sum(axis=1) - more, problem.sharing.kind
    alone = problem.speed[more]
    slower = np.minimum(problem.sharing.beside[kind[more], kind[less]], alone) / np.where(alone > 0, alone, 1.0)
    np.add.at(share, more, divided.pair_share * (kept[more] - kept[less])[:, None] * slower)
    return Divided(share, pairs, divided.pair_share * kept[less][:, None])


def _reach(problem: AllocationProblem) -> Floats:
    """Steps/s of each job if it had the cluster to itself, on its best type."""
    most: Floats = (problem.speed * np.minimum(1.0, problem.capacity / problem.gpus[:, None])).max(axis=1)
    return most


def _require_reach(problem: AllocationProblem) -> None:
    stuck = np.flatnonzero(~(_reach(problem) > 0))
    if len(stuck):
        name = problem.ids[int(stuck[0])]
        raise UserError(f"Job {name!r} has no throughput on any GPU type that is there; give it one, or leave it out.")
