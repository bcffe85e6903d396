"""History of a live run from its journal, in the form that reports read (`core.history.History`)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan, nan
from statistics import median

import numpy as np

from horae.core.arrays import Floats
from horae.core.commands import Decided, StopWhy
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobProgressed, JobsRetired, JobStarted, JobStopped
from horae.core.history import Attempts, History, LeaveTimes, Recorder
from horae.core.job import JobSpec
from horae.core.run_history import history_of
from horae.service.initial_settings import InitialSettings


def read_history(
    initial: InitialSettings, records: Iterable[Event | Decided], until_s: float | None = None, complete: bool = True
) -> History:
    """The history of a journal. Jobs that still run are cut at `until_s`, or at the last record.

    If the journal is not `complete`, because old records were dropped, only jobs submitted since then count.
    """
    # Learning needs every progress report, and most were compacted away.
    engine, recorder, meter = initial.engine(learn=False), Recorder(initial.nodes), _SpeedMeter()
    for record in records:
        if isinstance(record, JobsRetired):
            # Retired jobs stay in the report, but later records use renumbered rows: treat the journal as incomplete.
            complete = False
            continue
        if not complete and isinstance(record, Decided):
            record = restricted_to_jobs(record, engine.jobs.rows, engine.gpus.cluster.gpus)
        engine.apply(record)
        recorder.see(record, engine.jobs.rows)
        meter.see(record, engine)
    if until_s is not None:
        engine.advance(until_s)
    history = history_of(engine, recorder, engine.jobs.rates[: len(engine.jobs)].copy(), engine.policy_settings)
    rates = _observed_rates(history, meter.speeds(history))
    return replace(history, rates=rates, leave=meter.leave_times(history, rates))


def restricted_to_jobs(record: Decided, rows: Container[str], gpus: int) -> Decided:
    """The part of a decision that concerns known jobs and GPUs, without row numbers, which need a complete journal."""
    return Decided(
        record.at_s,
        planned=False,
        given_up=tuple(item for item in record.given_up if item.job in rows),
        stops=tuple(stop for stop in record.stops if stop.job in rows),
        withdrawn=tuple(job for job in record.withdrawn if job in rows),
        placed=tuple(item for item in record.placed if item.job in rows and max(item.gpu_ids) < gpus),
        launches=tuple(item for item in record.launches if item.job in rows and max(item.gpu_ids) < gpus),
    )


#: A time in seconds, and the work done by then.
_Point = tuple[float, float]
#: Least seconds for which a finished attempt counts as working.
_LEAST_WORK_S = 1e-3


@dataclass(slots=True)
class _AttemptTrack:
    """Points of one attempt's progress: launch, reports and end."""

    gpu_type: int
    #: Time of launch, and work in its checkpoint.
    launched: _Point
    #: Believed speed on the requested GPU count, close together, over believed speed on these GPUs.
    scale: float
    begun: _Point | None = None
    #: The first report, sent while the process still loads: not used for speeds. `first` is the second report.
    ready: _Point | None = None
    first: _Point | None = None
    last: _Point | None = None
    stop_s: float | None = None
    ended: _Point | None = None
    #: When the processes were gone, and whether the job had finished then.
    gone_s: float | None = None
    finished: bool = False
    #: Whether the attempt was lost with its node, and so may have done more than its checkpoint holds.
    lost: bool = False

    def report(self, point: _Point) -> None:
        """Add a progress report."""
        if self.ready is None:
            self.ready = point
        elif self.first is None:
            self.first = point
        self.last = point

    def begin(self, at_s: float) -> None:
        """Set the time since which the attempt works."""
        self.begun = self.begun or (max(self.launched[0], at_s), self.launched[1])

    def end(self, at_s: float, done: float) -> None:
        """Set the end. A stopped attempt worked until its stop request."""
        self.ended = (at_s if self.stop_s is None else self.stop_s, done)
        self.gone_s = at_s

    def finish(self, at_s: float, work: float) -> None:
        """Set the end with all work done. An attempt without a start event worked since its launch."""
        self.begin(-inf)
        assert self.begun is not None
        self.end(max(at_s, self.begun[0] + _LEAST_WORK_S), work)
        self.finished = True

    def finish_s(self, rate: float) -> float:
        """Seconds from the last work to the end at this speed; NaN if it did not finish, or reported too little."""
        if not self.finished or not self.ended or not self.gone_s or not self.first or not self.last:
            return nan
        return max(0.0, self.gone_s - self._done_s(self.ended[1], rate))

    def notice_s(self, rate: float) -> float:
        """Seconds of work after the stop request at this speed; NaN if it was not stopped, or reported too little."""
        if self.finished or self.stop_s is None or not self.ended or not self.gone_s or not self.first or not self.last:
            return nan
        if self.ended[1] < self.last[1]:
            return nan  # it did not save what it had done
        return min(max(0.0, self._done_s(self.ended[1], rate) - self.stop_s), self.gone_s - self.stop_s)

    def _done_s(self, work: float, rate: float) -> float:
        """When this work was done, judged from the last report."""
        assert self.last
        return self.last[0] + (work - self.last[1]) / rate

    def reported(self) -> _Point:
        """Seconds and work done between two reports; zeros if there are not as many."""
        return self._between(self.first, self.last)

    def lasted(self) -> _Point:
        """Seconds and work done from begin to end, with what it took to stop; zeros if unknown."""
        return (0.0, 0.0) if self.lost else self._between(self.begun, self.ended)

    def _between(self, start: _Point | None, end: _Point | None) -> _Point:
        if start and end and end[0] > start[0]:
            return end[0] - start[0], self.scale * (end[1] - start[1])
        return 0.0, 0.0


