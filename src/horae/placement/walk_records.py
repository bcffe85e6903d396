"""The records of a walk: made once for a cluster, and filled with what the policy wishes now."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Bytes, Floats, Ints
from horae.core.cluster import Cluster
from horae.core.gpu_ledger import GpuLedger
from horae.core.job_table import JobTable
from horae.core.node_room import NodeRoom
from horae.core.queues import QueueTree
from horae.core.quotas import QuotaColumns
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.placement.choose import BY_SKEW
from horae.placement.kernel_args import (
    BY_CAPACITY,
    CAPACITY,
    CLOSED,
    COUNTERS,
    END_NODE,
    FIRST,
    FIRST_NODE,
    FREE,
    GPU_ID,
    GPU_TYPE,
    IDLE,
    IN_POOL,
    JOINED,
    KEEPS,
    LEAST,
    MOST,
    NODE_END,
    NODE_RACK,
    NODE_START,
    NODES_WITH,
    NONE,
    OPEN_GPUS,
    PARTNER,
    POOL_OF,
    POOL_RACK,
    POOL_TYPE,
    READY,
    REASON_CODE,
    REASON_ROW,
    RENEWED,
    RESOURCES,
    ROOM_COLUMNS,
    ROOM_SHARE,
    ROOM_SOURCES,
    ROOM_TOTAL,
    ROW,
    SPAN,
    STATUS,
    STOPPED,
    TAKER,
    TYPE_CAPACITY,
    Floor,
    JobColumns,
    Needs,
    Nodes,
    Pools,
    Walk,
)

_NOTHING_ASKED: Ints = np.empty((4, 0), np.int64)
_NOTHING_COUNTED: Ints = np.empty((ROOM_COLUMNS, 0), np.int64)


class Answer(NamedTuple):
    """What a walk decides; `Totals` says how much of each column was used."""

    #: Rows that lose their GPUs, and the rows that get them or -1.
    stopped: Ints
    taker: Ints
    #: Rows that keep their GPUs, with lease expired.
    renewed: Ints
    #: Grant p gets the GPUs gpu_ids[first[p]:first[p + 1]].
    first: Ints
    gpu_ids: Ints
    span: Ints
    ready: Ints
    #: Rows whose reason changes, and the new reasons.
    reason_rows: Ints
    reason_codes: Bytes


class WalkRecords:
    """Room for walks by one rule. It is made anew when the cluster changes or the table outgrows it."""

    answer: Answer
    needs: Needs
    jobs: JobColumns
    pools: Pools
    by_gpu: Ints
    _by_node: Ints
    _by_type: Ints
    _holders: Ints
    _grants: Ints
    _tried: Ints
    _times: Floats

    def __init__(self, rule: int, flat: bool, pack_limit: float) -> None:
        self._rule, self._flat, self._pack_limit = rule, flat, pack_limit
        self._counters = np.zeros(COUNTERS, np.int64)
        self.marks = np.zeros((4, 64), np.int64)
        #: The columns of the quota tree, and what walks make of them.
        self._quota_tree: QuotaColumns | None = None
        self._quota_columns: Ints = np.zeros((5, 0), np.int64)
        self._seen: tuple[GpuLedger, int] | None = None
        self._table: JobTable | None = None
        self._never_s = np.empty(0)
        self._make_room_for_wishes(64)

    def make_room(self, now: Snapshot, wishes: int) -> None:
        """Have room for the cluster, the job table and the wishes as they are now."""
        ledger, rows = now.gpu_ledger, len(now.table.state)
        if self._seen != (ledger, ledger.version):
            self._make_room_for_cluster(ledger)
            self._seen = (ledger, ledger.version)
        if self.marks.shape[1] < rows:
            self.marks = np.zeros((4, rows), np.int64)
        ledger.cover(rows)
        if len(self._heap_key) < max(wishes, len(now)):
            self._make_room_for_wishes(2 * max(wishes, len(now)))
            self._make_answer()
        self._take_columns(now.table)

    def floor(self, now: Snapshot, wishes: Wishes, room: NodeRoom | None = None) -> Floor:
        """Who has which GPUs, and room for how that changes; with CPUs and memory where they may run out."""
        queues, holdings = now.queues, now.gpu_ledger.holdings
        return Floor(
            wishes=len(wishes.job),
            counted=queues.has_minimum or queues.has_maximum,
            scarce=room is not None,
            asks=_NOTHING_COUNTED if room is None else room.asks,
            quotas=self._quotas(queues),
            quota=now.table.quota,
            holder_count=holdings.count,
            held=holdings.columns,
            next_gpu=holdings.next_gpu,
            holder_of=holdings.of_row,
            holders=self._holders,
            marks=self.marks,
            by_gpu=self.by_gpu,
            by_pool=self.pools.by_pool,
            by_type=self._by_type,
            grants=self._grants,
            counters=self._counters,
            room=_NOTHING_COUNTED if room is None else _by_room(room, now.gpu_ledger),
        )

    def walk(self, now: Snapshot, wishes: Wishes, preempt: bool, head: int, unprotected: bool = False) -> Walk:
        """What the policy wishes, and room for what becomes of it."""
        ledger, queues = now.gpu_ledger, now.queues
        return Walk(
            # Whole seconds given as an integer would have the whole walk compiled again for them.
            now_s=float(now.now_s),
            preempt=preempt,
            takes=wishes.preempt,
            blocking=wishes.blocking,
            unprotected=unprotected,
            waiting=int(wishes.waiting),
            head=head,
            complete=wishes.job is now.rows,
            several=len(wishes.gpu_type) > 0,
            as_jobs_say=len(wishes.gpu_type) + len(wishes.gpus_min) + len(wishes.gpus_max) == 0,
            asks_for_nodes=now.table.asks_for_nodes,
            renews=wishes.lease_until_s > now.now_s and not unprotected,
            guaranteed=queues.has_minimum,
            limited=queues.has_maximum,
            shown=now.rows,
            job=np.ascontiguousarray(wishes.job, np.int64),
            key=np.ascontiguousarray(wishes.key, np.float64),
            asked=_asked(wishes),
            seats=ledger.holders,
            before_by_type=ledger.by_type,
            turns=self._turns,
            heap_key=self._heap_key,
            codes=self._codes,
            tried=self._tried,
            times=self._times,
        )

    def _quotas(self, queues: QueueTree) -> Ints:
        """Nodes, counters and GPUs given, by counter; made anew where a walk counts what it gives."""
        columns = queues.quotas.columns()
        if queues.has_minimum or queues.has_maximum or columns is not self._quota_tree:
            self._quota_tree = columns
            # There are never more counters than nodes.
            self._quota_columns = np.zeros((5, len(columns.parent)), np.int64)
            for number, column in enumerate(columns):
                self._quota_columns[number, : len(column)] = column
        return self._quota_columns

    def nodes(self, now: Snapshot) -> Nodes:
        """Where GPUs are, and which have occupants."""
        ledger = now.gpu_ledger
        return Nodes(self._flat, self._by_node, ledger.occupants, ledger.by_node)

    def jobs_that_keep(self, until_s: Floats) -> JobColumns:
        """The columns of the jobs as if all kept their GPUs until given times."""
        return self.jobs._replace(promised_until_s=until_s)

    def unprotected_jobs(self, waiting: Reason) -> JobColumns:
        """The columns of the jobs as if none were protected; where jobs take turns, as if only time slices were."""
        if waiting is Reason.BEHIND_TURN:
            return self.jobs._replace(promised_until_s=self.jobs.lease_until_s)
        if len(self._never_s) != len(self.jobs.promised_until_s):
            self._never_s = np.full(len(self.jobs.promised_until_s), -np.inf)
        return self.jobs._replace(promised_until_s=self._never_s)

    def granted_rows(self, count: int) -> Ints:
        """Rows of the first `count` grants."""
        return self._grants[ROW, :count]

    def _make_room_for_cluster(self, ledger: GpuLedger) -> None:
        cluster, gpus, types = ledger.cluster, ledger.cluster.gpus, len(ledger.cluster.gpu_types)
        self.by_gpu = _by_gpu(ledger, self._flat)
        self._by_node = _by_node(cluster, self._flat)
        nodes_with = ledger.nodes_with[:1] if self._flat else ledger.nodes_with
        self._by_type = np.zeros((NODES_WITH + len(nodes_with), types), np.int64)
        self._by_type[TYPE_CAPACITY] = np.bincount(cluster.gpu_type[ledger.gpu_open], minlength=types)
        self._by_type[NODES_WITH:] = nodes_with
        self.pools = Pools(
            rule=self._rule,
            pack_limit=self._pack_limit,
            flat=self._flat,
            racks=1 if self._flat else len(cluster.racks),
            shrunk=not bool(ledger.gpu_open.all()),
            by_pool=_by_pool(cluster, self.by_gpu[POOL_OF], self._flat),
        )
        sizes = 2 * (gpus + 1) if self._rule == BY_SKEW else gpus + 1
        shapes = len(cluster.nodes) * (len(nodes_with) - 1)
        self._tried = np.zeros((4, types, sizes + shapes), np.int64)
        self._holders = np.zeros((7, gpus), np.int64)
        self._holders[STATUS], self._holders[JOINED] = KEEPS, NONE
        # Every GPU may be given to one job, and to another that shares it; before, a third may have it. A holder is
        # touched when it is displaced or moves, and when one of its jobs leaves.
        self._grants, self._times = np.zeros((16, 4 * gpus + 1), np.int64), np.zeros((4, 3 * gpus + 1))
        self._make_answer()

    def _make_answer(self) -> None:
        """Name the columns that a walk's decisions are read from."""
        self.answer = Answer(
            stopped=self._grants[STOPPED],
            taker=self._grants[TAKER],
            renewed=self._grants[RENEWED],
            first=self._grants[FIRST],
            gpu_ids=self._grants[GPU_ID],
            span=self._grants[SPAN],
            ready=self._grants[READY],
            reason_rows=self._turns[REASON_ROW],
            reason_codes=self._codes[REASON_CODE],
        )

    def _make_room_for_wishes(self, wishes: int) -> None:
        # A job with wishes has a reason for each, a job without has one.
        self._codes, self._heap_key = np.empty((2, 2 * wishes), np.uint8), np.empty(wishes)
        self._turns = np.empty((5, 2 * wishes), np.int64)

    def _take_columns(self, table: JobTable) -> None:
        """The table's columns; a table that grows, or knows another GPU type, replaces its arrays."""
        if self._table is not table or self.jobs.state is not table.state or self.needs.rates is not table.rates:
            self.needs = Needs(*(getattr(table, name) for name in Needs._fields))
            self.jobs = JobColumns(*(getattr(table, name) for name in JobColumns._fields))
            self._table = table


