"""Would a misreport have paid? One decision made again, in a copy of the engine that believes the misreport."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from horae.core.audit_observations import Probe, ProbeResult
from horae.core.engine import Engine
from horae.core.gpu_moves import NOBODY
from horae.core.snapshot import Snapshot
from horae.core.throughputs import Speeds
from horae.simulator.audit.misreports import apply_misreport, misreports_of

#: An app that gets nothing now is assumed to get its largest gang after this many seconds, a usual lease.
_NEXT_CHANCE_S = 1200.0


def probe(engine: Engine, now_s: float, true: Speeds, liars: int, rng: np.random.Generator) -> Iterator[Probe]:
    """Try every misreport of `liars` apps, drawn by lot from the apps with active jobs. The engine is not changed."""
    honest = engine.fork()
    if not honest.decide(now_s).planned:
        return
    table = engine.jobs
    apps = np.unique(table.app[table.active])
    for app in np.sort(rng.permutation(apps)[:liars]).tolist():
        rows = table.active[table.app[table.active] == app].tolist()
        held_types = {int(table.last_type[row]) for row in rows if row in engine.gpus.held}
        honest_result = _result(honest, app, now_s, honest, true)
        for misreport in misreports_of(table, rows, held_types):
            misled = engine.fork()
            apply_misreport(misled, rows, misreport, now_s)
            misled.decide(now_s)
            gang = int(table.gpus[rows].max())
            lying_result = _result(misled, app, now_s, honest, true)
            yield Probe(now_s, table.apps[app], misreport.name, gang, honest_result, lying_result)


def _result(engine: Engine, app: int, now_s: float, honest: Engine, true: Speeds) -> ProbeResult:
    """What an engine's decision gave an app, valued by true speeds and the true work left."""
    now = honest.snapshot()
    positions = np.flatnonzero(now.table.app[now.rows] == app)
    rows = now.rows[positions].tolist()
    best = np.array([true.rates(now.table.specs[row], now.table.gpu_types).max() for row in rows])
    gpus_s = np.maximum(now.work_left[positions], 0.0) / best
    gangs = now.gpus[positions]
    speeds = [_speed(engine, row, now, true) for row in rows]
    speed = float((np.array(speeds) * gangs / best).sum())
    began_s = float(now.table.submit_s[: len(now.table)][now.table.app[: len(now.table)] == app].min())
    wait_s = 0.0 if speed > 0 else _NEXT_CHANCE_S
    left_s = max(float((gpus_s * gangs).sum()) / (speed or float(gangs.max())), float(gpus_s.max()))
    held = sum(len(engine.gpus.held.get(row, ())) for row in rows)
    return ProbeResult(held, speed, now_s - began_s + wait_s + left_s)


def _speed(engine: Engine, row: int, now: Snapshot, true: Speeds) -> float:
    """True work per second of a job on the GPUs that it holds in `engine`."""
    gpu_ids = engine.gpus.held.get(row)
    if not gpu_ids:
        return 0.0
    specs = now.table.specs
    seats = engine.gpus.holders[:, gpu_ids[0]].tolist()
    neighbour = next((specs[other] for other in seats if other not in (NOBODY, row)), None)
    gpu_type = now.cluster.gpu_types[int(now.cluster.gpu_type[gpu_ids[0]])]
    return true.rate(specs[row], gpu_type, len(gpu_ids), now.machines.span(gpu_ids), neighbour)
