"""Gavel's policies as allocation programs (OSDI '20, section 4): one problem in, shares of time out.

Programs that raise the worst-off job do so level by level, to the last job: a plain optimum would leave a job that is
no bottleneck with any share, down to none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.errors import UserError
from horae.solve.allocation.demands import FinishTimeDemand, Proportional
from horae.solve.allocation.equal_jobs import find_classes
from horae.solve.allocation.hierarchy import hierarchical
from horae.solve.allocation.lexicographic import UnsharedSearch, bounded, fill
from horae.solve.allocation.nash import strategy_proof
from horae.solve.allocation.packing import Packing, Reached, pack
from horae.solve.allocation.price_search import Jobs, PriceDemand
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.matching import allox


class NoAllocation(UserError):
    """A problem without a solution."""


@dataclass(frozen=True)
class Program:
    """An allocation program, for people and for `horae solve`."""

    solve: Callable[[AllocationProblem], Solution]
    objective: str
    unit: str


def max_min(problem: AllocationProblem) -> Solution:
    """The least throughput, relative to a proportional share of the cluster, is as large as possible; then the next.

    A job of weight 2 ends up with twice the normalised throughput of a job of weight 1.
    """
    rate = problem.weight * problem.normaliser / problem.gpus
    return _raise_levels(
        problem,
        rate,
        lambda jobs, fastest: Proportional(rate[jobs], fastest),
        lambda jobs, throughput: float((throughput / rate[jobs]).min()),
    )


def finish_time(problem: AllocationProblem) -> Solution:
    """The largest rho, time to finish here over time to finish alone on 1/M of the cluster, is as small as possible."""
    _require_speed(problem)
    _require_steps(problem)
    alone_s = problem.isolated_s + problem.steps_left / problem.isolated_throughput
    columns = np.stack((problem.steps_left, problem.elapsed_s, alone_s), axis=1)

    def largest_rho(jobs: Ints, throughput: Floats) -> float:
        steps, elapsed_s, alone_s = columns[jobs].T
        return float(((elapsed_s + steps / throughput) / alone_s).max())

    def demand(jobs: Ints, fastest: Floats) -> PriceDemand:
        steps, elapsed_s, alone_s = columns[jobs].T
        return FinishTimeDemand(steps, elapsed_s, alone_s, fastest)

    return _raise_levels(problem, columns, demand, largest_rho)


def makespan(problem: AllocationProblem) -> Solution:
    """The last job ends as soon as possible; then the job before it, and so on, so that short jobs do not starve."""
    _require_steps(problem)
    steps = problem.steps_left
    return _raise_levels(
        problem,
        steps,
        lambda jobs, fastest: Proportional(steps[jobs], fastest),
        lambda jobs, throughput: float((steps[jobs] / throughput).max()),
    )


def total_throughput(problem: AllocationProblem) -> Solution:
    """The sum of throughputs, each over that of a proportional share of the cluster, is as large as possible."""
    _require_speed(problem)
    gain = np.repeat(1.0 / problem.normaliser[:, None], len(problem.capacity), axis=1)
    packed = pack(problem, None, lambda packing: packing.most(gain[packing.profiles.job]))
    return packed.solution(packed.reached.level)


def cost(problem: AllocationProblem) -> Solution:
    """The most steps for the money: the sum of throughput over the price of an hour is as large as possible."""
    gain = _per_price(problem)
    packed = pack(problem, None, lambda packing: packing.most(gain[packing.profiles.job]))
    return packed.solution(packed.reached.level)


def cost_with_deadlines(problem: AllocationProblem) -> Solution:
    """The most steps for the money while every deadline is met.

    Deadlines are admitted in the order of (deadline, id). A deadline that cannot be met together with those
    admitted before is relaxed: see `Solution.relaxed`.
    """
    _require_steps(problem)
    gain = _per_price(problem)
    dated = [m for m in range(len(problem)) if np.isfinite(problem.deadline_s[m])]
    dated.sort(key=lambda m: (problem.deadline_s[m], problem.ids[m]))
    turn, needed = np.zeros(len(problem)), np.zeros(len(problem))
    turn[dated] = 1 + np.arange(len(dated))
    left_s = problem.deadline_s[dated]
    needed[dated] = np.where(left_s > 0, problem.steps_left[dated] / np.where(left_s > 0, left_s, 1.0), np.inf)

    def answer(packing: Packing) -> Reached:
        of_job = packing.classes.of_job
        met = _admit(packing, of_job[dated], needed[packing.classes.first])
        return packing.most(gain[packing.profiles.job], met)

    # Deadlines are admitted one by one, so each job with a deadline is a class of its own.
    packed = pack(problem, turn, answer)
    met = packed.reached.throughput[packed.packing.classes.of_job]
    relaxed = [m for m in dated if met[m] == 0]
    solution = packed.solution(packed.reached.level, relaxed_deadlines=[problem.ids[m] for m in relaxed])
    return replace(solution, relaxed=np.array(relaxed, np.int64))


def isolated(problem: AllocationProblem) -> Solution:
    """Each of M jobs has 1/M of every GPU type: the yardstick of finish-time fairness."""
    _require_speed(problem)
    ratio = problem.isolated_throughput / problem.normaliser
    return Solution(problem.isolated_share, float(ratio.min()), {"gap": 0.0})


PROGRAMS: dict[str, Program] = {
    "max-min": Program(max_min, "least (gpus / (weight * c)) * throughput, raised lexicographically", "shares"),
    "water-filling": Program(max_min, "the same as max-min, which is lexicographic already", "shares"),
    "hierarchical": Program(hierarchical, "least service / weight of the queues at the top, then the next", "shares"),
    "finish-time": Program(finish_time, "largest rho, lowered lexicographically", "rho"),
    "makespan": Program(makespan, "time until the last job ends, then the last but one, ...", "s"),
    "total-throughput": Program(total_throughput, "sum of throughput / c", "shares"),
    "cost": Program(cost, "sum of throughput / price", "steps/s per price of an hour"),
    "cost-deadline": Program(cost_with_deadlines, "the same, deadlines met", "steps/s per price of an hour"),
    "strategy-proof": Program(strategy_proof, "sum of weight * log(throughput), before each job pays", "nats"),
    "allox": Program(allox, "sum of completion times, time since arrival included", "s"),
    "isolated": Program(isolated, "1/M of every GPU type", "shares"),
}


def _raise_levels(
    problem: AllocationProblem,
    wants: Floats,
    demand: Callable[[Ints, Floats], PriceDemand],
    objective: Callable[[Ints, Floats], float],
) -> Solution:
    """Raise all jobs level by level.

    `demand` makes the demand of classes of equal jobs from one job of each class and its fastest throughput.
    `objective` computes the objective from one job of each class and its throughput.
    """
    _require_speed(problem)
    if problem.sharing is None:
        return _raise_unshared(problem, wants, demand, objective)
    packed = pack(problem, wants, lambda packing: packing.fill(bounded(demand(packing.classes.first, packing.fastest))))
    return packed.solution(objective(packed.packing.classes.first, packed.reached.throughput))


def _raise_unshared(
    problem: AllocationProblem,
    wants: Floats,
    demand: Callable[[Ints, Floats], PriceDemand],
    objective: Callable[[Ints, Floats], float],
) -> Solution:
    """Raise all jobs level by level where jobs do not share GPUs."""
    classes = find_classes(np.column_stack((problem.speed, problem.gpus, wants)))
    first = classes.first
    jobs = Jobs(np.ascontiguousarray(problem.speed[first]), problem.gpus[first], classes.count)
    lowest, last = fill(UnsharedSearch(jobs, problem.capacity), bounded(demand(first, jobs.fastest)))
    certificate: dict[str, object] = {
        "prices": lowest.price.tolist(),
        "gap": max(lowest.gap, last.gap),
        "classes": len(classes.count),
    }
    return Solution(last.share[classes.of_job], objective(first, last.throughput), certificate)


def _admit(packing: Packing, order: Ints, needed: Floats) -> Floats:
    """The throughput promised to each class: in this order, what it needs, or 0 if that is impossible.

    Many classes are tried at once, so few programs are solved when nearly all deadlines can be met, or nearly none.
    """
    met = np.zeros(len(needed))
    waiting = order[needed[order] <= packing.fastest[order]]
    while len(waiting):
        admitted = _longest_possible_prefix(packing, met, waiting, needed)
        met = _with(met, waiting[:admitted], needed)
        waiting = waiting[admitted + 1 :]
    return met


def _with(met: Floats, more: Ints, needed: Floats) -> Floats:
    met = met.copy()
    met[more] = needed[more]
    return met


def _longest_possible_prefix(packing: Packing, met: Floats, waiting: Ints, needed: Floats) -> int:
    """Number of the first waiting classes that are possible together: by doubling, then by bisection."""
    good, bad = 0, len(waiting) + 1
    while bad - good > 1:
        trial = min(max(1, 2 * good), len(waiting)) if bad > len(waiting) else (good + bad) // 2
        if packing.possible(_with(met, waiting[:trial], needed)):
            good = trial
        else:
            bad = trial
    return good


def _per_price(problem: AllocationProblem) -> Floats:
    _require_speed(problem)
    if not len(problem.price) or not (problem.price > 0).all():
        raise NoAllocation("This policy weighs steps by their price: give a price above 0 for every GPU type.")
    return np.repeat(1.0 / problem.price[None, :], len(problem), axis=0)


def _require_speed(problem: AllocationProblem) -> None:
    fastest = problem.speed.max(axis=1)
    if not (fastest > 0).all():
        stuck = problem.ids[int(np.argmin(fastest))]
        raise NoAllocation(f"Job {stuck!r} has no throughput on any GPU type; give it one, or leave it out.")


def _require_steps(problem: AllocationProblem) -> None:
    done = np.flatnonzero(~(problem.steps_left > 0))
    if len(done):
        name = problem.ids[int(done[0])]
        raise NoAllocation(f"Job {name!r} has no steps left; this policy needs some of every job.")