def _asked(wishes: Wishes) -> Ints:
    """What wishes say of themselves, in one block."""
    said = {GPU_TYPE: wishes.gpu_type, LEAST: wishes.gpus_min, MOST: wishes.gpus_max, PARTNER: wishes.partner}
    if not any(map(len, said.values())):
        return _NOTHING_ASKED
    asked = np.full((4, len(wishes.job)), NONE, np.int64)
    for column, values in said.items():
        if len(values):
            asked[column] = values
    return asked


def _by_room(room: NodeRoom, ledger: GpuLedger) -> Ints:
    """CPUs and memory of each node: those that are free and idle, all, and a GPU's share of them."""
    block = np.zeros((ROOM_COLUMNS, len(ledger.cluster.nodes)), np.int64)
    for what in range(RESOURCES):
        block[what * ROOM_SOURCES + FREE], block[what * ROOM_SOURCES + IDLE] = room.free[what], room.idle[what]
        block[ROOM_TOTAL + what] = ledger.cluster.room[what]
        block[ROOM_SHARE + what] = ledger.cluster.room_share[what]
    block[OPEN_GPUS] = ledger.open_by_node
    return block


def _by_gpu(ledger: GpuLedger, flat: bool) -> Ints:
    """Pool, type, node and owner of each GPU."""
    cluster = ledger.cluster
    pool = np.where(ledger.gpu_open, cluster.gpu_type if flat else cluster.gpu_node, CLOSED)
    return np.array((pool, cluster.gpu_type, cluster.gpu_node, np.full(cluster.gpus, NONE)), np.int64)


