"""The placement rules by name, and the step from wishes to a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Cluster, Span
from horae.core.errors import UserError, did_you_mean
from horae.core.gpu_ledger import NOBODY, GpuLedger
from horae.core.job import PACK_LIMIT
from horae.core.job_table import JobTable
from horae.core.plan import Placement, Plan
from horae.core.queues import QueueTree
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.placement import PLACEMENTS
from horae.placement.choose import BEST_EFFORT, BY_SKEW, CONSOLIDATED, LEAST_FRAGMENTATION
from horae.placement.fit import fit
from horae.placement.kernel_args import CLOSED, Asked, Columns, Pools, Quotas, Result
from horae.placement.pinned import fit_pinned

_RULES = {
    "consolidated": (CONSOLIDATED, False),
    "best-effort": (BEST_EFFORT, False),
    # Where only the count matters, all GPUs of a type are one big node.
    "anywhere": (CONSOLIDATED, True),
    "least-fragmentation": (LEAST_FRAGMENTATION, False),
    "tiresias": (BY_SKEW, False),
}

_SPANS = tuple(Span)
#: Reasons that no reservation would help against, or that mean that the job has its GPUs.
_NOT_STARVING = [int(r) for r in (Reason.NONE, Reason.VACATING, Reason.OVER_QUOTA, Reason.CLUSTER_TOO_SMALL)]

#: How many were stopped, placed and kept, how many reasons changed, and when a protection ends.
Answer = tuple[int, int, int, int, float]


class UnknownPlacement(UserError):
    """A placement rule that does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No placement is called {name!r}.{did_you_mean(name, PLACEMENTS)} There are: {', '.join(PLACEMENTS)}."
        )


def make_placement(name: str) -> GangPlacement:
    """The placement rule of this name; `tiresias:0.4` sets the skew above which it consolidates."""
    rule, colon, limit = name.partition(":")
    if rule not in _RULES or (colon and rule != "tiresias"):
        raise UnknownPlacement(name)
    if not colon:
        return GangPlacement(*_RULES[rule])
    try:
        pack_limit = float(limit)
    except ValueError:
        pack_limit = np.nan
    if not 0 <= pack_limit <= 1:
        raise UserError(f"The limit of placement {name!r} is no number from 0 to 1, such as tiresias:{PACK_LIMIT}.")
    return GangPlacement(*_RULES[rule], pack_limit)


