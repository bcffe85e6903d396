"""What a journal tells of the past: the history that every report reads, as a simulated run has it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event
from horae.core.history import Attempts, History, Recorder
from horae.core.telling import tell
from horae.service.beginning import Beginning

Floats = NDArray[np.float64]


def read_history(beginning: Beginning, records: Iterable[Event | Decided], until_s: float | None = None) -> History:
    """Fold a journal into a history. Jobs that still run are cut at `until_s`, or at the last record."""
    engine, recorder = beginning.engine(), Recorder()
    for record in records:
        engine.apply(record)
        recorder.see(record, engine.jobs.rows)
    if until_s is not None:
        engine.now_s = max(engine.now_s, until_s)
    told = tell(engine, recorder, engine.jobs.rates[: len(engine.jobs)].copy(), engine.policy_settings)
    return _with_true_rates(told, _done(engine))


def _done(engine: Engine) -> Floats:
    """Work that each job has done, by all that is known."""
    table, n = engine.jobs, len(engine.jobs)
    elapsed_s = np.maximum(0.0, engine.now_s - table.since_s[:n])
    left = np.maximum(0.0, table.work_left[:n] - table.rate[:n] * elapsed_s)
    done: Floats = table.work[:n] - left
    return done


def _with_true_rates(history: History, done: Floats) -> History:
    """The same with each job's own speed: what it did over how long it worked, on each type as classes differ there."""
    from dataclasses import replace

    worked_s = worked_by_type(history)
    reachable = history.rates > 0
    expected = (worked_s * history.rates).sum(axis=1)
    known = (expected > 0) & (done > 0)
    scale = np.where(known, done / np.where(known, expected, 1.0), 1.0)
    return replace(history, rates=np.where(reachable, history.rates * scale[:, None], 0.0))


def worked_by_type(history: History) -> Floats:
    """Seconds that each job worked on each GPU type."""
    attempts: Attempts = history.attempts
    worked_s = np.zeros((len(history.jobs), len(history.cluster.gpu_types)))
    began = ~np.isnan(attempts.work_s)
    gpu = attempts.gpu_ids[attempts.first[:-1][began]]
    spent_s = np.maximum(0.0, attempts.stop_s[began] - attempts.work_s[began])
    np.add.at(worked_s, (attempts.job[began], history.cluster.gpu_type[gpu]), spent_s)
    return worked_s
