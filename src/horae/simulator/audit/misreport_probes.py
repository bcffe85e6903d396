"""Would it have paid to lie? One decision made again, in an engine of its own, that believes what an app claims."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from horae.core.audit_observations import Probe, ProbeResult
from horae.core.engine import Engine
from horae.core.gpu_ledger import NOBODY
from horae.core.snapshot import Snapshot
from horae.core.throughputs import Speeds
from horae.simulator.audit.misreports import lies_of, tell

#: An app that gets nothing now is taken to get its best gang so much later: the usual length of a lease.
_NEXT_CHANCE_S = 1200.0


def probe(engine: Engine, now_s: float, true: Speeds, liars: int, rng: np.random.Generator) -> Iterator[Probe]:
    """Try every lie of some apps, drawn by lot from those that want something. The engine is not touched."""
    honest = engine.fork()
    if not honest.decide(now_s).planned:
        return
    table = engine.jobs
    apps = np.unique(table.app[table.active])
    for app in np.sort(rng.permutation(apps)[:liars]).tolist():
        rows = table.active[table.app[table.active] == app].tolist()
        held_types = {int(table.last_type[row]) for row in rows if row in engine.gpus.held}
        got = _got(honest, app, now_s, honest, true)
        for lie in lies_of(table, rows, held_types):
            fooled = engine.fork()
            tell(fooled, rows, lie, now_s)
            fooled.decide(now_s)
            gang = int(table.gpus[rows].max())
            yield Probe(now_s, table.apps[app], lie.name, gang, got, _got(fooled, app, now_s, honest, true))


def _got(engine: Engine, app: int, now_s: float, honest: Engine, true: Speeds) -> ProbeResult:
    """What an engine has decided to give an app, valued by true speeds and by the work that is really left."""
    now = honest.snapshot()
    mine = np.flatnonzero(now.table.app[now.rows] == app)
    rows = now.rows[mine].tolist()
    best = np.array([true.rates(now.table.specs[row], now.table.gpu_types).max() for row in rows])
    gpus_s = np.maximum(now.work_left[mine], 0.0) / best
    gangs = now.gpus[mine]
    speeds = [_speed(engine, row, now, true) for row in rows]
    speed = float((np.array(speeds) * gangs / best).sum())
    began_s = float(now.table.submit_s[: len(now.table)][now.table.app[: len(now.table)] == app].min())
    wait_s = 0.0 if speed > 0 else _NEXT_CHANCE_S
    left_s = max(float((gpus_s * gangs).sum()) / (speed or float(gangs.max())), float(gpus_s.max()))
    held = sum(len(engine.gpus.held.get(row, ())) for row in rows)
    return ProbeResult(held, speed, now_s - began_s + wait_s + left_s)


def _speed(engine: Engine, row: int, now: Snapshot, true: Speeds) -> float:
    """Work per second that a job really does on the GPUs it is to have."""
    gpu_ids = engine.gpus.held.get(row)
    if not gpu_ids:
        return 0.0
    specs = now.table.specs
    seats = engine.gpus.holders[:, gpu_ids[0]].tolist()
    beside = next((specs[other] for other in seats if other not in (NOBODY, row)), None)
    gpu_type = now.cluster.gpu_types[int(now.cluster.gpu_type[gpu_ids[0]])]
    return true.rate(specs[row], gpu_type, len(gpu_ids), now.machines.span(gpu_ids), beside)
