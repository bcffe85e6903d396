"""Reservations: when a large gang could start, and what may run meanwhile. Compiled.

No holder loses its GPUs in a walk with a reservation.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Ints
from horae.core.jit import inlined, lean
from horae.core.states import LAUNCHING
from horae.placement.choose import Gang, choose
from horae.placement.gpu_room import add_room, change_room, copy_room, fit_capacity, fit_counts, keep_late_room
from horae.placement.heap import heapify, pop
from horae.placement.holders import add_gpus
from horae.placement.kernel_args import (
    CHOSEN_GPUS,
    CHOSEN_POOL,
    END_S,
    ENDING,
    FIRST_GPU,
    FIRST_PIECE,
    FIT,
    FREE,
    GRANTS,
    GUEST,
    LATE,
    LEAD,
    MATE,
    NONE,
    PIECE_GPUS,
    PIECE_POOL,
    POOL_TYPE,
    ROW,
    TRIAL,
    Floor,
    JobColumns,
    Needs,
    Pools,
    Walk,
)

_LAUNCHING = int(LAUNCHING)


@lean
def _end_s(row: int, now_s: float, needs: Needs, jobs: JobColumns) -> float:
    """When a job will end if it runs on, by what is known.

    A job that is starting up counts from its launch, as one that would start now does. Else a stream of short jobs, of
    which one is always starting up, would put the reservation off for ever.
    """
    speed = jobs.rate[row] if jobs.rate[row] > 0 else jobs.best_rate[row]
    if jobs.state[row] == _LAUNCHING:
        return max(now_s, jobs.launched_s[row] + (needs.work_left[row] / speed if speed > 0 else np.inf))
    left = needs.work_left[row] - jobs.rate[row] * (now_s - jobs.since_s[row])
    return now_s + (max(left, 0.0) / speed if speed > 0 else np.inf)


@lean
def _expected_ends(floor: Floor, walk: Walk, needs: Needs, jobs: JobColumns) -> int:
    """Make a heap of the times at which GPUs come back: by first GPU of each holder, then by grant; gives its size."""
    count, grants = floor.holder_count, floor.counters[GRANTS]
    ends_s, who = walk.times[END_S], floor.grants[ENDING]
    for h in range(count):
        ends_s[h], who[h] = _end_s(floor.held[LEAD, h], walk.now_s, needs, jobs), floor.held[FIRST_GPU, h]
        if floor.held[GUEST, h] >= 0:
            ends_s[h] = max(ends_s[h], _end_s(floor.held[GUEST, h], walk.now_s, needs, jobs))
    for p in range(grants):
        ends_s[count + p] = _end_s(floor.grants[ROW, p], walk.now_s, needs, jobs)
        who[count + p] = len(floor.next_gpu) + p
    heapify(ends_s[: count + grants], who[: count + grants])
    return count + grants


@inlined
def _give_back(which: int, counts: Ints, by_type: Ints, floor: Floor, walk: Walk) -> None:
    """Add the GPUs of a holder (by its first GPU) or of a grant to some counts."""
    p = which - len(floor.next_gpu)
    if p < 0:
        h = floor.holder_of[walk.seats[0, which]]
        add_gpus(h, counts, by_type, floor)
        if floor.scarce:
            add_room(h, TRIAL, 1, floor)
        return
    for piece in range(floor.grants[FIRST_PIECE, p], floor.grants[FIRST_PIECE, p + 1]):
        pool, gpus = floor.grants[PIECE_POOL, piece], floor.grants[PIECE_GPUS, piece]
        counts[pool] += gpus
        by_type[floor.by_pool[POOL_TYPE, pool]] += gpus
        if floor.scarce:
            change_room(TRIAL, pool, gpus, floor.grants[ROW, p], floor.grants[MATE, p], floor)


@lean
def _choose_in_trial(gang: Gang, row: int, floor: Floor, pools: Pools) -> int:
    """Choose pools for the job with a reservation from the counts of TRIAL."""
    if not floor.scarce:
        return choose(gang, floor.by_pool[TRIAL], pools)
    fit_counts(TRIAL, row, NONE, floor)
    return choose(gang, floor.room[FIT], pools)


@lean
def reserve(rule: int, floor: Floor, walk: Walk, needs: Needs, jobs: JobColumns, pools: Pools) -> float:
    """Find the earliest time the job could start if no other job did; what it does not need then is LATE.

    GPUs come free in order of expected ends: the reservation of backfill scheduling.
    """
    gpus, nodes, types = needs.gpus_min[walk.head], needs.nodes[walk.head], needs.types[walk.head]
    counts, by_type = floor.by_pool[TRIAL], floor.by_type[TRIAL]
    for pool in range(len(counts)):
        counts[pool] = floor.by_pool[FREE, pool]
    for gpu_type in range(len(by_type)):
        by_type[gpu_type] = floor.by_type[FREE, gpu_type]
    if floor.scarce:
        fit_capacity(walk.head, NONE, floor)
        copy_room(FREE, TRIAL, floor)
    ends_s, who, start_s, taken = walk.times[END_S], floor.grants[ENDING], np.inf, 0
    for size in range(_expected_ends(floor, walk, needs, jobs), 0, -1):
        end_s = ends_s[0]
        _give_back(pop(ends_s, who, size), counts, by_type, floor, walk)
        for gpu_type in range(len(by_type)):
            if taken == 0 and types >> gpu_type & 1 and by_type[gpu_type] >= gpus:
                taken = _choose_in_trial(Gang(rule, gpus, gpu_type, nodes), walk.head, floor, pools)
        if taken > 0:
            start_s = end_s
            break
    for at in range(taken):
        counts[floor.by_pool[CHOSEN_POOL, at]] -= floor.by_pool[CHOSEN_GPUS, at]
        if floor.scarce:
            change_room(TRIAL, floor.by_pool[CHOSEN_POOL, at], -floor.by_pool[CHOSEN_GPUS, at], walk.head, NONE, floor)
    if floor.scarce:
        keep_late_room(floor)
    for pool in range(len(counts)):
        floor.by_pool[LATE, pool] = max(0, min(floor.by_pool[FREE, pool], counts[pool]))
    return start_s
