"""The records of a walk: made once for a cluster, and filled with what the policy wishes now."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.cluster import Cluster
from horae.core.gpu_ledger import GpuLedger
from horae.core.job_table import JobTable
from horae.core.queues import QueueTree
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.placement.choose import BY_SKEW
from horae.placement.kernel_args import (
    CLOSED,
    COUNTERS,
    GPU_TYPE,
    GUARDED,
    JOINED,
    KEEPS,
    LEAST,
    MOST,
    NONE,
    PARTNER,
    ROW,
    STATUS,
    Answer,
    Floor,
    JobColumns,
    Nodes,
    Pools,
    Walk,
)

_NOTHING_ASKED: Ints = np.empty((4, 0), np.int64)


class WalkRecords:
    """Room for walks by one rule. It is made anew when the cluster changes or the table outgrows it."""

    answer: Answer
    jobs: JobColumns
    pools: Pools
    nodes: Nodes
    gpu_pool: Ints
    _holders: Ints
    _touched: Ints
    _counts: Ints
    _type_counts: Ints
    _grants: Ints
    _tried: Ints
    _times: Floats
    _chosen: Ints

    def __init__(self, rule: int, flat: bool, pack_limit: float) -> None:
        self._rule, self._flat, self._pack_limit = rule, flat, pack_limit
        self._counters = np.zeros(COUNTERS, np.int64)
        self.marks = np.zeros((4, 64), np.int64)
        self._seen: tuple[GpuLedger, int] | None = None
        self._table: JobTable | None = None
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
        if len(self._codes) < max(wishes, len(now)):
            self._make_room_for_wishes(2 * max(wishes, len(now)))
            self._make_answer(ledger.cluster)
        self._take_columns(now.table)

    def floor(self, now: Snapshot, wishes: Wishes) -> Floor:
        """Who has which GPUs, and room for how that changes."""
        queues, holdings = now.queues, now.gpu_ledger.holdings
        return Floor(
            wishes=len(wishes.job),
            counted=queues.has_minimum or queues.has_maximum,
            quotas=_quotas(queues),
            queue=now.table.queue,
            gpu_pool=self.gpu_pool,
            gpu_type=now.cluster.gpu_type,
            pool_type=self.pools.type,
            holder_count=holdings.count,
            held=holdings.columns,
            next_gpu=holdings.next_gpu,
            holder_of=holdings.of_row,
            holders=self._holders,
            touched=self._touched,
            marks=self.marks,
            counts=self._counts,
            type_counts=self._type_counts,
            counters=self._counters,
        )

    def walk(self, now: Snapshot, wishes: Wishes, preempt: bool, head: int) -> Walk:
        """What the policy wishes, and room for what becomes of it."""
        ledger, queues = now.gpu_ledger, now.queues
        return Walk(
            now_s=now.now_s,
            preempt=preempt,
            takes=wishes.preempt,
            blocking=wishes.blocking,
            waiting=int(wishes.waiting),
            head=head,
            complete=wishes.job is now.rows,
            several=len(wishes.gpu_type) > 0,
            as_jobs_say=len(wishes.gpu_type) + len(wishes.gpus_min) + len(wishes.gpus_max) == 0,
            renews=wishes.lease_until_s > now.now_s,
            guaranteed=queues.has_minimum,
            limited=queues.has_maximum,
            shown=now.rows,
            job=np.ascontiguousarray(wishes.job, np.int64),
            key=np.ascontiguousarray(wishes.key, np.float64),
            asked=_asked(wishes),
            seats=ledger.holders,
            occupants=ledger.occupants,
            by_node=ledger.by_node,
            by_type=ledger.by_type,
            turns=self._turns,
            heap_key=self._heap_key,
            codes=self._codes,
            grants=self._grants,
            chosen=self._chosen,
            tried=self._tried,
            times=self._times,
        )

    def granted_rows(self, count: int) -> Ints:
        """Rows of the first `count` grants."""
        return self._grants[ROW, :count]

    def _make_room_for_cluster(self, ledger: GpuLedger) -> None:
        cluster = ledger.cluster
        pool = cluster.gpu_type if self._flat else cluster.gpu_node
        self.gpu_pool = np.where(ledger.gpu_open, pool, CLOSED)
        self.pools = _pools(cluster, self.gpu_pool, self._rule, self._pack_limit, self._flat)
        self.nodes = _nodes(cluster, self._flat)
        gpus, types, count = cluster.gpus, len(cluster.gpu_types), len(self.pools.type)
        self._counts, self._type_counts = np.zeros((5, count), np.int64), np.zeros((5, types), np.int64)
        self._chosen = np.zeros((2, count), np.int64)
        sizes = 2 * (gpus + 1) if self._rule == BY_SKEW else gpus + 1
        self._tried = np.zeros((3, types, sizes), np.int64)
        self._holders = np.zeros((8, gpus), np.int64)
        self._holders[STATUS], self._holders[GUARDED], self._holders[JOINED] = KEEPS, 1, NONE
        # A holder is touched when it is displaced or moves, and when one of its jobs leaves.
        self._touched = np.zeros(4 * gpus, np.int64)
        # Every GPU may be given to one job, and to another that shares it; before, a third may have it.
        self._grants, self._times = np.zeros((7, 3 * gpus + 1), np.int64), np.zeros((4, 3 * gpus + 1))
        self._make_answer(cluster)

    def _make_answer(self, cluster: Cluster) -> None:
        gpus, reasons = cluster.gpus, 2 * len(self._codes)
        by_grant = [np.zeros(2 * gpus + 1, np.int64) for _ in range(6)]
        stopped, taker, renewed, first, gpu_ids, span = by_grant
        self.answer = Answer(
            stopped=stopped,
            taker=taker,
            renewed=renewed,
            first=first,
            gpu_ids=gpu_ids,
            span=span,
            ready=np.zeros(2 * gpus, np.bool_),
            reason_rows=np.empty(reasons, np.int64),
            reason_codes=np.empty(reasons, np.uint8),
            owner=np.full(gpus, NONE, np.int64),
            freed=np.zeros(len(cluster.nodes), np.int64),
            cursor=np.zeros((2, len(self.pools.type)), np.int64),
            free_by_node=np.zeros(len(cluster.nodes), np.int64),
            free_by_type=np.zeros(len(cluster.gpu_types), np.int64),
        )

    def _make_room_for_wishes(self, wishes: int) -> None:
        self._codes, self._heap_key = np.empty(wishes, np.uint8), np.empty(wishes)
        self._turns = np.empty((4, wishes), np.int64)

    def _take_columns(self, table: JobTable) -> None:
        """The table's columns; a table that grows, or knows another GPU type, replaces its arrays."""
        if self._table is not table or self.jobs.state is not table.state or self.jobs.rates is not table.rates:
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


