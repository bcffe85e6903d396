"""One wish's turn: its job keeps its GPUs, gets others, or waits. Compiled."""

from __future__ import annotations

from typing import NamedTuple

from horae.core.arrays import Floats, Ints
from horae.core.jit import COUNTS, INT, inlined, inner, lean
from horae.core.reasons import Reason
from horae.placement.choose import BY_SKEW, CONSOLIDATED, LEAST_FRAGMENTATION, Gang, choose
from horae.placement.gpu_room import (
    add_room,
    change_room,
    copy_room,
    could_have_room,
    fit_capacity,
    fit_counts,
    grant_room,
    has_room_to_stay,
    lacks_for_partner,
    lacks_room,
)
from horae.placement.holders import depart, displace_last, fits_back, lead, line_up, send_guest_away, stay, take_back
from horae.placement.kernel_args import (
    BACK,
    BLOCKED,
    CHOSEN_GPUS,
    CHOSEN_POOL,
    CLOSED,
    CODE,
    DISPLACED,
    FIRST_GPU,
    FIRST_PIECE,
    FIRST_TO_WAIT,
    FIT,
    FREE,
    FREE_STAMP,
    GPU_TYPE,
    GRANT,
    GRANTED,
    GRANTED_WISH,
    GRANTS,
    GUEST,
    HOST,
    HOST_GRANT,
    IDLE,
    JOINED,
    KEEPS,
    LATE,
    LEAST,
    LOOKED_AT,
    MARK,
    MATE,
    MOST,
    MOST_GPUS,
    NO_HOST,
    NODES_WITH,
    NONE,
    PARTNER,
    PIECE_GPUS,
    PIECE_POOL,
    PIECES,
    POOL_OF,
    POOL_TYPE,
    POSITION,
    REACH,
    REACH_STAMP,
    RESERVED,
    RESERVED_S,
    ROW,
    SIZE,
    STATUS,
    TRIAL,
    TRIED_FOR,
    TRIED_FREE,
    TRIED_REACH,
    TYPE_CAPACITY,
    TYPE_OF,
    UNDECIDED,
    Floor,
    Needs,
    Pools,
    Walk,
)
from horae.placement.marks import is_served, seat, will_mark
from horae.placement.quotas import affordable, charge, use, within_minimum

_NO_FREE_GPUS, _FRAGMENTED = int(Reason.NO_FREE_GPUS), int(Reason.FRAGMENTED)
_OVER_QUOTA, _RESERVED = int(Reason.OVER_QUOTA), int(Reason.RESERVED_FOR_LARGER)
_TOO_SMALL, _LACKS_ROOM = int(Reason.CLUSTER_TOO_SMALL), int(Reason.LACKS_CPUS_OR_MEMORY)

#: Whose turn it is: queues below their minimum, then jobs that waited at least as long as the one with a
#: reservation, then everybody.
GUARANTEED, LONGER_WAITING, EVERYBODY = 0, 1, 2


class Wish(NamedTuple):
    """A wish whose turn has come."""

    #: Its position.
    i: int
    row: int
    #: Row of the job that is to share the GPUs, -1 for none; and the GPUs that it gives back for that.
    partner: int
    returned: int
    #: The holder of the job's present GPUs, -1 for none.
    holder: int
    least: int
    most: int
    #: Nodes to be on, with the same number of GPUs on each; 0 for any.
    nodes: int
    #: GPU types that will do, as bits.
    types: int


@inner(INT, INT, INT, COUNTS)
def most_of_one_type(types: int, column: int, by_type: Ints) -> int:
    """The most GPUs of one type by a column of `Floor.by_type`, among some types."""
    most = 0
    for gpu_type in range(by_type.shape[1]):
        if types >> gpu_type & 1 and by_type[column, gpu_type] > most:
            most = by_type[column, gpu_type]
    return most


@inlined
def could_hold(gpus: int, nodes: int, types: int, by_type: Ints) -> bool:
    """Whether a gang would fit onto open GPUs of one type if they were all free."""
    if nodes == 0:
        return most_of_one_type(types, TYPE_CAPACITY, by_type) >= gpus
    column = NODES_WITH + gpus // nodes
    return column < by_type.shape[0] and gpus % nodes == 0 and most_of_one_type(types, column, by_type) >= nodes


