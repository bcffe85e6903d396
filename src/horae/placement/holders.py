"""Jobs that have GPUs when a decision is made: what they have, and how they lose it. Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.jit import BOOL, FLOAT, FLOATS, INT, INTS, TABLE, inner
from horae.placement.choose import choose
from horae.placement.heap import heapify, pop
from horae.placement.kernel_args import CLOSED, DISPLACED, MOVES, UNDECIDED, Bools, Floats, Ints
from horae.placement.quotas import affordable, charge, use

#: In `slot`: the second of two jobs that share the GPUs of holder h has GUEST - h.
GUEST = -(1 << 61)


@inner(INT, INT)
def seat(mark: int) -> int:
    """The holder whose GPUs a job has, alone or with another, by its mark in `slot`; -1 if it has none."""
    if mark >= 0:
        return mark
    return GUEST - mark if mark <= GUEST else -1


@inner(INT, "int64[:, ::1]", INTS, INTS, INTS, INTS, INTS)
def see_holders(holders: Ints, slot: Ints, rows: Ints, guests: Ints, first: Ints, gpus: Ints) -> int:
    """Group held GPUs by holder: those of holder h are gpus[first[h]:first[h + 1]]; slot leads from row to h.

    Two jobs that share their GPUs are one holder, `rows[h]` and `guests[h]` (-1 for those that are alone).
    """
    holder, second = holders[0], holders[1]
    total = 0
    for gpu in range(len(holder)):
        row = holder[gpu]
        if row < 0:
            continue
        if slot[row] < 0:
            slot[row] = total
            rows[total] = row
            guests[total] = second[gpu]
            if second[gpu] >= 0:
                slot[second[gpu]] = GUEST - total
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


@inner("void", INT, INTS, INTS, INTS)
def lead(row: int, slot: Ints, rows: Ints, guests: Ints) -> None:
    """Of two jobs that share GPUs, make one the first."""
    h = seat(slot[row])
    if h >= 0 and rows[h] != row:
        guests[h], rows[h] = rows[h], row
        slot[row], slot[guests[h]] = h, GUEST - h


@inner(BOOL, INT, INTS, INTS, INTS)
def part(row: int, slot: Ints, rows: Ints, guests: Ints) -> bool:
    """A job leaves the GPUs it shares to the other; False if it has none, or has them alone."""
    h = seat(slot[row])
    if h < 0 or guests[h] < 0:
        return False
    lead(row, slot, rows, guests)
    rows[h], guests[h] = guests[h], -1
    slot[rows[h]], slot[row] = h, -1
    return True


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


@inner(FLOAT, INT, INT, FLOATS)
def guarded_until_s(row: int, guest: int, protected_until_s: Floats) -> float:
    """Until when a job, or one of two that share GPUs, is protected."""
    if guest < 0:
        return float(protected_until_s[row])
    return float(max(protected_until_s[row], protected_until_s[guest]))


@inner("void", INTS, INTS, FLOATS, INTS, FLOATS, INTS)
def _rank_holders(job: Ints, partner: Ints, key: Floats, slot: Ints, holder_key: Floats, holder_position: Ints) -> None:
    """Write down where in the order each holder's first wish stands; no wish is the end of it."""
    keyed, paired = len(key) > 0, len(partner) > 0
    for i in range(len(job)):
        its_key = key[i] if keyed else float(i)
        for row in (job[i], partner[i] if paired else -1):
            h = seat(slot[row]) if row >= 0 else -1
            if h >= 0 and (its_key < holder_key[h] or (its_key == holder_key[h] and i < holder_position[h])):
                holder_key[h], holder_position[h] = its_key, i


@inner("void", INTS, INTS, FLOATS, INTS, INT, INTS, INTS)
def line_up(job: Ints, partner: Ints, key: Floats, slot: Ints, n_holders: int, position: Ints, back: Ints) -> None:
    """Write down where each holder's first wish stands, and the holders from the last in order to the first."""
    first_key = np.full(n_holders, np.inf)
    _rank_holders(job, partner, key, slot, first_key, position)
    # A heap gives the lowest first, so keys and positions are turned around.
    turned = np.empty(n_holders, np.int64)
    for h in range(n_holders):
        first_key[h] = -first_key[h]
        turned[h] = (len(job) - position[h]) * n_holders + (n_holders - 1 - h)
    heapify(first_key, turned)
    for at in range(n_holders):
        back[at] = n_holders - 1 - pop(first_key, turned, n_holders - at) % n_holders


@inner(BOOL, INT, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INT, INTS, INTS, INTS, INTS)
def stay(
    h: int, slot: Ints, rows: Ints, guests: Ints, status: Ints, first: Ints, held: Ints, gpu_pool: Ints,
    pool_type: Ints, free: Ints, type_free: Ints, position: Ints, wishless: int, queue: Ints, parent: Ints, top: Ints,
    used: Ints,
) -> bool:  # fmt: skip
    """A wish of a holder came to nothing: it stays where it is until somebody takes its GPUs, and counts until then.

    Those that its queues cannot have there are displaced. Says whether GPUs came free.
    """
    has = first[h + 1] - first[h]
    if guests[h] >= 0 and not affordable(rows[h], guests[h], has, 0, queue, parent, top, used):
        slot[guests[h]], guests[h] = -1, -1
    if not affordable(rows[h], guests[h], has, 0, queue, parent, top, used):
        status[h] = DISPLACED
        shift(h, 1, first, held, gpu_pool, pool_type, free, type_free)
        return True
    charge(rows[h], guests[h], has, queue, parent, used)
    position[h] = wishless
    return False


