"""Why jobs wait after a decision; only reasons that change are listed. Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.jit import inlined, lean
from horae.core.reasons import Reason
from horae.core.states import State
from horae.placement.holders import list_from_back, promised_until_s, rank_holders
from horae.placement.kernel_args import (
    BACK,
    CLOSED,
    CODE,
    CONTESTED,
    DISPLACED,
    FIRST_GPU,
    FIRST_KEY,
    FIRST_TO_WAIT,
    GRANT,
    GRANTED,
    GUARDED,
    GUEST,
    HELD_BACK,
    LEAD,
    LEFT_OF_TYPE,
    LIMIT,
    LOOKED_AT,
    MARK,
    MOVES,
    NONE,
    PARTNER,
    POOL_OF,
    POSITION,
    READY,
    REASON_CODE,
    REASON_ROW,
    RENAMED,
    RENAMED_WISH,
    STATUS,
    TRIAL,
    TURNS,
    TYPE_CAPACITY,
    TYPE_OF,
    UNMARKED,
    UNREACHED_WISH,
    WALK_STAMP,
    WISH,
    WISHED,
    Floor,
    JobColumns,
    Needs,
    Pools,
    Walk,
)
from horae.placement.marks import has_nothing, will_mark
from horae.placement.quotas import within_maximum
from horae.placement.turns import least_gpus, most_of_one_type, what_is_lacking

_PLACED, _RUNNING, _STOPPING = int(State.PLACED), int(State.RUNNING), int(State.STOPPING)
_NONE, _VACATING = int(Reason.NONE), int(Reason.VACATING)
_NO_FREE_GPUS, _FRAGMENTED = int(Reason.NO_FREE_GPUS), int(Reason.FRAGMENTED)
_OVER_QUOTA, _RESERVED = int(Reason.OVER_QUOTA), int(Reason.RESERVED_FOR_LARGER)
_TOO_SMALL, _LEASED, _TURN = int(Reason.CLUSTER_TOO_SMALL), int(Reason.LEASED), int(Reason.BEHIND_TURN)


@lean
def _correct_code(i: int, floor: Floor, walk: Walk, needs: Needs) -> None:
    """Look again at a wish whose turn came: since then other jobs have taken what was free, or their queue's quota."""
    row, gpus, lacking = walk.job[i], least_gpus(i, walk, needs), what_is_lacking(walk)
    held_up = walk.codes[CODE, i] == _FRAGMENTED or walk.codes[CODE, i] == _RESERVED
    if walk.codes[CODE, i] == _OVER_QUOTA:
        # Jobs of the queue may have lost GPUs since then.
        held_up = within_maximum(floor.queue[row], gpus, floor.quotas)
    if not held_up and walk.codes[CODE, i] != lacking:
        return
    if held_up and most_of_one_type(needs.types[row], LEFT_OF_TYPE, floor.by_type) < gpus:
        walk.codes[CODE, i] = lacking
    # Where jobs are preempted, the job would have their part of the quota.
    if walk.limited and not walk.takes and not within_maximum(floor.queue[row], gpus, floor.quotas):
        walk.codes[CODE, i] = _OVER_QUOTA


@inlined
def _some_guarded(floor: Floor, walk: Walk, jobs: JobColumns) -> bool:
    """Whether any holder may not lose its GPUs, where jobs lose GPUs to others at all."""
    if not walk.takes or walk.waiting == _TURN:
        return False
    # If holders may lose GPUs, the walk has seen who is protected; with a reservation, all are.
    seen, guarded = floor.counters[CONTESTED] > 0 or not walk.preempt, False
    for h in range(floor.holder_count):
        if seen:
            guarded = guarded or floor.holders[GUARDED, h] > 0
        else:
            guarded = guarded or jobs.promised_until_s[floor.held[LEAD, h]] > walk.now_s
            guest = floor.held[GUEST, h]
            guarded = guarded or (guest >= 0 and jobs.promised_until_s[guest] > walk.now_s)
    return guarded