@inner(INT, INT, INT, INT, INT, INT)
def entry_of_nodes(gpus: int, nodes: int, largest: int, all_nodes: int, entries: int) -> int:
    """The entry of `Walk.tried` for a gang on some nodes, alike, from the last one on; past the end if it cannot be.

    By which rule it is placed makes no difference to whether there is a place.
    """
    each = gpus // nodes
    if gpus % nodes != 0 or each > largest or nodes > all_nodes:
        return entries
    return entries - (nodes - 1) * largest - each


@inlined
def entry_of_gang(gpus: int, nodes: int, consolidated: bool, floor: Floor, tried: Ints) -> int:
    """The entry of `Walk.tried` for a gang. Where only some gangs are consolidated, these have the second half."""
    if nodes > 0:
        largest = floor.by_type.shape[0] - NODES_WITH - 1
        return entry_of_nodes(gpus, nodes, largest, floor.by_pool.shape[1], tried.shape[2])
    return gpus + (len(floor.next_gpu) + 1 if consolidated else 0)


@inlined
def least_gpus(i: int, walk: Walk, needs: Needs) -> int:
    """The GPU count that a wish needs at least."""
    if walk.asked.shape[1] > 0 and walk.asked[LEAST, i] >= 0:
        return walk.asked[LEAST, i]
    return needs.gpus_min[walk.job[i]]


@lean
def rule_for(row: int, pools: Pools, skew: Floats) -> int:
    """The rule for one job: where it goes by skew, only models that would suffer are consolidated."""
    if pools.rule != BY_SKEW:
        return pools.rule
    return CONSOLIDATED if skew[row] > pools.pack_limit else LEAST_FRAGMENTATION


@inlined
def _read_wish(i: int, walk: Walk, needs: Needs) -> Wish:
    """What a wish says, or its job where the wish says nothing."""
    row, partner = walk.job[i], NONE
    most, types = needs.gpus_max[row], needs.types[row]
    if walk.asked.shape[1] > 0:
        partner = walk.asked[PARTNER, i]
        if walk.asked[MOST, i] >= 0:
            most = walk.asked[MOST, i]
        if walk.asked[GPU_TYPE, i] >= 0:
            types &= 1 << walk.asked[GPU_TYPE, i]
    return Wish(i, row, partner, 0, NONE, least_gpus(i, walk, needs), most, needs.nodes[row], types)


@lean
def _suits(row: int, wish: Wish, floor: Floor) -> bool:
    """Whether a job has GPUs of the types and number wished."""
    h = seat(row, floor)
    if h < 0:
        return False
    has, gpu_type = floor.held[SIZE, h], floor.by_gpu[TYPE_OF, floor.held[FIRST_GPU, h]]
    return (wish.types >> gpu_type & 1) == 1 and wish.least <= has and has <= wish.most


@lean
def _stays_for_now(row: int, floor: Floor) -> None:
    """A job's first wish is dealt with and it has not moved: it counts where it is."""
    h = seat(row, floor)
    if h >= 0 and floor.holders[STATUS, h] == UNDECIDED and floor.holders[POSITION, h] < floor.wishes:
        stay(h, floor)


@lean
def _with_seat(wish: Wish, floor: Floor) -> Wish:
    """The wish with the job first that has such GPUs already, where two are to share, and with what they have now."""
    row, partner, returned = wish.row, wish.partner, wish.returned
    if partner >= 0 and not _suits(row, wish, floor) and _suits(partner, wish, floor):
        row, partner = partner, row
    lead(row, floor)
    holder = seat(row, floor)
    if floor.counted and partner >= 0:
        # The partner counts where it is, until it gets something better.
        other = seat(partner, floor)
        if other >= 0 and other != holder and floor.holders[STATUS, other] == UNDECIDED:
            _stays_for_now(partner, floor)
            returned = floor.held[SIZE, other] if floor.holders[STATUS, other] == UNDECIDED else 0
    undecided = floor.counted and holder >= 0 and floor.holders[STATUS, holder] == UNDECIDED
    if undecided and floor.holders[POSITION, holder] == floor.wishes:
        # An earlier wish came to nothing, and the job was counted where it is: look at it anew.
        charge(row, floor.holders[GUEST, holder], -floor.held[SIZE, holder], floor.quota, floor.quotas)
        floor.holders[POSITION, holder] = wish.i
    return Wish(wish.i, row, partner, returned, holder, wish.least, wish.most, wish.nodes, wish.types)


