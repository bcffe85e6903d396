"""The records of columns that compiled placement works on, and what their numbers stand for.

Compiled functions take few records of few arrays: each array that a function can see costs time to compile. So
columns of one length lie in one block, `block[COLUMN, entry]`, and each block names its columns here. Records are
tuples, which compiled code cannot change: numbers that change during a walk lie in `Floor.counters`.
"""

from __future__ import annotations

from typing import NamedTuple

from horae.core.arrays import Bools, Bytes, Floats, Ints

#: The pool of a GPU that takes no jobs.
CLOSED = -1
#: Stands for no row, no holder, no grant, nothing asked.
NONE = -1

#: Columns of `Walk.asked`, by wish: GPU type, fewest and most GPUs, and the row that is to share them.
GPU_TYPE, LEAST, MOST, PARTNER = 0, 1, 2, 3
#: Columns of `Floor.quotas`, by queue: queue above, minimum and maximum GPUs, and GPUs given so far.
PARENT, MINIMUM, MAXIMUM, USED = 0, 1, 2, 3
#: Columns of `Floor.held`, by holder: its job, the job that shares the GPUs, GPU count, first GPU.
LEAD, GUEST, SIZE, FIRST_GPU = 0, 1, 2, 3
#: Columns of `Floor.holders`, by holder, after LEAD and GUEST: what becomes of the holder, position of its first
#: wish, the holders from the last in order to the first, the row that comes to share its GPUs, whether it was
#: KEEPS before the first turn, and a heap. Before and after a walk all holders are KEEPS and guarded, and nothing
#: has joined.
STATUS, POSITION, BACK, JOINED, GUARDED, TURNED = 2, 3, 4, 5, 6, 7
#: A holder's turn has not come; it keeps its GPUs; it lost them; it got others instead.
UNDECIDED, KEEPS, DISPLACED, MOVES = 0, 1, 2, 3
#: Columns of `Floor.marks`, by row: the mark, the number of a grant, the list of marked rows, and the last walk with a
#: wish of the job. All rows are UNMARKED before and after a walk.
MARK, GRANT, MARKED, WISHED = 0, 1, 2, 3
#: Nothing happened to the job; it left GPUs that it shared; it got GPUs; one of its several wishes came to nothing;
#: it waits for GPUs that jobs after it are not to lose now.
UNMARKED, LEFT, GRANTED, LOOKED_AT, HELD_BACK = 0, 1, 2, 3, 4
#: Columns of counts, by pool, node or type: GPUs without a holder; those of them without an occupant; free GPUs and
#: those of holders that may lose them; the part of the free GPUs that may be used beyond a reservation; and room to
#: try what would be free if other jobs left.
FREE, IDLE, REACH, LATE, TRIAL = 0, 1, 2, 3, 4
#: Columns of `Walk.grants`. By grant p: row, most GPUs, host, and its first piece; by piece: pool and GPU count; and a
#: heap of holders, by their first GPU, and grants, by GPU count and number.
ROW, MOST_GPUS, HOST, FIRST_PIECE, PIECE_POOL, PIECE_GPUS, ENDING = 0, 1, 2, 3, 4, 5, 6
#: Columns of `Walk.times`. By holder: key of its first wish, and that key in a heap; the times of ENDING; and when the
#: job with a reservation could start: one number.
FIRST_KEY, TURNED_KEY, END_S, RESERVED_S = 0, 1, 2, 3
#: Parts of `Walk.tried`, by GPU type and gang size. The stamps of the moments when such a gang found no place among
#: FREE and among REACH GPUs; and the holder that limits which wishes lack only guarded GPUs.
TRIED_FREE, TRIED_REACH, LIMIT = 0, 1, 2
#: The host of a grant is the holder whose GPUs the job comes to share, or HOST_GRANT less the number of a grant.
NO_HOST, HOST_GRANT = -1, -2
#: Columns of `Walk.chosen`: the pools that a gang takes GPUs from, and how many from each.
CHOSEN_POOL, CHOSEN_GPUS = 0, 1
#: Columns of `Walk.turns`: wishes that need a turn as given, in the order of their turns, and as a heap; and wishes
#: of jobs that keep their GPUs and whose reason changes.
WISH, ORDER, HEAP, RENAMED_WISH = 0, 1, 2, 3
#: `Walk.codes` of a wish whose turn never came, and of a wish that was granted; all others are reasons.
UNREACHED_WISH, GRANTED_WISH = 255, 254

