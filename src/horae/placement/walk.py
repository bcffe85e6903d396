"""The hot loop: wishes in order, each kept, placed or left waiting. Compiled.

One walk serves every policy and every placement rule:

1. See which jobs have GPUs now, and which of them may lose them (`_see_holders`).
2. Give each wish its turn, in order (`_take_turns`; queues below their minimum first, where there are any):
   - a job that has GPUs keeps them, unless a job before it took them;
   - a job that has none takes free GPUs, or else GPUs of jobs that come after it, the last of those first.
     No job loses GPUs unless the taker is placed;
   - where a job that waited too long has a reservation, jobs that waited longer go first, and
     all others may only use what does not delay it;
   - a wish that its quota refused has a second turn if jobs of the queue have lost GPUs since (`_take_second_turns`).
3. Let elastic jobs that were placed grow into what is left (`_grow_elastic`).
4. Give out GPU numbers (`gpu_numbers`), and say why all other jobs wait (`waiting_reasons`).

Two jobs that share GPUs are one holder. A wish for two is placed like one for one of them, whose GPUs the other
then joins; a job that wishes for itself alone what it shares sends the other away.

A job that lost its GPUs to an earlier wish gets them back when its own turn comes, if they are still there: then
nothing happens to it at all. Where every job that waits fits into what is free, and no wish is for two, holders are
not even looked at.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import inlined, lean, lean_when_called
from horae.core.reasons import Reason
from horae.core.states import State
from horae.placement.choose import BEST_EFFORT, BY_SKEW, LEAST_FRAGMENTATION
from horae.placement.gpu_numbers import count_free, list_renewed, list_stopped, number_grants, wipe_owners
from horae.placement.gpu_room import add_room, change_room, copy_room, fit_capacity, gpus_within
from horae.placement.heap import heapify, pop
from horae.placement.holders import line_up, promised_until_s
from horae.placement.kernel_args import (
    BLOCKED,
    CLOSED,
    CODE,
    CONTESTED,
    COUNTERS,
    FIRST_GPU,
    FIRST_PIECE,
    FIRST_TO_WAIT,
    FREE,
    FREE_STAMP,
    GRANTED,
    GRANTS,
    GUEST,
    HEAP,
    IDLE,
    JOINED,
    KEEPS,
    LATE,
    LEAD,
    LISTED,
    LOOKED_AT,
    MARK,
    MOST_GPUS,
    NONE,
    ORDER,
    PIECE_GPUS,
    PIECE_POOL,
    POOL_OF,
    POOL_TYPE,
    POPPED,
    POSITION,
    PROTECTED,
    REACH,
    REACH_STAMP,
    RENAMED,
    RENAMED_WISH,
    RESERVED,
    RESERVED_S,
    ROW,
    SETTLED,
    SIZE,
    STATUS,
    TRIED_FREE,
    TRIED_REACH,
    TURNS,
    TYPE_OF,
    UNDECIDED,
    UNMARKED,
    UNREACHED_WISH,
    WISH,
    Floor,
    JobColumns,
    Needs,
    Nodes,
    Pools,
    Totals,
    Walk,
)
from horae.placement.marks import has_nothing, is_served, wipe_marks
from horae.placement.quotas import charge, use, within_maximum
from horae.placement.reservation import reserve
from horae.placement.turns import (
    EVERYBODY,
    GUARANTEED,
    LONGER_WAITING,
    could_hold,
    entry_of_gang,
    least_gpus,
    rule_for,
    take_turn,
    what_is_lacking,
)
from horae.placement.waiting_reasons import first_unprotected_s, list_reasons, list_wishless

_PLACED, _STOPPING = int(State.PLACED), int(State.STOPPING)
#: How many wishes are listed at first where the rest may not have to be looked at closely.
_FIRST_TURNS = 1024
_NONE, _VACATING, _FRAGMENTED = int(Reason.NONE), int(Reason.VACATING), int(Reason.FRAGMENTED)
_OVER_QUOTA = int(Reason.OVER_QUOTA)


@lean
def _list_turns(end: int, floor: Floor, walk: Walk, jobs: JobColumns) -> None:
    """Part the wishes up to `end` that need a turn from those of jobs that keep their GPUs anyway.

    Of the latter all that can change is the reason: that the GPUs are still occupied, or that they are no more. Once
    there is nothing left to give, jobs that wait for the reason they waited for before need no turn, either.
    """
    job, turns, codes, holder_of, holders = walk.job, walk.turns, walk.codes, floor.holder_of, floor.holders
    state, reason, count, renamed = jobs.state, jobs.reason, floor.counters[TURNS], floor.counters[RENAMED]
    key, heap_key, keyed, settled = walk.key, walk.heap_key, len(walk.key) > 0, floor.counters[SETTLED] > 0
    for i in range(floor.counters[LISTED], end):
        row = job[i]
        h = holder_of[row]
        if h < 0 or holders[STATUS, h] != KEEPS:
            if settled and reason[row] == walk.waiting:
                continue
            turns[WISH, count], codes[CODE, i] = i, UNREACHED_WISH
            if keyed:
                turns[HEAP, count], heap_key[count] = i, key[i]
            count += 1
            continue
        vacating = state[row] == _PLACED or state[row] == _STOPPING
        if reason[row] != (_VACATING if vacating else _NONE):
            turns[RENAMED_WISH, renamed] = i
            renamed += 1
    floor.counters[TURNS], floor.counters[RENAMED], floor.counters[LISTED] = count, renamed, end


@inlined
def _may_settle(floor: Floor, walk: Walk, pools: Pools) -> bool:
    """Whether jobs that come after the last GPU was given all wait for the same reason, whatever came before them."""
    in_given_order = len(walk.key) == 0 and walk.asked.shape[1] == 0 and walk.head < 0
    return in_given_order and not (walk.preempt or walk.takes or walk.blocking or floor.counted or pools.shrunk)


@lean
def _list_next_turns(floor: Floor, walk: Walk, jobs: JobColumns, pools: Pools) -> None:
    """List the wishes for the next turns: all of them, or as many again where the rest may turn out to be settled."""
    first, free = floor.counters[LISTED], 0
    for gpu_type in range(walk.before_by_type.shape[1]):
        free += walk.before_by_type[FREE, gpu_type] if first == 0 else floor.by_type[FREE, gpu_type]
    may_settle = _may_settle(floor, walk, pools)
    floor.counters[SETTLED] = may_settle and free == 0
    end = max(2 * first, _FIRST_TURNS) if may_settle and free > 0 else floor.wishes
    _list_turns(min(end, floor.wishes), floor, walk, jobs)


@lean
def _all_fit(floor: Floor, walk: Walk, needs: Needs, pools: Pools) -> bool:
    """Whether all jobs that wait fit into the free GPUs of each type they may use: then no holder loses any."""
    anywhere = pools.flat or pools.rule == BEST_EFFORT or pools.rule == LEAST_FRAGMENTATION
    if floor.counted or floor.scarce or not walk.as_jobs_say or not anywhere:
        return False
    wanted, types, some_free = 0, 0, False
    for i in range(floor.wishes):
        row = walk.job[i]
        if floor.holder_of[row] >= 0:
            continue
        if walk.asks_for_nodes and needs.nodes[row] > 0:
            # Whether there are such nodes, too, is for the full walk.
            return False
        wanted += needs.gpus_min[row]
        types |= needs.types[row]
        for gpu_type in range(walk.before_by_type.shape[1]):
            free = walk.before_by_type[FREE, gpu_type]
            some_free = some_free or free > 0
            if types >> gpu_type & 1 and free < wanted:
                return False
    # Jobs that can run nowhere get no turn if nothing is free: that is for the full walk.
    return wanted == 0 or some_free


@lean
def _see_holders(all_fit: bool, floor: Floor, walk: Walk, jobs: JobColumns) -> None:
    """Find the holders that may lose their GPUs; protected ones keep them, and all do if all that wait fit beside."""
    for h in range(floor.holder_count):
        floor.holders[LEAD, h], floor.holders[GUEST, h] = floor.held[LEAD, h], floor.held[GUEST, h]
        if promised_until_s(h, jobs.promised_until_s, floor) > walk.now_s:
            floor.counters[PROTECTED] = 1
            continue
        floor.holders[STATUS, h] = KEEPS if all_fit else UNDECIDED
        if floor.scarce:
            add_room(h, REACH, 1, floor)
        gpu = floor.held[FIRST_GPU, h]
        while gpu >= 0:
            pool = floor.by_gpu[POOL_OF, gpu]
            if pool != CLOSED:
                floor.by_pool[REACH, pool] += 1
                floor.by_type[REACH, floor.by_pool[POOL_TYPE, pool]] += 1
            gpu = floor.next_gpu[gpu]


@lean
def _charge_holders(floor: Floor, walk: Walk) -> None:
    """Count the GPUs of holders that keep them, and of holders without a wish: until another job takes those."""
    if floor.counters[CONTESTED]:
        line_up(floor, walk)
    for h in range(floor.holder_count):
        if floor.holders[STATUS, h] == KEEPS or floor.holders[POSITION, h] == floor.wishes:
            charge(floor.held[LEAD, h], floor.held[GUEST, h], floor.held[SIZE, h], floor.quota, floor.quotas)


@lean
def _prepare(all_fit: bool, floor: Floor, walk: Walk, jobs: JobColumns, nodes: Nodes) -> None:
    """Step 1: what is free, which holders may lose their GPUs, and which wishes need a turn."""
    before = walk.before_by_type if nodes.flat else nodes.before_by_node
    for pool in range(before.shape[1]):
        floor.by_pool[FREE, pool] = floor.by_pool[REACH, pool] = before[FREE, pool]
        floor.by_pool[IDLE, pool] = before[IDLE, pool]
    for gpu_type in range(walk.before_by_type.shape[1]):
        floor.by_type[FREE, gpu_type] = floor.by_type[REACH, gpu_type] = walk.before_by_type[FREE, gpu_type]
    if floor.scarce:
        copy_room(FREE, REACH, floor)
    if floor.counters[CONTESTED]:
        _see_holders(all_fit, floor, walk, jobs)
        _list_turns(floor.wishes, floor, walk, jobs)
    if floor.counted:
        _charge_holders(floor, walk)
    count = floor.counters[TURNS]
    if len(walk.key) > 0:
        heapify(walk.heap_key[:count], walk.turns[HEAP][:count])


@lean
def _next_wish(turn: int, turns: Ints, heap_key: Floats, counters: Ints) -> int:
    """The wish that comes at a turn, by its key."""
    if turn == counters[POPPED]:
        turns[ORDER, turn] = pop(heap_key, turns[HEAP], counters[TURNS] - turn)
        counters[POPPED] += 1
    return turns[ORDER, turn]


@lean
def _nothing_left(by_type: Ints) -> bool:
    """Whether no GPU of any type can be given."""
    left = 0
    for gpu_type in range(by_type.shape[1]):
        left = max(left, by_type[REACH, gpu_type])
    return left == 0


@inlined
def _is_stuck(least: int, types: int, entry: int, preempt: bool, type_counts: Ints, tried: Ints, counters: Ints) -> int:
    """How a gang without GPUs finds none: 1 if too few are left, 2 if one like it found no place; 0 if it may."""
    stuck = 1
    for gpu_type in range(tried.shape[1] if entry < tried.shape[2] else 0):
        if types >> gpu_type & 1:
            free, reach = type_counts[FREE, gpu_type] >= least, preempt and type_counts[REACH, gpu_type] >= least
            if free and tried[TRIED_FREE, gpu_type, entry] != counters[FREE_STAMP]:
                return 0
            if reach and tried[TRIED_REACH, gpu_type, entry] != counters[REACH_STAMP]:
                return 0
            stuck = 2 if free else stuck
    return stuck


@inlined
def _take_plain_turns(floor: Floor, walk: Walk, needs: Needs, jobs: JobColumns, pools: Pools) -> None:
    """Step 2 where wishes say nothing but their jobs, and neither quotas nor reservations count.

    Jobs that keep their GPUs, and jobs for which too few are left, are dealt with here: in a long queue that is
    nearly all of them. Arrays have names of their own, for taking one out of a record costs as much as a turn.
    """
    counters, job, turns, type_counts, counts = floor.counters, walk.job, walk.turns, floor.by_type, floor.by_pool
    holder_of, held, holders, marks = floor.holder_of, floor.held, floor.holders, floor.marks
    next_gpu, by_gpu = floor.next_gpu, floor.by_gpu
    gpus_min, types, skew = needs.gpus_min, needs.types, needs.skew
    nodes, asks_for_nodes = needs.nodes, walk.asks_for_nodes
    codes, tried, heap_key = walk.codes, walk.tried, walk.heap_key
    keyed, lacking, everybody = len(walk.key) > 0, what_is_lacking(walk), EVERYBODY + 0
    turn = 0
    while turn < counters[TURNS] or counters[LISTED] < floor.wishes:
        if turn == counters[TURNS]:
            _list_next_turns(floor, walk, jobs, pools)
            continue
        over = _nothing_left(type_counts) or (counters[BLOCKED] > 0 and not walk.preempt)
        if over and (counters[FIRST_TO_WAIT] >= 0 or counters[PROTECTED] == 0):
            turn = counters[TURNS]
            continue
        i = _next_wish(turn, turns, heap_key, counters) if keyed else turns[WISH, turn]
        row, turn = job[i], turn + 1
        h = holder_of[row] if marks[MARK, row] == UNMARKED else NONE
        if over:
            # Only the first that has to wait is still of interest: which protected holders are in its way?
            if h < 0 and marks[MARK, row] != GRANTED:
                counters[FIRST_TO_WAIT] = i
            continue
        least, asked, stuck = gpus_min[row], 0, 0
        if h >= 0 and holders[STATUS, h] == UNDECIDED and holders[GUEST, h] < 0:
            # What a job has is what it says: such a wish suits.
            holders[STATUS, h] = KEEPS
            gpu = held[FIRST_GPU, h]
            while gpu >= 0:
                if by_gpu[POOL_OF, gpu] != CLOSED:
                    counts[REACH, by_gpu[POOL_OF, gpu]] -= 1
                    type_counts[REACH, by_gpu[TYPE_OF, gpu]] -= 1
                gpu = next_gpu[gpu]
            if floor.scarce:
                add_room(h, REACH, -1, floor)
            continue
        if h < 0 and not floor.scarce and marks[MARK, row] == UNMARKED and counters[BLOCKED] == 0:
            consolidated = pools.rule == BY_SKEW and skew[row] > pools.pack_limit
            asked = nodes[row] if asks_for_nodes else 0
            entry = entry_of_gang(least, asked, consolidated, floor, tried)
            stuck = _is_stuck(least, types[row], entry, walk.preempt, type_counts, tried, counters)
        if stuck > 0 and could_hold(least, asked, types[row], type_counts):
            codes[CODE, i] = _FRAGMENTED if stuck == 2 else lacking
            counters[BLOCKED] = 1 if walk.blocking else counters[BLOCKED]
            counters[FIRST_TO_WAIT] = i if counters[FIRST_TO_WAIT] < 0 else counters[FIRST_TO_WAIT]
        else:
            take_turn(i, everybody, floor, walk, needs, pools)


@lean
def _take_second_turns(floor: Floor, walk: Walk, needs: Needs, pools: Pools) -> None:
    """Wishes that their quota refused have another turn, in order, if jobs of the queue have lost GPUs since."""
    counters, granted, everybody = floor.counters, NONE, EVERYBODY + 0
    while granted != counters[GRANTS]:
        granted = counters[GRANTS]
        # Where wishes have keys, those whose turn came are in the order of their turns.
        for turn in range(counters[POPPED] if len(walk.key) > 0 else counters[TURNS]):
            i = walk.turns[ORDER if len(walk.key) > 0 else WISH, turn]
            if walk.codes[CODE, i] != _OVER_QUOTA or is_served(walk.job[i], floor):
                continue
            if within_maximum(floor.quota[walk.job[i]], least_gpus(i, walk, needs), floor.quotas):
                take_turn(i, everybody, floor, walk, needs, pools)


@inlined
def _take_turns(floor: Floor, walk: Walk, needs: Needs, jobs: JobColumns, pools: Pools) -> None:
    """Step 2: every wish has its turn, as long as there is anything to give."""
    counters = floor.counters
    for sweep in range(GUARANTEED, EVERYBODY + 1):
        if (sweep == GUARANTEED and not walk.guaranteed) or (sweep == LONGER_WAITING and walk.head < 0):
            continue
        if sweep == EVERYBODY and walk.head >= 0 and has_nothing(walk.head, floor):
            counters[RESERVED] = 1
            walk.times[RESERVED_S, 0] = reserve(rule_for(walk.head, pools, needs.skew), floor, walk, needs, jobs, pools)
            counters[FREE_STAMP] += 1
        for turn in range(counters[TURNS]):
            nothing_left = not walk.limited and _nothing_left(floor.by_type)
            over = nothing_left or (counters[BLOCKED] > 0 and not walk.preempt)
            if over and (counters[FIRST_TO_WAIT] >= 0 or counters[PROTECTED] == 0):
                break
            i = walk.turns[WISH, turn]
            if len(walk.key) > 0:
                i = _next_wish(turn, walk.turns, walk.heap_key, counters)
            if not over:
                take_turn(i, sweep, floor, walk, needs, pools)
            elif has_nothing(walk.job[i], floor) and floor.marks[MARK, walk.job[i]] != LOOKED_AT:
                counters[FIRST_TO_WAIT] = i
    if walk.limited:
        _take_second_turns(floor, walk, needs, pools)


@lean
def _grow_elastic(floor: Floor, walk: Walk) -> None:
    """Step 3: elastic jobs that were placed grow within their pools into what is left, in order."""
    spare = floor.by_pool[LATE if floor.counters[RESERVED] else FREE]
    for p in range(floor.counters[GRANTS]):
        quota, room = floor.quota[floor.grants[ROW, p]], floor.grants[MOST_GPUS, p]
        first, last = floor.grants[FIRST_PIECE, p], floor.grants[FIRST_PIECE, p + 1]
        for piece in range(first, last):
            room -= floor.grants[PIECE_GPUS, piece]
        for piece in range(first, last):
            pool, more = floor.grants[PIECE_POOL, piece], 0
            most = min(room, spare[pool])
            if floor.scarce:
                most = gpus_within(LATE if floor.counters[RESERVED] else FREE, most, pool, floor.grants[ROW, p], floor)
            while more < most:
                if walk.limited and not within_maximum(quota, more + 1, floor.quotas):
                    break
                more += 1
            use(quota, more, floor.quotas)
            floor.grants[PIECE_GPUS, piece] += more
            spare[pool] -= more
            room -= more
            if floor.scarce:
                change_room(LATE if floor.counters[RESERVED] else FREE, pool, -more, floor.grants[ROW, p], NONE, floor)


@lean_when_called
def fit(floor: Floor, walk: Walk, needs: Needs, jobs: JobColumns, pools: Pools, nodes: Nodes) -> Totals:
    """Walk the wishes; the answer says which jobs get, keep and lose which GPUs, and why others wait."""
    for at in range(COUNTERS):
        floor.counters[at] = floor.counters[at] + 1 if at >= FREE_STAMP else 0
    floor.counters[FIRST_TO_WAIT], floor.grants[FIRST_PIECE, 0] = NONE, 0
    # Where wishes name partners, jobs may wait though all fit: it counts which holders are protected.
    all_fit = walk.preempt and _all_fit(floor, walk, needs, pools)
    floor.counters[CONTESTED] = walk.preempt and (not all_fit or walk.asked.shape[1] > 0)
    if not floor.counters[CONTESTED]:
        _list_next_turns(floor, walk, jobs, pools)
    if floor.counters[TURNS] > 0 or floor.counters[LISTED] < floor.wishes or floor.counters[CONTESTED]:
        _prepare(all_fit, floor, walk, jobs, nodes)
        if walk.asked.shape[1] == 0 and not floor.counted and walk.head < 0:
            _take_plain_turns(floor, walk, needs, jobs, pools)
        else:
            _take_turns(floor, walk, needs, jobs, pools)
        _grow_elastic(floor, walk)
    number_grants(floor, walk, jobs, nodes)
    stopped, renewed = list_stopped(floor, walk), list_renewed(floor, walk, jobs)
    count_free(floor, walk)
    unprotected_s, held_up, reasons, all_reasons = np.inf, False, 0, 0
    if not walk.unprotected:
        if floor.counters[PROTECTED] > 0 and floor.counters[FIRST_TO_WAIT] >= 0:
            unprotected_s, held_up = first_unprotected_s(floor, walk, jobs)
            # A job may be protected from a move that its own wish asks for, or fill a quota.
            held_up = held_up or walk.asked.shape[1] > 0 or floor.counted
        reasons = list_reasons(floor, walk, needs, jobs, pools)
        all_reasons = reasons if walk.complete else list_wishless(reasons, floor, walk, needs, jobs)
    # Leave the records as the next walk wants to find them.
    wipe_marks(floor)
    wipe_owners(floor)
    if floor.scarce:
        fit_capacity(NONE, NONE, floor)
    for h in range(floor.holder_count if floor.counters[CONTESTED] else 0):
        floor.holders[STATUS, h], floor.holders[JOINED, h] = KEEPS, NONE
    return Totals(stopped, floor.counters[GRANTS], renewed, reasons, all_reasons, unprotected_s, held_up)