@lean
def _find_limits_of_guards(sizes: int, floor: Floor, walk: Walk) -> None:
    """For each type and GPU count, how far back in the order a wish may stand and still lack only guarded GPUs.

    Guarded holders are added to the free GPUs from the last in order on, until the count is reached: the limit is the
    holder that completes it, or -1. A wish before that holder's first one would have had the GPUs.
    """
    limits, reached = walk.tried[LIMIT], floor.by_type[TRIAL]
    for gpu_type in range(len(reached)):
        reached[gpu_type] = floor.by_type[LEFT_OF_TYPE, gpu_type]
        for size in range(sizes):
            limits[gpu_type, size] = NONE
    rank_holders(floor, walk)
    list_from_back(floor, walk)
    for at in range(floor.holder_count):
        h = floor.holders[BACK, at]
        gpu = floor.held[FIRST_GPU, h] if floor.holders[GUARDED, h] else NONE
        while gpu >= 0:
            gpu_type = floor.by_gpu[TYPE_OF, gpu]
            if floor.by_gpu[POOL_OF, gpu] != CLOSED:
                reached[gpu_type] += 1
                if reached[gpu_type] < sizes:
                    limits[gpu_type, reached[gpu_type]] = h
            gpu = floor.next_gpu[gpu]


@inlined
def _is_held_back(i: int, sizes: int, floor: Floor, walk: Walk, needs: Needs) -> bool:
    """Whether a wish would be granted if guarded holders after it could lose their GPUs."""
    row, gpus = walk.job[i], least_gpus(i, walk, needs)
    if gpus >= sizes or (walk.limited and not within_maximum(floor.queue[row], gpus, floor.quotas)):
        return False
    its_key, held_back = walk.key[i] if len(walk.key) > 0 else float(i), False
    for gpu_type in range(walk.tried.shape[1]):
        h = walk.tried[LIMIT, gpu_type, gpus]
        if h >= 0 and needs.types[row] >> gpu_type & 1:
            key, position = walk.times[FIRST_KEY, h], floor.holders[POSITION, h]
            held_back = held_back or key > its_key or (key == its_key and position > i)
    return held_back


@lean
def _mark_held_back(floor: Floor, walk: Walk, needs: Needs) -> None:
    """Mark the jobs that only wait because holders after them are guarded, or because of a reservation."""
    largest = 0
    for turn in range(floor.counters[TURNS]):
        largest = max(largest, least_gpus(walk.turns[WISH, turn], walk, needs))
    sizes = min(largest, len(floor.next_gpu)) + 1
    _find_limits_of_guards(sizes, floor, walk)
    for turn in range(floor.counters[TURNS]):
        i = walk.turns[WISH, turn]
        row, code = walk.job[i], walk.codes[CODE, i]
        mark = floor.marks[MARK, row]
        looked_at = code == walk.waiting or (code == UNREACHED_WISH and mark != LOOKED_AT)
        if not looked_at or mark == HELD_BACK or not has_nothing(row, floor):
            continue
        if _is_held_back(i, sizes, floor, walk, needs):
            will_mark(row, floor)
            floor.marks[MARK, row] = HELD_BACK


@inlined
def _unreached_code(i: int, floor: Floor, walk: Walk, needs: Needs) -> int:
    """The reason of a job whose turn never came."""
    row = walk.job[i]
    gpus = needs.gpus_min[row]
    if most_of_one_type(needs.types[row], TYPE_CAPACITY, floor.by_type) < gpus:
        return _TOO_SMALL
    if walk.limited and not within_maximum(floor.queue[row], gpus, floor.quotas):
        return _OVER_QUOTA
    if walk.blocking and floor.counters[FIRST_TO_WAIT] < 0:
        # No job that waits is before it: what it lacks is GPUs.
        floor.counters[FIRST_TO_WAIT] = i
        return _NO_FREE_GPUS
    return walk.waiting


