"""What a journal tells of the past: the history that every report reads, as a simulated run has it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobProgressed
from horae.core.history import Attempts, History, Recorder
from horae.core.telling import tell
from horae.service.beginning import Beginning

Floats = NDArray[np.float64]


def read_history(
    beginning: Beginning, records: Iterable[Event | Decided], until_s: float | None = None, whole: bool = True
) -> History:
    """Fold a journal into a history. Jobs that still run are cut at `until_s`, or at the last record.

    Of a journal that is not `whole`, because its oldest records are gone, only jobs count that were submitted since.
    """
    engine, recorder, reports = beginning.engine(), Recorder(), _Reports()
    for record in records:
        if not whole and isinstance(record, Decided):
            record = _of_known_jobs(record, engine.jobs.rows, engine.gpus.cluster.gpus)
        engine.apply(record)
        recorder.see(record, engine.jobs.rows)
        reports.see(record, engine)
    if until_s is not None:
        engine.now_s = max(engine.now_s, until_s)
    told = tell(engine, recorder, engine.jobs.rates[: len(engine.jobs)].copy(), engine.policy_settings)
    return replace(told, rates=_true_rates(told, reports.speeds(told), _done(engine)))


def _of_known_jobs(record: Decided, rows: Container[str], gpus: int) -> Decided:
    """What a decision did to jobs, on GPUs, that are known; row numbers mean nothing when the first rows are not."""
    return Decided(
        record.at_s,
        planned=False,
        stops=tuple(stop for stop in record.stops if stop.job in rows),
        withdrawn=tuple(job for job in record.withdrawn if job in rows),
        placed=tuple(one for one in record.placed if one.job in rows and max(one.gpu_ids) < gpus),
        launches=tuple(one for one in record.launches if one.job in rows and max(one.gpu_ids) < gpus),
    )


@dataclass(slots=True)
class _Way:
    """What one attempt told of itself on its way: where it was first seen, and where last."""

    gpu_type: int
    #: Moment and work done; the first report comes from a process that is still loading what it reports with, so
    #: the second one is the better beginning.
    ready: tuple[float, float] | None = None
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None

    def measured(self) -> tuple[float, float]:
        """Seconds, and the work done in them."""
        first = self.first if self.first and self.last and self.last[0] > self.first[0] else self.ready
        if first is None or self.last is None:
            return 0.0, 0.0
        return self.last[0] - first[0], self.last[1] - first[1]


class _Reports:
    """Speeds by what attempts reported while they worked: free of the time that starting, saving and leaving take."""

    def __init__(self) -> None:
        self._ways: dict[tuple[str, int], _Way] = {}

    def see(self, record: Event | Decided, engine: Engine) -> None:
        """A decision begins attempts, a report tells where one is."""
        if isinstance(record, Decided):
            kinds, jobs = engine.gpus.cluster.gpu_type, engine.jobs
            for launch in record.launches:
                # On another number of GPUs than it asked for a job has another speed.
                if len(launch.gpu_ids) == jobs.specs[jobs.rows[launch.job]].gpus:
                    self._ways[launch.job, launch.attempt] = _Way(int(kinds[launch.gpu_ids[0]]))
        elif isinstance(record, JobProgressed):
            way = self._ways.get((record.job, record.attempt))
            # What is done is reported only once it is saved, too.
            if way is not None and record.work_done < engine.jobs.work[engine.jobs.rows[record.job]]:
                self._note(way, (record.at_s, record.work_done))

    def _note(self, way: _Way, here: tuple[float, float]) -> None:
        if way.ready is None:
            way.ready = here
        elif way.first is None:
            way.first = here
        way.last = here

    def speeds(self, history: History) -> Floats:
        """Work per second of each job on each type; NaN where nobody saw it work."""
        rows = {job.id: row for row, job in enumerate(history.jobs)}
        spent_s, done = np.zeros_like(history.rates), np.zeros_like(history.rates)
        for (job, _), way in self._ways.items():
            seconds, work = way.measured()
            spent_s[rows[job], way.gpu_type] += seconds
            done[rows[job], way.gpu_type] += work
        with np.errstate(divide="ignore", invalid="ignore"):
            speeds: Floats = np.where(done > 0, done / spent_s, np.nan)
        return speeds


def _done(engine: Engine) -> Floats:
    """Work that each job has done, by all that is known."""
    table, n = engine.jobs, len(engine.jobs)
    elapsed_s = np.maximum(0.0, engine.now_s - table.since_s[:n])
    left = np.maximum(0.0, table.work_left[:n] - table.rate[:n] * elapsed_s)
    done: Floats = table.work[:n] - left
    return done


def _true_rates(history: History, measured: Floats, done: Floats) -> Floats:
    """Each job's own speed: as it was measured, and elsewhere as much more or less than was believed as what it did.

    What it did is judged by its reports, or without any by its work and the time it had.
    """
    believed, worked_s = history.rates, worked_by_type(history)
    seen = ~np.isnan(measured) & (believed > 0)
    by_reports = _over(np.where(seen, measured * worked_s, 0.0).sum(1), np.where(seen, believed * worked_s, 0.0).sum(1))
    by_time = np.where(done > 0, _over(done, (worked_s * believed).sum(1)), 1.0)
    ratio = np.where(seen.any(1), by_reports, by_time)
    return np.where(seen, measured, believed * ratio[:, None])


def _over(above: Floats, below: Floats) -> Floats:
    """A ratio; 1 where there is nothing to compare with."""
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), 1.0)


def worked_by_type(history: History) -> Floats:
    """Seconds that each job worked on each GPU type."""
    attempts: Attempts = history.attempts
    worked_s = np.zeros((len(history.jobs), len(history.cluster.gpu_types)))
    began = ~np.isnan(attempts.work_s)
    gpu = attempts.gpu_ids[attempts.first[:-1][began]]
    spent_s = np.maximum(0.0, attempts.stop_s[began] - attempts.work_s[began])
    np.add.at(worked_s, (attempts.job[began], history.cluster.gpu_type[gpu]), spent_s)
    return worked_s
