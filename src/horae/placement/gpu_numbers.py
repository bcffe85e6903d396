"""From counts to GPU numbers: which GPUs each job gets, keeps and loses. Compiled."""

from __future__ import annotations

from horae.core.arrays import Ints
from horae.core.cluster import Span
from horae.core.jit import inlined, lean
from horae.core.states import State
from horae.placement.kernel_args import (
    CLOSED,
    CONTESTED,
    DISPLACED,
    FIRST_GPU,
    FIRST_PIECE,
    FREE,
    GRANTS,
    GUEST,
    HOST,
    HOST_GRANT,
    IDLE,
    JOINED,
    LEAD,
    NO_HOST,
    NONE,
    PIECE_GPUS,
    PIECE_POOL,
    ROW,
    STATUS,
    TOUCHED_HOLDERS,
    WALK_STAMP,
    Answer,
    Floor,
    JobColumns,
    Nodes,
    Walk,
)

_GPU, _NODE, _RACK, _CLUSTER = int(Span.GPU), int(Span.NODE), int(Span.RACK), int(Span.CLUSTER)
_WAITING, _PLACED = int(State.WAITING), int(State.PLACED)


@lean
def _sort(values: Ints, start: int, stop: int) -> None:
    """Sort a few numbers in place."""
    for i in range(start + 1, stop):
        value, at = values[i], i
        while at > start and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value


@lean
def _span_of(ids: Ints, start: int, stop: int, nodes: Nodes) -> int:
    """How far apart GPUs lie; where only the count matters they lie together."""
    if stop - start == 1:
        return _GPU
    if nodes.flat:
        return _NODE
    node, span = nodes.gpu_node[ids[start]], _NODE
    for at in range(start + 1, stop):
        other = nodes.gpu_node[ids[at]]
        if nodes.node_rack[other] != nodes.node_rack[node]:
            return _CLUSTER
        if other != node:
            span = _RACK
    return span


@inlined
def _owner_of(gpu: int, floor: Floor, walk: Walk, answer: Answer) -> int:
    """The row that has a GPU after the decision, as far as GPUs are given out; -1 for none."""
    row = walk.seats[0, gpu]
    if answer.owner[gpu] >= 0 or row < 0:
        return answer.owner[gpu]
    h = floor.holder_of[row]
    if floor.holders[STATUS, h] >= DISPLACED:
        return NONE
    return floor.holders[LEAD, h] if floor.counters[CONTESTED] else row


@lean
def _look_from_start(floor: Floor, answer: Answer, nodes: Nodes) -> None:
    """Note the nodes on which holders lost GPUs, and look for GPUs from the first node of every pool on."""
    for at in range(floor.counters[TOUCHED_HOLDERS]):
        h = floor.touched[at]
        gpu = floor.held[FIRST_GPU, h] if floor.holders[STATUS, h] >= DISPLACED else NONE
        while gpu >= 0:
            answer.freed[nodes.gpu_node[gpu]] = floor.counters[WALK_STAMP]
            gpu = floor.next_gpu[gpu]
    for pool in range(len(floor.pool_type) if nodes.flat else 0):
        answer.cursor[0, pool] = answer.cursor[1, pool] = nodes.first_node[pool]


@inlined
def _may_have(node: int, occupied: int, floor: Floor, walk: Walk, answer: Answer) -> bool:
    """Whether a node may have free GPUs with (1) or without (0) an occupant."""
    if answer.freed[node] == floor.counters[WALK_STAMP]:
        return True
    idle = walk.by_node[IDLE, node]
    return walk.by_node[FREE, node] > idle if occupied else idle > 0


@lean
def _take_in_pool(p: int, piece: int, start: int, floor: Floor, walk: Walk, answer: Answer, nodes: Nodes) -> int:
    """Give a grant the GPUs of a piece: those without an occupant first, then the lowest; gives the end of the list."""
    pool, at, stop = walk.grants[PIECE_POOL, piece], start, start + walk.grants[PIECE_GPUS, piece]
    for occupied in range(2):
        # All nodes before the cursor have been emptied in this decision; a pool of one node needs none.
        cursor = answer.cursor[occupied, pool] if nodes.flat else nodes.first_node[pool]
        while at < stop and cursor < nodes.first_node[pool + 1]:
            node = nodes.in_pool[cursor]
            gpu, end = nodes.first_gpu[node], nodes.first_gpu[node + 1]
            while at < stop and gpu < end and _may_have(node, occupied, floor, walk, answer):
                wanted = floor.gpu_pool[gpu] != CLOSED and (walk.occupants[0, gpu] >= 0) == (occupied == 1)
                if wanted and _owner_of(gpu, floor, walk, answer) < 0:
                    answer.owner[gpu], answer.gpu_ids[at] = walk.grants[ROW, p], gpu
                    at += 1
                gpu += 1
            if at < stop:
                cursor += 1
        if nodes.flat:
            answer.cursor[occupied, pool] = cursor
    assert at == stop
    return stop


@lean
def _join_host(host: int, start: int, floor: Floor, answer: Answer) -> int:
    """List the GPUs of the holder or grant that a job shares with; gives the end of the list."""
    stop = start
    if host >= 0:
        gpu = floor.held[FIRST_GPU, host]
        while gpu >= 0:
            answer.gpu_ids[stop] = gpu
            stop += 1
            gpu = floor.next_gpu[gpu]
    elif host <= HOST_GRANT:
        for at in range(answer.first[HOST_GRANT - host], answer.first[HOST_GRANT - host + 1]):
            answer.gpu_ids[stop] = answer.gpu_ids[at]
            stop += 1
    return stop