@lean
def could_ever_hold(row: int, gpus: int, nodes: int, floor: Floor, needs: Needs) -> bool:
    """Whether a job would fit onto open GPUs of one type if they were all free, with its CPUs and memory."""
    if floor.scarce:
        return could_have_room(gpus, nodes, needs.types[row], row, floor)
    return could_hold(gpus, nodes, needs.types[row], floor.by_type)


@lean
def _add_grant(row: int, most: int, floor: Floor, walk: Walk) -> int:
    """A job leaves the GPUs it has, if any, and gets the pieces that were added last; gives the grant's number."""
    depart(row, floor)
    p = floor.counters[GRANTS]
    floor.grants[ROW, p], floor.grants[MOST_GPUS, p], floor.grants[HOST, p] = row, most, NO_HOST
    floor.grants[MATE, p] = NONE
    floor.grants[FIRST_PIECE, p + 1] = floor.counters[PIECES]
    floor.counters[GRANTS] = p + 1
    if seat(row, floor) < 0:
        will_mark(row, floor)
        floor.marks[MARK, row], floor.marks[GRANT, row] = GRANTED, p
    return p


@lean
def _make_room_for_partner(h: int, row: int, partner: int, floor: Floor, walk: Walk) -> None:
    """A partner joins a job that keeps its GPUs; other holders may have to go, for CPUs or memory."""
    line_up(floor, walk)
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        pool = floor.by_gpu[POOL_OF, gpu]
        if pool != CLOSED:
            while lacks_for_partner(pool, row, partner, floor):
                displace_last(pool, floor)
            for source in (FREE, REACH):
                change_room(source, pool, -1, row, partner, floor)
                change_room(source, pool, 1, row, NONE, floor)
        gpu = floor.next_gpu[gpu]


@lean
def _keep(wish: Wish, floor: Floor, walk: Walk) -> None:
    """The job keeps its GPUs, or gets them back, alone or with its partner."""
    h, partner, has = wish.holder, wish.partner, floor.held[SIZE, wish.holder]
    if floor.holders[GUEST, h] >= 0 and floor.holders[GUEST, h] != partner:
        send_guest_away(h, floor)
    if floor.holders[STATUS, h] == DISPLACED:
        take_back(h, floor)
    if floor.scarce:
        add_room(h, REACH, -1, floor)
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        pool = floor.by_gpu[POOL_OF, gpu]
        if pool != CLOSED:
            floor.by_pool[REACH, pool] -= 1
            floor.by_type[REACH, floor.by_pool[POOL_TYPE, pool]] -= 1
        gpu = floor.next_gpu[gpu]
    floor.holders[STATUS, h] = KEEPS
    if floor.counted:
        charge(wish.row, partner, has, floor.quota, floor.quotas)
    if partner >= 0 and floor.holders[GUEST, h] != partner:
        if floor.scarce:
            _make_room_for_partner(h, wish.row, partner, floor, walk)
        p = _add_grant(partner, has, floor, walk)
        floor.grants[HOST, p], floor.holders[JOINED, h] = h, partner


@lean
def _within_quota(wish: Wish, claimed: int, floor: Floor) -> bool:
    """Whether the queues of the job, and of its partner, which gives back what it has, may have the GPUs."""
    if wish.partner >= 0:
        use(floor.quota[wish.partner], -wish.returned, floor.quotas)
    fits = affordable(wish.row, wish.partner, claimed, floor.quota, floor.quotas)
    if wish.partner >= 0:
        use(floor.quota[wish.partner], wish.returned, floor.quotas)
    return fits


@inlined
def _has_room(wish: Wish, floor: Floor) -> bool:
    """Whether a job may keep its GPUs, or have them back, with the CPUs and memory that it and its partner take."""
    if not floor.scarce:
        return True
    stays = floor.holders[STATUS, wish.holder] == UNDECIDED
    if stays and (wish.partner < 0 or wish.partner == floor.holders[GUEST, wish.holder]):
        return True
    return has_room_to_stay(wish.holder, wish.row, wish.partner, floor)


@lean
def _keeps_or_may_not(wish: Wish, floor: Floor, walk: Walk) -> bool:
    """Whether the wish is dealt with before any GPUs are looked for: the job keeps its own, or is over its quota."""
    h, suits = wish.holder, _suits(wish.row, wish, floor)
    if walk.limited and not _within_quota(wish, floor.held[SIZE, h] if suits else wish.least, floor):
        walk.codes[CODE, wish.i] = _OVER_QUOTA
        if h >= 0 and floor.holders[STATUS, h] == UNDECIDED:
            stay(h, floor)
        return True
    if suits and (floor.holders[STATUS, h] == UNDECIDED or fits_back(h, floor)) and _has_room(wish, floor):
        _keep(wish, floor, walk)
        return True
    return False


