"""Jobs that have GPUs when a decision is made: how they keep, share and lose them. Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import inlined, lean
from horae.placement.gpu_room import add_room, change_partner, change_room, lacks_room
from horae.placement.heap import heapify, pop
from horae.placement.kernel_args import (
    BACK,
    CLOSED,
    DISPLACED,
    FIRST_GPU,
    FIRST_KEY,
    FREE,
    FREE_STAMP,
    GUEST,
    KEEPS,
    LEAD,
    LEFT,
    LINED_UP,
    MARK,
    MOVES,
    NONE,
    PARTNER,
    POOL_OF,
    POOL_TYPE,
    POSITION,
    REACH,
    REACH_STAMP,
    SIZE,
    STATUS,
    TOUCHED,
    TOUCHED_HOLDERS,
    TURNED,
    TURNED_KEY,
    UNDECIDED,
    Floor,
    Walk,
)
from horae.placement.marks import seat, will_mark
from horae.placement.quotas import affordable, charge, use


@lean
def add_gpus(h: int, by_pool: Ints, by_type: Ints, floor: Floor) -> None:
    """Add a holder's open GPUs to some counts."""
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        pool = floor.by_gpu[POOL_OF, gpu]
        if pool != CLOSED:
            by_pool[pool] += 1
            by_type[floor.by_pool[POOL_TYPE, pool]] += 1
        gpu = floor.next_gpu[gpu]


@inlined
def promised_until_s(h: int, protected_s: Floats, floor: Floor) -> float:
    """Until when a holder is protected: the later time of two jobs that share GPUs."""
    until_s = protected_s[floor.holders[LEAD, h]]
    if floor.holders[GUEST, h] >= 0:
        until_s = max(until_s, protected_s[floor.holders[GUEST, h]])
    return until_s


@lean
def lead(row: int, floor: Floor) -> None:
    """Of two jobs that share GPUs, make this one the first."""
    h = seat(row, floor)
    if h >= 0 and floor.holders[LEAD, h] != row:
        floor.holders[GUEST, h], floor.holders[LEAD, h] = floor.holders[LEAD, h], row


@inlined
def _touch(h: int, floor: Floor) -> None:
    """Remember a holder that loses its GPUs, or one of its jobs."""
    floor.grants[TOUCHED, floor.counters[TOUCHED_HOLDERS]] = h
    floor.counters[TOUCHED_HOLDERS] += 1


@lean
def send_guest_away(h: int, floor: Floor) -> None:
    """The second of two jobs that share GPUs has them no more."""
    guest = floor.holders[GUEST, h]
    if floor.scarce and floor.holders[STATUS, h] < DISPLACED:
        # What it took beside the other job can be given to others: what found no place before may find one now.
        row = floor.holders[LEAD, h]
        change_partner(h, FREE, 1, row, guest, floor)
        if floor.holders[STATUS, h] == KEEPS:
            change_partner(h, REACH, 1, row, guest, floor)
        floor.counters[FREE_STAMP] += 1
        floor.counters[REACH_STAMP] += 1
    will_mark(guest, floor)
    floor.marks[MARK, guest] = LEFT
    floor.holders[GUEST, h] = NONE
    _touch(h, floor)


@lean
def _free_gpus(h: int, floor: Floor) -> None:
    """A holder's GPUs can be given to others: what found no place before may find one now."""
    add_gpus(h, floor.by_pool[FREE], floor.by_type[FREE], floor)
    if floor.scarce:
        add_room(h, FREE, 1, floor)
    floor.counters[FREE_STAMP] += 1
    _touch(h, floor)


@lean
def stay(h: int, floor: Floor) -> None:
    """A wish of a holder came to nothing: it stays until another job takes its GPUs, and counts until then.

    It is displaced if its queues may not have the GPUs; a guest whose queues may not have them is sent away.
    """
    row, has = floor.holders[LEAD, h], floor.held[SIZE, h]
    if floor.holders[GUEST, h] >= 0 and not affordable(row, floor.holders[GUEST, h], has, floor.quota, floor.quotas):
        send_guest_away(h, floor)
    if not affordable(row, floor.holders[GUEST, h], has, floor.quota, floor.quotas):
        floor.holders[STATUS, h] = DISPLACED
        _free_gpus(h, floor)
        return
    charge(row, floor.holders[GUEST, h], has, floor.quota, floor.quotas)
    floor.holders[POSITION, h] = floor.wishes


@lean
def depart(row: int, floor: Floor) -> None:
    """A job that gets other GPUs leaves those it has, to the job it shares them with if there is one."""
    h = seat(row, floor)
    if h < 0:
        return
    undecided = floor.holders[STATUS, h] == UNDECIDED
    counts = floor.counted and undecided
    wishless = counts and floor.holders[POSITION, h] == floor.wishes
    if wishless:
        use(floor.quota[row], -floor.held[SIZE, h], floor.quotas)
    if floor.holders[GUEST, h] >= 0:
        lead(row, floor)
        floor.holders[LEAD, h], floor.holders[GUEST, h] = floor.holders[GUEST, h], row
        send_guest_away(h, floor)
        if counts and not wishless:
            stay(h, floor)
        return
    floor.holders[STATUS, h] = MOVES
    if undecided:
        _free_gpus(h, floor)


