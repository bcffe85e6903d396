"""AlloX: jobs matched to positions in queues so that the sum of their completion times is least (EuroSys '20).

A job that is k-th from the end of a queue delays k jobs by its own time: itself and the k - 1 jobs behind it. So the
sum of all completion times is the sum of k * time, and the best schedule is a matching of jobs to (GPU, k) of least
cost. Only the first job of each queue runs now; the others are matched again at the next event.

The GPUs of a type are alike, so all their k-th positions are one seat with room for several jobs: a hundredth of the
columns of a matching of jobs to single positions (170 jobs on 36 GPUs of each of three types: 0.1 ms, where
`scipy.optimize.linear_sum_assignment` takes 4 ms; 1,000 jobs: 9 ms and 950 ms). Gangs queue for slots of their size:
see `slots.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.errors import UserError
from horae.core.jit import INTS, TABLE, compiled
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.slots import cut_slots


class NoMatching(UserError):
    """A job that no queue can take."""


@dataclass(frozen=True)
class Matching:
    """The queue and the position of each job. Position m of every column is the same job."""

    gpu_type: Ints
    #: Position from the end of the queue; the last is 1.
    position: Ints
    #: Jobs that are first in their queue, and run now.
    first: NDArray[np.bool_]
    #: Sum of position * time, and its lower bound over all matchings.
    cost_s: float
    bound_s: float
    #: Slots by size (rows) and GPU type.
    slots: Ints


def match(time_s: Floats, gpus: Ints, capacity: Ints, runs_on: Ints) -> Matching:
    """Match jobs that take `time_s` on each GPU type (infinite where they cannot run) to queues.

    `runs_on` is the type on which each job runs (-1: none). Of jobs that could as well be first, those that run on
    the type already are.
    """
    slots, size = cut_slots(time_s, gpus, capacity)
    gpu_type, position = np.zeros(len(gpus), np.int64), np.zeros(len(gpus), np.int64)
    first = np.zeros(len(gpus), np.bool_)
    bound_s = 0.0
    for slot_size in np.unique(size):
        jobs = np.flatnonzero(size == slot_size)
        size_time_s = np.where(slots[slot_size] > 0, time_s[jobs], np.inf)
        seat, seat_type, seat_position, price = _seat_jobs(size_time_s, slots[slot_size])
        gpu_type[jobs], position[jobs] = seat_type[seat], seat_position[seat]
        bound_s += _bound_s(size_time_s, slots[slot_size], seat_type, seat_position, price)
        first[jobs] = _first_in_queues(size_time_s, gpu_type[jobs], position[jobs], runs_on[jobs])
    cost_s = float((position * time_s[np.arange(len(gpus)), gpu_type]).sum())
    return Matching(gpu_type, position, first, cost_s, bound_s, slots)


def allox(problem: AllocationProblem) -> Solution:
    """The sum of completion times is as small as possible; the first job of each queue has a share of 1 there.

    Completion times count from arrival. The time that has passed already is part of the objective, but not of the
    gap.
    """
    time_s = _times(problem)
    gpus, capacity = problem.gpus.astype(np.int64), problem.capacity.astype(np.int64)
    matching = match(time_s, gpus, capacity, np.full(len(problem), -1))
    share = np.zeros_like(problem.speed)
    share[matching.first, matching.gpu_type[matching.first]] = 1.0
    queues = {
        name: {"gpu_type": problem.gpu_types[gpu_type], "position": position}
        for name, gpu_type, position in zip(
            problem.ids, matching.gpu_type.tolist(), matching.position.tolist(), strict=True
        )
    }
    slots = {
        name: {str(size): int(matching.slots[size, k]) for size in np.flatnonzero(matching.slots[:, k]).tolist()}
        for k, name in enumerate(problem.gpu_types)
    }
    gap = max(0.0, 1.0 - matching.bound_s / matching.cost_s)
    return Solution(
        share, matching.cost_s + float(problem.elapsed_s.sum()), {"gap": gap, "queues": queues, "slots": slots}
    )


def _times(problem: AllocationProblem) -> Floats:
    """Seconds left of each job on each type; infinite where it cannot run."""
    usable = (problem.speed > 0) & (problem.gpus[:, None] <= problem.capacity)
    for m, name in enumerate(problem.ids):
        if not usable[m].any():
            raise NoMatching(f"Job {name!r} can run on no GPU type; give it a throughput on one that is large enough.")
        if not problem.steps_left[m] > 0:
            raise NoMatching(f"Job {name!r} has no steps left; this policy needs some of every job.")
    with np.errstate(divide="ignore"):
        return np.where(usable, problem.steps_left[:, None] / problem.speed, np.inf)


@compiled("Tuple((int64[::1], int64[::1], int64[::1], float64[::1]))", TABLE, INTS)
def _seat_jobs(time_s: Floats, slots: Ints) -> tuple[Ints, Ints, Ints, Floats]:
    """The seat of each job, and the type, position and price of each seat: a matching of least cost.

    A seat is position k of all slots of a type; it takes as many jobs as there are slots and
    costs each k times its time. Jobs are seated one by one along shortest augmenting paths
    (the Hungarian method), which keeps prices of seats that prove the matching optimal. A
    seat that is not full has price 0, so no job prefers position k + 1: that seat is opened only when position k is
    full.
    """
    jobs, types = time_s.shape
    most = 0
    for gpu_type in range(types):
        if slots[gpu_type] > 0:
            most += jobs // slots[gpu_type] + 2
    of_type, position, price = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(most)
    taken, sitting = np.zeros(most, np.int64), np.empty((most, slots.max()), np.int64)
    seats = 0
    for gpu_type in range(types):
        if slots[gpu_type] > 0:
            of_type[seats], position[seats] = gpu_type, 1
            seats += 1
    seat, place = np.full(jobs, -1), np.full(jobs, -1)
    distance, via, passed = np.empty(most), np.empty(most, np.int64), np.empty(most, np.bool_)
    # Of equal jobs, the job seated later is farther ahead. So the first job to arrive is seated last.
    for m in range(jobs - 1, -1, -1):
        # 1. Seats by distance from the new job, through the jobs that would have to move.
        for c in range(seats):
            distance[c], via[c], passed[c] = position[c] * time_s[m, of_type[c]] + price[c], m, False
        while True:
            near = -1
            for c in range(seats):
                if not passed[c] and (near < 0 or distance[c] < distance[near]):
                    near = c
            if taken[near] < slots[of_type[near]]:
                break
            passed[near] = True
            for n in range(taken[near]):
                i = sitting[near, n]
                base = distance[near] - position[near] * time_s[i, of_type[near]] - price[near]
                for c in range(seats):
                    beyond = base + position[c] * time_s[i, of_type[c]] + price[c]
                    if not passed[c] and beyond < distance[c]:
                        distance[c], via[c] = beyond, i
        # 2. Seats passed on the path to the nearest seat with room become dearer.
        for c in range(seats):
            if passed[c]:
                price[c] += distance[near] - distance[c]
        # 3. Each job on the path moves one seat on.
        c, index = near, taken[near]
        taken[near] += 1
        if taken[near] == slots[of_type[near]]:
            of_type[seats], position[seats] = of_type[near], position[near] + 1
            seats += 1
        while True:
            i = via[c]
            left_seat, left_index = seat[i], place[i]
            seat[i], place[i], sitting[c, index] = c, index, i
            if i == m:
                break
            c, index = left_seat, left_index
    return seat, of_type[:seats].copy(), position[:seats].copy(), price[:seats].copy()


def _bound_s(time_s: Floats, slots: Ints, seat_type: Ints, seat_position: Ints, price: Floats) -> float:
    """Lower bound on the cost of all matchings: each job's cheapest seat at these prices, less all prices."""
    cheapest = (seat_position * time_s[:, seat_type] + price).min(axis=1)
    return float(cheapest.sum() - (slots[seat_type] * price).sum())


def _first_in_queues(time_s: Floats, gpu_type: Ints, position: Ints, runs_on: Ints) -> NDArray[np.bool_]:
    """The first job of each queue: of each type the jobs with the highest positions, as many as there are queues.

    Jobs of equal position may swap queues at no cost, so jobs that run on the type already go first, then the
    shortest.
    """
    jobs = np.arange(len(gpu_type))
    order = np.lexsort((time_s[jobs, gpu_type], runs_on != gpu_type, -position, gpu_type))
    queues = np.bincount(gpu_type[position == 1], minlength=int(gpu_type.max()) + 1)
    begin = np.searchsorted(gpu_type[order], np.arange(len(queues)))
    first = np.zeros(len(gpu_type), np.bool_)
    first[order] = jobs < (begin + queues)[gpu_type[order]]
    return first