class GangPlacement:
    """Places gangs by one rule. Keeps scratch space and a view of the open GPUs; remembers nothing else."""

    def __init__(self, rule: int, flat: bool, pack_limit: float = PACK_LIMIT) -> None:
        self._rule, self._flat, self._pack_limit = rule, flat, pack_limit
        self._slot = np.full(64, -1, np.int64)
        self._pools: Pools | None = None
        self._room: Result | None = None
        self._columns: Columns | None = None
        self._seen: tuple[GpuLedger, int] | None = None

    @property
    def flat(self) -> bool:
        """Whether only the count matters."""
        return self._flat

    def fit(self, now: Snapshot, wishes: Wishes) -> Plan:
        """Give GPUs to the wishes in order, within quotas, preempting only for jobs that are then placed."""
        if wishes.pins is not None:
            return fit_pinned(now, wishes, wishes.pins)
        ledger, table = now.gpu_ledger, now.table
        if len(self._slot) < len(table.state):
            self._slot = np.full(len(table.state), -1, np.int64)
        room = self._room_for(ledger, len(wishes.job))
        answer = self._walk(now, wishes, room, wishes.preempt, NOBODY)
        head = NOBODY
        if wishes.reserve_after_s < np.inf:
            head = _starving(now, wishes, room, answer)
            if head != NOBODY:
                # While somebody has a reservation nobody else is preempted: running jobs end when they are expected to.
                answer = self._walk(now, wishes, room, False, head)
        stopped, placed, kept, changed, unprotected_s = answer
        renewed: tuple[int, ...] = ()
        if wishes.lease_until_s > now.now_s:
            keeping = room.kept[:kept]
            renewed = tuple(keeping[table.lease_until_s[keeping] <= now.now_s].tolist())
        everybody_has_gpus = kept + placed >= len(now)
        reason_rows, reason_codes = room.changed[:changed].copy(), room.codes[:changed].copy()
        if len(wishes.gpu_type):
            # A job with several wishes is named by each; all say the same.
            reason_rows, at = np.unique(reason_rows, return_index=True)
            reason_codes = reason_codes[at]
        if wishes.job is not now.rows:
            # Some jobs may have no wish; a policy that wishes for all hands their rows on as they are.
            wishless_rows, wishless_codes = _wishless(now, wishes)
            reason_rows = np.concatenate((reason_rows, wishless_rows))
            reason_codes = np.concatenate((reason_codes, wishless_codes))
        return Plan(
            stopped=tuple(zip(room.stopped[:stopped].tolist(), room.taker[:stopped].tolist(), strict=True)),
            placed=_placements(room, placed) if placed else (),
            renewed=renewed,
            reason_rows=reason_rows,
            reason_codes=reason_codes,
            node_free=room.node_free.copy(),
            head=head,
            unprotected_s=np.inf if everybody_has_gpus else unprotected_s,
        )

    def _walk(self, now: Snapshot, wishes: Wishes, room: Result, preempt: bool, head: int) -> Answer:
        """One walk over the wishes, from the GPUs as they are."""
        ledger = now.gpu_ledger
        answer: Answer = fit(
            tuple(_asked(now.now_s, wishes, preempt, head)),
            tuple(self._columns_of(now.table)),
            ledger.holders,
            ledger.occupants,
            tuple(self._pools_of(ledger)),
            tuple(_quotas(now.queues)),
            self._slot,
            tuple(room),
        )
        return answer

    def _room_for(self, ledger: GpuLedger, wishes: int) -> Result:
        """Room for an answer, made anew only when the cluster or the number of wishes has outgrown it."""
        gpus, nodes = ledger.cluster.gpus, len(ledger.cluster.nodes)
        room = self._room
        if room is None or len(room.ready) != 2 * gpus or len(room.node_free) != nodes or len(room.changed) < wishes:
            room = self._room = _room(gpus, nodes, 2 * wishes)
        return room

    def _columns_of(self, table: JobTable) -> Columns:
        """The table's columns; a table that grows replaces its arrays."""
        if self._columns is None or self._columns.state is not table.state or self._columns.rates is not table.rates:
            self._columns = _columns(table)
        return self._columns

    def _pools_of(self, ledger: GpuLedger) -> Pools:
        """The open GPUs grouped by pool; rebuilt only when nodes come or go."""
        if self._pools is None or self._seen != (ledger, ledger.version):
            self._pools = _pools(ledger.cluster, ledger.gpu_open, self._rule, self._pack_limit, self._flat)
            self._seen = (ledger, ledger.version)
        return self._pools


def _starving(now: Snapshot, wishes: Wishes, room: Result, answer: Answer) -> int:
    """The row that has waited longest, longer than it should, and is not placed though the cluster could hold it."""
    table = now.table
    codes = table.reason[now.rows]
    at = np.searchsorted(now.rows, room.changed[: answer[3]])
    codes[at] = room.codes[: answer[3]]
    waits = ~now.has_gpus & ~np.isin(codes, _NOT_STARVING)
    waits &= now.now_s - now.waiting_since_s >= wishes.reserve_after_s
    if not waits.any():
        return NOBODY
    since_s = np.where(waits, now.waiting_since_s, np.inf)
    return int(now.rows[np.argmin(since_s)])


