"""Nash welfare: the allocation whose throughputs have the largest product, and what everybody pays for it.

The logarithm of a throughput lies below its tangents, and a few of them make a line with bends
that is no harder for a linear program than a straight one: each stretch between two bends is a
column, worth as much for a step/s as its tangent is steep. The answer is a bound on the
welfare; tangents are added where it lies until bound and welfare agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.errors import UserError
from horae.solve.division import Divided, Division
from horae.solve.linear import TimeProgram
from horae.solve.problem import Problem, Solution
from horae.solve.units import find_kinds, find_units, tally

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: How much less than its bound the welfare should be, and may be, for each unit of weight.
TOLERANCE, _ENOUGH = 1e-10, 1e-8
_MOST_ROUNDS = 200
#: Logarithms of throughputs stand on one line, those of each kind on a stretch of this length; two this close are one.
_LINE, _APART = 100.0, 1e-9


def strategy_proof(problem: Problem) -> Solution:
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
    kept = np.array([_kept(problem, best, int(job)) for job in program.kinds.job])[program.kind_of_job]
    divided = _pay(problem, program.divide(best), kept)
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

    Throughputs are relative to the kind's fastest, and summed over its jobs. Every extra column
    is a stretch of a kind's logarithm, `_kind`, where its tangent touches at `_at`.
    """

    def __init__(self, problem: Problem) -> None:
        _require_reach(problem)
        _, by_weight = np.unique(problem.weight, return_inverse=True)
        self._classes, self.kinds, self._of_kind = find_kinds(problem, by_weight)
        self.kind_of_job = self._of_kind[self._classes.of_job]
        self._weight, self._types = problem.weight[self.kinds.job], len(problem.capacity)
        alone, pairs = find_units(self.kinds, problem.sharing)
        self.pairs, self._program = len(pairs), TimeProgram(self.kinds, alone, pairs, problem.capacity)
        self._kind, self._at = np.empty(0, np.int64), np.empty(0)
        self._touch(*self._whole_range(problem))

    def _whole_range(self, problem: Problem) -> tuple[Ints, Floats]:
        """Tangents from the fastest down: nobody has less than its weight's part of what it would have alone."""
        least = self._weight / problem.weight.sum() * _reach(problem)[self.kinds.job] / self._program.fastest
        steps = np.ceil(-np.log2(least)).astype(np.int64) + 1
        kind = np.repeat(np.arange(len(steps)), steps)
        nth = np.arange(len(kind)) - np.repeat(np.cumsum(steps) - steps, steps)
        return kind, np.asarray(0.5**nth)

    def _touch(self, kind: Ints, at: Floats) -> None:
        """Add tangents at throughputs of a job, but where there is one: log(q) is at most log(at) - 1 + q / at."""
        old = len(self._at)
        kinds, ats = np.append(self._kind, kind), np.append(self._at, at)
        line = _on_line(kinds, ats)
        order = np.argsort(line, kind="stable")
        apart = order[np.diff(line[order], prepend=-np.inf) > _APART]
        chosen = np.concatenate((np.arange(old), np.sort(apart[apart >= old])))
        self._kind, self._at = kinds[chosen], ats[chosen]
        nothing = np.zeros(len(chosen) - old)
        self._program.add_extras(self._kind[old:], nothing, nothing, nothing)
        self._stretch()

    def _stretch(self) -> None:
        """Every tangent counts between the bends where it meets the next on either side."""
        order = np.lexsort((self._at, self._kind))
        kind, at = self._kind[order], self._at[order]
        inner = kind[1:] == kind[:-1]
        flatter = np.where(inner, 1.0 / at[:-1] - 1.0 / at[1:], 1.0)
        bend = np.log(at[1:] / at[:-1]) / flatter
        start, end = np.append(0.0, np.where(inner, bend, 0.0)), np.append(np.where(inner, bend, np.inf), np.inf)
        length = self.kinds.count[kind] * (end - start)
        self._program.set_extras(order, self._weight[kind] / at, np.zeros(len(order)), length)

    def largest(self) -> Welfare:
        """The largest welfare, to the tolerance."""
        weight, before = self._weight * self.kinds.count, np.inf
        for _ in range(_MOST_ROUNDS):
            self._program.solve()
            at, missing = self._missing()
            gap = float(weight @ missing / weight.sum())
            # Below the tolerance of the linear program no tangent helps any more.
            if gap <= TOLERANCE or before / 2 < gap <= _ENOUGH:
                throughput = at * self._program.fastest
                value = float(weight @ np.log(throughput))
                of_job = throughput[self.kind_of_job]
                return Welfare(value, of_job, self._program.time, self._program.prices.gpu, max(gap, 0.0))
            before = gap
            self._refine(np.flatnonzero(weight * missing > TOLERANCE / 10 * weight.sum() / len(weight)), at)
        raise AssertionError(f"the welfare is {gap} below its bound after {_MOST_ROUNDS} rounds")

    def _missing(self) -> tuple[Floats, Floats]:
        """The throughput of a job of each kind, and by how much the bound on its logarithm is too high."""
        kinds, taken, lowest = len(self.kinds.count), self._program.extra, np.full(len(self.kinds.count), np.inf)
        np.minimum.at(lowest, self._kind, self._at)
        at = np.maximum(tally(self._kind, taken, kinds) / self.kinds.count, 1e-12)
        bound = np.log(lowest) - 1.0 + tally(self._kind, taken / self._at, kinds) / self.kinds.count
        return at, bound - np.log(at)

    def _refine(self, kind: Ints, at: Floats) -> None:
        """Tangents where the answer lies, and half way to those on either side: the next answer lies between."""
        line, here = np.sort(_on_line(self._kind, self._at)), _on_line(kind, at[kind])
        place = np.searchsorted(line, here)
        below, above = line[np.maximum(place - 1, 0)], line[np.minimum(place, len(line) - 1)]
        # The next one on the line may be another kind's.
        half = [np.where(np.abs(beside - here) < _LINE / 2, (here + beside) / 2, here) for beside in (below, above)]
        self._touch(np.tile(kind, 3), np.exp(np.concatenate((here, *half)) - _LINE * np.tile(kind, 3)))

    def divide(self, best: Welfare) -> Divided:
        """Shares of jobs."""
        want = best.throughput[self._classes.first]
        division = Division(self._classes, self._of_kind, self.kinds, self._program.units, best.time, want)
        return division.among_jobs(self._types)


def _on_line(kind: Ints, at: Floats) -> Floats:
    return np.asarray(_LINE * kind + np.log(at))


def _kept(problem: Problem, best: Welfare, job: int) -> float:
    """The part of its shares that a job keeps."""
    others = np.arange(len(problem)) != job
    if not others.any():
        return 1.0
    without = NashProgram(problem.only(others)).largest().value
    weight = float(problem.weight[job])
    return float(np.exp(min(0.0, (best.value - without) / weight - np.log(best.throughput[job]))))


def _pay(problem: Problem, divided: Divided, kept: Floats) -> Divided:
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


def _reach(problem: Problem) -> Floats:
    """Steps/s of each job if it had the cluster to itself, on its best type."""
    most: Floats = (problem.speed * np.minimum(1.0, problem.capacity / problem.gpus[:, None])).max(axis=1)
    return most


def _require_reach(problem: Problem) -> None:
    stuck = np.flatnonzero(~(_reach(problem) > 0))
    if len(stuck):
        name = problem.ids[int(stuck[0])]
        raise UserError(f"Job {name!r} has no throughput on any GPU type that is there; give it one, or leave it out.")
