"""Jobs that have GPUs when a decision is made: what they have, and how they lose it. Compiled."""

from __future__ import annotations

from horae.core.compiled import BOOL, FLOATS, INT, INTS, compiled
from horae.placement.columns import CLOSED, DISPLACED, UNDECIDED, Floats, Ints
from horae.placement.quotas import use


@compiled(INT, INTS, INTS, INTS, INTS, INTS)
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


@compiled("void", INT, INT, INTS, INTS, INTS, INTS, INTS, INTS)
def shift(
    h: int, by: int, first: Ints, gpus: Ints, gpu_pool: Ints, pool_type: Ints, by_pool: Ints, by_type: Ints
) -> None:
    """Add a holder's open GPUs to some counts, `by` each."""
    for at in range(first[h], first[h + 1]):
        pool = gpu_pool[gpus[at]]
        if pool != CLOSED:
            by_pool[pool] += by
            by_type[pool_type[pool]] += by


@compiled("void", INTS, FLOATS, INTS, FLOATS, INTS)
def rank_holders(job: Ints, key: Floats, slot: Ints, holder_key: Floats, holder_position: Ints) -> None:
    """Write down where in the order each holder's first wish stands; no wish is the end of it."""
    keyed = len(key) > 0
    for i in range(len(job)):
        h = slot[job[i]]
        if h < 0:
            continue
        its_key = key[i] if keyed else float(i)
        if its_key < holder_key[h] or (its_key == holder_key[h] and i < holder_position[h]):
            holder_key[h], holder_position[h] = its_key, i


@compiled(INT, INT, INT, INTS, FLOATS, INTS, INTS, INTS, INTS)
def _last_in_pool(
    pool: int, n_holders: int, status: Ints, key: Floats, position: Ints, first: Ints, gpus: Ints, gpu_pool: Ints
) -> int:
    """The undecided holder in a pool that comes last in the order."""
    last = -1
    for h in range(n_holders):
        if status[h] != UNDECIDED:
            continue
        if last >= 0 and (key[h] < key[last] or (key[h] == key[last] and position[h] < position[last])):
            continue
        for at in range(first[h], first[h + 1]):
            if gpu_pool[gpus[at]] == pool:
                last = h
                break
    return last


@compiled(
    BOOL, INT, INT, INTS, INTS, INTS, FLOATS, INTS, INTS, INTS, INTS, INTS, INT, INTS, INTS, INTS, INTS, INT,
)  # fmt: skip
def make_room(
    pool: int, gpus: int, free: Ints, type_free: Ints, status: Ints, key: Floats, position: Ints, first: Ints,
    held: Ints, gpu_pool: Ints, pool_type: Ints, n_holders: int, holder_row: Ints, queue: Ints, parent: Ints,
    used: Ints, wishless: int,
) -> bool:  # fmt: skip
    """Take GPUs from undecided holders of a pool, the last in order first, until so many are free.

    Those with no wish of their own (their position is `wishless`) were counted against
    their quotas from the start, and are no more. Says whether anybody lost GPUs.
    """
    anybody = False
    while free[pool] < gpus:
        victim = _last_in_pool(pool, n_holders, status, key, position, first, held, gpu_pool)
        assert victim >= 0
        status[victim] = DISPLACED
        shift(victim, 1, first, held, gpu_pool, pool_type, free, type_free)
        if position[victim] == wishless:
            use(queue[holder_row[victim]], first[victim] - first[victim + 1], parent, used)
        anybody = True
    return anybody


@compiled(BOOL, INT, INTS, INTS, INTS, INTS)
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
