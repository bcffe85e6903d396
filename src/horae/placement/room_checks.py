"""Plans where CPUs or memory may run out: what the compiled walk leaves to be said about them."""

from __future__ import annotations

import numpy as np

from horae.core.cluster import Span
from horae.core.gpu_moves import NOBODY
from horae.core.node_room import LaunchRoom
from horae.core.plan import Placement, Plan
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes

_NONE, _VACATING = int(Reason.NONE), int(Reason.VACATING)


def without_pins(now: Snapshot, wishes: Wishes) -> Wishes:
    """Wishes that name their machines as wishes for so many GPUs of a type; other jobs come after them, as they came.

    The policy that chose the machines knows nothing of CPUs and memory: how many GPUs a job gets is its choice, where
    they are is not. GPUs that nobody can use by its choice go to the next job that can.
    """
    if wishes.pins is None:
        return wishes
    types, pinned = now.machines.gpu_type, len(wishes.job)
    others = np.setdiff1d(now.rows, wishes.job)
    gpus = np.full(pinned + len(others), -1, np.int64)
    gpu_type = gpus.copy()
    for i, machines in enumerate(wishes.pins):
        gpus[i], gpu_type[i] = sum(machines.values()), int(types[next(iter(machines))])
    rows = np.concatenate((wishes.job, others))
    return wishes._replace(job=rows, gpu_type=gpu_type, gpus_min=gpus, gpus_max=gpus.copy(), pins=None)


def with_room(now: Snapshot, plan: Plan, flat: bool) -> Plan:
    """The plan, in which no job is launched before its CPUs and memory are unused, and losers know their takers."""
    stopped = tuple((row, by if by != NOBODY else _taker(now, plan, row)) for row, by in plan.stopped)
    placed = tuple(new._replace(span=Span.NODE) if flat and len(new.gpu_ids) > 1 else new for new in plan.placed)
    room = LaunchRoom(now.table, now.gpu_ledger)
    placed = tuple(new._replace(ready=new.ready and room.take(new.row, new.gpu_ids)) for new in placed)
    late = {new.row for new, before in zip(placed, plan.placed, strict=True) if before.ready and not new.ready}
    plan = plan._replace(stopped=stopped, placed=placed)
    return _vacating(now, plan, late) if late else plan


def _taker(now: Snapshot, plan: Plan, row: int) -> int:
    """A job that gets GPUs of the same nodes as one that loses its GPUs, which nobody gets; -1 if there is none."""
    gpu_node = now.cluster.gpu_node
    nodes = set(gpu_node[list(now.gpu_ledger.held[row])].tolist())
    return next((new.row for new in plan.placed if new.row != row and _touches(new, nodes, gpu_node)), NOBODY)


def _touches(new: Placement, nodes: set[int], gpu_node: np.ndarray) -> bool:
    return not nodes.isdisjoint(gpu_node[list(new.gpu_ids)].tolist())


def _vacating(now: Snapshot, plan: Plan, rows: set[int]) -> Plan:
    """The plan in which some jobs, whose GPUs are set aside, wait until others have left."""
    codes = now.table.reason.copy()
    codes[plan.reason_rows] = plan.reason_codes
    codes[list(rows)] = _VACATING
    changed = np.flatnonzero(codes != now.table.reason)
    return plan._replace(reason_rows=changed, reason_codes=codes[changed])