@lean
def _choose(source: int, gang: Gang, row: int, partner: int, floor: Floor, pools: Pools) -> int:
    """Choose pools for a gang by a column of counts; where CPUs and memory count, by what the job could use of them."""
    if not floor.scarce:
        return choose(gang, floor.by_pool[source], pools)
    fit_counts(source, row, partner, floor)
    return choose(gang, floor.room[FIT], pools)


@lean
def _reach_back(gang: Gang, row: int, partner: int, floor: Floor, walk: Walk, pools: Pools) -> int:
    """Choose pools for a gang from free GPUs and those of undecided holders, as few from the back as will do."""
    if floor.scarce:
        if _choose(REACH, gang, row, partner, floor, pools) == 0:
            return 0
        copy_room(FREE, TRIAL, floor)
    line_up(floor, walk)
    counts, have = floor.by_pool[TRIAL], floor.by_type[FREE, gang.gpu_type]
    for pool in range(len(counts)):
        counts[pool] = floor.by_pool[FREE, pool]
    for at in range(floor.holder_count):
        h = floor.holders[BACK, at]
        gpu = floor.held[FIRST_GPU, h]
        if floor.holders[STATUS, h] != UNDECIDED or floor.by_gpu[TYPE_OF, gpu] != gang.gpu_type:
            continue
        while gpu >= 0:
            if floor.by_gpu[POOL_OF, gpu] != CLOSED:
                counts[floor.by_gpu[POOL_OF, gpu]] += 1
                have += 1
            gpu = floor.next_gpu[gpu]
        if floor.scarce:
            add_room(h, TRIAL, 1, floor)
        taken = _choose(TRIAL, gang, row, partner, floor, pools) if have >= gang.gpus else 0
        if taken > 0:
            return taken
    return 0


@inlined
def _runs_into_reservation(row: int, gpu_type: int, floor: Floor, walk: Walk, needs: Needs) -> bool:
    """Whether a job that started now on GPUs of a type would still run when a reservation begins."""
    if floor.counters[RESERVED] == 0:
        return False
    return walk.times[RESERVED_S, 0] < walk.now_s + needs.work_left[row] / needs.rates[row, gpu_type]


@inlined
def _asked_at_once(row: int, partner: int, floor: Floor) -> int:
    """CPUs and memory that a job asks for with each GPU as one number; below 0 for two jobs."""
    return floor.asks[0, row] << 31 | floor.asks[1, row] if partner < 0 else -1


@inlined
def _look_on_type(
    source: int, gang: Gang, row: int, partner: int, floor: Floor, walk: Walk, needs: Needs, pools: Pools
) -> int:
    """Choose pools of one type for a gang: among IDLE or FREE GPUs, or among those in REACH."""
    consolidated = pools.rule == BY_SKEW and gang.rule == CONSOLIDATED
    entry = entry_of_gang(gang.gpus, gang.nodes, consolidated, floor, walk.tried)
    part = TRIED_REACH if source == REACH else TRIED_FREE
    tried = walk.tried[part]
    stamp = floor.counters[REACH_STAMP if source == REACH else FREE_STAMP]
    if entry == tried.shape[1]:
        return 0
    asked = _asked_at_once(row, partner, floor) if floor.scarce else 0
    if tried[gang.gpu_type, entry] == stamp and (
        not floor.scarce or (partner < 0 and walk.tried[part + TRIED_FOR, gang.gpu_type, entry] == asked)
    ):
        return 0
    if source == REACH:
        taken = _reach_back(gang, row, partner, floor, walk, pools)
    elif _runs_into_reservation(row, gang.gpu_type, floor, walk, needs):
        return _choose(LATE, gang, row, partner, floor, pools)
    else:
        taken = _choose(source, gang, row, partner, floor, pools)
    if taken == 0 and source != IDLE:
        tried[gang.gpu_type, entry] = stamp
        if floor.scarce:
            walk.tried[part + TRIED_FOR, gang.gpu_type, entry] = asked
    return taken