@inner(BOOL, INT, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INT, INTS, INTS, INTS, INTS)
def depart(
    row: int, slot: Ints, rows: Ints, guests: Ints, status: Ints, first: Ints, held: Ints, gpu_pool: Ints,
    pool_type: Ints, free: Ints, type_free: Ints, position: Ints, wishless: int, queue: Ints, parent: Ints, top: Ints,
    used: Ints,
) -> bool:  # fmt: skip
    """A job that gets other GPUs leaves those it has, to the one it shares them with if there is one.

    Says whether GPUs came free. `wishless` is -1 where nobody counts against quotas.
    """
    h = seat(slot[row])
    if h < 0:
        return False
    counted, undecided = position[h] == wishless, status[h] == UNDECIDED
    if undecided and counted:
        use(queue[row], first[h] - first[h + 1], parent, used)
    if part(row, slot, rows, guests):
        if undecided and not counted and wishless >= 0:
            return stay(
                h, slot, rows, guests, status, first, held, gpu_pool, pool_type, free, type_free, position, wishless,
                queue, parent, top, used,
            )  # fmt: skip
        return False
    status[h] = MOVES
    if undecided:
        shift(h, 1, first, held, gpu_pool, pool_type, free, type_free)
    return bool(undecided)


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


@inner("void", INT, INT, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, INT)
def make_room(
    pool: int, gpus: int, free: Ints, type_free: Ints, back: Ints, status: Ints, position: Ints, first: Ints,
    held: Ints, gpu_pool: Ints, pool_type: Ints, rows: Ints, guests: Ints, queue: Ints, parent: Ints, used: Ints,
    wishless: int,
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
                charge(rows[h], guests[h], first[h] - first[h + 1], queue, parent, used)
    assert free[pool] >= gpus


@inner(FLOAT, FLOAT, INTS, INTS, FLOATS, INTS, INT, INT, INTS, INTS, FLOATS)
def first_unprotected_s(
    now_s: float, job: Ints, partner: Ints, key: Floats, slot: Ints, n_holders: int, waiting: int, rows: Ints,
    guests: Ints, protected_until_s: Floats,
) -> float:  # fmt: skip
    """When the first holder that comes after a wish (by position) in the order loses its protection."""
    first_key, position = np.full(n_holders, np.inf), np.full(n_holders, len(job))
    _rank_holders(job, partner, key, slot, first_key, position)
    its_key = key[waiting] if len(key) > 0 else float(waiting)
    soonest_s = np.inf
    for h in range(n_holders):
        after = first_key[h] > its_key or (first_key[h] == its_key and position[h] > waiting)
        until_s = guarded_until_s(rows[h], guests[h], protected_until_s)
        if after and until_s > now_s:
            soonest_s = min(soonest_s, until_s)
    return soonest_s


@inner(f"Tuple(({TABLE}, int64[:, ::1]))", INTS, INTS, FLOATS, INTS, INT, "boolean[::1]", INTS, INTS, INTS, INTS, INTS)
def limits_of_guards(
    job: Ints, partner: Ints, key: Floats, slot: Ints, n_holders: int, guarded: Bools, first: Ints, held: Ints,
    gpu_pool: Ints, gpu_type: Ints, free: Ints,
) -> tuple[Floats, Ints]:  # fmt: skip
    """For each type and number of GPUs, how far back in the order a wish may stand and still lack only guarded GPUs.

    Guarded holders are added to the free GPUs from the last in order on, until there are so many: the key and position
    (-1 if there are never enough) of the holder that completes them. A wish before that one would have had them.
    """
    first_key, position = np.full(n_holders, np.inf), np.full(n_holders, len(job))
    _rank_holders(job, partner, key, slot, first_key, position)
    limit_key, limit_at = np.zeros((len(free), len(gpu_type) + 1)), np.full((len(free), len(gpu_type) + 1), -1)
    reached = free.copy()
    turned, back = np.empty(n_holders), np.empty(n_holders, np.int64)
    for h in range(n_holders):
        turned[h] = -first_key[h]
        back[h] = (len(job) - position[h]) * n_holders + (n_holders - 1 - h)
    heapify(turned, back)
    for at in range(n_holders):
        h = n_holders - 1 - pop(turned, back, n_holders - at) % n_holders
        if not guarded[h]:
            continue
        for gpu in held[first[h] : first[h + 1]]:
            if gpu_pool[gpu] == CLOSED:
                continue
            kind = gpu_type[gpu]
            reached[kind] += 1
            limit_key[kind, reached[kind]], limit_at[kind, reached[kind]] = first_key[h], position[h]
    return limit_key, limit_at


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
