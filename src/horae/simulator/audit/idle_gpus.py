"""GPUs that nobody uses while somebody waits for them, found after every decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Ints
from horae.core.audit_observations import Idleness, IdleStretch
from horae.core.engine import Engine
from horae.core.gpu_ledger import NOBODY
from horae.core.queues import QueueTree
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.states import State


class IdleWatch:
    """Adds up idle GPUs from one decision to the next."""

    def __init__(self) -> None:
        self._open: IdleStretch | None = None
        self._stretches, self._gpu_seconds = 0, 0.0
        self._by_reason: dict[str, float] = {}
        self._worst: IdleStretch | None = None

    def look(self, engine: Engine) -> None:
        """A decision was made: what is idle now stays so until the next."""
        self.close(engine.now_s)
        self._open = idle_now(engine.snapshot())

    def close(self, now_s: float) -> None:
        """Count what was idle until now."""
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
        """All there was."""
        return Idleness(self._stretches, self._gpu_seconds, dict(self._by_reason), self._worst)


def idle_now(now: Snapshot) -> IdleStretch | None:
    """GPUs that are idle though a waiting job could use them where they are, within its quota; None if there are none.

    Whatever is counted could run at once; gangs are put there greedily, large ones first, so more might.
    """
    table, ledger = now.table, now.gpu_ledger
    waiting = now.rows[table.state[now.rows] == int(State.WAITING)]
    free = ledger.gpu_open & (ledger.holders[0] == NOBODY) & (ledger.occupants[0] == NOBODY)
    if not len(waiting) or not free.any():
        return None
    by_type = np.bincount(now.cluster.gpu_type[free], minlength=len(now.cluster.gpu_types))
    room = _Room(now.queues, ledger.held, table.queue)
    fitting = waiting[_fits(table.types[waiting], table.gpus_min[waiting], by_type)]
    if now.queues.has_maximum:
        fitting = fitting[[room.of(int(table.queue[row])) >= table.gpus_min[row] for row in fitting.tolist()]]
    if not len(fitting):
        return None
    job = int(fitting[0])
    gangs = np.stack((table.gpus_min[fitting], table.types[fitting], table.queue[fitting]))
    reason = Reason(int(table.reason[job]))
    gpus = _usable(gangs, by_type, room)
    return IdleStretch(now.now_s, now.now_s, gpus, job, reason, _gpus_for(now, job, free, by_type))


def _fits(types: Ints, gangs: Ints, by_type: Ints) -> NDArray[np.bool_]:
    """Whose gang some type that it can use has room for."""
    bits = np.arange(len(by_type))
    usable = (types[:, None] >> bits) & 1 == 1
    fits: NDArray[np.bool_] = (usable & (gangs[:, None] <= by_type)).any(axis=1)
    return fits


def _usable(jobs: Ints, by_type: Ints, room: _Room) -> int:
    """GPUs that gangs (columns: size, types, queue) could use at once, by kind of gang, the largest first."""
    left, used = by_type.copy(), 0
    kinds, counts = np.unique(jobs, axis=1, return_counts=True)
    for k in np.argsort(-kinds[0], kind="stable").tolist():
        gang, types, queue = kinds[:, k].tolist()
        wanted = int(counts[k])
        for gpu_type in np.flatnonzero((types >> np.arange(len(left))) & 1).tolist():
            placed = min(wanted, int(left[gpu_type]) // gang, room.of(queue) // gang)
            left[gpu_type] -= placed * gang
            room.use(queue, placed * gang)
            wanted, used = wanted - placed, used + placed * gang
    return used


def _gpus_for(now: Snapshot, job: int, free: NDArray[np.bool_], by_type: Ints) -> tuple[int, ...]:
    """GPUs that a job could have had: of the type on which it is fastest, the lowest numbers."""
    gang = int(now.table.gpus_min[job])
    rates = np.where(by_type >= gang, now.table.rates[job], 0.0)
    mine = np.flatnonzero(free & (now.cluster.gpu_type == int(rates.argmax())))
    return tuple(mine[:gang].tolist())


class _Room:
    """GPUs that queues may still have."""

    def __init__(self, queues: QueueTree, held: dict[int, tuple[int, ...]], queue_of: Ints) -> None:
        self._parent, _, top = queues.columns()
        self._left, self._limited = top.copy(), queues.has_maximum
        if self._limited:
            for row, gpu_ids in held.items():
                self.use(int(queue_of[row]), len(gpu_ids))

    def of(self, queue: int) -> int:
        """How many more GPUs a queue may have, by its own maximum and by those above it."""
        if not self._limited:
            return int(self._left[0])
        return int(min(self._left[above] for above in self._path(queue)))

    def use(self, queue: int, gpus: int) -> None:
        """Count GPUs."""
        for above in self._path(queue):
            self._left[above] -= gpus

    def _path(self, queue: int) -> list[int]:
        path = []
        while queue >= 0:
            path.append(queue)
            queue = int(self._parent[queue])
        return path
