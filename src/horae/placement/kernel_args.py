"""The records of columns that compiled placement works on, and what their numbers stand for.

Compiled functions take few records of few arrays: each array that a function can see costs time to compile. So
columns of one length lie in one block, `block[COLUMN, entry]`, and each block names its columns here. Records are
tuples, which compiled code cannot change: numbers that change during a walk lie in `Floor.counters`.
"""

from __future__ import annotations

from typing import NamedTuple

from horae.core.arrays import Bytes, Floats, Ints

#: The pool of a GPU that takes no jobs.
CLOSED = -1
#: Stands for no row, no holder, no grant, nothing asked.
NONE = -1

#: Columns of `Walk.asked`, by wish: GPU type, fewest and most GPUs, and the row that is to share them.
GPU_TYPE, LEAST, MOST, PARTNER = 0, 1, 2, 3
#: Columns of `Floor.quotas`: by node, the next node and the counter; by counter, minimum and maximum GPUs, and GPUs
#: given so far.
PARENT, COUNTER, MINIMUM, MAXIMUM, USED = 0, 1, 2, 3, 4
#: Columns of `Floor.held`, by holder: its job, the job that shares the GPUs, GPU count, first GPU.
LEAD, GUEST, SIZE, FIRST_GPU = 0, 1, 2, 3
#: Columns of `Floor.holders`, by holder, after LEAD and GUEST: what becomes of the holder, position of its first
#: wish, the holders from the last in order to the first, the row that comes to share its GPUs, and a heap. Before and
#: after a walk all holders are KEEPS, and nothing has joined.
STATUS, POSITION, BACK, JOINED, TURNED = 2, 3, 4, 5, 6
#: A holder's turn has not come; it keeps its GPUs; it lost them; it got others instead.
UNDECIDED, KEEPS, DISPLACED, MOVES = 0, 1, 2, 3
#: Columns of `Floor.marks`, by row: the mark, the number of a grant, the list of marked rows, and the last walk with a
#: wish of the job. All rows are UNMARKED before and after a walk.
MARK, GRANT, MARKED, WISHED = 0, 1, 2, 3
#: Nothing happened to the job; it left GPUs that it shared; it got GPUs; one of its several wishes came to nothing.
UNMARKED, LEFT, GRANTED, LOOKED_AT = 0, 1, 2, 3
#: Columns of `Floor.by_pool`, of `Floor.by_type` and of the counts before the decision. GPUs without a holder; those
#: of them without an occupant; free GPUs and those of holders that may lose them; the part of the free GPUs that may
#: be used beyond a reservation; and room to try what would be free if other jobs left.
FREE, IDLE, REACH, LATE, TRIAL = 0, 1, 2, 3, 4
#: More columns of `Floor.by_type`: all open GPUs; and the GPUs that are free after the decision.
TYPE_CAPACITY, LEFT_OF_TYPE = 5, 6
#: From here on, column NODES_WITH + k of `Floor.by_type` is how many nodes have at least k open GPUs, up to the largest
#: node. Where only the count matters there are none of these but that for k = 0.
NODES_WITH = 7
#: More columns of `Floor.by_pool`: GPU type, rack, open GPUs, and the pools from the largest to the smallest. The
#: pools that a gang takes GPUs from, and how many from each. The pool's nodes are from FIRST_NODE up to END_NODE of
#: IN_POOL; CURSOR says where to go on looking for GPUs without an occupant, the next column for occupied ones.
POOL_TYPE, POOL_RACK, CAPACITY, BY_CAPACITY, CHOSEN_POOL, CHOSEN_GPUS = 5, 6, 7, 8, 9, 10
FIRST_NODE, END_NODE, CURSOR = 11, 12, 13
#: Columns of `Floor.by_gpu`: pool or CLOSED, type, node, and the row that is given the GPU in this decision: -1 before
#: and after.
POOL_OF, TYPE_OF, NODE_OF, OWNER = 0, 1, 2, 3
#: Columns of `Nodes.by_node`: rack, first GPU and the GPU after the last; nodes by pool; and the last walk that took
#: GPUs of the node from a holder.
NODE_RACK, NODE_START, NODE_END, IN_POOL, FREED = 0, 1, 2, 3, 4
#: Columns of `Floor.room`, by node. FREE to TRIAL are CPUs, and ROOM_SOURCES columns on MiB of memory. Then CPUs and
#: memory of the node, the share of one GPU in them, the open GPUs, and the GPUs that one job could use.
RESOURCES, ROOM_SOURCES, ROOM_TOTAL, ROOM_SHARE, OPEN_GPUS, FIT, ROOM_COLUMNS = 2, 5, 10, 12, 14, 15, 16
#: Columns of `Floor.grants`. By grant p: row, most GPUs, host, and its first piece; by piece: pool and GPU count; and
#: a heap of holders, by their first GPU, and grants, by GPU count and number.
ROW, MOST_GPUS, HOST, FIRST_PIECE, PIECE_POOL, PIECE_GPUS, ENDING = 0, 1, 2, 3, 4, 5, 6
#: Holders that lost GPUs or a guest, in order of the event; a holder may stand there several times.
TOUCHED = 7
#: Rows that lose their GPUs, and the rows that get them or -1; rows that keep their GPUs, with lease expired. By grant
#: p: its first GPU in GPU_ID, how far apart its GPUs lie, and whether it can start at once.
STOPPED, TAKER, RENEWED, FIRST, GPU_ID, SPAN, READY = 8, 9, 10, 11, 12, 13, 14
#: By grant p: the row that shares its pieces from the start, -1 for none.
MATE = 15
#: Columns of `Walk.times`. By holder: key of its first wish, and that key in a heap; the times of ENDING; and when the
#: job with a reservation could start: one number.
FIRST_KEY, TURNED_KEY, END_S, RESERVED_S = 0, 1, 2, 3
#: Parts of `Walk.tried`, by GPU type and gang (`turns.entry_of_gang`): the stamps of the moments when such a gang found
#: no place among FREE and among REACH GPUs. Where CPUs and memory count, TRIED_FOR parts on, what the gang asked for.
TRIED_FREE, TRIED_REACH, TRIED_FOR = 0, 1, 2
#: The host of a grant is the holder whose GPUs the job comes to share, or HOST_GRANT less the number of a grant.
NO_HOST, HOST_GRANT = -1, -2
#: Columns of `Walk.turns`: wishes that need a turn as given, in the order of their turns, and as a heap; wishes of jobs
#: that keep their GPUs and whose reason changes; and rows whose reason changes.
WISH, ORDER, HEAP, RENAMED_WISH, REASON_ROW = 0, 1, 2, 3, 4
#: Columns of `Walk.codes`: what became of a wish, and the new reason of each REASON_ROW.
CODE, REASON_CODE = 0, 1
#: The code of a wish whose turn never came, and of a wish that was granted; all others are reasons.
UNREACHED_WISH, GRANTED_WISH = 255, 254

