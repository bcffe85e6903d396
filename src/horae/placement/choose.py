"""Which pools a gang takes its GPUs from.

A pool is what a rule counts by: a node, or, where only the count matters, all
GPUs of a type together. `counts` says how many GPUs each pool could give;
`out_pool` and `out_take` receive the choice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.jit import BOOL, INT, INTS, compiled, inner

Ints = NDArray[np.int64]

CONSOLIDATED, BEST_EFFORT, LEAST_FRAGMENTATION, BY_SKEW = 0, 1, 2, 3
ANY_RACK = -1


@inner(BOOL, INT, INT, INTS, BOOL)
def _earlier(a: int, b: int, counts: Ints, fullest_first: bool) -> bool:
    """Whether pool a is taken before pool b."""
    if counts[a] != counts[b]:
        return bool((counts[a] > counts[b]) == fullest_first)
    return a < b


@inner(BOOL, INT, INTS, INT)
def _among(pool: int, used: Ints, n_used: int) -> bool:
    """Whether a pool is one of the first `n_used`."""
    found = False
    for i in range(n_used):
        found = found or used[i] == pool
    return found


@inner(INT, INT, INT, INTS, INTS, INTS)
def _fewest(gpus: int, gpu_type: int, capacity: Ints, by_capacity: Ints, pool_type: Ints) -> int:
    """The fewest pools that could hold the gang if they were empty; 0 if none can."""
    held, pools = 0, 0
    for pool in by_capacity:
        if pool_type[pool] == gpu_type:
            held += capacity[pool]
            pools += 1
            if held >= gpus:
                return pools
    return 0


@inner(INT, INT, INT, INT, INTS, INTS, INTS, INTS, INT)
def _best_fit(
    gpus: int, gpu_type: int, rack: int, counts: Ints, pool_type: Ints, pool_rack: Ints, used: Ints, n_used: int
) -> int:
    """The pool with the fewest GPUs that are still enough, none of those used; -1 if there is none."""
    best = -1
    for pool in range(len(counts)):
        if pool_type[pool] != gpu_type or counts[pool] < gpus or (rack != ANY_RACK and pool_rack[pool] != rack):
            continue
        if best >= 0 and counts[pool] >= counts[best]:
            continue
        if not _among(pool, used, n_used):
            best = pool
    return best


@inner(INT, INT, INT, INT, INT, INTS, INTS, INTS, INTS, INTS)
def _largest(
    fewest: int,
    gpus: int,
    gpu_type: int,
    rack: int,
    counts: Ints,
    pool_type: Ints,
    pool_rack: Ints,
    out_pool: Ints,
    out_take: Ints,
) -> int:
    """The `fewest` pools with the most GPUs, the last one chosen to fit; 0 if they are not enough."""
    left = gpus
    for chosen in range(fewest - 1):
        most = -1
        for pool in range(len(counts)):
            if pool_type[pool] != gpu_type or (rack != ANY_RACK and pool_rack[pool] != rack):
                continue
            if (most < 0 or counts[pool] > counts[most]) and not _among(pool, out_pool, chosen):
                most = pool
        if most < 0 or counts[most] <= 0:
            return 0
        out_pool[chosen], out_take[chosen] = most, counts[most]
        left -= counts[most]
    last = _best_fit(left, gpu_type, rack, counts, pool_type, pool_rack, out_pool, fewest - 1)
    if last < 0:
        return 0
    out_pool[fewest - 1], out_take[fewest - 1] = last, left
    return fewest


@inner(INT, INT, INT, INT, INTS, INTS, INTS, INT, INTS, INTS)
def _together(
    fewest: int,
    gpus: int,
    gpu_type: int,
    counts: Ints,
    pool_type: Ints,
    pool_rack: Ints,
    racks: int,
    out_pool: Ints,
    out_take: Ints,
) -> int:
    """Exactly the fewest pools, in one rack if possible; one pool is the one it fills best."""
    if racks > 1 and fewest > 1:
        for rack in range(racks):
            taken = _largest(fewest, gpus, gpu_type, rack, counts, pool_type, pool_rack, out_pool, out_take)
            if taken > 0:
                return taken
    return _largest(fewest, gpus, gpu_type, ANY_RACK, counts, pool_type, pool_rack, out_pool, out_take)


@inner(INT, INT, INT, INTS, INTS, INTS, INT)
def _tightest_rack(gpus: int, gpu_type: int, counts: Ints, pool_type: Ints, pool_rack: Ints, racks: int) -> int:
    """The rack with the fewest GPUs that are still enough; ANY_RACK if no rack has enough."""
    best, best_held = ANY_RACK, 0
    for rack in range(racks):
        held = 0
        for pool in range(len(counts)):
            if pool_type[pool] == gpu_type and pool_rack[pool] == rack:
                held += counts[pool]
        if held >= gpus and (best == ANY_RACK or held < best_held):
            best, best_held = rack, held
    return best


@inner(INT, INT, INT, INT, INTS, INTS, INTS, INTS, INTS, BOOL)
def _fill(
    gpus: int,
    gpu_type: int,
    rack: int,
    counts: Ints,
    pool_type: Ints,
    pool_rack: Ints,
    out_pool: Ints,
    out_take: Ints,
    fullest_first: bool,
) -> int:
    """Take pools one after the other, those with the most (or fewest) GPUs first, until the gang has enough."""
    left, taken, last = gpus, 0, -1
    while left > 0:
        best = -1
        for pool in range(len(counts)):
            if counts[pool] <= 0 or pool_type[pool] != gpu_type or (rack != ANY_RACK and pool_rack[pool] != rack):
                continue
            if last >= 0 and not _earlier(last, pool, counts, fullest_first):
                continue
            if best < 0 or _earlier(pool, best, counts, fullest_first):
                best = pool
        if best < 0:
            return 0
        out_pool[taken], out_take[taken] = best, min(left, counts[best])
        left -= out_take[taken]
        taken += 1
        last = best
    return taken


@compiled(INT, INT, INT, INT, INTS, INTS, INTS, INTS, INTS, INT, INTS, INTS)
def choose(
    rule: int,
    gpus: int,
    gpu_type: int,
    counts: Ints,
    capacity: Ints,
    by_capacity: Ints,
    pool_type: Ints,
    pool_rack: Ints,
    racks: int,
    out_pool: Ints,
    out_take: Ints,
) -> int:
    """Choose pools of one type for a gang; gives how many were taken, 0 if the rule finds none."""
    if rule == LEAST_FRAGMENTATION:
        return _fill(gpus, gpu_type, ANY_RACK, counts, pool_type, pool_rack, out_pool, out_take, False)
    fewest = _fewest(gpus, gpu_type, capacity, by_capacity, pool_type)
    if fewest == 0:
        return 0
    taken = _together(fewest, gpus, gpu_type, counts, pool_type, pool_rack, racks, out_pool, out_take)
    if taken > 0 or rule == CONSOLIDATED:
        return taken
    rack = _tightest_rack(gpus, gpu_type, counts, pool_type, pool_rack, racks) if racks > 1 else ANY_RACK
    return _fill(gpus, gpu_type, rack, counts, pool_type, pool_rack, out_pool, out_take, True)
