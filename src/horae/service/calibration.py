"""What live runs teach a simulation: how long jobs take to start, to come back and to save, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.states import ENDED, State
from horae.service.history import worked_by_type

#: What nobody has seen is taken to take no time.
_NOTHING = 0.0


@dataclass(frozen=True)
class Costs:
    """Seconds from the first launch to work, from later ones, and from the notice to being gone."""

    start_s: float
    restore_s: float
    checkpoint_s: float


@dataclass(frozen=True)
class Calibration:
    """What was measured, by job class; classes that nobody has seen have the median of all."""

    costs: Mapping[str, Costs]
    overall: Costs
    #: Steps/s by class and GPU type, medians over jobs that worked there.
    speeds: Mapping[str, Mapping[str, float]]

    def applied(self, spec: JobSpec) -> JobSpec:
        """A job as it is expected to behave."""
        cost = self.costs.get(spec.job_class, self.overall)
        speeds = {**spec.throughput, **self.speeds.get(spec.job_class, {})}
        accepted = {kind: rate for kind, rate in speeds.items() if not spec.gpu_types or kind in spec.gpu_types}
        return replace(
            spec,
            throughput=accepted,
            start_s=cost.start_s,
            restore_s=cost.restore_s,
            checkpoint_s=cost.checkpoint_s,
        )


def calibrate(history: History) -> Calibration:
    """Learn from what happened."""
    classes = sorted({job.job_class for job in history.jobs})
    of_class = {name: [row for row, job in enumerate(history.jobs) if job.job_class == name] for name in classes}
    overall = _costs(history, range(len(history.jobs)), Costs(_NOTHING, _NOTHING, _NOTHING))
    costs = {name: _costs(history, rows, overall) for name, rows in of_class.items()}
    return Calibration(costs, overall, {name: _speeds(history, rows) for name, rows in of_class.items()})


def _costs(history: History, rows: Iterable[int], otherwise: Costs) -> Costs:
    attempts = history.attempts
    of_rows = np.isin(attempts.job, list(rows))
    first = np.zeros(len(attempts.job), bool)
    first[np.unique(attempts.job, return_index=True)[1]] = True
    loading_s = attempts.work_s - attempts.begin_s
    saving_s = attempts.end_s - attempts.stop_s
    return Costs(
        _middle(loading_s[of_rows & first], otherwise.start_s),
        _middle(loading_s[of_rows & ~first], otherwise.restore_s),
        _middle(saving_s[of_rows & attempts.preempted], otherwise.checkpoint_s),
    )


def _middle(values: NDArray[np.float64], otherwise: float) -> float:
    seen = values[~np.isnan(values)]
    return float(median(seen.tolist())) if len(seen) else otherwise


def _speeds(history: History, rows: Iterable[int]) -> dict[str, float]:
    worked_s = worked_by_type(history)
    speeds = {}
    for number, kind in enumerate(history.cluster.gpu_types):
        seen = [float(history.rates[row, number]) for row in rows if worked_s[row, number] > 0]
        if seen:
            speeds[kind] = median(seen)
    return speeds


def replayable(history: History) -> list[JobSpec]:
    """The jobs of a history as a workload for a simulation, at the speeds and with the costs that each had.

    A job that was cancelled or failed is taken to have wanted what it did; one that did nothing is left out.
    """
    known = calibrate(history)
    worked_s = worked_by_type(history)
    kinds, begun_s = history.cluster.gpu_types, min((job.submit_s for job in history.jobs), default=0.0)
    jobs = []
    for row, spec in enumerate(history.jobs):
        state = State(int(history.state[row]))
        done = float((worked_s[row] * history.rates[row]).sum())
        work = min(spec.work, done) if state in ENDED and state is not State.FINISHED else spec.work
        rates = {kind: float(rate) for kind, rate in zip(kinds, history.rates[row], strict=True) if rate > 0}
        if work > 0 and rates:
            calibrated = known.applied(replace(spec, submit_s=spec.submit_s - begun_s, work=work))
            jobs.append(replace(calibrated, throughput=rates))
    return jobs
