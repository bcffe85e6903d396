"""What a journal tells of the past: the history that every report reads, as a simulated run has it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from horae.core.arrays import Floats
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobProgressed, JobsRetired, JobStarted, JobStopped
from horae.core.history import Attempts, History, Recorder
from horae.core.job import JobSpec
from horae.core.run_history import history_of
from horae.service.recovery import InitialSettings


def read_history(
    beginning: InitialSettings, records: Iterable[Event | Decided], until_s: float | None = None, whole: bool = True
) -> History:
    """Fold a journal into a history. Jobs that still run are cut at `until_s`, or at the last record.

    Of a journal that is not `whole`, because its oldest records are gone, only jobs count that were submitted since.
    """
    # What it would learn depends on every report, and most are not kept.
    engine, recorder, reports = beginning.engine(learn=False), Recorder(), _Reports()
    for record in records:
        if isinstance(record, JobsRetired):
            # Nobody leaves a report; but rows that later records name are none of its.
            whole = False
            continue
        if not whole and isinstance(record, Decided):
            record = of_known_jobs(record, engine.jobs.rows, engine.gpus.cluster.gpus)
        engine.apply(record)
        recorder.see(record, engine.jobs.rows)
        reports.see(record, engine)
    if until_s is not None:
        engine.now_s = max(engine.now_s, until_s)
    told = history_of(engine, recorder, engine.jobs.rates[: len(engine.jobs)].copy(), engine.policy_settings)
    return replace(told, rates=_true_rates(told, reports.speeds(told)))


def of_known_jobs(record: Decided, rows: Container[str], gpus: int) -> Decided:
    """What a decision did to jobs, on GPUs, that are known; row numbers mean nothing when the first rows are not."""
    return Decided(
        record.at_s,
        planned=False,
        given_up=tuple(one for one in record.given_up if one.job in rows),
        stops=tuple(stop for stop in record.stops if stop.job in rows),
        withdrawn=tuple(job for job in record.withdrawn if job in rows),
        placed=tuple(one for one in record.placed if one.job in rows and max(one.gpu_ids) < gpus),
        launches=tuple(one for one in record.launches if one.job in rows and max(one.gpu_ids) < gpus),
    )


#: A moment, and the work done by then.
_Point = tuple[float, float]
#: No job works for less.
_MOMENT_S = 1e-3


@dataclass(slots=True)
class _Way:
    """What one attempt told of itself on its way: where it began, where it was seen, and where it ended."""

    gpu_type: int
    #: When it was launched, and what its checkpoint held.
    launched: _Point
    #: How much faster the job was believed to be on as many GPUs as it asked for, and close together, than here.
    scale: float
    begun: _Point | None = None
    #: The first report comes from a process that is still loading what it reports with: the second one is exact.
    ready: _Point | None = None
    first: _Point | None = None
    last: _Point | None = None
    stop_s: float | None = None
    ended: _Point | None = None

    def report(self, here: _Point) -> None:
        """It tells where it is."""
        if self.ready is None:
            self.ready = here
        elif self.first is None:
            self.first = here
        self.last = here

    def begin(self, at_s: float) -> None:
        """It worked from then on."""
        self.begun = self.begun or (max(self.launched[0], at_s), self.launched[1])

    def end(self, at_s: float, done: float) -> None:
        """It is over; it has worked until it was told to stop, if it was."""
        self.ended = (at_s if self.stop_s is None else self.stop_s, done)

    def finish(self, at_s: float, work: float) -> None:
        """It has done all; one that was over before it could say that it had begun has worked all its life."""
        self.begin(-inf)
        assert self.begun is not None
        self.end(max(at_s, self.begun[0] + _MOMENT_S), work)

    def measured(self) -> _Point:
        """Seconds, and the work done in them: from one report to another if there are such, or from begin to end."""
        for one, other in ((self.first, self.last), (self.begun, self.ended)):
            if one and other and other[0] > one[0]:
                return other[0] - one[0], self.scale * (other[1] - one[1])
        return 0.0, 0.0


class _Reports:
    """How fast jobs were by what attempts reported: as far as can be, without the time to start, save and leave."""

    def __init__(self) -> None:
        self._ways: dict[tuple[str, int], _Way] = {}

    def see(self, record: Event | Decided, engine: Engine) -> None:
        """A decision begins attempts and ends them, a report tells where one is."""
        if isinstance(record, Decided):
            self._decided(record, engine)
            return
        if not isinstance(record, JobStarted | JobProgressed | JobStopped | JobFinished):
            return
        way = self._ways.get((record.job, record.attempt))
        if way is None:
            return
        work = float(engine.jobs.work[engine.jobs.rows[record.job]])
        match record:
            case JobStarted():
                way.begin(record.at_s - record.up_s)
            # That all is done is reported only once it is saved, too.
            case JobProgressed() if record.work_done < work:
                way.report((record.at_s, record.work_done))
            case JobStopped():
                way.end(record.at_s, record.work_done)
            case JobFinished():
                way.finish(record.at_s, work)

    def _decided(self, record: Decided, engine: Engine) -> None:
        kinds, jobs = engine.gpus.cluster.gpu_type, engine.jobs
        for stop in record.stops:
            if (stop.job, stop.attempt) in self._ways:
                self._ways[stop.job, stop.attempt].stop_s = record.at_s
        for launch in record.launches:
            row, kind = jobs.rows[launch.job], int(kinds[launch.gpu_ids[0]])
            here = jobs.rate_on(row, kind, len(launch.gpu_ids), launch.span)
            scale = float(jobs.rates[row, kind]) / here if here > 0 else 1.0
            self._ways[launch.job, launch.attempt] = _Way(kind, (record.at_s, launch.work_done), scale)

    def speeds(self, history: History) -> Floats:
        """Work per second of each job on each type; NaN where nobody saw it work."""
        rows = {job.id: row for row, job in enumerate(history.jobs)}
        spent_s, done = np.zeros_like(history.rates), np.zeros_like(history.rates)
        for (job, _), way in self._ways.items():
            seconds, work = way.measured()
            # What was lost with an attempt, or never saved, says nothing of how fast the job is.
            if work > 0:
                spent_s[rows[job], way.gpu_type] += seconds
                done[rows[job], way.gpu_type] += work
        return np.where(done > 0, _over(done, spent_s), np.nan)


def _true_rates(history: History, measured: Floats) -> Floats:
    """Each job's own speed where it worked; elsewhere as others of its class and size had it, or as it was believed.

    What is believed is corrected by how much faster or slower the job was where it was seen.
    """
    believed, worked_s = history.rates, worked_by_type(history)
    measured = np.where(believed > 0, measured, np.nan)
    seen = ~np.isnan(measured)
    as_others = np.full_like(believed, np.nan)
    for rows in alike(history.jobs).values():
        for kind in np.flatnonzero(seen[rows].any(axis=0)):
            as_others[rows, kind] = np.nanmedian(measured[rows, kind])
    ratio = _over(np.where(seen, measured * worked_s, 0.0).sum(1), np.where(seen, believed * worked_s, 0.0).sum(1))
    guessed = np.where(np.isnan(as_others) | (believed <= 0), believed * ratio[:, None], as_others)
    return _rounded(np.where(seen, measured, guessed))


def _rounded(speeds: Floats) -> Floats:
    """Speeds to seven digits: types that are alike must not differ by rounding, for the faster one is taken."""
    return np.array([float(f"{speed:.7g}") for speed in speeds.flat]).reshape(speeds.shape)


def alike(jobs: Sequence[JobSpec]) -> dict[tuple[str, int], list[int]]:
    """Rows of the jobs of each class and size."""
    rows: dict[tuple[str, int], list[int]] = {}
    for row, job in enumerate(jobs):
        rows.setdefault((job.job_class, job.gpus), []).append(row)
    return rows


def _over(above: Floats, below: Floats) -> Floats:
    """A ratio; 1 where there is nothing to compare with."""
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), 1.0)


def worked_by_type(history: History) -> Floats:
    """Seconds that each job worked on each GPU type, as if always on as many GPUs as it asked for."""
    attempts: Attempts = history.attempts
    worked_s = np.zeros((len(history.jobs), len(history.cluster.gpu_types)))
    began = ~np.isnan(attempts.work_s)
    gpu = attempts.gpu_ids[attempts.first[:-1][began]]
    spent_s = np.maximum(0.0, attempts.stop_s[began] - attempts.work_s[began])
    spent_s *= attempts.gpus[began] / history.gpus[attempts.job[began]]
    np.add.at(worked_s, (attempts.job[began], history.cluster.gpu_type[gpu]), spent_s)
    return worked_s