class _SpeedMeter:
    """Measures speeds of jobs from progress reports, without the time to start, save and exit where possible."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, int], _AttemptTrack] = {}

    def see(self, record: Event | Decided, engine: Engine) -> None:
        """Read one record: decisions launch and stop attempts, reports add points."""
        if isinstance(record, Decided):
            self._decided(record, engine)
            return
        if not isinstance(record, JobStarted | JobProgressed | JobStopped | JobFinished):
            return
        track = self._tracks.get((record.job, record.attempt))
        if track is None:
            return
        work = float(engine.jobs.work[engine.jobs.rows[record.job]])
        match record:
            case JobStarted():
                track.begin(record.at_s - record.up_s)
            # The report of 100 % comes only after the job has saved.
            case JobProgressed() if record.work_done < work:
                track.report((record.at_s, record.work_done))
            case JobStopped():
                track.end(record.at_s, record.work_done)
            case JobFinished():
                track.finish(record.at_s, work)

    def _decided(self, record: Decided, engine: Engine) -> None:
        type_of_gpu, jobs = engine.gpus.cluster.gpu_type, engine.jobs
        for stop in record.stops:
            if track := self._tracks.get((stop.job, stop.attempt)):
                track.stop_s, track.lost = record.at_s, stop.why is StopWhy.NODE_LOST
        for launch in record.launches:
            row, gpu_type = jobs.rows[launch.job], int(type_of_gpu[launch.gpu_ids[0]])
            rate_here = jobs.rate_on(row, gpu_type, len(launch.gpu_ids), launch.span)
            scale = float(jobs.rates[row, gpu_type]) / rate_here if rate_here > 0 else 1.0
            self._tracks[launch.job, launch.attempt] = _AttemptTrack(gpu_type, (record.at_s, launch.work_done), scale)

    def leave_times(self, history: History, rates: Floats) -> LeaveTimes:
        """How jobs left their GPUs, given their speeds: medians over the attempts of each job."""
        rows = {job.id: row for row, job in enumerate(history.jobs)}
        finish_s: list[list[float]] = [[] for _ in history.jobs]
        notice_s: list[list[float]] = [[] for _ in history.jobs]
        for (job, _), track in self._tracks.items():
            rate = float(rates[rows[job], track.gpu_type]) / track.scale
            if rate > 0:
                finish_s[rows[job]].append(track.finish_s(rate))
                notice_s[rows[job]].append(track.notice_s(rate))
        return LeaveTimes(_medians(finish_s), _medians(notice_s))

    def speeds(self, history: History) -> Floats:
        """Work per second of each job on each GPU type, between reports where it reported; NaN where unknown."""
        reported, lasted = (self._speeds(history, how) for how in (_AttemptTrack.reported, _AttemptTrack.lasted))
        return np.where(np.isnan(reported), lasted, reported)

    def _speeds(self, history: History, how: Callable[[_AttemptTrack], _Point]) -> Floats:
        rows = {job.id: row for row, job in enumerate(history.jobs)}
        spent_s, done = np.zeros_like(history.rates), np.zeros_like(history.rates)
        for (job, _), track in self._tracks.items():
            seconds, work = how(track)
            # An attempt that saved no work says nothing about the job's speed.
            if work > 0:
                spent_s[rows[job], track.gpu_type] += seconds
                done[rows[job], track.gpu_type] += work
        return np.where(done > 0, _ratio(done, spent_s), np.nan)


def _medians(values: Sequence[Sequence[float]]) -> Floats:
    """The median of each list, without NaN; NaN for lists without values."""
    seen = [[value for value in some if not isnan(value)] for some in values]
    return np.array([median(some) if some else nan for some in seen])


def _observed_rates(history: History, measured: Floats) -> Floats:
    """Speeds by job and GPU type: measured, else the median of the job's class and size, else the believed speed.

    Believed speeds are scaled by measured over believed speed of the job on other GPU types.
    """
    believed, worked_s = history.rates, worked_by_type(history)
    measured = np.where(believed > 0, measured, np.nan)
    seen = ~np.isnan(measured)
    of_class = np.full_like(believed, np.nan)
    for rows in rows_by_class_and_size(history.jobs).values():
        for gpu_type in np.flatnonzero(seen[rows].any(axis=0)):
            of_class[rows, gpu_type] = np.nanmedian(measured[rows, gpu_type])
    ratio = _ratio(np.where(seen, measured * worked_s, 0.0).sum(1), np.where(seen, believed * worked_s, 0.0).sum(1))
    guessed = np.where(np.isnan(of_class) | (believed <= 0), believed * ratio[:, None], of_class)
    return _rounded(np.where(seen, measured, guessed))


def _rounded(speeds: Floats) -> Floats:
    """Speeds to seven digits, so that equal GPU types do not differ by rounding: policies prefer the faster type."""
    return np.array([float(f"{speed:.7g}") for speed in speeds.flat]).reshape(speeds.shape)


def rows_by_class_and_size(jobs: Sequence[JobSpec]) -> dict[tuple[str, int], list[int]]:
    """Rows of the jobs by job class and GPU count."""
    rows: dict[tuple[str, int], list[int]] = {}
    for row, job in enumerate(jobs):
        rows.setdefault((job.job_class, job.gpus), []).append(row)
    return rows


def _ratio(above: Floats, below: Floats) -> Floats:
    """Above / below; 1 where `below` is 0."""
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), 1.0)


def worked_by_type(history: History) -> Floats:
    """Seconds that each job worked on each GPU type, converted to its requested GPU count."""
    attempts: Attempts = history.attempts
    worked_s = np.zeros((len(history.jobs), len(history.cluster.gpu_types)))
    began = ~np.isnan(attempts.work_s)
    gpu = attempts.gpu_ids[attempts.first[:-1][began]]
    spent_s = np.maximum(0.0, attempts.stop_s[began] - attempts.work_s[began])
    spent_s *= attempts.gpus[began] / history.gpus[attempts.job[began]]
    np.add.at(worked_s, (attempts.job[began], history.cluster.gpu_type[gpu]), spent_s)
    return worked_s