@lean
def list_reasons(floor: Floor, walk: Walk, needs: Needs, jobs: JobColumns, pools: Pools) -> int:
    """List the reasons of jobs with wishes that change; gives how many."""
    count, turns, single = 0, floor.counters[TURNS], walk.asked.shape[1] == 0
    some_wait = turns > 0 and (floor.counters[CONTESTED] > 0 or not walk.preempt)
    guarded = (some_wait or floor.counters[RENAMED] > 0) and _some_guarded(floor, walk, jobs)
    if some_wait and guarded:
        for turn in range(turns):
            _correct_code(walk.turns[WISH, turn], floor, walk, needs)
        _mark_held_back(floor, walk, needs)
    # Then jobs whose turn never came wait as before.
    plain = not (walk.limited or pools.shrunk or walk.blocking or walk.head >= 0 or guarded)
    job, codes, listed = walk.job, walk.codes, walk.turns
    marks, holder_of, reason = floor.marks, floor.holder_of, jobs.reason
    for turn in range(turns + floor.counters[RENAMED]):
        i = listed[WISH, turn] if turn < turns else listed[RENAMED_WISH, turn - turns]
        row = job[i]
        if turn < turns and (walk.limited or codes[CODE, i] == _FRAGMENTED or codes[CODE, i] == _RESERVED):
            _correct_code(i, floor, walk, needs)
        code = codes[CODE, i] + 0
        if plain and single and turn < turns and reason[row] == (walk.waiting if code == UNREACHED_WISH else code):
            continue
        mark = marks[MARK, row]
        h = holder_of[row] if mark == UNMARKED else -1
        unreached = turn >= turns or code == UNREACHED_WISH
        if unreached and (mark == LOOKED_AT or (plain and reason[row] == walk.waiting)):
            # Another wish of the job says it; or it waits as before.
            continue
        if h >= 0 and floor.holders[STATUS, h] != DISPLACED:
            vacating = jobs.state[row] == _PLACED or jobs.state[row] == _STOPPING
            code = _VACATING if vacating or floor.holders[STATUS, h] == MOVES else _NONE
        elif mark == GRANTED:
            code = _NONE if floor.grants[READY, floor.marks[GRANT, row]] else _VACATING
        elif unreached:
            code = _unreached_code(i, floor, walk, needs)
        if code == walk.waiting and row == walk.head:
            code = _NO_FREE_GPUS
        elif mark == HELD_BACK:
            code = _LEASED if walk.preempt else _RESERVED
        if code != reason[row]:
            walk.turns[REASON_ROW, count], walk.codes[REASON_CODE, count] = row, code
            count += 1
    return count


@lean
def list_wishless(count: int, floor: Floor, walk: Walk, needs: Needs, jobs: JobColumns) -> int:
    """List the reasons of jobs without GPUs that the policy wished nothing for, after `count` others."""
    for i in range(floor.wishes):
        floor.marks[WISHED, walk.job[i]] = floor.counters[WALK_STAMP]
        if walk.asked.shape[1] > 0 and walk.asked[PARTNER, i] >= 0:
            floor.marks[WISHED, walk.asked[PARTNER, i]] = floor.counters[WALK_STAMP]
    for row in walk.shown:
        has_gpus = jobs.state[row] >= _PLACED and jobs.state[row] <= _RUNNING
        if has_gpus or floor.marks[WISHED, row] == floor.counters[WALK_STAMP]:
            continue
        too_small = most_of_one_type(needs.types[row], TYPE_CAPACITY, floor.by_type) < needs.gpus_min[row]
        code = _TOO_SMALL if too_small else walk.waiting
        if code != jobs.reason[row]:
            walk.turns[REASON_ROW, count], walk.codes[REASON_CODE, count] = row, code
            count += 1
    return count


@lean
def first_unprotected_s(floor: Floor, walk: Walk, jobs: JobColumns) -> float:
    """When the first holder that comes after the first waiting wish loses its protection."""
    waiting, soonest_s = floor.counters[FIRST_TO_WAIT], np.inf
    rank_holders(floor, walk)
    first_key, position = walk.times[FIRST_KEY], floor.holders[POSITION]
    its_key = walk.key[waiting] if len(walk.key) > 0 else float(waiting)
    for h in range(floor.holder_count):
        after = first_key[h] > its_key or (first_key[h] == its_key and position[h] > waiting)
        until_s = promised_until_s(h, jobs.promised_until_s, floor)
        if after and until_s > walk.now_s:
            soonest_s = min(soonest_s, until_s)
    return soonest_s
