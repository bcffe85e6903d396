"""Why jobs wait after a decision; only reasons that change are listed. Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.jit import inlined, lean
from horae.core.reasons import Reason
from horae.core.states import State
from horae.placement.holders import promised_until_s, rank_holders
from horae.placement.kernel_args import (
    CODE,
    DISPLACED,
    FIRST_KEY,
    FIRST_TO_WAIT,
    GRANT,
    GRANTED,
    LEFT_OF_TYPE,
    LOOKED_AT,
    MARK,
    MOVES,
    PARTNER,
    POSITION,
    READY,
    REASON_CODE,
    REASON_ROW,
    RENAMED,
    RENAMED_WISH,
    STATUS,
    TURNS,
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
from horae.placement.quotas import within_maximum
from horae.placement.turns import could_ever_hold, least_gpus, most_of_one_type, what_is_lacking

_PLACED, _RUNNING, _STOPPING = int(State.PLACED), int(State.RUNNING), int(State.STOPPING)
_NONE, _VACATING = int(Reason.NONE), int(Reason.VACATING)
_NO_FREE_GPUS, _FRAGMENTED = int(Reason.NO_FREE_GPUS), int(Reason.FRAGMENTED)
_OVER_QUOTA, _RESERVED = int(Reason.OVER_QUOTA), int(Reason.RESERVED_FOR_LARGER)
_TOO_SMALL, _LACKS_ROOM = int(Reason.CLUSTER_TOO_SMALL), int(Reason.LACKS_CPUS_OR_MEMORY)


@lean
def _correct_code(i: int, floor: Floor, walk: Walk, needs: Needs) -> None:
    """Look again at a wish whose turn came: since then other jobs have taken what was free, or their queue's quota."""
    row, gpus, lacking = walk.job[i], least_gpus(i, walk, needs), what_is_lacking(walk)
    held_up = walk.codes[CODE, i] in (_FRAGMENTED, _RESERVED, _LACKS_ROOM)
    if walk.codes[CODE, i] == _OVER_QUOTA and within_maximum(floor.quota[row], gpus, floor.quotas):
        # Jobs of the queue have lost GPUs since then, and a second turn found none that are close enough together.
        walk.codes[CODE, i], held_up = _FRAGMENTED, True
    if not held_up and walk.codes[CODE, i] != lacking:
        return
    if held_up and most_of_one_type(needs.types[row], LEFT_OF_TYPE, floor.by_type) < gpus:
        walk.codes[CODE, i] = lacking
    # Where jobs are preempted, the job would have their part of the quota.
    if walk.limited and not walk.takes and not within_maximum(floor.quota[row], gpus, floor.quotas):
        walk.codes[CODE, i] = _OVER_QUOTA


@inlined
def _unreached_code(i: int, floor: Floor, walk: Walk, needs: Needs) -> int:
    """The reason of a job whose turn never came."""
    row = walk.job[i]
    gpus = needs.gpus_min[row]
    if not could_ever_hold(row, gpus, needs.nodes[row], floor, needs):
        return _TOO_SMALL
    if walk.limited and not within_maximum(floor.quota[row], gpus, floor.quotas):
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
    # Then jobs whose turn never came wait as before.
    plain = not (walk.limited or pools.shrunk or walk.blocking or walk.head >= 0)
    job, codes, listed = walk.job, walk.codes, walk.turns
    marks, holder_of, reason = floor.marks, floor.holder_of, jobs.reason
    for turn in range(turns + floor.counters[RENAMED]):
        i = listed[WISH, turn] if turn < turns else listed[RENAMED_WISH, turn - turns]
        row = job[i]
        held_up = codes[CODE, i] == _FRAGMENTED or codes[CODE, i] == _RESERVED or codes[CODE, i] == _LACKS_ROOM
        if turn < turns and (walk.limited or held_up):
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
        holds = could_ever_hold(row, needs.gpus_min[row], needs.nodes[row], floor, needs)
        code = walk.waiting if holds else _TOO_SMALL
        if code != jobs.reason[row]:
            walk.turns[REASON_ROW, count], walk.codes[REASON_CODE, count] = row, code
            count += 1
    return count


@lean
def first_unprotected_s(floor: Floor, walk: Walk, jobs: JobColumns) -> tuple[float, bool]:
    """When the first holder that comes after the first waiting wish loses its protection, and whether there is one."""
    waiting, soonest_s, some = floor.counters[FIRST_TO_WAIT], np.inf, False
    rank_holders(floor, walk)
    first_key, position = walk.times[FIRST_KEY], floor.holders[POSITION]
    its_key = walk.key[waiting] if len(walk.key) > 0 else float(waiting)
    for h in range(floor.holder_count):
        after = first_key[h] > its_key or (first_key[h] == its_key and position[h] > waiting)
        until_s = promised_until_s(h, jobs.promised_until_s, floor)
        if after and until_s > walk.now_s:
            soonest_s, some = min(soonest_s, until_s), True
    return soonest_s, some
