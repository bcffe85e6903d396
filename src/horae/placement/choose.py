"""Which pools a gang takes its GPUs from.

A pool is what a rule counts by: a node, or, where only the count matters, all
GPUs of a type together. `counts` says how many GPUs each pool could give;
the columns CHOSEN_POOL and CHOSEN_GPUS receive the choice.
"""

from __future__ import annotations

from typing import NamedTuple

from horae.core.arrays import Ints
from horae.core.jit import inlined, lean
from horae.placement.kernel_args import BY_CAPACITY, CAPACITY, CHOSEN_GPUS, CHOSEN_POOL, POOL_RACK, POOL_TYPE, Pools

CONSOLIDATED, BEST_EFFORT, LEAST_FRAGMENTATION, BY_SKEW = 0, 1, 2, 3
_ANY_RACK = -1
_NO_POOL = -1


class Gang(NamedTuple):
    """What is to be placed: this many GPUs of one type, by this rule."""

    rule: int
    gpus: int
    gpu_type: int
    #: Exactly this many pools, with the same number of GPUs on each; 0 leaves that to the rule.
    nodes: int


@inlined
def _eligible(pool: int, gpu_type: int, rack: int, pools: Pools) -> bool:
    """Whether a pool is of a type and, if one is named, in a rack."""
    return pools.by_pool[POOL_TYPE, pool] == gpu_type and (rack < 0 or pools.by_pool[POOL_RACK, pool] == rack)


@lean
def _among(pool: int, taken: int, pools: Pools) -> bool:
    """Whether a pool is one of the first `taken` that were chosen."""
    found = False
    for i in range(taken):
        found = found or pools.by_pool[CHOSEN_POOL, i] == pool
    return found


@lean
def _largest_capacity(gpu_type: int, pools: Pools) -> int:
    """GPUs of the largest pool of a type."""
    for at in range(pools.by_pool.shape[1]):
        pool = pools.by_pool[BY_CAPACITY, at]
        if pools.by_pool[POOL_TYPE, pool] == gpu_type:
            return pools.by_pool[CAPACITY, pool]
    return 0


@inlined
def _fewest(gang: Gang, pools: Pools) -> int:
    """The fewest pools that could hold the gang if they were empty; 0 if none can."""
    held, count = 0, 0
    for at in range(pools.by_pool.shape[1]):
        pool = pools.by_pool[BY_CAPACITY, at]
        if pools.by_pool[POOL_TYPE, pool] == gang.gpu_type:
            held += pools.by_pool[CAPACITY, pool]
            count += 1
            if held >= gang.gpus:
                return count
    return 0


@lean
def _best_fit(gang: Gang, gpus: int, rack: int, counts: Ints, pools: Pools, taken: int) -> int:
    """The pool with the fewest GPUs that are still enough, none of those taken; -1 if there is none."""
    best = -1
    for pool in range(len(counts)):
        if counts[pool] < gpus or (best >= 0 and counts[pool] >= counts[best]):
            continue
        if _eligible(pool, gang.gpu_type, rack, pools) and not _among(pool, taken, pools):
            best = pool
            if counts[pool] == gpus:
                break
    return best


@lean
def _most(gang: Gang, rack: int, counts: Ints, pools: Pools, taken: int) -> int:
    """The pool with the most GPUs, none of those taken; -1 if there is none."""
    most, limit = -1, _largest_capacity(gang.gpu_type, pools)
    for pool in range(len(counts)):
        if most >= 0 and counts[pool] <= counts[most]:
            continue
        if _eligible(pool, gang.gpu_type, rack, pools) and not _among(pool, taken, pools):
            most = pool
            if counts[pool] >= limit:
                break
    return most


@lean
def _largest(fewest: int, gang: Gang, rack: int, counts: Ints, pools: Pools) -> int:
    """The `fewest` pools with the most GPUs, the last one chosen to fit; 0 if they are not enough."""
    left, last = gang.gpus, fewest - 1
    for taken in range(last):
        most = _most(gang, rack, counts, pools, taken)
        if most < 0 or counts[most] <= 0:
            return 0
        pools.by_pool[CHOSEN_POOL, taken], pools.by_pool[CHOSEN_GPUS, taken] = most, counts[most]
        left -= counts[most]
    fitting = _best_fit(gang, left, rack, counts, pools, last)
    if fitting < 0:
        return 0
    pools.by_pool[CHOSEN_POOL, last], pools.by_pool[CHOSEN_GPUS, last] = fitting, left
    return fewest


