"""From counts to GPU numbers: which GPUs each job gets, keeps and loses. Compiled."""

from __future__ import annotations

from horae.core.arrays import Ints
from horae.core.cluster import Span
from horae.core.jit import inlined, lean
from horae.core.states import State
from horae.placement.kernel_args import (
    CLOSED,
    CONTESTED,
    CURSOR,
    DISPLACED,
    END_NODE,
    FIRST,
    FIRST_GPU,
    FIRST_NODE,
    FIRST_PIECE,
    FREE,
    FREED,
    GPU_ID,
    GRANTS,
    GUEST,
    HOST,
    HOST_GRANT,
    IDLE,
    IN_POOL,
    JOINED,
    LEAD,
    LEFT_OF_TYPE,
    NO_HOST,
    NODE_END,
    NODE_OF,
    NODE_RACK,
    NODE_START,
    NONE,
    OWNER,
    PIECE_GPUS,
    PIECE_POOL,
    POOL_OF,
    READY,
    RENEWED,
    ROW,
    SPAN,
    STATUS,
    STOPPED,
    TAKER,
    TOUCHED,
    TOUCHED_HOLDERS,
    TYPE_OF,
    WALK_STAMP,
    Floor,
    JobColumns,
    Nodes,
    Walk,
)

_GPU, _NODE, _RACK, _CLUSTER = int(Span.GPU), int(Span.NODE), int(Span.RACK), int(Span.CLUSTER)
_WAITING, _PLACED = int(State.WAITING), int(State.PLACED)


@inlined
def _sort(column: int, start: int, stop: int, block: Ints) -> None:
    """Sort a few numbers of a column in place."""
    for i in range(start + 1, stop):
        value, at = block[column, i], i
        while at > start and block[column, at - 1] > value:
            block[column, at] = block[column, at - 1]
            at -= 1
        block[column, at] = value


@inlined
def _span_of(start: int, stop: int, floor: Floor, nodes: Nodes) -> int:
    """How far apart the GPUs of a grant lie; where only the count matters they lie together."""
    if stop - start == 1:
        return _GPU
    if nodes.flat:
        return _NODE
    node, span = floor.by_gpu[NODE_OF, floor.grants[GPU_ID, start]], _NODE
    for at in range(start + 1, stop):
        other = floor.by_gpu[NODE_OF, floor.grants[GPU_ID, at]]
        if nodes.by_node[NODE_RACK, other] != nodes.by_node[NODE_RACK, node]:
            return _CLUSTER
        if other != node:
            span = _RACK
    return span


@inlined
def _owner_of(gpu: int, floor: Floor, walk: Walk) -> int:
    """The row that has a GPU after the decision, as far as GPUs are given out; -1 for none."""
    row = walk.seats[0, gpu]
    if floor.by_gpu[OWNER, gpu] >= 0 or row < 0:
        return floor.by_gpu[OWNER, gpu]
    h = floor.holder_of[row]
    if floor.holders[STATUS, h] >= DISPLACED:
        return NONE
    return floor.holders[LEAD, h] if floor.counters[CONTESTED] else row


@inlined
def _look_from_start(floor: Floor, nodes: Nodes) -> None:
    """Note the nodes on which holders lost GPUs, and look for GPUs from the first node of every pool on."""
    for at in range(floor.counters[TOUCHED_HOLDERS]):
        h = floor.grants[TOUCHED, at]
        gpu = floor.held[FIRST_GPU, h] if floor.holders[STATUS, h] >= DISPLACED else NONE
        while gpu >= 0:
            nodes.by_node[FREED, floor.by_gpu[NODE_OF, gpu]] = floor.counters[WALK_STAMP]
            gpu = floor.next_gpu[gpu]
    for pool in range(floor.by_pool.shape[1] if nodes.flat else 0):
        floor.by_pool[CURSOR + 0, pool] = floor.by_pool[CURSOR + 1, pool] = floor.by_pool[FIRST_NODE, pool]


