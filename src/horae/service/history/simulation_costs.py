"""Calibration of a simulation from live runs: speeds of jobs, and their times to start, save and exit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from statistics import median

import numpy as np

from horae.core.arrays import Floats
from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.states import ENDED, State
from horae.service.history.journal_history import rows_by_class_and_size, worked_by_type

#: A launch or a stop that takes more than so many medians is an accident.
ACCIDENT = 5.0


@dataclass(frozen=True)
class Costs:
    """Seconds from first launch to work, from a later launch to work, from stop request to exit, from work to exit.

    Each includes what the backend takes to start processes, to pass a stop on, and to notice an end.
    """

    start_s: float
    restore_s: float
    checkpoint_s: float
    finish_s: float
    #: Seconds of `checkpoint_s` in which the job works on, since it has not heard of the stop.
    notice_s: float = 0.0

    def filled(self, overall: Costs) -> Costs:
        """These costs, with those of all jobs where NaN says that they were not observed.

        If no job was ever restored, that is taken to last as long as a start: processes must come up, too. If no job
        was ever stopped, that is taken to last as long as the end of a job that has done its work.
        """
        start_s, finish_s = _first_seen(self.start_s, overall.start_s), _first_seen(self.finish_s, overall.finish_s)
        return Costs(
            start_s,
            _first_seen(self.restore_s, overall.restore_s, start_s),
            _first_seen(self.checkpoint_s, overall.checkpoint_s, finish_s),
            finish_s,
            _first_seen(self.notice_s, overall.notice_s),
        )


@dataclass(frozen=True)
class Calibration:
    """Measured costs by job class; a class without measurements gets `overall`, those of all jobs."""

    costs: Mapping[str, Costs]
    overall: Costs
    #: Steps/s by GPU type, for each job class and GPU count: medians over jobs that worked on that type.
    speeds: Mapping[tuple[str, int], Mapping[str, float]]

    def speeds_of(self, job_class: str, gpus: int) -> Mapping[str, float]:
        """Measured steps/s by GPU type."""
        return self.speeds.get((job_class, gpus), {})

    def applied(self, spec: JobSpec) -> JobSpec:
        """A job with the measured speeds and costs."""
        cost = self.costs.get(spec.job_class, self.overall)
        speeds = {**spec.throughput, **self.speeds_of(spec.job_class, spec.gpus)}
        accepted = {
            gpu_type: rate for gpu_type, rate in speeds.items() if not spec.gpu_types or gpu_type in spec.gpu_types
        }
        return replace(
            spec,
            throughput=accepted,
            start_s=cost.start_s,
            restore_s=cost.restore_s,
            checkpoint_s=cost.checkpoint_s,
            finish_s=cost.finish_s,
            notice_s=cost.notice_s,
        )


def calibrate(history: History) -> Calibration:
    """Measure costs and speeds in a history."""
    worked_s = worked_by_type(history)
    overall = _costs(history, worked_s, range(len(history.jobs)))
    by_size, by_class = rows_by_class_and_size(history.jobs), dict[str, list[int]]()
    for (name, _), rows in by_size.items():
        by_class.setdefault(name, []).extend(rows)
    return Calibration(
        {name: _costs(history, worked_s, rows).filled(overall) for name, rows in by_class.items()},
        overall.filled(overall),
        {key: _speeds(history, worked_s, rows) for key, rows in by_size.items()},
    )


def _costs(history: History, worked_s: Floats, rows: Sequence[int]) -> Costs:
    """Costs of these jobs; NaN for what was not observed.

    Launches and stops were seen: their means add up in completion times, and some take twice as long as most. What jobs
    do in their last second is inferred from their speeds: a median is less often wrong.
    """
    attempts = history.attempts
    of_rows = np.isin(attempts.job, list(rows))
    # The first attempt of a job that came to work shows the cost of a start; later attempts restore a checkpoint.
    worked = np.flatnonzero(~np.isnan(attempts.work_s))
    first = np.zeros(len(attempts.job), bool)
    first[worked[np.unique(attempts.job[worked], return_index=True)[1]]] = True
    loading_s = attempts.work_s - attempts.begin_s
    saving_s = attempts.end_s - attempts.stop_s
    finish_s, notice_s = _finish_overhead_s(history, worked_s), np.full(len(history.jobs), np.nan)
    if history.leave:
        finish_s = np.where(np.isnan(finish_s), history.leave.finish_s, finish_s)
        notice_s = history.leave.notice_s
    return Costs(
        _mean(loading_s[of_rows & first]),
        _mean(loading_s[of_rows & ~first]),
        _mean(saving_s[of_rows & attempts.preempted]),
        _median(finish_s[list(rows)]),
        _median(notice_s[list(rows)]),
    )


def _finish_overhead_s(history: History, worked_s: Floats) -> Floats:
    """Seconds that each finished job took beyond its work at its speed.

    NaN for jobs with several attempts: work between a stop request and the end of a step would blur it.
    """
    attempts = history.attempts
    only = {int(job): number for number, job in enumerate(attempts.job)}
    in_one_attempt = history.finished & (np.bincount(attempts.job, minlength=len(history.jobs)) == 1)
    overhead_s = np.full(len(history.jobs), np.nan)
    for row in np.flatnonzero(in_one_attempt).tolist():
        gpu = attempts.gpu_ids[attempts.first[only[row]]]
        rate = history.rates[row, history.cluster.gpu_type[gpu]]
        if rate > 0:
            overhead_s[row] = max(
                0.0, float((worked_s[row] * history.rates[row]).sum() - history.jobs[row].work) / rate
            )
    return overhead_s


def _mean(values: Floats) -> float:
    """The mean without accidents, such as a launch that hung for a minute once; NaN if there are no values."""
    seen = values[~np.isnan(values)]
    return round(float(seen[seen <= ACCIDENT * np.median(seen)].mean()), 6) if len(seen) else nan


def _median(values: Floats) -> float:
    """The median; NaN if there are no values."""
    seen = values[~np.isnan(values)]
    # To the microsecond, so that simultaneous events do not become successive by rounding.
    return round(float(median(seen.tolist())), 6) if len(seen) else nan


def _first_seen(*values: float) -> float:
    """The first value that is not NaN; 0 if there is none."""
    return next((value for value in values if not isnan(value)), 0.0)


def _speeds(history: History, worked_s: Floats, rows: Iterable[int]) -> dict[str, float]:
    speeds = {}
    for number, gpu_type in enumerate(history.cluster.gpu_types):
        seen = [float(history.rates[row, number]) for row in rows if worked_s[row, number] > 0]
        if seen:
            speeds[gpu_type] = median(seen)
    return speeds


def replayable(history: History) -> list[JobSpec]:
    """The jobs of a history as a workload for a simulation, with their measured speeds and costs.

    The work of a cancelled, failed or given-up job is what it did; a job that did nothing is left out. App schedulers
    do not run again, since the later losses of stopped jobs are unknown.
    """
    calibration = calibrate(history)
    worked_s = worked_by_type(history)
    gpu_types, jobs = history.cluster.gpu_types, []
    for row, spec in enumerate(history.jobs):
        state = State(int(history.state[row]))
        done = float((worked_s[row] * history.rates[row]).sum())
        work = min(spec.work, done) if state in ENDED and state is not State.FINISHED else spec.work
        rates = {
            gpu_type: float(rate) for gpu_type, rate in zip(gpu_types, history.rates[row], strict=True) if rate > 0
        }
        if work > 0 and rates:
            calibrated = calibration.applied(replace(spec, work=work, app_scheduler="", report_every=0.0))
            jobs.append(replace(calibrated, throughput=rates))
    return jobs