@lean
def _is_ready(p: int, floor: Floor, walk: Walk, answer: Answer, jobs: JobColumns) -> bool:
    """Whether a job can start at once: it is nowhere else, and its GPUs have no occupant but the job to share with."""
    row, host = walk.grants[ROW, p], walk.grants[HOST, p]
    if jobs.state[row] != _WAITING and jobs.state[row] != _PLACED:
        return False
    shares_with = floor.holders[LEAD, host] if host >= 0 else NONE
    for at in range(answer.first[p], answer.first[p + 1]):
        for seat in range(2):
            occupant = walk.occupants[seat, answer.gpu_ids[at]]
            if occupant >= 0 and occupant != shares_with:
                return False
    return True


@lean
def number_grants(floor: Floor, walk: Walk, answer: Answer, jobs: JobColumns, nodes: Nodes) -> None:
    """Give GPU numbers to all grants, in order."""
    _look_from_start(floor, answer, nodes)
    answer.first[0] = 0
    for p in range(floor.counters[GRANTS]):
        start = answer.first[p]
        stop = start
        for piece in range(walk.grants[FIRST_PIECE, p], walk.grants[FIRST_PIECE, p + 1]):
            stop = _take_in_pool(p, piece, stop, floor, walk, answer, nodes)
        stop = _join_host(walk.grants[HOST, p], stop, floor, answer)
        _sort(answer.gpu_ids, start, stop)
        answer.first[p + 1] = stop
        answer.span[p] = _span_of(answer.gpu_ids, start, stop, nodes)
        answer.ready[p] = _is_ready(p, floor, walk, answer, jobs)


@lean
def _taker_of(row: int, h: int, floor: Floor, walk: Walk, answer: Answer) -> int:
    """The row that gets the GPUs that a job lost: that of the highest GPU which is another's now; -1 for none."""
    taker = floor.holders[JOINED, h]
    gpu = floor.held[FIRST_GPU, h] if taker < 0 else NONE
    while gpu >= 0:
        owner = _owner_of(gpu, floor, walk, answer)
        if owner >= 0 and owner != row:
            taker = owner
        gpu = floor.next_gpu[gpu]
    return taker


@lean
def _sort_touched(floor: Floor) -> None:
    """Put the holders that lost GPUs or a job in order of their first GPUs, each once."""
    touched, count = floor.touched, 0
    for i in range(floor.counters[TOUCHED_HOLDERS]):
        h, at = touched[i], count
        while at > 0 and floor.held[FIRST_GPU, touched[at - 1]] > floor.held[FIRST_GPU, h]:
            at -= 1
        if at > 0 and touched[at - 1] == h:
            continue
        for later in range(count, at, -1):
            touched[later] = touched[later - 1]
        touched[at] = h
        count += 1
    floor.counters[TOUCHED_HOLDERS] = count


@lean
def list_stopped(floor: Floor, walk: Walk, answer: Answer) -> int:
    """List the rows that lose GPUs, and the rows that get them; gives how many there are."""
    _sort_touched(floor)
    count = 0
    for at in range(floor.counters[TOUCHED_HOLDERS]):
        h = floor.touched[at]
        for row in (floor.held[LEAD, h], floor.held[GUEST, h]):
            is_there = row == floor.holders[LEAD, h] or row == floor.holders[GUEST, h]
            if row >= 0 and not (floor.holders[STATUS, h] < DISPLACED and is_there):
                answer.stopped[count], answer.taker[count] = row, _taker_of(row, h, floor, walk, answer)
                count += 1
    return count


@lean
def list_renewed(floor: Floor, walk: Walk, answer: Answer, jobs: JobColumns) -> int:
    """List the rows that keep their GPUs after their lease has ended, in no order; gives how many there are."""
    count, now = 0, floor.holders if floor.counters[CONTESTED] else floor.held
    for h in range(floor.holder_count if walk.renews else 0):
        for row in (now[LEAD, h], now[GUEST, h]):
            if row >= 0 and floor.holders[STATUS, h] < DISPLACED and jobs.lease_until_s[row] <= walk.now_s:
                answer.renewed[count] = row
                count += 1
    return count


@lean
def count_free(floor: Floor, walk: Walk, answer: Answer, nodes: Nodes) -> None:
    """Count the free GPUs by node and by type after the decision."""
    by_node, by_type = answer.free_by_node, answer.free_by_type
    for node in range(len(by_node)):
        by_node[node] = walk.by_node[FREE, node]
    for gpu_type in range(len(by_type)):
        by_type[gpu_type] = walk.by_type[FREE, gpu_type]
    for at in range(floor.counters[TOUCHED_HOLDERS]):
        h = floor.touched[at]
        gpu = floor.held[FIRST_GPU, h] if floor.holders[STATUS, h] >= DISPLACED else NONE
        while gpu >= 0:
            if floor.gpu_pool[gpu] != CLOSED:
                by_node[nodes.gpu_node[gpu]] += 1
                by_type[floor.gpu_type[gpu]] += 1
            gpu = floor.next_gpu[gpu]
    for p in range(floor.counters[GRANTS]):
        for at in range(answer.first[p], answer.first[p + 1] if walk.grants[HOST, p] == NO_HOST else answer.first[p]):
            by_node[nodes.gpu_node[answer.gpu_ids[at]]] -= 1
            by_type[floor.gpu_type[answer.gpu_ids[at]]] -= 1


@lean
def wipe_owners(floor: Floor, answer: Answer) -> None:
    """Leave all GPUs without an owner, for the next decision."""
    for at in range(answer.first[floor.counters[GRANTS]]):
        answer.owner[answer.gpu_ids[at]] = NONE