def _node_pools(cluster: Cluster, flat: bool) -> Ints:
    """The pool of each node: the node itself, or its type where only the count matters."""
    return cluster.node_type if flat else np.arange(len(cluster.nodes), dtype=np.int64)


def _by_node(cluster: Cluster, flat: bool) -> Ints:
    """Rack and GPUs of each node, and the nodes in order of their pools."""
    block = np.zeros((5, len(cluster.nodes)), np.int64)
    block[NODE_RACK], block[NODE_START], block[NODE_END] = (
        cluster.node_rack,
        cluster.first_gpu[:-1],
        cluster.first_gpu[1:],
    )
    block[IN_POOL] = np.argsort(_node_pools(cluster, flat), kind="stable")
    return block


def _by_pool(cluster: Cluster, gpu_pool: Ints, flat: bool) -> Ints:
    """Type, rack, open GPUs and nodes of each pool."""
    count = len(cluster.gpu_types) if flat else len(cluster.nodes)
    block = np.zeros((15, count), np.int64)
    capacity = np.bincount(gpu_pool[gpu_pool != CLOSED], minlength=count)
    end_node = np.cumsum(np.bincount(_node_pools(cluster, flat), minlength=count))
    block[POOL_TYPE] = np.arange(count) if flat else cluster.node_type
    block[POOL_RACK] = 0 if flat else cluster.node_rack
    block[CAPACITY], block[BY_CAPACITY] = capacity, np.argsort(-capacity, kind="stable")
    block[FIRST_NODE, 1:], block[END_NODE] = end_node[:-1], end_node
    return block
