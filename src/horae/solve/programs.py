"""Gavel's policies as allocation programs (OSDI '20, section 4): one problem in, shares of time out.

Those that raise the worst-off do so level by level, to the last job: a plain optimum would
leave whoever is not a bottleneck with any share, down to none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.errors import UserError
from horae.solve.classes import Classes, find_classes
from horae.solve.demands import FinishTime, Proportional
from horae.solve.lexicographic import Levels, fill
from horae.solve.linear import best_shares
from horae.solve.prices import Jobs
from horae.solve.problem import Problem, Solution

Floats = NDArray[np.float64]


class NoAllocation(UserError):
    """A problem that has no answer."""


@dataclass(frozen=True)
class Program:
    """An allocation program, for people and for `horae solve`."""

    solve: Callable[[Problem], Solution]
    objective: str
    unit: str


def max_min(problem: Problem) -> Solution:
    """The worst-off gets as much as possible, then the next, of throughput over a proportional share of the cluster.

    Note: a job of weight 2 ends up with twice the normalised throughput of a job of weight 1.
    """
    rate = problem.weight * problem.normaliser / problem.gpus
    classes, jobs = _classes(problem, rate)
    levels = fill(jobs, problem.capacity, Proportional(rate[classes.first], jobs.fastest))
    throughput = levels.last.throughput / rate[classes.first]
    return _solution(classes, levels, float(throughput.min()))


def finish_time(problem: Problem) -> Solution:
    """The largest rho, time to finish here over time to finish alone on 1/M of the cluster, is as small as possible."""
    _require_steps(problem)
    alone_s = problem.isolated_s + problem.steps_left / problem.isolated_throughput
    columns = np.stack((problem.steps_left, problem.elapsed_s, alone_s), axis=1)
    classes, jobs = _classes(problem, columns)
    steps, elapsed_s, alone_s = columns[classes.first].T
    levels = fill(jobs, problem.capacity, FinishTime(steps, elapsed_s, alone_s, jobs.fastest))
    rho = (elapsed_s + steps / levels.last.throughput) / alone_s
    return _solution(classes, levels, float(rho.max()))


def makespan(problem: Problem) -> Solution:
    """The last job ends as soon as possible; then the one before it, and so on, so that short jobs do not starve."""
    _require_steps(problem)
    classes, jobs = _classes(problem, problem.steps_left)
    steps = problem.steps_left[classes.first]
    levels = fill(jobs, problem.capacity, Proportional(steps, jobs.fastest))
    return _solution(classes, levels, float((steps / levels.last.throughput).max()))


def total_throughput(problem: Problem) -> Solution:
    """The sum of throughputs, each over that of a proportional share of the cluster, is as large as possible."""
    return _linear(problem, problem.speed / problem.normaliser[:, None], np.zeros(len(problem)))


def cost(problem: Problem) -> Solution:
    """The steps bought for a dollar are as many as possible: the sum of throughput over the price of an hour."""
    return _linear(problem, _per_price(problem), np.zeros(len(problem)))


def cost_with_deadlines(problem: Problem) -> Solution:
    """As many steps for a dollar as possible while every deadline is met.

    Deadlines are taken up in the order of (deadline, id); one that cannot be met beside
    those before it is dropped, and named.
    """
    _require_steps(problem)
    worth = _per_price(problem)
    least, dropped = np.zeros(len(problem)), []
    dated = [m for m in range(len(problem)) if np.isfinite(problem.deadline_s[m])]
    for m in sorted(dated, key=lambda m: (problem.deadline_s[m], problem.ids[m])):
        needed = problem.steps_left[m] / problem.deadline_s[m] if problem.deadline_s[m] > 0 else np.inf
        trial = least.copy()
        trial[m] = needed
        if needed <= problem.speed[m].max() and _optimum(problem, worth, trial) is not None:
            least = trial
        else:
            dropped.append(problem.ids[m])
    solution = _linear(problem, worth, least)
    return Solution(solution.share, solution.objective, {**solution.certificate, "relaxed_deadlines": dropped})


def isolated(problem: Problem) -> Solution:
    """Everybody has 1/M of every GPU type: what finish-time fairness compares with."""
    share = np.where(problem.speed > 0, problem.isolated_share, 0.0)
    ratio = problem.isolated_throughput / problem.normaliser
    return Solution(share, float(ratio.min()), {"gap": 0.0})


PROGRAMS: dict[str, Program] = {
    "max-min": Program(max_min, "least (gpus / (weight * c)) * throughput, raised lexicographically", "shares"),
    "finish-time": Program(finish_time, "largest rho, lowered lexicographically", "rho"),
    "makespan": Program(makespan, "time until the last job ends, then the last but one, ...", "s"),
    "total-throughput": Program(total_throughput, "sum of throughput / c", "shares"),
    "cost": Program(cost, "sum of throughput / price", "steps/s per price of an hour"),
    "cost-deadline": Program(cost_with_deadlines, "the same, deadlines met", "steps/s per price of an hour"),
    "isolated": Program(isolated, "1/M of every GPU type", "shares"),
}


def _classes(problem: Problem, wants: Floats) -> tuple[Classes, Jobs]:
    """Group jobs that cannot be told apart by speed, size and what they want."""
    if not (problem.speed.max(axis=1) > 0).all():
        stuck = problem.ids[int(np.argmin(problem.speed.max(axis=1)))]
        raise NoAllocation(f"Job {stuck!r} has no throughput on any GPU type; give it one, or leave it out.")
    wants = wants.reshape(len(problem), -1)
    classes = find_classes(np.column_stack((problem.speed, problem.gpus, wants)))
    first = classes.first
    return classes, Jobs(np.ascontiguousarray(problem.speed[first]), problem.gpus[first], classes.count)


def _solution(classes: Classes, levels: Levels, objective: float) -> Solution:
    certificate: dict[str, object] = {
        "prices": levels.first.price.tolist(),
        "gap": max(levels.first.gap, levels.last.gap),
        "classes": len(classes.count),
    }
    return Solution(levels.last.share[classes.of_job], objective, certificate)


def _per_price(problem: Problem) -> Floats:
    if not len(problem.price) or not (problem.price > 0).all():
        raise NoAllocation("This policy weighs steps by their price: give a price above 0 for every GPU type.")
    return np.asarray(problem.speed / problem.price[None, :])


def _optimum(problem: Problem, worth: Floats, least: Floats) -> tuple[Classes, Floats, float, Floats] | None:
    """Best shares by class, what they are worth, and the prices of GPU types; None if `least` cannot be had."""
    classes, jobs = _classes(problem, np.column_stack((worth, least)))
    first = classes.first
    optimum = best_shares(jobs, problem.capacity, worth[first] * jobs.count[:, None], least[first])
    return None if optimum is None else (classes, optimum.share, optimum.value, optimum.price)


def _linear(problem: Problem, worth: Floats, least: Floats) -> Solution:
    found = _optimum(problem, worth, least)
    assert found is not None, "shares of 0, or demands that were found possible, are infeasible"
    classes, share, value, price = found
    certificate: dict[str, object] = {"prices": price.tolist(), "gap": 0.0, "classes": len(classes.count)}
    return Solution(share[classes.of_job], value, certificate)


def _require_steps(problem: Problem) -> None:
    for m, steps in enumerate(problem.steps_left):
        if not steps > 0:
            raise NoAllocation(f"Job {problem.ids[m]!r} has no steps left; this policy needs some of every job.")
