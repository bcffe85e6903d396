"""Calibration of a simulation from live runs: speeds of jobs, and their times to start, save and exit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from horae.core.arrays import Floats
from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.states import ENDED, State
from horae.service.history.journal_history import rows_by_class_and_size, worked_by_type

#: Cost in seconds of a step that was never observed.
_NO_TIME = 0.0


@dataclass(frozen=True)
class Costs:
    """Seconds from first launch to work, from a later launch to work, from stop request to exit, from work to exit."""

    start_s: float
    restore_s: float
    checkpoint_s: float
    finish_s: float


@dataclass(frozen=True)
class Calibration:
    """Measured costs by job class; a class without measurements gets `overall`, the median of all jobs."""

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
        )


def calibrate(history: History) -> Calibration:
    """Measure costs and speeds in a history."""
    worked_s = worked_by_type(history)
    overall = _costs(history, worked_s, range(len(history.jobs)), Costs(_NO_TIME, _NO_TIME, _NO_TIME, _NO_TIME))
    by_size, by_class = rows_by_class_and_size(history.jobs), dict[str, list[int]]()
    for (name, _), rows in by_size.items():
        by_class.setdefault(name, []).extend(rows)
    return Calibration(
        {name: _costs(history, worked_s, rows, overall) for name, rows in by_class.items()},
        overall,
        {key: _speeds(history, worked_s, rows) for key, rows in by_size.items()},
    )


def _costs(history: History, worked_s: Floats, rows: Sequence[int], default: Costs) -> Costs:
    attempts = history.attempts
    of_rows = np.isin(attempts.job, list(rows))
    # The first attempt of a job that came to work shows the cost of a start; later attempts restore a checkpoint.
    worked = np.flatnonzero(~np.isnan(attempts.work_s))
    first = np.zeros(len(attempts.job), bool)
    first[worked[np.unique(attempts.job[worked], return_index=True)[1]]] = True
    loading_s = attempts.work_s - attempts.begin_s
    saving_s = attempts.end_s - attempts.stop_s
    return Costs(
        _median_or(loading_s[of_rows & first], default.start_s),
        _median_or(loading_s[of_rows & ~first], default.restore_s),
        _median_or(saving_s[of_rows & attempts.preempted], default.checkpoint_s),
        _median_or(_finish_overhead_s(history, worked_s)[list(rows)], default.finish_s),
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


def _median_or(values: Floats, default: float) -> float:
    seen = values[~np.isnan(values)]
    # To the microsecond, so that simultaneous events do not become successive by rounding.
    return round(float(median(seen.tolist())), 6) if len(seen) else default


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