#: Positions in `Floor.counters`. How many are used: holders touched, marked rows, grants, pieces of grants, wishes
#: that need a turn, wishes taken from the heap, wishes of RENAMED_WISH, and wishes looked at to list them in either.
TOUCHED_HOLDERS, MARKED_ROWS, GRANTS, PIECES, TURNS, POPPED, RENAMED, LISTED = 0, 1, 2, 3, 4, 5, 6, 7
#: Whether holders are looked at; whether their order is known; whether a wish blocks all behind it; whether GPUs are
#: reserved; whether some holders are protected; whether no wish can be granted any more and all wait for one reason;
#: and the first wish that has to wait.
CONTESTED, LINED_UP, BLOCKED, RESERVED, PROTECTED, SETTLED, FIRST_TO_WAIT = 8, 9, 10, 11, 12, 13, 14
#: Numbers that only grow: an entry of `tried`, of WISHED or of FREED counts if it has the present number.
FREE_STAMP, REACH_STAMP, WALK_STAMP = 15, 16, 17
COUNTERS = 18


class Needs(NamedTuple):
    """The columns of the job table that say what jobs need."""

    gpus_min: Ints
    gpus_max: Ints
    nodes: Ints
    types: Ints
    rates: Floats
    skew: Floats
    work_left: Floats
    waiting_since_s: Floats


