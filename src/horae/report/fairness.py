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
from numpy.typing import NDArray

from horae.core.history import History
from horae.report.series import Floats, Ints, overlap, sums

#: What rounding alone may add to a ratio that is exactly 1.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Apps:
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


def finish_time_fairness(history: History) -> Apps:
    """Find rho of every app whose jobs have all ended and of which one at least finished.

    Work and finish time are those of the jobs that finished: trials that an app
    gave up count towards its life, and so to the contention others saw, but not
    towards what it was owed.
    """
    names: dict[str, int] = {}
    of_job = np.array([names.setdefault(job.app_id, len(names)) for job in history.jobs], dtype=np.int64)
    first_job = np.full(len(names), len(of_job), dtype=np.int64)
    np.minimum.at(first_job, of_job, np.arange(len(of_job)))

    begin_s = _smallest(history.submit_s, of_job, len(names))
    last_s = np.where(np.isnan(history.end_s), _horizon_s(history), history.end_s)
    end_s = _largest(last_s, of_job, len(names))
    contention = np.maximum(overlap(begin_s, end_s).means(begin_s, end_s), 1.0)

    done = history.finished
    shared_s = _largest(history.end_s[done], of_job[done], len(names)) - begin_s
    shared_s[of_job[np.isnan(history.end_s)]] = np.nan
    shared_s[~np.isfinite(shared_s)] = np.nan
    demand = _Demand.of(history, of_job, len(names))
    capacity = history.cluster.gpus_by_type.astype(np.float64)
    fair_s = demand.time_on(capacity / contention[:, None])
    cluster_s = demand.time_on(np.broadcast_to(capacity, (len(names), len(capacity))))
    return Apps(of_job, first_job, contention, shared_s / fair_s, shared_s / (cluster_s * contention), shared_s)


@dataclass(frozen=True)
class _Demand:
    """What the finished jobs of each app need, by app and GPU type; infinite where a gang does not fit."""

    serial_gpu_s: Floats
    longest_s: Floats
    max_parallelism: Floats
    #: Whether the app's jobs need several types, so that each must go to its own best one.
    split: NDArray[np.bool_]

    @staticmethod
    def of(history: History, of_job: Ints, apps: int) -> _Demand:
        done = np.flatnonzero(history.finished)
        jobs = [history.jobs[i] for i in done]
        app, capacity = of_job[done], history.cluster.gpus_by_type
        work, gpus = np.array([job.work for job in jobs]), np.array([job.gpus for job in jobs])
        fewest, most = np.array([job.gpus_min for job in jobs]), np.array([job.gpus_max for job in jobs], dtype=float)
        rates = history.rates[done]
        fits = (rates > 0) & (fewest[:, None] <= capacity)
        serial = np.where(fits, (work * gpus)[:, None] / np.where(fits, rates, 1.0), np.inf)

        # An app no single type can hold is spread: each job on the type that runs it fastest.
        split: NDArray[np.bool_] = np.all(np.isinf(_sums(serial, app, apps)), axis=1)
        elsewhere = split[app][:, None] & (np.arange(len(capacity)) != serial.argmin(axis=1)[:, None])
        serial = np.where(elsewhere, 0.0, serial)
        widest = np.where(elsewhere, 0.0, most[:, None])
        longest = np.zeros((apps, len(capacity)))
        np.maximum.at(longest, app, serial / np.minimum(most[:, None], capacity))
        return _Demand(_sums(serial, app, apps), longest, _sums(widest, app, apps), split)

    def time_on(self, share: Floats) -> Floats:
        """Seconds each app needs on its share of each type: on the best type, or on all it is spread over."""
        width = np.minimum(share, self.max_parallelism)
        busy = np.divide(self.serial_gpu_s, width, out=np.zeros_like(width), where=width > 0)
        times = np.maximum(busy, self.longest_s)
        needed: Floats = np.where(self.split, times.max(axis=1), times.min(axis=1))
        return np.where(np.isfinite(needed), needed, np.nan)


def _horizon_s(history: History) -> float:
    """The last moment the history knows of: jobs that have not ended are alive until then."""
    known = np.concatenate((history.submit_s, history.end_s, history.attempts.end_s))
    return float(np.nanmax(known)) if len(known) else 0.0


def _sums(values: Floats, app: Ints, apps: int) -> Floats:
    """Column sums by app."""
    return np.stack([sums(column, app, apps) for column in values.T], axis=1)


def _smallest(values: Floats, app: Ints, apps: int) -> Floats:
    least = np.full(apps, np.inf)
    np.minimum.at(least, app, values)
    return least


def _largest(values: Floats, app: Ints, apps: int) -> Floats:
    most = np.full(apps, -np.inf)
    np.maximum.at(most, app, values)
    return most