@lean
def displace_last(pool: int, floor: Floor) -> None:
    """Take the GPUs of the undecided holder that comes last in order among those of a pool.

    It gets them back if they are still there when its turn comes.
    """
    for at in range(floor.holder_count):
        h = floor.holders[BACK, at]
        gpu = floor.held[FIRST_GPU, h] if floor.holders[STATUS, h] == UNDECIDED else NONE
        while gpu >= 0 and floor.by_gpu[POOL_OF, gpu] != pool:
            gpu = floor.next_gpu[gpu]
        if gpu >= 0:
            floor.holders[STATUS, h] = DISPLACED
            _free_gpus(h, floor)
            if floor.counted and floor.holders[POSITION, h] == floor.wishes:
                # Holders without a wish were counted from the start.
                has = floor.held[SIZE, h]
                charge(floor.holders[LEAD, h], floor.holders[GUEST, h], -has, floor.quota, floor.quotas)
            return
    raise AssertionError("no holder of the pool may lose its GPUs")


@lean
def fits_back(h: int, floor: Floor) -> bool:
    """Whether the pools of a displaced holder's GPUs could give them all back."""
    fits, gpu = True, floor.held[FIRST_GPU, h]
    while gpu >= 0:
        pool = floor.by_gpu[POOL_OF, gpu]
        if pool != CLOSED:
            floor.by_pool[REACH, pool] -= 1
            fits = fits and floor.by_pool[REACH, pool] >= 0
        gpu = floor.next_gpu[gpu]
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        pool = floor.by_gpu[POOL_OF, gpu]
        if pool != CLOSED:
            floor.by_pool[REACH, pool] += 1
        gpu = floor.next_gpu[gpu]
    return fits


@lean
def take_back(h: int, floor: Floor) -> None:
    """A displaced holder gets its GPUs back; other holders may have to go for that."""
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        pool = floor.by_gpu[POOL_OF, gpu]
        if pool != CLOSED:
            if floor.by_pool[FREE, pool] < 1:
                displace_last(pool, floor)
            floor.by_pool[FREE, pool] -= 1
            floor.by_type[FREE, floor.by_pool[POOL_TYPE, pool]] -= 1
            if floor.scarce:
                row, guest = floor.holders[LEAD, h], floor.holders[GUEST, h]
                while lacks_room(FREE, pool, 1, row, guest, floor):
                    displace_last(pool, floor)
                change_room(FREE, pool, -1, row, guest, floor)
        gpu = floor.next_gpu[gpu]


@lean
def rank_holders(floor: Floor, walk: Walk) -> None:
    """Write down key and position of each holder's first wish; a holder without a wish comes last."""
    keyed, paired = len(walk.key) > 0, walk.asked.shape[1] > 0
    first_key, position = walk.times[FIRST_KEY], floor.holders[POSITION]
    for h in range(floor.holder_count):
        first_key[h], position[h] = np.inf, floor.wishes
    for i in range(floor.wishes):
        its_key = walk.key[i] if keyed else float(i)
        for row in (walk.job[i], walk.asked[PARTNER, i] if paired else NONE):
            h = seat(row, floor) if row >= 0 else NONE
            if h >= 0 and (its_key < first_key[h] or (its_key == first_key[h] and i < position[h])):
                first_key[h], position[h] = its_key, i


@lean
def list_from_back(floor: Floor, walk: Walk) -> None:
    """List the ranked holders from the last in order to the first; of equals, the one with the highest GPU first."""
    count, wishes, gpus = floor.holder_count, floor.wishes, len(floor.next_gpu)
    first_key, position, back = walk.times[FIRST_KEY], floor.holders[POSITION], floor.holders[BACK]
    turned_key, turned = walk.times[TURNED_KEY][:count], floor.holders[TURNED][:count]
    # The heap gives the lowest first, so keys and positions are turned around.
    for h in range(count):
        turned_key[h] = -first_key[h]
        turned[h] = (wishes - position[h]) * gpus + (gpus - 1 - floor.held[FIRST_GPU, h])
    heapify(turned_key, turned)
    for at in range(count):
        gpu = gpus - 1 - pop(turned_key, turned, count - at) % gpus
        back[at] = floor.holder_of[walk.seats[0, gpu]]


@lean
def line_up(floor: Floor, walk: Walk) -> None:
    """Find the order in which holders lose their GPUs, unless it is known."""
    if floor.counters[LINED_UP] == 0:
        rank_holders(floor, walk)
        list_from_back(floor, walk)
        floor.counters[LINED_UP] = 1