@inlined
def _may_have(node: int, occupied: int, floor: Floor, nodes: Nodes) -> bool:
    """Whether a node may have free GPUs with (1) or without (0) an occupant."""
    if nodes.by_node[FREED, node] == floor.counters[WALK_STAMP]:
        return True
    idle = nodes.before_by_node[IDLE, node]
    return nodes.before_by_node[FREE, node] > idle if occupied else idle > 0


@lean
def _take_in_pool(p: int, piece: int, start: int, floor: Floor, walk: Walk, nodes: Nodes) -> int:
    """Give a grant the GPUs of a piece: those without an occupant first, then the lowest; gives the end of the list."""
    pool, at, stop = floor.grants[PIECE_POOL, piece], start, start + floor.grants[PIECE_GPUS, piece]
    for occupied in range(2):
        # All nodes before the cursor have been emptied in this decision; a pool of one node needs none.
        cursor = floor.by_pool[CURSOR + occupied, pool] if nodes.flat else floor.by_pool[FIRST_NODE, pool]
        while at < stop and cursor < floor.by_pool[END_NODE, pool]:
            node = nodes.by_node[IN_POOL, cursor]
            gpu, end = nodes.by_node[NODE_START, node], nodes.by_node[NODE_END, node]
            while at < stop and gpu < end and _may_have(node, occupied, floor, nodes):
                wanted = floor.by_gpu[POOL_OF, gpu] != CLOSED and (nodes.occupants[0, gpu] >= 0) == (occupied == 1)
                if wanted and _owner_of(gpu, floor, walk) < 0:
                    floor.by_gpu[OWNER, gpu], floor.grants[GPU_ID, at] = floor.grants[ROW, p], gpu
                    at += 1
                gpu += 1
            if at < stop:
                cursor += 1
        if nodes.flat:
            floor.by_pool[CURSOR + occupied, pool] = cursor
    assert at == stop
    return stop


@inlined
def _join_host(host: int, start: int, floor: Floor) -> int:
    """List the GPUs of the holder or grant that a job shares with; gives the end of the list."""
    stop = start
    if host >= 0:
        gpu = floor.held[FIRST_GPU, host]
        while gpu >= 0:
            floor.grants[GPU_ID, stop] = gpu
            stop += 1
            gpu = floor.next_gpu[gpu]
    elif host <= HOST_GRANT:
        for at in range(floor.grants[FIRST, HOST_GRANT - host], floor.grants[FIRST, HOST_GRANT - host + 1]):
            floor.grants[GPU_ID, stop] = floor.grants[GPU_ID, at]
            stop += 1
    return stop


@inlined
def _is_ready(p: int, floor: Floor, jobs: JobColumns, nodes: Nodes) -> bool:
    """Whether a job can start at once: it is nowhere else, and its GPUs have no occupant but the job to share with."""
    row, host = floor.grants[ROW, p], floor.grants[HOST, p]
    if jobs.state[row] != _WAITING and jobs.state[row] != _PLACED:
        return False
    shares_with = floor.holders[LEAD, host] if host >= 0 else NONE
    shared, gpus = 0, floor.grants[FIRST, p + 1] - floor.grants[FIRST, p]
    for at in range(floor.grants[FIRST, p], floor.grants[FIRST, p + 1]):
        for seat in range(2):
            occupant = nodes.occupants[seat, floor.grants[GPU_ID, at]]
            if occupant >= 0 and occupant != shares_with:
                return False
            shared += 1 if occupant >= 0 else 0
    # A job that sits on some of them only is still on its way here.
    return shared == 0 or shared == gpus


@lean
def number_grants(floor: Floor, walk: Walk, jobs: JobColumns, nodes: Nodes) -> None:
    """Give GPU numbers to all grants, in order."""
    _look_from_start(floor, nodes)
    floor.grants[FIRST, 0] = 0
    for p in range(floor.counters[GRANTS]):
        start = floor.grants[FIRST, p]
        stop = start
        for piece in range(floor.grants[FIRST_PIECE, p], floor.grants[FIRST_PIECE, p + 1]):
            stop = _take_in_pool(p, piece, stop, floor, walk, nodes)
        stop = _join_host(floor.grants[HOST, p], stop, floor)
        _sort(GPU_ID, start, stop, floor.grants)
        floor.grants[FIRST, p + 1] = stop
        floor.grants[SPAN, p] = _span_of(start, stop, floor, nodes)
        floor.grants[READY, p] = _is_ready(p, floor, jobs, nodes)


