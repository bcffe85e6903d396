"""The history of a run, from the engine at its end and the attempts that were recorded. Reports read it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from horae.core.engine import Engine
from horae.core.explain import explain
from horae.core.history import History, Recorder
from horae.core.policy import CountsEvents, RelaxesDeadlines
from horae.core.reasons import Reason
from horae.core.states import State


def history_of(engine: Engine, recorder: Recorder, rates: NDArray[np.float64], settings: Mapping[str, str]) -> History:
    """The history of a run. `rates`: the true work per second by job and GPU type, where it is known."""
    table, n, status = engine.jobs, len(engine.jobs), engine.status()
    start_s, end_s = table.first_started_s[:n].copy(), table.ended_s[:n].copy()
    start_s[np.isinf(start_s)] = np.nan
    end_s[np.isinf(end_s)] = np.nan
    return History(
        cluster=engine.gpus.cluster,
        jobs=tuple(table.specs),
        state=table.state[:n].copy(),
        start_s=start_s,
        end_s=end_s,
        rates=rates,
        attempts=recorder.attempts(engine.now_s),
        policy=engine.policy_name,
        settings=dict(settings),
        counters={"dropped_reports": engine.dropped_reports, **_counted(engine)},
        given_up=(table.state[:n] == State.CANCELLED) & (table.reason[:n] == Reason.GIVEN_UP),
        waiting={
            spec.id: explain(status, spec.id).sentence for row, spec in enumerate(table.specs) if np.isnan(end_s[row])
        },
        relaxed=_relaxed(engine),
        presence=recorder.presence(engine.gpus.cluster.gpu_types, engine.now_s),
    )


def _relaxed(engine: Engine) -> tuple[str, ...]:
    """Ids of the jobs whose deadlines the policy relaxed."""
    specs = engine.jobs.specs
    if not isinstance(engine.policy, RelaxesDeadlines):
        return ()
    given_up = engine.policy.relaxed(engine.memory, np.arange(len(specs)))
    return tuple(specs[row].id for row in np.flatnonzero(given_up).tolist())


def _counted(engine: Engine) -> dict[str, int]:
    """The policy's counters, if it has any."""
    return engine.policy.counters(engine.memory) if isinstance(engine.policy, CountsEvents) else {}