def _quotas(queues: QueueTree) -> Ints:
    """Queue above, minimum, maximum and GPUs given, by queue."""
    parent, low, top = queues.columns()
    return np.array((parent, low, top, np.zeros(len(parent), np.int64)))


def _pools(cluster: Cluster, gpu_pool: Ints, rule: int, pack_limit: float, flat: bool) -> Pools:
    """Group GPUs by node, or by type where only the count matters."""
    types, count = len(cluster.gpu_types), len(cluster.gpu_types) if flat else len(cluster.nodes)
    is_open = gpu_pool != CLOSED
    capacity = np.bincount(gpu_pool[is_open], minlength=count).astype(np.int64)
    return Pools(
        rule=rule,
        pack_limit=pack_limit,
        flat=flat,
        racks=1 if flat else len(cluster.racks),
        shrunk=not bool(is_open.all()),
        type=np.arange(count, dtype=np.int64) if flat else cluster.node_type,
        rack=np.zeros(count, np.int64) if flat else cluster.node_rack,
        capacity=capacity,
        by_capacity=np.argsort(-capacity, kind="stable").astype(np.int64),
        type_capacity=np.bincount(cluster.gpu_type[is_open], minlength=types).astype(np.int64),
    )


def _nodes(cluster: Cluster, flat: bool) -> Nodes:
    """Where GPUs are, and the nodes of each pool."""
    count = len(cluster.gpu_types) if flat else len(cluster.nodes)
    node_pool = cluster.node_type if flat else np.arange(count, dtype=np.int64)
    return Nodes(
        flat=flat,
        gpu_node=cluster.gpu_node,
        first_gpu=cluster.first_gpu,
        node_rack=cluster.node_rack,
        first_node=np.concatenate(([0], np.cumsum(np.bincount(node_pool, minlength=count)))).astype(np.int64),
        in_pool=np.argsort(node_pool, kind="stable").astype(np.int64),
    )
