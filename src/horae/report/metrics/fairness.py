"""Finish-time fairness by app: the time in the shared cluster over the time on a fair share.

The definition is that of Themis (NSDI '20, section 3) with two choices of ours.
The fair share is 1/N of the GPUs, but an app never counts more of them than it
could use: T_id = work / min(C / N, max_parallelism). The paper's T_cluster * N
would allow a 1-GPU job among 40 apps 40 times its running time; it is reported
beside ours. And N is the time average over the app's own life, not today's.
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
#: A moment, in seconds.
_JUST = 1e-3


@dataclass(frozen=True)
class AppFairness:
    """Every app of a run, in order of its first job; columns of equal length, NaN where unknown."""

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
class Lives:
    """When every app came and went; those that have not ended are there to the end of the run."""

    of_job: Ints
    first_job: Ints
    begin_s: Floats
    end_s: Floats

    @staticmethod
    def of(history: History) -> Lives:
        """From the first submission to the last end of each app's jobs."""
        names: dict[str, int] = {}
        of_job = np.array([names.setdefault(job.app_id, len(names)) for job in history.jobs], dtype=np.int64)
        first_job = np.full(len(names), len(of_job), dtype=np.int64)
        np.minimum.at(first_job, of_job, np.arange(len(of_job)))
        last_s = np.where(np.isnan(history.end_s), _horizon_s(history), history.end_s)
        begin_s = _smallest(history.submit_s, of_job, len(names))
        return Lives(of_job, first_job, begin_s, _largest(last_s, of_job, len(names)))

    def __len__(self) -> int:
        return len(self.first_job)

    def contention(self, until_s: Floats) -> Floats:
        """Apps there on average, from when each came to some time of its life."""
        return np.maximum(overlap(self.begin_s, self.end_s).means(self.begin_s, until_s), 1.0)


@dataclass(frozen=True)
class Fairness:
    """A distribution of slow-downs in four numbers; NaN where there is nothing to count."""

    avg: float
    max: float
    #: Share of the slow-downs above 1, that is, of those who would have fared better alone.
    over_1: float
    #: Jain's index: 1 when all are slowed down alike, 1/n when one bears it all.
    jain: float

    @staticmethod
    def of(slowdowns: Floats) -> Fairness:
        """Summarise; those that are NaN are left out."""
        known = slowdowns[~np.isnan(slowdowns)]
        if not len(known):
            return Fairness(np.nan, np.nan, np.nan, np.nan)
        return Fairness(
            avg=float(known.mean()),
            max=float(known.max()),
            over_1=float((known > 1 + TOLERANCE).mean()),
            jain=float(known.sum() ** 2 / (len(known) * (known**2).sum())),
        )


def finish_time_fairness(history: History) -> AppFairness:
    """Find rho of every app whose jobs have all ended and of which one at least finished.

    Work and finish time are those of the jobs that finished: trials that an app
    gave up count towards its life, and so to the contention others saw, but not
    towards what it was owed.
    """
    lives = Lives.of(history)
    of_job, contention = lives.of_job, lives.contention(lives.end_s)
    done = history.finished
    shared_s = _largest(history.end_s[done], of_job[done], len(lives)) - lives.begin_s
    shared_s[of_job[np.isnan(history.end_s)]] = np.nan
    shared_s[~np.isfinite(shared_s)] = np.nan
    demand = _owed(history, of_job, len(lives))
    capacity = history.cluster.gpus_by_type.astype(np.float64)
    fair_s = demand.time_on(capacity / contention[:, None])
    cluster_s = demand.time_on(np.broadcast_to(capacity, (len(lives), len(capacity))))
    paper = shared_s / (cluster_s * contention)
    return AppFairness(of_job, lives.first_job, contention, shared_s / fair_s, paper, shared_s)


def alone_until(history: History, app: str, at_s: float) -> float:
    """T_id of an app as it stands at some time: with as many others as there have been on average until then."""
    lives = Lives.of(history)
    number = next(k for k, job in enumerate(lives.first_job.tolist()) if history.jobs[job].app_id == app)
    # Somebody who has just come has seen those that are there now.
    until_s = np.maximum(lives.begin_s + _JUST, at_s)
    capacity = history.cluster.gpus_by_type / lives.contention(until_s)[:, None]
    return float(_owed(history, lives.of_job, len(lives)).time_on(capacity)[number])


def _owed(history: History, of_job: Ints, apps: int) -> AppDemand:
    """What the finished jobs of each app need."""
    done = np.flatnonzero(history.finished)
    jobs = [history.jobs[i] for i in done]
    work = np.array([job.work for job in jobs], dtype=np.float64)
    gangs = np.array([(job.gpus, job.gpus_min, job.gpus_max) for job in jobs], dtype=np.int64).reshape(-1, 3)
    gpus, least, most = gangs.T
    return AppDemand.of(of_job[done], apps, work, gpus, least, most, history.rates[done], history.cluster.gpus_by_type)


def _horizon_s(history: History) -> float:
    """The last moment the history knows of: jobs that have not ended are alive until then."""
    known = np.concatenate((history.submit_s, history.end_s, history.attempts.end_s))
    return float(np.nanmax(known)) if len(known) else 0.0


def _smallest(values: Floats, app: Ints, apps: int) -> Floats:
    least = np.full(apps, np.inf)
    np.minimum.at(least, app, values)
    return least


def _largest(values: Floats, app: Ints, apps: int) -> Floats:
    most = np.full(apps, -np.inf)
    np.maximum.at(most, app, values)
    return most
