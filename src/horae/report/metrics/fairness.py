"""Finish-time fairness by app: the time in the shared cluster over the time on a fair share.

The definition is that of Themis (NSDI '20, section 3) with two choices of ours.
The fair share is 1/N of the GPUs, but an app never counts more of them than it
could use: T_id = work / min(C / N, max_parallelism). The paper's T_cluster * N
would allow a 1-GPU job among 40 apps 40 times its running time; it is reported
beside ours. And N is the time average over the app's own life, not today's.

N is that of the run itself, so T_id depends on the policy. `isolated_run.py` has a
yardstick that does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.app_demand import AppDemand
from horae.core.arrays import Floats, Ints
from horae.core.history import History
from horae.report.metrics.step_functions import overlap

#: What rounding alone may add to a ratio that is exactly 1.
TOLERANCE = 1e-9
#: Seconds of presence that an app is taken to have at least, so that an average over its life exists.
_LEAST_LIFE_S = 1e-3


@dataclass(frozen=True)
class AppFairness:
    """Every app of a run, in order of its first job. Columns of equal length; NaN where a number does not exist."""

    #: Number of the app of each job.
    of_job: Ints
    #: Position of each app's first job.
    first_job: Ints
    #: Time average of the number of apps alive, itself included, over the app's life.
    contention: Floats
    #: T_sh / T_id, ours.
    rho: Floats
    #: T_sh / (T_cluster * contention), the paper's.
    rho_paper: Floats
    #: T_sh: from its first submission to the end of the last of its jobs that finished.
    shared_s: Floats


@dataclass(frozen=True)
class AppLives:
    """When every app was present: from its first submission to its last end, or to the end of the run."""

    of_job: Ints
    first_job: Ints
    begin_s: Floats
    end_s: Floats

    @staticmethod
    def of(history: History) -> AppLives:
        """From the first submission to the last end of each app's jobs."""
        names: dict[str, int] = {}
        of_job = np.array([names.setdefault(job.app_id, len(names)) for job in history.jobs], dtype=np.int64)
        first_job = np.full(len(names), len(of_job), dtype=np.int64)
        np.minimum.at(first_job, of_job, np.arange(len(of_job)))
        last_s = np.where(np.isnan(history.end_s), _horizon_s(history), history.end_s)
        begin_s = _smallest(history.submit_s, of_job, len(names))
        return AppLives(of_job, first_job, begin_s, _largest(last_s, of_job, len(names)))

    def __len__(self) -> int:
        return len(self.first_job)

    def contention(self, until_s: Floats) -> Floats:
        """The number of apps present, averaged from each app's begin to `until_s`."""
        return np.maximum(overlap(self.begin_s, self.end_s).means(self.begin_s, until_s), 1.0)


@dataclass(frozen=True)
class Fairness:
    """A distribution of slow-downs in four numbers; NaN without any slow-down."""

    avg: float
    max: float
    #: Share of the slow-downs above 1: apps or jobs that would have been faster on their fair share.
    over_1: float
    #: Jain's index: 1 when all are slowed down alike, 1/n when one bears it all.
    jain: float

    @staticmethod
    def of(slowdowns: Floats) -> Fairness:
        """Summarise slow-downs; NaN is left out."""
        finite = slowdowns[~np.isnan(slowdowns)]
        if not len(finite):
            return Fairness(np.nan, np.nan, np.nan, np.nan)
        return Fairness(
            avg=float(finite.mean()),
            max=float(finite.max()),
            over_1=float((finite > 1 + TOLERANCE).mean()),
            jain=float(finite.sum() ** 2 / (len(finite) * (finite**2).sum())),
        )


def finish_time_fairness(history: History) -> AppFairness:
    """Find rho of every app whose jobs have all ended and of which one at least finished.

    Work and finish time are those of the jobs that finished: trials that an app
    gave up count towards its life, and so to the contention others saw, but not
    towards what it was owed.
    """
    lives = AppLives.of(history)
    of_job, contention = lives.of_job, lives.contention(lives.end_s)
    done = history.finished
    shared_s = _largest(history.end_s[done], of_job[done], len(lives)) - lives.begin_s
    shared_s[of_job[np.isnan(history.end_s)]] = np.nan
    shared_s[~np.isfinite(shared_s)] = np.nan
    demand = _finished_demand(history, of_job, len(lives))
    capacity = history.gpus_by_type.astype(np.float64)
    fair_s = demand.time_on(capacity / contention[:, None])
    cluster_s = demand.time_on(np.broadcast_to(capacity, (len(lives), len(capacity))))
    paper = shared_s / (cluster_s * contention)
    return AppFairness(of_job, lives.first_job, contention, shared_s / fair_s, paper, shared_s)


def alone_until(history: History, app: str, at_s: float) -> float:
    """T_id of an app at a time of its life: with the average number of apps present until then."""
    lives = AppLives.of(history)
    number = next(k for k, job in enumerate(lives.first_job.tolist()) if history.jobs[job].app_id == app)
    until_s = np.maximum(lives.begin_s + _LEAST_LIFE_S, at_s)
    capacity = history.gpus_by_type / lives.contention(until_s)[:, None]
    return float(_finished_demand(history, lives.of_job, len(lives)).time_on(capacity)[number])


def _finished_demand(history: History, of_job: Ints, apps: int) -> AppDemand:
    """What the finished jobs of each app need."""
    done = np.flatnonzero(history.finished)
    jobs = [history.jobs[i] for i in done]
    work = np.array([job.work for job in jobs], dtype=np.float64)
    gangs = np.array([(job.gpus, job.gpus_min, job.gpus_max) for job in jobs], dtype=np.int64).reshape(-1, 3)
    gpus, least, most = gangs.T
    return AppDemand.of(of_job[done], apps, work, gpus, least, most, history.rates[done], history.gpus_by_type)


def _horizon_s(history: History) -> float:
    """The end of the run: jobs that have not ended count as present until then."""
    times_s = np.concatenate((history.submit_s, history.end_s, history.attempts.end_s))
    return float(np.nanmax(times_s)) if len(times_s) else 0.0


def _smallest(values: Floats, app: Ints, apps: int) -> Floats:
    least = np.full(apps, np.inf)
    np.minimum.at(least, app, values)
    return least


def _largest(values: Floats, app: Ints, apps: int) -> Floats:
    most = np.full(apps, -np.inf)
    np.maximum.at(most, app, values)
    return most
