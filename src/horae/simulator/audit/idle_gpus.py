"""GPUs that are idle while a waiting job could use them, counted after every decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from horae.core.alike_nodes import choose_alike
from horae.core.arrays import Ints
from horae.core.audit_observations import Idleness, IdleStretch
from horae.core.engine import Engine
from horae.core.gpu_ledger import first_of_each
from horae.core.gpu_moves import NOBODY
from horae.core.node_room import NodeRoom, gpus_with_room, room_of
from horae.core.quotas import QuotaUse
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.states import State


class IdleWatch:
    """Adds up idle GPUs from one decision to the next."""

    def __init__(self) -> None:
        #: The stretch that began with the last decision.
        self._open: IdleStretch | None = None
        self._stretches, self._gpu_seconds = 0, 0.0
        self._by_reason: dict[str, float] = {}
        self._worst: IdleStretch | None = None

    def update(self, engine: Engine) -> None:
        """A decision was made: GPUs that are idle now stay idle until the next decision."""
        self.close(engine.now_s)
        self._open = idle_now(engine.snapshot())

    def close(self, now_s: float) -> None:
        """End the open stretch and count it."""
        idle, self._open = self._open, None
        if idle is None or now_s <= idle.begin_s:
            return
        idle = replace(idle, end_s=now_s)
        self._stretches += 1
        self._gpu_seconds += idle.gpu_seconds
        code = idle.reason.code
        self._by_reason[code] = self._by_reason.get(code, 0.0) + idle.gpu_seconds
        if self._worst is None or idle.gpu_seconds > self._worst.gpu_seconds:
            self._worst = idle

    def idleness(self) -> Idleness:
        """The sums over all stretches."""
        return Idleness(self._stretches, self._gpu_seconds, dict(self._by_reason), self._worst)


def idle_now(now: Snapshot) -> IdleStretch | None:
    """Idle GPUs that waiting jobs could use where they are, within their quotas; None if there are none.

    The count is a lower bound: gangs are placed greedily, large gangs first.
    """
    table, ledger = now.table, now.gpu_ledger
    waiting = now.rows[table.state[now.rows] == int(State.WAITING)]
    free = ledger.gpu_open & (ledger.holders[0] == NOBODY) & (ledger.occupants[0] == NOBODY)
    if not len(waiting) or not free.any():
        return None
    by_type = np.bincount(now.cluster.gpu_type[free], minlength=len(now.cluster.gpu_types))
    use = QuotaUse(now.queues)
    for row, gpu_ids in ledger.held.items():
        use.add(int(table.quota[row]), len(gpu_ids))
    fitting = waiting[_fits(table.types[waiting], table.gpus_min[waiting], by_type)]
    if now.queues.has_maximum:
        fitting = fitting[[use.room(int(table.quota[row])) >= table.gpus_min[row] for row in fitting.tolist()]]
    fitting = _without_nodes(now, fitting, free)
    left = room_of(table, ledger)
    if left is not None:
        fitting, free = _first_with_room(now, fitting, free, left)
        by_type = np.bincount(now.cluster.gpu_type[free], minlength=len(now.cluster.gpu_types))
    if not len(fitting):
        return None
    job = int(fitting[0])
    gangs = np.stack((table.gpus_min[fitting], table.types[fitting], table.quota[fitting]))
    reason = Reason(int(table.reason[job]))
    gpus = _usable(gangs, by_type, use)
    return IdleStretch(now.now_s, now.now_s, gpus, job, reason, _gpus_for(now, job, free, by_type))


def _without_nodes(now: Snapshot, fitting: Ints, free: NDArray[np.bool_]) -> Ints:
    """The jobs that ask for no number of nodes; if all do, the first one that has such nodes now.

    Where gangs need certain nodes, what several of them could use at once is not the sum of what each could.
    """
    if not now.table.nodes[fitting].any():
        return fitting
    plain: Ints = fitting[now.table.nodes[fitting] == 0]
    if len(plain):
        return plain
    by_type = np.bincount(now.cluster.gpu_type[free], minlength=len(now.cluster.gpu_types))
    first = next((row for row in fitting.tolist() if _gpus_for(now, row, free, by_type)), None)
    return plain if first is None else np.array([first], np.int64)


def _first_with_room(
    now: Snapshot, fitting: Ints, free: NDArray[np.bool_], left: NodeRoom
) -> tuple[Ints, NDArray[np.bool_]]:
    """The first job for which there are CPUs and memory, too, and the free GPUs that it could use.

    What several jobs could use at once is not the sum of what each could.
    """
    cluster, none = now.cluster, np.zeros_like(free)
    for row in fitting.tolist():
        cpus, memory_mb = left.asks[:, row].tolist()
        limit = gpus_with_room(left.idle, cpus, memory_mb, cluster.room_share)
        usable = none.copy()
        usable[first_of_each(np.flatnonzero(free), cluster.gpu_node[free], limit)] = True
        by_type = np.bincount(cluster.gpu_type[usable], minlength=len(cluster.gpu_types))
        if _gpus_for(now, row, usable, by_type):
            return np.array([row], np.int64), usable
    return fitting[:0], none


def _fits(types: Ints, gangs: Ints, by_type: Ints) -> NDArray[np.bool_]:
    """Whether each job's gang fits into the free GPUs of a type that the job can use."""
    bits = np.arange(len(by_type))
    usable = (types[:, None] >> bits) & 1 == 1
    fits: NDArray[np.bool_] = (usable & (gangs[:, None] <= by_type)).any(axis=1)
    return fits


def _usable(jobs: Ints, by_type: Ints, use: QuotaUse) -> int:
    """GPUs that jobs (rows: gang, types, quota) could use at once: equal jobs together, the largest gangs first."""
    left, used = by_type.copy(), 0
    distinct, counts = np.unique(jobs, axis=1, return_counts=True)
    for k in np.argsort(-distinct[0], kind="stable").tolist():
        gang, types, quota = distinct[:, k].tolist()
        wanted = int(counts[k])
        for gpu_type in np.flatnonzero((types >> np.arange(len(left))) & 1).tolist():
            placed = min(wanted, int(left[gpu_type]) // gang, use.room(quota) // gang)
            left[gpu_type] -= placed * gang
            use.add(quota, placed * gang)
            wanted, used = wanted - placed, used + placed * gang
    return used


def _gpus_for(now: Snapshot, job: int, free: NDArray[np.bool_], by_type: Ints) -> tuple[int, ...]:
    """GPUs that a job could have: the lowest of the type on which it is fastest, on nodes alike if it asks for that."""
    gang, nodes = int(now.table.gpus_min[job]), int(now.table.nodes[job])
    rates = np.where(by_type >= gang, now.table.rates[job], 0.0)
    for gpu_type in np.argsort(-rates, kind="stable").tolist():
        usable = np.flatnonzero(free & (now.cluster.gpu_type == gpu_type))
        found = choose_alike(usable, now.machines, nodes, gang) if nodes else tuple(usable[:gang].tolist())
        if rates[gpu_type] > 0 and found:
            return found
    return ()