#: Positions in `Floor.counters`. How many are used: holders touched, marked rows, grants, pieces of grants, wishes
#: that need a turn, wishes taken from the heap, and wishes of RENAMED_WISH.
TOUCHED_HOLDERS, MARKED_ROWS, GRANTS, PIECES, TURNS, POPPED, RENAMED = 0, 1, 2, 3, 4, 5, 6
#: Whether holders are looked at; whether their order is known; whether a wish blocks all behind it; whether GPUs are
#: reserved; whether some holders are protected; and the first wish that has to wait.
CONTESTED, LINED_UP, BLOCKED, RESERVED, PROTECTED, FIRST_TO_WAIT = 7, 8, 9, 10, 11, 12
#: Numbers that only grow: an entry of `tried`, of WISHED or of `Answer.freed` counts if it has the present number.
FREE_STAMP, REACH_STAMP, WALK_STAMP = 13, 14, 15
COUNTERS = 16


class JobColumns(NamedTuple):
    """The columns of the job table that placement looks at."""

    state: Bytes
    reason: Bytes
    gpus_min: Ints
    gpus_max: Ints
    types: Ints
    rates: Floats
    skew: Floats
    lease_until_s: Floats
    protected_until_s: Floats
    waiting_since_s: Floats
    since_s: Floats
    work_left: Floats
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
    #: By pool; and the pools from the largest to the smallest.
    type: Ints
    rack: Ints
    capacity: Ints
    by_capacity: Ints
    #: By type.
    type_capacity: Ints


class Nodes(NamedTuple):
    """Where GPUs are."""

    flat: bool
    gpu_node: Ints
    #: GPUs of node k are first_gpu[k] up to first_gpu[k + 1].
    first_gpu: Ints
    node_rack: Ints
    #: Nodes of pool p are in_pool[first_node[p]:first_node[p + 1]].
    first_node: Ints
    in_pool: Ints


class Floor(NamedTuple):
    """Who has which GPUs, and how that changes while the wishes have their turns."""

    #: How many wishes there are; and whether queues have a minimum or a maximum, so that use is counted.
    wishes: int
    counted: bool
    quotas: Ints
    #: By row: its queue.
    queue: Ints
    #: By GPU: its pool, or CLOSED, and its type. By pool: its type.
    gpu_pool: Ints
    gpu_type: Ints
    pool_type: Ints
    #: The holders; two jobs that share their GPUs are one. The GPUs of holder h are held[FIRST_GPU, h], the
    #: `next_gpu` of that one and so on up to -1, in order. `holder_of` leads from a row to its holder, or to -1.
    holder_count: int
    held: Ints
    next_gpu: Ints
    holder_of: Ints
    #: From here on it changes.
    holders: Ints
    #: Holders that lost GPUs or a guest, in order of the event; one may stand there several times.
    touched: Ints
    marks: Ints
    #: GPUs that can still be given, by pool and by type.
    counts: Ints
    type_counts: Ints
    counters: Ints


class Walk(NamedTuple):
    """What the policy wishes, and what becomes of it."""

    now_s: float
    preempt: bool
    #: Whether jobs lose GPUs to others as long as no job has a reservation.
    takes: bool
    blocking: bool
    #: The reason of jobs that wait because jobs before them took the GPUs.
    waiting: int
    #: The row that GPUs are reserved for, -1 if there is none.
    head: int
    #: Whether every row that was shown has one wish; whether jobs may have several; whether all wish what they say.
    complete: bool
    several: bool
    as_jobs_say: bool
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
    #: By seat and GPU: rows by plan, and in fact.
    seats: Ints
    occupants: Ints
    #: FREE and IDLE GPUs before the decision.
    by_node: Ints
    by_type: Ints
    #: From here on it changes.
    turns: Ints
    heap_key: Floats
    codes: Bytes
    grants: Ints
    chosen: Ints
    tried: Ints
    times: Floats


class Answer(NamedTuple):
    """Room for what a walk decides; `Totals` says how much of it was used."""

    #: Rows that lose their GPUs, and the rows that get them or -1.
    stopped: Ints
    taker: Ints
    #: Rows that keep their GPUs, with lease expired.
    renewed: Ints
    #: Grant p gets the GPUs gpu_ids[first[p]:first[p + 1]].
    first: Ints
    gpu_ids: Ints
    span: Ints
    ready: Bools
    #: Rows whose reason changes, and the new reasons.
    reason_rows: Ints
    reason_codes: Bytes
    #: By GPU: the row that is given it in this decision, -1 before and after.
    owner: Ints
    #: By node: the last walk that took GPUs of it from a holder.
    freed: Ints
    #: By whether the GPUs are occupied and by pool: the node at which to go on looking for GPUs.
    cursor: Ints
    #: Free GPUs after the decision.
    free_by_node: Ints
    free_by_type: Ints


class Totals(NamedTuple):
    """How much of an `Answer` was used."""

    stopped: int
    grants: int
    renewed: int
    #: Reasons of jobs with wishes, and all.
    reasons: int
    all_reasons: int
    #: When the first protected holder that is in a waiting job's way loses its protection.
    unprotected_s: float