@lean
def _together(fewest: int, gang: Gang, counts: Ints, pools: Pools) -> int:
    """Exactly the fewest pools, in one rack if possible; a single pool is the one that the gang fills best."""
    racks = pools.racks if pools.racks > 1 and fewest > 1 else 0
    for trial in range(racks + 1):
        rack = trial if trial < racks else _ANY_RACK
        taken = _largest(fewest, gang, rack, counts, pools)
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
def _fill(gang: Gang, rack: int, counts: Ints, pools: Pools) -> int:
    """Take pools one after the other until the gang has enough.

    Pools with the fewest GPUs come first under least-fragmentation, else pools with the most.
    """
    # The sum is no constant: for a constant numba would compile the next function once more.
    left, taken, last = gang.gpus, 0, _NO_POOL + 0
    while left > 0:
        last = _next_in_line(last, gang, rack, counts, pools)
        if last < 0:
            return 0
        pools.by_pool[CHOSEN_POOL, taken], pools.by_pool[CHOSEN_GPUS, taken] = last, min(left, counts[last])
        left -= pools.by_pool[CHOSEN_GPUS, taken]
        taken += 1
    return taken


@lean
def _take_alike(gang: Gang, rack: int, counts: Ints, pools: Pools) -> int:
    """Take the pools that the gang fills best; gives how many GPUs it leaves there, -1 if there are too few pools."""
    each, left_over, last = gang.gpus // gang.nodes, 0, _NO_POOL
    for taken in range(gang.nodes):
        # The next pool is the first one with the fewest GPUs of those that come after the last.
        limit, best = each if last < 0 else counts[last], -1
        for pool in range(len(counts)):
            if counts[pool] < each or (best >= 0 and counts[pool] >= counts[best]):
                continue
            if last >= 0 and (counts[pool] < limit or (counts[pool] == limit and pool <= last)):
                continue
            if _eligible(pool, gang.gpu_type, rack, pools):
                best = pool
                if counts[pool] == limit:
                    break
        if best < 0:
            return -1
        pools.by_pool[CHOSEN_POOL, taken], pools.by_pool[CHOSEN_GPUS, taken] = best, each
        left_over += counts[best] - each
        last = best
    return left_over


@inlined
def _alike(gang: Gang, counts: Ints, pools: Pools) -> int:
    """Exactly as many pools as the gang asks for, the same number of GPUs from each.

    They are in one rack if one has them; least-fragmentation does not look at racks. Of several racks it is the one
    where the fewest GPUs are left over.
    """
    enough = 0
    for pool in range(len(counts)):
        if pools.by_pool[POOL_TYPE, pool] == gang.gpu_type and counts[pool] * gang.nodes >= gang.gpus:
            enough += 1
    if pools.flat or gang.gpus % gang.nodes != 0 or enough < gang.nodes:
        return 0
    by_rack = pools.racks > 1 and gang.nodes > 1 and gang.rule != LEAST_FRAGMENTATION
    racks = pools.racks if by_rack else 0
    best, best_left = _ANY_RACK, -1
    # The last trial takes from the best rack, or from any if none has enough.
    for trial in range(racks + 1):
        left_over = _take_alike(gang, trial if trial < racks else best, counts, pools)
        if left_over >= 0 and (best_left < 0 or left_over < best_left):
            best, best_left = trial, left_over
    return gang.nodes


@lean
def choose(gang: Gang, counts: Ints, pools: Pools) -> int:
    """Choose pools of one type for a gang; gives how many were chosen, 0 if the rule finds none."""
    rack = _ANY_RACK
    if gang.nodes > 0:
        return _alike(gang, counts, pools)
    if gang.rule != LEAST_FRAGMENTATION:
        fewest = _fewest(gang, pools)
        taken = _together(fewest, gang, counts, pools) if fewest > 0 else 0
        if taken > 0 or fewest == 0 or gang.rule == CONSOLIDATED:
            return taken
        rack = _tightest_rack(gang, counts, pools)
    return _fill(gang, rack, counts, pools)