class JobColumns(NamedTuple):
    """The columns of the job table that say how jobs are."""

    state: Bytes
    reason: Bytes
    lease_until_s: Floats
    promised_until_s: Floats
    since_s: Floats
    launched_s: Floats
    rate: Floats
    best_rate: Floats


class Pools(NamedTuple):
    """GPUs grouped by what the rule counts by: a node, or all GPUs of a type."""

    rule: int
    #: Skew above which a job is consolidated, where the rule goes by skew.
    pack_limit: float
    #: Whether only the count matters: a pool is all GPUs of a type.
    flat: bool
    racks: int
    #: Whether some GPUs take no jobs now.
    shrunk: bool
    #: That of the floor.
    by_pool: Ints


class Nodes(NamedTuple):
    """Where GPUs are, and which have occupants."""

    flat: bool
    by_node: Ints
    #: Rows on each GPU in fact, by seat.
    occupants: Ints
    #: FREE and IDLE GPUs before the decision.
    before_by_node: Ints


class Floor(NamedTuple):
    """Which jobs have which GPUs, and how that changes while the wishes have their turns."""

    #: How many wishes there are; and whether queues have a minimum or a maximum, so that use is counted.
    wishes: int
    counted: bool
    #: Whether CPUs or memory may run out where GPUs are free, so that they are counted, too.
    scarce: bool
    #: CPUs and memory that jobs ask for with each GPU, by row: 0 for the GPU's share. Empty unless scarce.
    asks: Ints
    quotas: Ints
    #: By row: its quota node.
    quota: Ints
    #: The holders; two jobs that share their GPUs are one. The GPUs of holder h are held[FIRST_GPU, h], the
    #: `next_gpu` of that one and so on up to -1, in order. `holder_of` leads from a row to its holder, or to -1.
    holder_count: int
    held: Ints
    next_gpu: Ints
    holder_of: Ints
    #: From here on it changes.
    holders: Ints
    marks: Ints
    by_gpu: Ints
    by_pool: Ints
    by_type: Ints
    grants: Ints
    counters: Ints
    #: CPUs and memory by node. Empty unless scarce.
    room: Ints


class Walk(NamedTuple):
    """What the policy wishes, and what becomes of it."""

    now_s: float
    preempt: bool
    #: Whether jobs lose GPUs to others as long as no job has a reservation.
    takes: bool
    blocking: bool
    #: Whether this is a walk as if no job were protected, of which only grants and losers count: no reasons.
    unprotected: bool
    #: The reason of jobs that wait because jobs before them took the GPUs.
    waiting: int
    #: The row that GPUs are reserved for, -1 if there is none.
    head: int
    #: Whether every row that was shown has one wish; whether jobs may have several; whether all wish what they say.
    complete: bool
    several: bool
    as_jobs_say: bool
    #: Whether some jobs ask for a number of nodes: if not, hot loops do not look.
    asks_for_nodes: bool
    #: Whether rows that keep their GPUs after their lease has ended are to be listed.
    renews: bool
    #: Whether some queues have a minimum, and whether some have a maximum.
    guaranteed: bool
    limited: bool
    #: Rows that the policy was shown; the row of each wish, and its key if wishes have keys.
    shown: Ints
    job: Ints
    key: Floats
    #: What wishes say of themselves, -1 where they leave it to the job; no entries where none says anything.
    asked: Ints
    #: Rows that have each GPU by plan, by seat.
    seats: Ints
    #: FREE and IDLE GPUs before the decision.
    before_by_type: Ints
    #: From here on it changes.
    turns: Ints
    heap_key: Floats
    codes: Bytes
    tried: Ints
    times: Floats


class Totals(NamedTuple):
    """How much a walk decided: the lengths of what it lists."""

    stopped: int
    grants: int
    renewed: int
    #: Reasons of jobs with wishes, and all.
    reasons: int
    all_reasons: int
    #: When the first protected holder that is in a waiting job's way loses its protection.
    unprotected_s: float
    #: Whether a wish waits that may have had GPUs if no holder were protected.
    held_up: bool