def _wishless(now: Snapshot, wishes: Wishes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Rows without GPUs that the policy wished nothing for, and why they wait, where that changes."""
    wished = np.zeros(len(now.table), np.bool_)
    wished[wishes.job] = True
    if len(wishes.partner):
        wished[wishes.partner[wishes.partner >= 0]] = True
    at = np.flatnonzero(~wished[now.rows] & ~now.has_gpus)
    rows = now.rows[at]
    most = np.where(now.rates[at] > 0, now.open_gpus, 0).max(axis=1, initial=0)
    too_small = most < now.table.gpus_min[rows]
    codes = np.where(too_small, int(Reason.CLUSTER_TOO_SMALL), int(wishes.waiting)).astype(np.uint8)
    changed = now.table.reason[rows] != codes
    return rows[changed], codes[changed]


def _asked(now_s: float, wishes: Wishes, preempt: bool, head: int) -> Asked:
    """The wishes as compiled code wants them: contiguous columns of exact types."""
    return Asked(
        now_s,
        np.ascontiguousarray(wishes.job, np.int64),
        np.ascontiguousarray(wishes.key, np.float64),
        np.ascontiguousarray(wishes.gpu_type, np.int64),
        np.ascontiguousarray(wishes.gpus_min, np.int64),
        np.ascontiguousarray(wishes.gpus_max, np.int64),
        np.ascontiguousarray(wishes.partner, np.int64),
        preempt,
        wishes.preempt,
        wishes.blocking,
        int(wishes.waiting),
        head,
    )


def _quotas(queues: QueueTree) -> Quotas:
    parent, low, top = queues.columns()
    return Quotas(parent, low, top, np.zeros(len(parent), np.int64), queues.has_minimum, queues.has_maximum)


def _room(gpus: int, nodes: int, wishes: int) -> Result:
    ints = [np.zeros(2 * gpus + 1, np.int64) for _ in range(7)]
    stopped, taker, row, first, gpu_ids, span, kept = ints
    changed, codes = np.zeros(max(wishes, 64), np.int64), np.zeros(max(wishes, 64), np.uint8)
    ready, node_free = np.zeros(2 * gpus, np.bool_), np.zeros(nodes, np.int64)
    return Result(stopped, taker, row, first, gpu_ids, span, ready, kept, changed, codes, node_free)


def _placements(room: Result, count: int) -> tuple[Placement, ...]:
    cuts = room.first[: count + 1].tolist()
    ids, spans, ready = room.gpu_ids[: cuts[-1]].tolist(), room.span[:count].tolist(), room.ready[:count].tolist()
    return tuple(
        Placement(row, tuple(ids[cuts[p] : cuts[p + 1]]), _SPANS[spans[p]], ready[p])
        for p, row in enumerate(room.row[:count].tolist())
    )


def _columns(table: JobTable) -> Columns:
    return Columns(
        table.state,
        table.reason,
        table.gpus_min,
        table.gpus_max,
        table.types,
        table.rates,
        table.skew,
        table.queue,
        table.protected_until_s,
        table.waiting_since_s,
        table.since_s,
        table.work_left,
        table.rate,
        table.best_rate,
    )


def _pools(cluster: Cluster, gpu_open: NDArray[np.bool_], rule: int, pack_limit: float, flat: bool) -> Pools:
    """Group GPUs by node, or by type where only the count matters."""
    gpu_pool = cluster.gpu_type if flat else cluster.gpu_node
    count = len(cluster.gpu_types) if flat else len(cluster.nodes)
    open_ids = np.flatnonzero(gpu_open)
    by_pool = open_ids[np.argsort(gpu_pool[open_ids], kind="stable")]
    capacity = np.bincount(gpu_pool[open_ids], minlength=count).astype(np.int64)
    pool_type = np.arange(count, dtype=np.int64) if flat else cluster.node_type
    return Pools(
        rule=rule,
        pack_limit=pack_limit,
        flat=flat,
        racks=1 if flat else len(cluster.racks),
        gpu_pool=np.where(gpu_open, gpu_pool, CLOSED),
        gpu_type=cluster.gpu_type,
        gpu_node=cluster.gpu_node,
        node_rack=cluster.node_rack,
        first=np.concatenate(([0], np.cumsum(capacity))).astype(np.int64),
        gpus=by_pool.astype(np.int64),
        type=pool_type,
        rack=np.zeros(count, np.int64) if flat else cluster.node_rack,
        capacity=capacity,
        by_capacity=np.argsort(-capacity, kind="stable").astype(np.int64),
        type_capacity=np.bincount(pool_type, weights=capacity, minlength=len(cluster.gpu_types)).astype(np.int64),
        shrunk=not bool(gpu_open.all()),
    )
