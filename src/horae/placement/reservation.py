"""Reservations: when a large gang could start, and what may run meanwhile. Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.jit import FLOAT, FLOATS, INT, INTS, inner
from horae.placement.choose import choose
from horae.placement.heap import heapify, pop
from horae.placement.holders import shift
from horae.placement.kernel_args import DISPLACED, Floats, Ints


@inner(FLOAT, INT, FLOAT, FLOATS, FLOATS, FLOATS, FLOATS)
def _seconds_left(row: int, now_s: float, work_left: Floats, rate: Floats, since_s: Floats, best_rate: Floats) -> float:
    """How long a job would still run, by what is known."""
    speed = rate[row] if rate[row] > 0 else best_rate[row]
    left = work_left[row] - rate[row] * (now_s - since_s[row])
    return max(left, 0.0) / speed if speed > 0 else np.inf


@inner(
    FLOAT, INT, INT, INT, FLOAT, FLOATS, FLOATS, FLOATS, FLOATS, INTS, INTS, INT, INTS, INTS, INTS, INTS, INTS, INT,
    INTS, INTS, INTS, INTS, INT, INTS, INTS, INTS, INT, INTS, INTS, INTS, INTS, INTS,
)  # fmt: skip
def reserve(
    row: int, gpus: int, mask: int, now_s: float, work_left: Floats, rate: Floats, since_s: Floats, best_rate: Floats,
    free: Ints, late: Ints, n_holders: int, rows: Ints, guests: Ints, first: Ints, held: Ints, status: Ints,
    n_given: int, given_row: Ints, given_first: Ints, given_pool: Ints, given_take: Ints, rule: int, gpu_pool: Ints,
    pool_type: Ints, pool_rack: Ints, racks: int, capacity: Ints, by_capacity: Ints, type_free: Ints, out_pool: Ints,
    out_take: Ints,
) -> float:  # fmt: skip
    """Find the earliest time a job could start if nobody new did; what it does not need then is `late`.

    GPUs come free in order of expected ends: the reservation of backfill scheduling.
    """
    ends, who = np.empty(n_holders + n_given), np.arange(n_holders + n_given)
    for at in range(n_holders + n_given):
        its_row = rows[at] if at < n_holders else given_row[at - n_holders]
        ends[at] = now_s + _seconds_left(its_row, now_s, work_left, rate, since_s, best_rate)
        if at < n_holders and guests[at] >= 0:
            ends[at] = max(ends[at], now_s + _seconds_left(guests[at], now_s, work_left, rate, since_s, best_rate))
    heapify(ends, who)
    counts, by_type = free.copy(), type_free.copy()
    start_s, taken = np.inf, 0
    for size in range(len(who), 0, -1):
        end_s = ends[0]
        at = pop(ends, who, size)
        if at >= n_holders:
            for pair in range(given_first[at - n_holders], given_first[at - n_holders + 1]):
                counts[given_pool[pair]] += given_take[pair]
                by_type[pool_type[given_pool[pair]]] += given_take[pair]
        elif status[at] < DISPLACED:
            shift(at, 1, first, held, gpu_pool, pool_type, counts, by_type)
        for gpu_type in range(len(by_type)):
            if taken == 0 and mask >> gpu_type & 1 and by_type[gpu_type] >= gpus:
                taken = choose(
                    rule, gpus, gpu_type, counts, capacity, by_capacity, pool_type, pool_rack, racks, out_pool, out_take
                )
        if taken > 0:
            start_s = end_s
            break
    for at in range(taken):
        counts[out_pool[at]] -= out_take[at]
    for pool in range(len(counts)):
        late[pool] = max(0, min(free[pool], counts[pool]))
    return start_s
