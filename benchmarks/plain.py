"""Gavel's programs as one would write them down: a row for each job, one program, the same solver.

Nothing is grouped and nothing is known of prices, so the objectives are an independent check. The
programs are built from arrays, so that the time is the solver's and not Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from horae.solve.allocation.problem import AllocationProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Relative; two levels this close are one.
_CLOSE = 1e-8


@dataclass(frozen=True)
class _Ways:
    """The columns of a program: who runs in each, on which type, and how fast. A pair takes its GPUs once."""

    #: Two jobs; -1 for nobody.
    jobs: Ints
    gpu_type: Ints
    #: Steps/s of each of the two.
    speed: Floats

    def __len__(self) -> int:
        return len(self.gpu_type)


def max_min(problem: AllocationProblem) -> float:
    """The highest level of (gpus / (weight * c)) * throughput that everybody can have."""
    return highest_level(problem, problem.weight * problem.normaliser / problem.gpus)


def makespan(problem: AllocationProblem) -> float:
    """The least time in which everybody can end."""
    return 1.0 / highest_level(problem, problem.steps_left)


def finish_time(problem: AllocationProblem) -> float:
    """The least rho that everybody can have, by halving."""
    alone_s = problem.isolated_s + problem.steps_left / problem.isolated_throughput
    low = float((problem.elapsed_s / alone_s).max())
    high = max(1.0, 2 * low)
    while not _all_reach(problem, alone_s, high):
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _all_reach(problem, alone_s, middle) else (middle, high)
    return high


def _all_reach(problem: AllocationProblem, alone_s: Floats, rho: float) -> bool:
    left_s = rho * alone_s - problem.elapsed_s
    return bool((left_s > 0).all()) and highest_level(problem, problem.steps_left / left_s) >= 1.0


def lexicographic(problem: AllocationProblem) -> Floats:
    """Throughputs when all rise together and those that cannot rise rest, job by job."""
    weight = problem.weight
    return _fill(problem, lambda frozen: np.where(frozen, 0.0, weight))


def hierarchical(problem: AllocationProblem) -> Floats:
    """Throughputs when all rise by their part of their queue's weight, which those that rest leave to the others.

    For queues of one level, fairness or fifo.
    """
    return _fill(problem, lambda frozen: _handed_down(problem, frozen))


def _handed_down(problem: AllocationProblem, frozen: NDArray[np.bool_]) -> Floats:
    weight = np.zeros(len(problem))
    for number in np.unique(problem.queue[~frozen]).tolist():
        rising, queue = np.flatnonzero((problem.queue == number) & ~frozen), problem.queues[number]
        if queue.rule == "fifo":
            rising = rising[:1]
        weight[rising] = queue.weight * problem.weight[rising] / problem.weight[rising].sum()
    return weight


def _fill(problem: AllocationProblem, weights: Callable[[NDArray[np.bool_]], Floats]) -> Floats:
    """Rounds of: all that are not frozen rise by their weights; whoever cannot rise alone is frozen."""
    unit = problem.normaliser / problem.gpus
    throughput, frozen = np.zeros(len(problem)), np.zeros(len(problem), np.bool_)
    while not frozen.all():
        weight = weights(frozen)
        rise = highest_level(problem, unit * weight, throughput)
        throughput = throughput + unit * weight * max(rise, 0.0) * (1 - _CLOSE)
        for m in np.flatnonzero(weight).tolist():
            alone = np.zeros(len(problem))
            alone[m] = unit[m]
            frozen[m] = highest_level(problem, alone, throughput) <= 1e-6 * max(1.0, throughput[m] / unit[m])
    return throughput


def highest_level(problem: AllocationProblem, rate: Floats, have: Floats | None = None) -> float:
    """The most of t such that everybody can have the throughput have + rate * t.

    Rows are scaled to the jobs' fastest, and t to the first at which somebody has it: tolerances are absolute.
    """
    ways, jobs, types = _ways(problem), len(problem), len(problem.capacity)
    column = np.arange(len(ways))
    fastest = problem.speed.max(axis=1)
    most = float((fastest[rate > 0] / rate[rate > 0]).min())
    entries = [(jobs + ways.gpu_type, column, problem.gpus[ways.jobs[:, 0]])]
    for side in (0, 1):
        there = np.flatnonzero(ways.jobs[:, side] >= 0)
        who = ways.jobs[there, side]
        entries.append((who, there, np.ones(len(there))))
        entries.append((jobs + types + who, there, ways.speed[there, side] / fastest[who]))
    entries.append((jobs + types + np.arange(jobs), np.full(jobs, len(ways)), -rate * most / fastest))
    row, col, value = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    least = np.zeros(jobs) if have is None else have / fastest
    lower = np.concatenate((np.full(jobs + types, -highspy.kHighsInf), least))
    upper = np.concatenate((np.ones(jobs), problem.capacity, np.full(jobs, highspy.kHighsInf)))
    return most * _most_of_last(_model(row, col, value, lower, upper))


def _ways(problem: AllocationProblem) -> _Ways:
    """Every job alone on every type that it can use, and every two jobs that can share one."""
    job, gpu_type = np.nonzero(problem.speed > 0)
    alone = np.column_stack((job, np.full(len(job), -1)))
    speed = np.column_stack((problem.speed[job, gpu_type], np.zeros(len(job))))
    if problem.sharing is None:
        return _Ways(alone, gpu_type, speed)
    one, other = np.triu_indices(len(problem), 1)
    kind, beside = problem.sharing.pair_row, problem.sharing.pair_speed
    able = (problem.gpus[one] == problem.gpus[other]) & (kind[one] >= 0) & (kind[other] >= 0)
    one, other = one[able], other[able]
    mine, theirs = beside[kind[one], kind[other]], beside[kind[other], kind[one]]
    pair, shared_type = np.nonzero((mine > 0) & (theirs > 0))
    return _Ways(
        np.concatenate((alone, np.column_stack((one[pair], other[pair])))),
        np.concatenate((gpu_type, shared_type)),
        np.concatenate((speed, np.column_stack((mine[pair, shared_type], theirs[pair, shared_type])))),
    )


def _model(row: Ints, col: Ints, value: Floats, lower: Floats, upper: Floats) -> highspy.HighsLp:
    """A program over columns from 0 up, of which the last is to be as large as possible."""
    columns = int(col.max()) + 1
    order = np.lexsort((row, col))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, len(lower)
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = np.append(np.zeros(columns - 1), 1.0)
    model.col_lower_, model.col_upper_ = np.zeros(columns), np.full(columns, highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.searchsorted(col[order], np.arange(columns + 1)).astype(np.int32)
    model.a_matrix_.index_ = row[order].astype(np.int32)
    model.a_matrix_.value_ = value[order]
    return model


def _most_of_last(model: highspy.HighsLp) -> float:
    program: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    program.setOptionValue("output_flag", False)
    program.setOptionValue("threads", 1)
    program.setOptionValue("primal_feasibility_tolerance", 1e-9)
    program.setOptionValue("dual_feasibility_tolerance", 1e-9)
    program.passModel(model)
    program.run()
    status = program.getModelStatus()
    assert status == highspy.HighsModelStatus.kOptimal, f"the plain program ended with {status}"
    return float(program.getInfo().objective_function_value)