@inlined
def _taker_of(row: int, h: int, floor: Floor, walk: Walk) -> int:
    """The row that gets the GPUs that a job lost: that of the highest GPU which is another's now; -1 for none."""
    taker = floor.holders[JOINED, h]
    gpu = floor.held[FIRST_GPU, h] if taker < 0 else NONE
    while gpu >= 0:
        owner = _owner_of(gpu, floor, walk)
        if owner >= 0 and owner != row:
            taker = owner
        gpu = floor.next_gpu[gpu]
    return taker


@inlined
def _sort_touched(floor: Floor) -> None:
    """Put the holders that lost GPUs or a job in order of their first GPUs, each once."""
    block, count = floor.grants, 0
    for i in range(floor.counters[TOUCHED_HOLDERS]):
        h, at = block[TOUCHED, i], count
        while at > 0 and floor.held[FIRST_GPU, block[TOUCHED, at - 1]] > floor.held[FIRST_GPU, h]:
            at -= 1
        if at > 0 and block[TOUCHED, at - 1] == h:
            continue
        for later in range(count, at, -1):
            block[TOUCHED, later] = block[TOUCHED, later - 1]
        block[TOUCHED, at] = h
        count += 1
    floor.counters[TOUCHED_HOLDERS] = count


@lean
def list_stopped(floor: Floor, walk: Walk) -> int:
    """List the rows that lose GPUs, and the rows that get them; gives how many there are."""
    _sort_touched(floor)
    count = 0
    for at in range(floor.counters[TOUCHED_HOLDERS]):
        h = floor.grants[TOUCHED, at]
        for row in (floor.held[LEAD, h], floor.held[GUEST, h]):
            is_there = row == floor.holders[LEAD, h] or row == floor.holders[GUEST, h]
            if row >= 0 and not (floor.holders[STATUS, h] < DISPLACED and is_there):
                floor.grants[STOPPED, count], floor.grants[TAKER, count] = row, _taker_of(row, h, floor, walk)
                count += 1
    return count


@lean
def list_renewed(floor: Floor, walk: Walk, jobs: JobColumns) -> int:
    """List the rows that keep their GPUs after their lease has ended, in no order; gives how many there are."""
    count, now = 0, floor.holders if floor.counters[CONTESTED] else floor.held
    for h in range(floor.holder_count if walk.renews else 0):
        for row in (now[LEAD, h], now[GUEST, h]):
            if row >= 0 and floor.holders[STATUS, h] < DISPLACED and jobs.lease_until_s[row] <= walk.now_s:
                floor.grants[RENEWED, count] = row
                count += 1
    return count


@lean
def count_free(floor: Floor, walk: Walk) -> None:
    """Count the free GPUs by type after the decision."""
    free = floor.by_type[LEFT_OF_TYPE]
    for gpu_type in range(len(free)):
        free[gpu_type] = walk.before_by_type[FREE, gpu_type]
    for at in range(floor.counters[TOUCHED_HOLDERS]):
        h = floor.grants[TOUCHED, at]
        gpu = floor.held[FIRST_GPU, h] if floor.holders[STATUS, h] >= DISPLACED else NONE
        while gpu >= 0:
            if floor.by_gpu[POOL_OF, gpu] != CLOSED:
                free[floor.by_gpu[TYPE_OF, gpu]] += 1
            gpu = floor.next_gpu[gpu]
    for p in range(floor.counters[GRANTS]):
        own = floor.grants[HOST, p] == NO_HOST
        for at in range(floor.grants[FIRST, p], floor.grants[FIRST, p + 1] if own else 0):
            free[floor.by_gpu[TYPE_OF, floor.grants[GPU_ID, at]]] -= 1


@inlined
def wipe_owners(floor: Floor) -> None:
    """Leave all GPUs without an owner, for the next decision."""
    for at in range(floor.grants[FIRST, floor.counters[GRANTS]]):
        floor.by_gpu[OWNER, floor.grants[GPU_ID, at]] = NONE
