"""What live runs teach a simulation: how fast jobs are, and how long they take to start, to save and to leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from horae.core.arrays import Floats
from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.states import ENDED, State
from horae.service.history.journal_history import alike, worked_by_type

#: What nobody has seen is taken to take no time.
_NOTHING = 0.0


@dataclass(frozen=True)
class Costs:
    """Seconds from the first launch to work, from later ones, from the notice to being gone, from work to the end."""

    start_s: float
    restore_s: float
    checkpoint_s: float
    finish_s: float


@dataclass(frozen=True)
class Calibration:
    """What was measured, by job class; classes that nobody has seen have the median of all."""

    costs: Mapping[str, Costs]
    overall: Costs
    #: Steps/s by GPU type for each class and size of gang, medians over jobs that worked there.
    speeds: Mapping[tuple[str, int], Mapping[str, float]]

    def speeds_of(self, job_class: str, gpus: int) -> Mapping[str, float]:
        """Steps/s by GPU type, where they were measured."""
        return self.speeds.get((job_class, gpus), {})

    def applied(self, spec: JobSpec) -> JobSpec:
        """A job as it is expected to behave."""
        cost = self.costs.get(spec.job_class, self.overall)
        speeds = {**spec.throughput, **self.speeds_of(spec.job_class, spec.gpus)}
        accepted = {kind: rate for kind, rate in speeds.items() if not spec.gpu_types or kind in spec.gpu_types}
        return replace(
            spec,
            throughput=accepted,
            start_s=cost.start_s,
            restore_s=cost.restore_s,
            checkpoint_s=cost.checkpoint_s,
            finish_s=cost.finish_s,
        )


def calibrate(history: History) -> Calibration:
    """Learn from what happened."""
    worked_s = worked_by_type(history)
    overall = _costs(history, worked_s, range(len(history.jobs)), Costs(_NOTHING, _NOTHING, _NOTHING, _NOTHING))
    by_size, by_class = alike(history.jobs), dict[str, list[int]]()
    for (name, _), rows in by_size.items():
        by_class.setdefault(name, []).extend(rows)
    return Calibration(
        {name: _costs(history, worked_s, rows, overall) for name, rows in by_class.items()},
        overall,
        {key: _speeds(history, worked_s, rows) for key, rows in by_size.items()},
    )


def _costs(history: History, worked_s: Floats, rows: Sequence[int], otherwise: Costs) -> Costs:
    attempts = history.attempts
    of_rows = np.isin(attempts.job, list(rows))
    # Until a job has worked there is nothing to restore: the first that came so far tells what a start takes.
    worked = np.flatnonzero(~np.isnan(attempts.work_s))
    first = np.zeros(len(attempts.job), bool)
    first[worked[np.unique(attempts.job[worked], return_index=True)[1]]] = True
    loading_s = attempts.work_s - attempts.begin_s
    saving_s = attempts.end_s - attempts.stop_s
    return Costs(
        _middle(loading_s[of_rows & first], otherwise.start_s),
        _middle(loading_s[of_rows & ~first], otherwise.restore_s),
        _middle(saving_s[of_rows & attempts.preempted], otherwise.checkpoint_s),
        _middle(_leaving_s(history, worked_s)[list(rows)], otherwise.finish_s),
    )


def _leaving_s(history: History, worked_s: Floats) -> Floats:
    """How much longer each finished job took than its work takes at its speed.

    NaN for those that did not run in one piece: what is done between a notice and the end of a step would blur it.
    """
    attempts = history.attempts
    only = {int(job): number for number, job in enumerate(attempts.job)}
    whole = history.finished & (np.bincount(attempts.job, minlength=len(history.jobs)) == 1)
    left_s = np.full(len(history.jobs), np.nan)
    for row in np.flatnonzero(whole).tolist():
        gpu = attempts.gpu_ids[attempts.first[only[row]]]
        rate = history.rates[row, history.cluster.gpu_type[gpu]]
        if rate > 0:
            left_s[row] = max(0.0, float((worked_s[row] * history.rates[row]).sum() - history.jobs[row].work) / rate)
    return left_s


def _middle(values: Floats, otherwise: float) -> float:
    seen = values[~np.isnan(values)]
    # To the microsecond: what comes at the same moment must not come one after the other by rounding.
    return round(float(median(seen.tolist())), 6) if len(seen) else otherwise


def _speeds(history: History, worked_s: Floats, rows: Iterable[int]) -> dict[str, float]:
    speeds = {}
    for number, kind in enumerate(history.cluster.gpu_types):
        seen = [float(history.rates[row, number]) for row in rows if worked_s[row, number] > 0]
        if seen:
            speeds[kind] = median(seen)
    return speeds


def replayable(history: History) -> list[JobSpec]:
    """The jobs of a history as a workload for a simulation, at the speeds and with the costs that each had.

    A job that was cancelled, failed or was given up is taken to have wanted what it did; one that did nothing is left
    out. Nobody knows the losses it would have had later, so no app's scheduler is asked again.
    """
    known = calibrate(history)
    worked_s = worked_by_type(history)
    kinds, jobs = history.cluster.gpu_types, []
    for row, spec in enumerate(history.jobs):
        state = State(int(history.state[row]))
        done = float((worked_s[row] * history.rates[row]).sum())
        work = min(spec.work, done) if state in ENDED and state is not State.FINISHED else spec.work
        rates = {kind: float(rate) for kind, rate in zip(kinds, history.rates[row], strict=True) if rate > 0}
        if work > 0 and rates:
            calibrated = known.applied(replace(spec, work=work, app_scheduler="", report_every=0.0))
            jobs.append(replace(calibrated, throughput=rates))
    return jobs