@inlined
def _look_for(source: int, wish: Wish, floor: Floor, walk: Walk, needs: Needs, pools: Pools) -> int:
    """Choose pools for a wish, the job's fastest type first; gives how many."""
    column = REACH if source == REACH else FREE
    rule, types, taken = rule_for(wish.row, pools, needs.skew), wish.types, 0
    while taken == 0 and most_of_one_type(types, column, floor.by_type) >= wish.least:
        fastest = -1
        for gpu_type in range(floor.by_type.shape[1]):
            if types >> gpu_type & 1 and (
                fastest < 0 or needs.rates[wish.row, gpu_type] > needs.rates[wish.row, fastest]
            ):
                fastest = gpu_type
        types &= ~(1 << fastest)
        if floor.by_type[column, fastest] >= wish.least:
            gang = Gang(rule, wish.least, fastest, wish.nodes)
            taken = _look_on_type(source, gang, wish.row, wish.partner, floor, walk, needs, pools)
    return taken


@lean
def _find_gpus(wish: Wish, floor: Floor, walk: Walk, needs: Needs, pools: Pools) -> int:
    """Choose free GPUs for a job, or else GPUs of jobs after it, which then lose them; gives the number of pools."""
    occupied = 0
    if floor.scarce:
        fit_capacity(wish.row, wish.partner, floor)
    for gpu_type in range(walk.before_by_type.shape[1]):
        occupied += walk.before_by_type[FREE, gpu_type] - walk.before_by_type[IDLE, gpu_type]
    for step in range(3):
        source = IDLE if step == 0 else (FREE if step == 1 else REACH)
        if (source == IDLE and occupied == 0) or (source == REACH and not walk.preempt):
            continue
        taken = _look_for(source, wish, floor, walk, needs, pools)
        if taken > 0:
            for at in range(taken if source == REACH else 0):
                pool, gpus = floor.by_pool[CHOSEN_POOL, at], floor.by_pool[CHOSEN_GPUS, at]
                while floor.by_pool[FREE, pool] < gpus:
                    displace_last(pool, floor)
                while floor.scarce and lacks_room(FREE, pool, gpus, wish.row, wish.partner, floor):
                    displace_last(pool, floor)
            return taken
    return 0


@inlined
def what_is_lacking(walk: Walk) -> int:
    """The reason of a job for which too few GPUs are left: free ones, where jobs do not lose GPUs to others."""
    return walk.waiting if walk.preempt or walk.head >= 0 else _NO_FREE_GPUS


@lean
def _finds_gpus(wish: Wish, floor: Floor, needs: Needs, pools: Pools) -> bool:
    """Whether free GPUs would do for a wish if their CPUs and memory did not count."""
    rule = rule_for(wish.row, pools, needs.skew)
    for gpu_type in range(floor.by_type.shape[1]):
        fits = wish.types >> gpu_type & 1 and floor.by_type[FREE, gpu_type] >= wish.least
        if fits and choose(Gang(rule, wish.least, gpu_type, wish.nodes), floor.by_pool[FREE], pools) > 0:
            return True
    return False


@lean
def _finds_free(wish: Wish, floor: Floor, needs: Needs, pools: Pools) -> bool:
    """Whether what is free would do for a wish, if nothing were reserved."""
    if not floor.scarce:
        return _finds_gpus(wish, floor, needs, pools)
    fit_capacity(wish.row, wish.partner, floor)
    rule = rule_for(wish.row, pools, needs.skew)
    for gpu_type in range(floor.by_type.shape[1]):
        gang = Gang(rule, wish.least, gpu_type, wish.nodes)
        if wish.types >> gpu_type & 1 and _choose(FREE, gang, wish.row, wish.partner, floor, pools) > 0:
            return True
    return False


@inlined
def _why_it_waits(wish: Wish, floor: Floor, walk: Walk, needs: Needs, pools: Pools) -> int:
    """Why a job whose turn came found no GPUs."""
    if not could_ever_hold(wish.row, wish.least, wish.nodes, floor, needs):
        return _TOO_SMALL
    if most_of_one_type(wish.types, FREE, floor.by_type) < wish.least:
        return what_is_lacking(walk)
    reserved = floor.counters[RESERVED] > 0 and wish.row != walk.head
    if not reserved and not floor.scarce:
        return _FRAGMENTED
    # Is it the reservation that is in the way, or would the free GPUs not do without it, either?
    if reserved and _finds_free(wish, floor, needs, pools):
        return _RESERVED
    # Would the free GPUs do without their CPUs and memory?
    if floor.scarce:
        fit_capacity(NONE, NONE, floor)
        if _finds_gpus(wish, floor, needs, pools):
            return _LACKS_ROOM
    return _FRAGMENTED


