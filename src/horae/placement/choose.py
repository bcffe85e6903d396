"""Which pools a gang takes its GPUs from.

A pool is what a rule counts by: a node, or, where only the count matters, all
GPUs of a type together. `counts` says how many GPUs each pool could give;
`chosen` receives the choice.
"""

from __future__ import annotations

from typing import NamedTuple

from horae.core.arrays import Ints
from horae.core.jit import inlined, lean
from horae.placement.kernel_args import CHOSEN_GPUS, CHOSEN_POOL, Pools

CONSOLIDATED, BEST_EFFORT, LEAST_FRAGMENTATION, BY_SKEW = 0, 1, 2, 3
_ANY_RACK = -1


class Gang(NamedTuple):
    """What is to be placed: this many GPUs of one type, by this rule."""

    rule: int
    gpus: int
    gpu_type: int


@inlined
def _eligible(pool: int, gpu_type: int, rack: int, pools: Pools) -> bool:
    """Whether a pool is of a type and, if one is named, in a rack."""
    return pools.type[pool] == gpu_type and (rack < 0 or pools.rack[pool] == rack)


@lean
def _among(pool: int, chosen: Ints, taken: int) -> bool:
    """Whether a pool is one of the first `taken` that were chosen."""
    found = False
    for i in range(taken):
        found = found or chosen[CHOSEN_POOL, i] == pool
    return found


@lean
def _largest_capacity(gpu_type: int, pools: Pools) -> int:
    """GPUs of the largest pool of a type."""
    for pool in pools.by_capacity:
        if pools.type[pool] == gpu_type:
            return pools.capacity[pool]
    return 0


@lean
def _fewest(gang: Gang, pools: Pools) -> int:
    """The fewest pools that could hold the gang if they were empty; 0 if none can."""
    held, count = 0, 0
    for pool in pools.by_capacity:
        if pools.type[pool] == gang.gpu_type:
            held += pools.capacity[pool]
            count += 1
            if held >= gang.gpus:
                return count
    return 0


@lean
def _best_fit(gang: Gang, gpus: int, rack: int, counts: Ints, pools: Pools, chosen: Ints, taken: int) -> int:
    """The pool with the fewest GPUs that are still enough, none of those taken; -1 if there is none."""
    best = -1
    for pool in range(len(counts)):
        if counts[pool] < gpus or (best >= 0 and counts[pool] >= counts[best]):
            continue
        if _eligible(pool, gang.gpu_type, rack, pools) and not _among(pool, chosen, taken):
            best = pool
            if counts[pool] == gpus:
                break
    return best


@lean
def _most(gang: Gang, rack: int, counts: Ints, pools: Pools, chosen: Ints, taken: int) -> int:
    """The pool with the most GPUs, none of those taken; -1 if there is none."""
    most, limit = -1, _largest_capacity(gang.gpu_type, pools)
    for pool in range(len(counts)):
        if most >= 0 and counts[pool] <= counts[most]:
            continue
        if _eligible(pool, gang.gpu_type, rack, pools) and not _among(pool, chosen, taken):
            most = pool
            if counts[pool] >= limit:
                break
    return most


@lean
def _largest(fewest: int, gang: Gang, rack: int, counts: Ints, pools: Pools, chosen: Ints) -> int:
    """The `fewest` pools with the most GPUs, the last one chosen to fit; 0 if they are not enough."""
    left, last = gang.gpus, fewest - 1
    for taken in range(last):
        most = _most(gang, rack, counts, pools, chosen, taken)
        if most < 0 or counts[most] <= 0:
            return 0
        chosen[CHOSEN_POOL, taken], chosen[CHOSEN_GPUS, taken] = most, counts[most]
        left -= counts[most]
    fitting = _best_fit(gang, left, rack, counts, pools, chosen, last)
    if fitting < 0:
        return 0
    chosen[CHOSEN_POOL, last], chosen[CHOSEN_GPUS, last] = fitting, left
    return fewest


@lean
def _together(fewest: int, gang: Gang, counts: Ints, pools: Pools, chosen: Ints) -> int:
    """Exactly the fewest pools, in one rack if possible; a single pool is the one that the gang fills best."""
    racks = pools.racks if pools.racks > 1 and fewest > 1 else 0
    for trial in range(racks + 1):
        rack = trial if trial < racks else _ANY_RACK
        taken = _largest(fewest, gang, rack, counts, pools, chosen)
        if taken > 0:
            return taken
    return 0


@lean
def _tightest_rack(gang: Gang, counts: Ints, pools: Pools) -> int:
    """The rack with the fewest GPUs that are still enough; -1 if no rack has enough."""
    best, best_held = _ANY_RACK, 0
    for rack in range(pools.racks if pools.racks > 1 else 0):
        held = 0
        for pool in range(len(counts)):
            if _eligible(pool, gang.gpu_type, rack, pools):
                held += counts[pool]
        if held >= gang.gpus and (best < 0 or held < best_held):
            best, best_held = rack, held
    return best


@inlined
def _earlier(a: int, b: int, counts: Ints, fullest_first: bool) -> bool:
    """Whether pool a is taken before pool b."""
    if counts[a] != counts[b]:
        return (counts[a] > counts[b]) == fullest_first
    return a < b


@lean
def _next_in_line(last: int, gang: Gang, rack: int, counts: Ints, pools: Pools) -> int:
    """The pool that is taken after the last one (-1 for none yet); -1 if there is no other."""
    fullest_first = gang.rule != LEAST_FRAGMENTATION
    # No pool comes before one with this count: looking may end there.
    limit = counts[last] if last >= 0 else (_largest_capacity(gang.gpu_type, pools) if fullest_first else 1)
    best = -1
    for pool in range(len(counts)):
        if counts[pool] <= 0 or (best >= 0 and not _earlier(pool, best, counts, fullest_first)):
            continue
        if last >= 0 and not _earlier(last, pool, counts, fullest_first):
            continue
        if _eligible(pool, gang.gpu_type, rack, pools):
            best = pool
            if counts[pool] == limit:
                break
    return best


@lean
def _fill(gang: Gang, rack: int, counts: Ints, pools: Pools, chosen: Ints) -> int:
    """Take pools one after the other until the gang has enough.

    Pools with the fewest GPUs come first under least-fragmentation, else pools with the most.
    """
    left, taken, last = gang.gpus, 0, -1
    while left > 0:
        last = _next_in_line(last, gang, rack, counts, pools)
        if last < 0:
            return 0
        chosen[CHOSEN_POOL, taken], chosen[CHOSEN_GPUS, taken] = last, min(left, counts[last])
        left -= chosen[CHOSEN_GPUS, taken]
        taken += 1
    return taken


@lean
def choose(gang: Gang, counts: Ints, pools: Pools, chosen: Ints) -> int:
    """Choose pools of one type for a gang; gives how many were chosen, 0 if the rule finds none."""
    rack = _ANY_RACK
    if gang.rule != LEAST_FRAGMENTATION:
        fewest = _fewest(gang, pools)
        taken = _together(fewest, gang, counts, pools, chosen) if fewest > 0 else 0
        if taken > 0 or fewest == 0 or gang.rule == CONSOLIDATED:
            return taken
        rack = _tightest_rack(gang, counts, pools)
    return _fill(gang, rack, counts, pools, chosen)
