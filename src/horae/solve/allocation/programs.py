"""Gavel's policies as allocation programs (OSDI '20, section 4): one problem in, shares of time out.

Those that raise the worst-off do so level by level, to the last job: a plain optimum would
leave whoever is not a bottleneck with any share, down to none.
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
from horae.solve.allocation.lexicographic import Alone, fill, within
from horae.solve.allocation.nash import strategy_proof
from horae.solve.allocation.packing import Packing, Reached, pack
from horae.solve.allocation.price_search import Jobs, PriceDemand
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.matching import allox


class NoAllocation(UserError):
    """A problem that has no answer."""


@dataclass(frozen=True)
class Program:
    """An allocation program, for people and for `horae solve`."""

    solve: Callable[[AllocationProblem], Solution]
    objective: str
    unit: str


def max_min(problem: AllocationProblem) -> Solution:
    """The worst-off gets as much as possible, then the next, of throughput over a proportional share of the cluster.

    Note: a job of weight 2 ends up with twice the normalised throughput of a job of weight 1.
    """
    rate = problem.weight * problem.normaliser / problem.gpus
    return _raise(
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

    return _raise(problem, columns, demand, largest_rho)


def makespan(problem: AllocationProblem) -> Solution:
    """The last job ends as soon as possible; then the one before it, and so on, so that short jobs do not starve."""
    _require_steps(problem)
    steps = problem.steps_left
    return _raise(
        problem,
        steps,
        lambda jobs, fastest: Proportional(steps[jobs], fastest),
        lambda jobs, throughput: float((steps[jobs] / throughput).max()),
    )


def total_throughput(problem: AllocationProblem) -> Solution:
    """The sum of throughputs, each over that of a proportional share of the cluster, is as large as possible."""
    _require_speed(problem)
    gain = np.repeat(1.0 / problem.normaliser[:, None], len(problem.capacity), axis=1)
    packed = pack(problem, None, lambda packing: packing.most(gain[packing.kinds.job]))
    return packed.solution(packed.reached.level)


def cost(problem: AllocationProblem) -> Solution:
    """The steps bought for a dollar are as many as possible: the sum of throughput over the price of an hour."""
    gain = _per_price(problem)
    packed = pack(problem, None, lambda packing: packing.most(gain[packing.kinds.job]))
    return packed.solution(packed.reached.level)


def cost_with_deadlines(problem: AllocationProblem) -> Solution:
    """As many steps for a dollar as possible while every deadline is met.

    Deadlines are taken up in the order of (deadline, id); one that cannot be met beside
    those before it is dropped, and named.
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
        return packing.most(gain[packing.kinds.job], met)

    # Every deadline is admitted by itself, so everybody that has one is a class of its own.
    packed = pack(problem, turn, answer)
    met = packed.reached.throughput[packed.packing.classes.of_job]
    relaxed = [m for m in dated if met[m] == 0]
    solution = packed.solution(packed.reached.level, relaxed_deadlines=[problem.ids[m] for m in relaxed])
    return replace(solution, relaxed=np.array(relaxed, np.int64))


def isolated(problem: AllocationProblem) -> Solution:
    """Everybody has 1/M of every GPU type: what finish-time fairness compares with."""
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


def _raise(
    problem: AllocationProblem,
    wants: Floats,
    demand: Callable[[Ints, Floats], PriceDemand],
    objective: Callable[[Ints, Floats], float],
) -> Solution:
    """Raise all jobs level by level.

    `demand` says what classes of equal jobs want, by a job of each and the fastest it can be;
    `objective` what it comes to, by a job of each and its throughput.
    """
    _require_speed(problem)
    if problem.sharing is None:
        return _raise_alone(problem, wants, demand, objective)
    packed = pack(problem, wants, lambda packing: packing.fill(within(demand(packing.classes.first, packing.fastest))))
    return packed.solution(objective(packed.packing.classes.first, packed.reached.throughput))


def _raise_alone(
    problem: AllocationProblem,
    wants: Floats,
    demand: Callable[[Ints, Floats], PriceDemand],
    objective: Callable[[Ints, Floats], float],
) -> Solution:
    """The same where nobody shares GPUs: prices alone tell what everybody does."""
    classes = find_classes(np.column_stack((problem.speed, problem.gpus, wants)))
    first = classes.first
    jobs = Jobs(np.ascontiguousarray(problem.speed[first]), problem.gpus[first], classes.count)
    lowest, last = fill(Alone(jobs, problem.capacity), within(demand(first, jobs.fastest)))
    certificate: dict[str, object] = {
        "prices": lowest.price.tolist(),
        "gap": max(lowest.gap, last.gap),
        "classes": len(classes.count),
    }
    return Solution(last.share[classes.of_job], objective(first, last.throughput), certificate)


def _admit(packing: Packing, order: Ints, needed: Floats) -> Floats:
    """The throughputs that classes are promised: in order, what each needs, or nothing if that is too much.

    As many as possible are tried at once, so that it takes few programs when nearly all
    deadlines can be met, or nearly none.
    """
    met = np.zeros(len(needed))
    waiting = order[needed[order] <= packing.fastest[order]]
    while len(waiting):
        admitted = _longest_start(packing, met, waiting, needed)
        met = _with(met, waiting[:admitted], needed)
        waiting = waiting[admitted + 1 :]
    return met


def _with(met: Floats, more: Ints, needed: Floats) -> Floats:
    met = met.copy()
    met[more] = needed[more]
    return met


def _longest_start(packing: Packing, met: Floats, waiting: Ints, needed: Floats) -> int:
    """How many of the first are possible together: twice as many until they are too many, then halve the doubt."""
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
