"""What became of each job: the columns from which every number about jobs is made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.history import Attempts, History
from horae.report.metrics.fairness import AppFairness, finish_time_fairness
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.isolated_run import isolated_app_end_s, isolated_jct
from horae.report.metrics.step_functions import sums


@dataclass(frozen=True)
class Outcomes:
    """One entry a job, in order of submission; NaN where a number does not exist."""

    submit_s: Floats
    start_s: Floats
    end_s: Floats
    #: End minus submission of jobs that finished; failed and cancelled ones have none.
    jct_s: Floats
    #: Seconds in which the job held GPUs.
    held_s: Floats
    #: GPU-seconds the job held. Of GPUs that it shared, its share counts.
    gpu_seconds: Floats
    #: GPU-seconds without work, included above: loading, saving, and launches that failed.
    overhead_gpu_s: Floats
    #: GPU-seconds of work, included above, that was lost since the job was preempted and had saved nothing.
    lost_gpu_s: Floats
    preemptions: Ints
    #: Slow-down against the fluid isolated run of jobs.
    isolated_rho: Floats
    apps: AppFairness
    #: Slow-down of each app, in the order of `apps`, against the fluid isolated run of apps.
    isolated_rho_by_app: Floats

    @property
    def rho(self) -> Floats:
        """Slow-down of each job's app against its fair share."""
        return self.apps.rho[self.apps.of_job]

    @property
    def app_isolated_rho(self) -> Floats:
        """Slow-down of each job's app against the fluid isolated run of apps."""
        return self.isolated_rho_by_app[self.apps.of_job]

    @property
    def queueing_s(self) -> Floats:
        """From submission to the first start."""
        return self.start_s - self.submit_s

    @property
    def waiting_s(self) -> Floats:
        """All the time in which a finished job held no GPU."""
        return np.maximum(self.jct_s - self.held_s, 0.0)


def outcomes(history: History, holdings: Holdings) -> Outcomes:
    """Compute every job's columns. This is the slow step of a report, so keep the result."""
    submit_s, attempts, jobs = history.submit_s, history.attempts, len(history.jobs)
    jct_s = np.where(history.finished, history.end_s - submit_s, np.nan)
    work = np.array([job.work for job in history.jobs])
    alone_s = isolated_jct(submit_s, history.gpus, work, history.rates, history.gpus_by_type)
    holder = attempts.job[holdings.attempt]
    overhead_gpu_s = _overhead_gpu_s(attempts, holdings)
    apps = finish_time_fairness(history)
    return Outcomes(
        submit_s=submit_s,
        start_s=history.start_s,
        end_s=history.end_s,
        jct_s=jct_s,
        held_s=sums(attempts.end_s - attempts.begin_s, attempts.job, jobs),
        gpu_seconds=holdings.sums_by_row(holdings.gpu_s, holder, jobs),
        overhead_gpu_s=holdings.sums_by_row(overhead_gpu_s, holder, jobs),
        lost_gpu_s=_lost_gpu_s(attempts, holdings, overhead_gpu_s, jobs),
        preemptions=np.bincount(attempts.job[attempts.preempted], minlength=jobs),
        isolated_rho=jct_s / alone_s,
        apps=apps,
        isolated_rho_by_app=apps.shared_s / _isolated_app_s(history, apps, work, alone_s),
    )


def _isolated_app_s(history: History, apps: AppFairness, work: Floats, alone_s: Floats) -> Floats:
    """From the first submission of each app to its end in the fluid isolated run.

    As for rho, jobs that failed, were cancelled or given up add nothing. Jobs that have not ended
    take part, so that the other apps see them whether the policy left them open or not.
    """
    number = len(apps.first_job)
    takes_part = history.finished | np.isnan(history.end_s)
    if number == len(history.jobs) and takes_part.all():
        return alone_s
    end_s = isolated_app_end_s(
        apps.of_job[takes_part],
        number,
        history.submit_s[takes_part],
        history.gpus[takes_part],
        work[takes_part],
        history.rates[takes_part],
        history.gpus_by_type,
    )
    return end_s - history.submit_s[apps.first_job]


def _overhead_gpu_s(attempts: Attempts, holdings: Holdings) -> Floats:
    """GPU-seconds of each GPU of a row in which its attempt did no work; all if it was stopped before it had loaded."""
    begin_s = np.maximum(holdings.begin_s, attempts.work_s[holdings.attempt])
    end_s = np.minimum(holdings.end_s, attempts.stop_s[holdings.attempt])
    working_s = np.nan_to_num(np.maximum(end_s - begin_s, 0.0), nan=0.0)
    overhead: Floats = (holdings.end_s - holdings.begin_s - working_s) / holdings.holders
    return overhead


def _lost_gpu_s(attempts: Attempts, holdings: Holdings, overhead_gpu_s: Floats, jobs: int) -> Floats:
    """GPU-seconds of work that each job lost; `overhead_gpu_s` is by row of `holdings`."""
    if attempts.lost is None or not attempts.lost.any():
        return np.zeros(jobs)
    worked_gpu_s = np.where(attempts.lost[holdings.attempt], holdings.gpu_s - overhead_gpu_s, 0.0)
    return holdings.sums_by_row(worked_gpu_s, attempts.job[holdings.attempt], jobs)
