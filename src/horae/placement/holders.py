"""Jobs that have GPUs when a decision is made: what they have, and how they lose it. Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.compiled import BOOL, FLOAT, FLOATS, INT, INTS, inner
from horae.placement.choose import choose
from horae.placement.columns import CLOSED, DISPLACED, UNDECIDED, Floats, Ints
from horae.placement.order import heapify, pop
from horae.placement.quotas import use


@inner(INT, INTS, INTS, INTS, INTS, INTS)
def see_holders(holder: Ints, slot: Ints, rows: Ints, first: Ints, gpus: Ints) -> int:
    """Group held GPUs by holder: those of holder h are gpus[first[h]:first[h + 1]]; slot leads from row to h."""
    total = 0
    for gpu in range(len(holder)):
        row = holder[gpu]
        if row < 0:
            continue
        if slot[row] < 0:
            slot[row] = total
            rows[total] = row
            first[total + 1] = 0
            total += 1
        first[slot[row] + 1] += 1
    first[0] = 0
    for h in range(total):
        first[h + 1] += first[h]
    filled = first[:total].copy()
    for gpu in range(len(holder)):
        if holder[gpu] >= 0:
            h = slot[holder[gpu]]
            gpus[filled[h]] = gpu
            filled[h] += 1
    return total


@inner("void", INT, INT, INTS, INTS, INTS, INTS, INTS, INTS)
def shift(
    h: int, by: int, first: Ints, gpus: Ints, gpu_pool: Ints, pool_type: Ints, by_pool: Ints, by_type: Ints
) -> None:
    """Add a holder's open GPUs to some counts, `by` each."""
    for at in range(first[h], first[h + 1]):
        pool = gpu_pool[gpus[at]]
        if pool != CLOSED:
            by_pool[pool] += by
            by_type[pool_type[pool]] += by


@inner("void", INTS, FLOATS, INTS, FLOATS, INTS)
def _rank_holders(job: Ints, key: Floats, slot: Ints, holder_key: Floats, holder_position: Ints) -> None:
    """Write down where in the order each holder's first wish stands; no wish is the end of it."""
    keyed = len(key) > 0
    for i in range(len(job)):
        h = slot[job[i]]
        if h < 0:
            continue
        its_key = key[i] if keyed else float(i)
        if its_key < holder_key[h] or (its_key == holder_key[h] and i < holder_position[h]):
            holder_key[h], holder_position[h] = its_key, i


@inner("void", INTS, FLOATS, INTS, INT, INTS, INTS)
def line_up(job: Ints, key: Floats, slot: Ints, n_holders: int, position: Ints, back: Ints) -> None:
    """Write down where each holder's first wish stands, and the holders from the last in order to the first."""
    first_key = np.full(n_holders, np.inf)
    _rank_holders(job, key, slot, first_key, position)
    # A heap gives the lowest first, so keys and positions are turned around.
    turned = np.empty(n_holders, np.int64)
    for h in range(n_holders):
        first_key[h] = -first_key[h]
        turned[h] = (len(job) - position[h]) * n_holders + (n_holders - 1 - h)
    heapify(first_key, turned)
    for at in range(n_holders):
        back[at] = n_holders - 1 - pop(first_key, turned, n_holders - at) % n_holders


@inner(INT, INT, INT, INT, INTS, INTS, INT, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INT, INTS, INTS)
def reach_back(
    rule: int, gpus: int, gpu_type: int, free: Ints, back: Ints, n_holders: int, status: Ints, first: Ints, held: Ints,
    gpu_pool: Ints, gpu_types: Ints, capacity: Ints, by_capacity: Ints, pool_type: Ints, pool_rack: Ints, racks: int,
    out_pool: Ints, out_take: Ints,
) -> int:  # fmt: skip
    """Choose pools for a gang from free GPUs and those of undecided holders, as few from the back as will do."""
    counts, have = free.copy(), 0
    for pool in range(len(counts)):
        if pool_type[pool] == gpu_type:
            have += counts[pool]
    for at in range(n_holders):
        h = back[at]
        if status[h] != UNDECIDED or gpu_types[held[first[h]]] != gpu_type:
            continue
        for i in range(first[h], first[h + 1]):
            pool = gpu_pool[held[i]]
            if pool != CLOSED:
                counts[pool] += 1
                have += 1
        if have >= gpus:
            taken = choose(
                rule, gpus, gpu_type, counts, capacity, by_capacity, pool_type, pool_rack, racks, out_pool, out_take
            )
            if taken > 0:
                return taken
    return 0


@inner("void", INT, INT, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INT)
def make_room(
    pool: int, gpus: int, free: Ints, type_free: Ints, back: Ints, status: Ints, position: Ints, first: Ints,
    held: Ints, gpu_pool: Ints, pool_type: Ints, holder_row: Ints, queue: Ints, parent: Ints, used: Ints, wishless: int,
) -> None:  # fmt: skip
    """Take GPUs from undecided holders of a pool, the last in order first, until so many are free.

    Those with no wish of their own (their position is `wishless`) were counted against
    their quotas from the start, and are no more.
    """
    for h in back:
        if free[pool] >= gpus:
            break
        if status[h] != UNDECIDED:
            continue
        here = False
        for at in range(first[h], first[h + 1]):
            here = here or gpu_pool[held[at]] == pool
        if here:
            status[h] = DISPLACED
            shift(h, 1, first, held, gpu_pool, pool_type, free, type_free)
            if position[h] == wishless:
                use(queue[holder_row[h]], first[h] - first[h + 1], parent, used)
    assert free[pool] >= gpus


@inner(FLOAT, FLOAT, INTS, FLOATS, INTS, INT, INT, INTS, FLOATS)
def first_unprotected_s(
    now_s: float, job: Ints, key: Floats, slot: Ints, n_holders: int, waiting: int, holder_row: Ints,
    protected_until_s: Floats,
) -> float:  # fmt: skip
    """When the first holder that comes after a wish (by position) in the order loses its protection."""
    first_key, position = np.full(n_holders, np.inf), np.full(n_holders, len(job))
    _rank_holders(job, key, slot, first_key, position)
    its_key = key[waiting] if len(key) > 0 else float(waiting)
    soonest_s = np.inf
    for h in range(n_holders):
        after = first_key[h] > its_key or (first_key[h] == its_key and position[h] > waiting)
        if after and protected_until_s[holder_row[h]] > now_s:
            soonest_s = min(soonest_s, protected_until_s[holder_row[h]])
    return soonest_s


@inner(BOOL, INT, INTS, INTS, INTS, INTS)
def fits_back(h: int, first: Ints, gpus: Ints, gpu_pool: Ints, counts: Ints) -> bool:
    """Whether the pools of a holder's GPUs could give them all back."""
    fits = True
    for at in range(first[h], first[h + 1]):
        pool = gpu_pool[gpus[at]]
        if pool != CLOSED:
            counts[pool] -= 1
            fits = fits and counts[pool] >= 0
    for at in range(first[h], first[h + 1]):
        pool = gpu_pool[gpus[at]]
        if pool != CLOSED:
            counts[pool] += 1
    return fits
