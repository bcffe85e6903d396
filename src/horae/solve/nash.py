"""Nash welfare: the allocation whose throughputs have the largest product, and what everybody pays for it.

The logarithm of each throughput is bounded by its tangents, so the welfare is bounded by a
linear program over shares of time; tangents are added where its answer lies until bound and
welfare agree. Every term depends on one throughput alone, so that takes few rounds, and the
same program, kept in HiGHS, answers what the others would have if one job were not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from horae.solve.classes import find_classes
from horae.solve.prices import Jobs
from horae.solve.problem import Problem, Solution

Floats = NDArray[np.float64]

#: How much less than its bound the welfare should be, and may be, for each unit of weight.
TOLERANCE, _ENOUGH = 1e-11, 1e-8
_MOST_ROUNDS = 200
#: Throughputs, as parts of the fastest, whose tangents are there from the start.
_START = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)


@dataclass(frozen=True)
class Welfare:
    """Shares by class and type, throughput of one job of each class, prices of GPUs, and the gap to the bound."""

    share: Floats
    throughput: Floats
    price: Floats
    gap: float


class NashProgram:
    """The program for some classes of jobs; how many jobs a class has can be changed, and it is solved again warm.

    Columns: the share of each class on each type, then the bound on each logarithm. Rows: time of
    each class, GPUs of each type, then tangents.
    """

    def __init__(self, jobs: Jobs, capacity: Floats, weight: Floats) -> None:
        self._jobs, self._weight = jobs, weight
        self._classes, self._types = jobs.speed.shape
        self._relative = jobs.speed / jobs.fastest[:, None]
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        self._highs.setOptionValue("primal_feasibility_tolerance", 1e-10)
        self._highs.setOptionValue("dual_feasibility_tolerance", 1e-10)
        self._highs.passModel(self._model(capacity))
        self._count = jobs.count.copy()
        for part in _START:
            for c in range(self._classes):
                self._tangent(c, part)

    def _model(self, capacity: Floats) -> highspy.HighsLp:
        classes, types, shares = self._classes, self._types, self._classes * self._types
        model, infinity = highspy.HighsLp(), highspy.kHighsInf
        model.num_col_, model.num_row_ = shares + classes, classes + types
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.concatenate((np.zeros(shares), self._weight * self._jobs.count))
        model.col_lower_ = np.concatenate((np.zeros(shares), np.full(classes, -infinity)))
        model.col_upper_ = np.concatenate((np.where(self._jobs.speed.reshape(-1) > 0, 1.0, 0.0), np.zeros(classes)))
        model.row_lower_ = np.full(classes + types, -infinity)
        model.row_upper_ = np.concatenate((np.ones(classes), capacity))
        c, t = np.divmod(np.arange(shares), types)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.concatenate((2 * np.arange(shares), np.full(classes + 1, 2 * shares)))
        model.a_matrix_.index_ = np.stack((c, classes + t), axis=1).reshape(-1)
        model.a_matrix_.value_ = np.stack((np.ones(shares), self._jobs.size[c]), axis=1).reshape(-1)
        return model

    def _tangent(self, c: int, part: float) -> None:
        """log(q) is at most log(part) - 1 + q / part."""
        columns = np.append(c * self._types + np.arange(self._types), self._classes * self._types + c)
        values = np.append(-self._relative[c] / part, 1.0)
        self._highs.addRow(
            -highspy.kHighsInf, float(np.log(part)) - 1.0, len(columns), columns.astype(np.int32), values
        )

    def set_count(self, c: int, count: float) -> None:
        """A class has so many jobs from now on."""
        self._count[c] = count
        for t in range(self._types):
            self._highs.changeCoeff(self._classes + t, c * self._types + t, float(self._jobs.gpus[c] * count))
        self._highs.changeColCost(self._classes * self._types + c, float(self._weight[c] * count))

    def solve(self) -> Welfare:
        """The largest welfare, to the tolerance."""
        weight = self._weight * self._count
        there, before = weight > 0, np.inf
        for _ in range(_MOST_ROUNDS):
            self._highs.run()
            status = self._highs.getModelStatus()
            assert status == highspy.HighsModelStatus.kOptimal, f"no largest welfare: {status}"
            solution = self._highs.getSolution()
            values = np.array(solution.col_value)
            share = np.maximum(values[: self._classes * self._types], 0.0).reshape(self._classes, self._types)
            part = np.clip((self._relative * share).sum(axis=1), 1e-12, 1.0)
            missing = values[self._classes * self._types :] - np.log(part)
            gap = float((weight * missing)[there].sum() / weight.sum())
            # Below the tolerance of the linear program no tangent helps any more.
            if gap <= TOLERANCE or before / 2 < gap <= _ENOUGH:
                price = np.maximum(np.array(solution.row_dual)[self._classes : self._classes + self._types], 0.0)
                return Welfare(share, part * self._jobs.fastest, price, max(gap, 0.0))
            before = gap
            for c in np.flatnonzero(there & (missing > TOLERANCE / 10)).tolist():
                self._tangent(c, float(part[c]))
        raise AssertionError(f"the welfare is {gap} below its bound after {_MOST_ROUNDS} rounds")


def kept_fractions(program: NashProgram, jobs: Jobs, weight: Floats, best: Welfare) -> Floats:
    """What each job keeps so that lying about its speeds does not pay (partial allocation; Gavel, section 4.4).

    It is the product over all others of their throughput with the job there over that without it,
    each to the power of its weight over the job's.
    """
    kept = np.ones(len(jobs.count))
    for c in range(len(jobs.count)):
        others = jobs.count.copy()
        others[c] -= 1
        if not (weight * others).any():
            continue
        program.set_count(c, float(others[c]))
        without = program.solve()
        program.set_count(c, float(jobs.count[c]))
        there = others > 0
        lost = weight * others * (np.log(best.throughput) - np.log(without.throughput))
        kept[c] = np.exp(min(0.0, float(lost[there].sum()) / weight[c]))
    return kept


def strategy_proof(problem: Problem) -> Solution:
    """The largest Nash welfare, which is the objective; then everybody's share is cut to what it keeps.

    Pairs are left out: what a job costs others is what they would have if it were not there at all.
    """
    classes = find_classes(np.column_stack((problem.speed, problem.gpus, problem.weight)))
    first = classes.first
    jobs = Jobs(np.ascontiguousarray(problem.speed[first]), problem.gpus[first], classes.count)
    weight = problem.weight[first]
    program = NashProgram(jobs, problem.capacity, weight)
    best = program.solve()
    kept = kept_fractions(program, jobs, weight, best)
    welfare = float((weight * classes.count * np.log(best.throughput)).sum())
    certificate: dict[str, object] = {
        "prices": best.price.tolist(),
        "gap": best.gap,
        "classes": len(classes.count),
        "kept": dict(zip(problem.ids, kept[classes.of_job].tolist(), strict=True)),
    }
    return Solution((best.share * kept[:, None])[classes.of_job], welfare, certificate)