@lean
def _wait(wish: Wish, floor: Floor, walk: Walk, needs: Needs, pools: Pools) -> None:
    """The job waits: say why. A job with several wishes has the reason of the first."""
    if floor.counted and wish.holder >= 0 and floor.holders[STATUS, wish.holder] == UNDECIDED:
        stay(wish.holder, floor)
    if floor.marks[MARK, wish.row] == LOOKED_AT:
        return
    code = _why_it_waits(wish, floor, walk, needs, pools)
    walk.codes[CODE, wish.i] = code
    if code != _TOO_SMALL:
        if walk.blocking:
            floor.counters[BLOCKED] = 1
        if floor.counters[FIRST_TO_WAIT] < 0:
            floor.counters[FIRST_TO_WAIT] = wish.i
    if walk.several and wish.holder < 0:
        will_mark(wish.row, floor)
        floor.marks[MARK, wish.row] = LOOKED_AT


@lean
def _grant(wish: Wish, taken: int, floor: Floor, walk: Walk, needs: Needs) -> None:
    """The job gets GPUs of the pools that were chosen, and its partner with it."""
    gpu_type = floor.by_pool[POOL_TYPE, floor.by_pool[CHOSEN_POOL, 0]]
    late = _runs_into_reservation(wish.row, gpu_type, floor, walk, needs)
    for at in range(taken):
        pool, gpus, piece = floor.by_pool[CHOSEN_POOL, at], floor.by_pool[CHOSEN_GPUS, at], floor.counters[PIECES]
        floor.grants[PIECE_POOL, piece], floor.grants[PIECE_GPUS, piece] = pool, gpus
        floor.counters[PIECES] = piece + 1
        floor.by_pool[FREE, pool] -= gpus
        floor.by_pool[REACH, pool] -= gpus
        floor.by_pool[IDLE, pool] = max(0, floor.by_pool[IDLE, pool] - gpus)
        floor.by_pool[LATE, pool] = min(floor.by_pool[LATE, pool] - (gpus if late else 0), floor.by_pool[FREE, pool])
        if floor.scarce:
            grant_room(pool, gpus, late, wish.row, wish.partner, floor)
    floor.by_type[FREE, gpu_type] -= wish.least
    floor.by_type[REACH, gpu_type] -= wish.least
    walk.codes[CODE, wish.i] = GRANTED_WISH
    if floor.counted:
        charge(wish.row, wish.partner, wish.least, floor.quota, floor.quotas)
    # Two jobs that share GPUs must have the same number of them: they do not grow.
    most = wish.most if wish.partner < 0 else wish.least
    first = _add_grant(wish.row, most, floor, walk)
    floor.grants[MATE, first] = wish.partner
    if wish.partner >= 0:
        second = _add_grant(wish.partner, most, floor, walk)
        floor.grants[HOST, second] = HOST_GRANT - first


@inlined
def _waited_longer(row: int, walk: Walk, needs: Needs) -> bool:
    """Whether a job has waited at least as long as the one with a reservation; of equals the first row has."""
    since_s, heads_s = needs.waiting_since_s[row], needs.waiting_since_s[walk.head]
    return since_s < heads_s or (since_s == heads_s and row <= walk.head)


@lean
def take_turn(i: int, sweep: int, floor: Floor, walk: Walk, needs: Needs, pools: Pools) -> None:
    """Deal with one wish: its job keeps its GPUs, gets others, or waits."""
    asked = _read_wish(i, walk, needs)
    if is_served(asked.row, floor) or (asked.partner >= 0 and is_served(asked.partner, floor)):
        if floor.counted:
            # Of two jobs that were to share one has been served otherwise: the other stays where it is, for now.
            _stays_for_now(asked.row, floor)
            if asked.partner >= 0:
                _stays_for_now(asked.partner, floor)
        return
    if sweep == LONGER_WAITING and not _waited_longer(asked.row, walk, needs):
        return
    if sweep == GUARANTEED and not within_minimum(floor.quota[asked.row], asked.least, floor.quotas):
        return
    wish = _with_seat(asked, floor)
    if _keeps_or_may_not(wish, floor, walk) or floor.counters[BLOCKED]:
        return
    taken = _find_gpus(wish, floor, walk, needs, pools)
    if taken > 0:
        _grant(wish, taken, floor, walk, needs)
    else:
        _wait(wish, floor, walk, needs, pools)
