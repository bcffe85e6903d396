"""Invariants: what must hold after every event. Checked by tests and, on request, by drivers."""

from __future__ import annotations

import numpy as np

from horae.core.alike_nodes import is_alike
from horae.core.engine import Engine
from horae.core.node_room import asked_room, taken_room
from horae.core.quotas import QuotaUse
from horae.core.states import ALIVE, ENDED, LAUNCHING, PLACED, RUNNING, STATES, STOPPING, WAITING

_ACTIVE = (WAITING, PLACED, LAUNCHING, RUNNING, STOPPING)


class BrokenInvariant(AssertionError):
    """An invariant does not hold: a bug of Horae. The message has the values that show it."""


def check(engine: Engine, quotas_fixed: bool = True, nodes_fixed: bool = True) -> None:
    """Raise `BrokenInvariant` unless every invariant holds.

    A lowered quota holds from the next decision on and stops no job by itself, nor does a node that comes back with
    fewer CPUs or less memory: a driver with such changes checks with `quotas_fixed=False` or `nodes_fixed=False`.
    """
    _check_gpus(engine)
    _check_jobs(engine)
    if nodes_fixed:
        _check_room(engine)
    if quotas_fixed:
        _check_quotas(engine)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenInvariant(what)


def _check_gpus(engine: Engine) -> None:
    """No GPU has more jobs than seats; GPUs by job and jobs by GPU agree.

    Gangs are whole, of one GPU type, and on as many nodes, alike, as they ask for.
    """
    gpus, jobs = engine.gpus, engine.jobs
    for name, by_row, by_gpu in (("held", gpus.held, gpus.holders), ("occupied", gpus.occupied, gpus.occupants)):
        seen: dict[int, list[int]] = {}
        for row, ids in by_row.items():
            for gpu in ids:
                seen.setdefault(gpu, []).append(row)
            _require(
                bool(jobs.gpus_min[row] <= len(ids) <= jobs.gpus_max[row]),
                f"row {row} has {len(ids)} GPUs, not {jobs.gpus_min[row]} to {jobs.gpus_max[row]}",
            )
            types = {int(gpus.cluster.gpu_type[gpu]) for gpu in ids}
            _require(len(types) == 1, f"row {row} has GPUs of types {types}")
            nodes = int(jobs.nodes[row])
            where = gpus.cluster.gpu_labels(ids)
            _require(
                not nodes or is_alike(ids, nodes, gpus.cluster.gpu_node),
                f"row {row} asks for {nodes} nodes, alike, and is on {where}",
            )
            allowed = all(int(jobs.types[row]) >> gpu_type & 1 for gpu_type in types)
            _require(allowed, f"row {row} has GPUs of types {types}, which it cannot use")
        for gpu, rows in seen.items():
            seats = by_gpu[:, gpu].tolist()
            there = sorted(row for row in seats if row >= 0)
            _require(sorted(rows) == there, f"GPU {gpu} is {name} by {seats}, not by {rows}")
            _require(seats[0] >= 0, f"the first seat of GPU {gpu} is empty, {name} by {seats}")
            together = {by_row[row] for row in rows}
            _require(len(together) == 1, f"rows {rows} share GPU {gpu} but not all GPUs {name}: {together}")
        taken = int((by_gpu >= 0).sum())
        _require(taken == sum(map(len, seen.values())), f"{name} GPUs are not accounted for: {taken} seats, {seen}")


def _check_jobs(engine: Engine) -> None:
    """A job has one live attempt at most, no job is lost, and its state agrees with its GPUs."""
    jobs, gpus = engine.jobs, engine.gpus
    active = set(engine.jobs.active.tolist())
    _require(bool((np.diff(jobs.active) > 0).all()), "active rows are not in order")
    for row in range(len(jobs)):
        state = STATES[jobs.state[row]]
        name = f"row {row} ({state.name})"
        _require((row in active) == (state in _ACTIVE), f"{name} is wrongly {'in' if row in active else 'active'}")
        _require((row in gpus.occupied) == (state in ALIVE), f"{name} has the GPUs {gpus.occupied.get(row)}")
        if state in (LAUNCHING, RUNNING):
            _require(
                gpus.held.get(row) is gpus.occupied[row] or row in engine.evicted, f"{name} sits where it should not"
            )
        if state is PLACED:
            _require(row in gpus.held and row not in gpus.occupied, f"{name} has no GPUs set aside")
        if state is WAITING or state in ENDED:
            _require(row not in gpus.held, f"{name} holds {gpus.held.get(row)}")
        executing = bool(jobs.executing[row])
        _require(not executing or state is RUNNING or row in engine.evicted, f"{name} does work")
        _require(bool(0 <= jobs.work_left[row] <= jobs.work[row]), f"{name} has {jobs.work_left[row]} left")
        _require(state is not RUNNING or jobs.attempt[row] > 0, f"{name} runs without an attempt")


def _check_room(engine: Engine) -> None:
    """The jobs on a node have, and use, no more CPUs and memory than it has."""
    gpus, asks = engine.gpus, asked_room(engine.jobs)
    for name, seats in (("held", gpus.holders), ("occupied", gpus.occupants)):
        taken = taken_room(asks, seats, gpus.cluster)
        over = np.flatnonzero((taken > gpus.cluster.room).any(axis=0)).tolist()
        found = [(gpus.cluster.nodes[node], taken[:, node].tolist()) for node in over]
        _require(not over, f"more CPUs or memory are {name} than these nodes have: {found}")


def _check_quotas(engine: Engine) -> None:
    """No queue or user holds more GPUs than its maximum."""
    if not engine.queues.has_maximum:
        return
    use = QuotaUse(engine.queues)
    for row, ids in engine.gpus.held.items():
        use.add(int(engine.jobs.quota[row]), len(ids))
    over = use.over()
    _require(not over, f"these hold more GPUs than they may: {over}")
