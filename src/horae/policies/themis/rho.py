"""Finish-time fairness of apps as it evolves: rho = T_sh / T_id (Themis, NSDI '20, section 3).

T_sh is the time since an app came plus what it still needs; T_id the time it would need alone on
1/N of the cluster, N being the number of apps averaged over its life. Both know GPU types, and
T_sh where a job runs. What was decided is remembered: the area under the number of apps, once for
all, and what it was when each app came; the average over any life is a difference of two areas.

Everything here is a column by app, in the order of `AppFinishTimes.numbers`. Memory by app lies in the columns
that every policy may have, at the app's number: there are never more apps than jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.app_demand import AppDemand
from horae.core.arrays import Floats, Ints
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.states import CANCELLED, CANCELLING, FAILED

#: What a policy that counts with rho has to remember.
MEMORY = MemorySpec(
    columns={"app_known": 0, "app_begin_s": 0, "app_area": 0},
    by_app=("app_known", "app_begin_s", "app_area"),
    scalars={"apps": 0.0, "apps_area": 0.0, "apps_looked_s": 0.0},
)

#: States of jobs that an app is owed nothing for.
_GIVEN_UP = (int(FAILED), int(CANCELLING), int(CANCELLED))


@dataclass(frozen=True)
class AppFinishTimes:
    """The apps that have a job which wants something now."""

    #: Number of each app in the job table, in order of its first job.
    numbers: Ints
    #: Position in `numbers` of the app of each job of the snapshot.
    of_job: Ints
    #: Seconds since each app came.
    elapsed_s: Floats
    #: Time average of the number of apps over each app's life, itself included.
    contention: Floats

    def __len__(self) -> int:
        return len(self.numbers)


def look(now: Snapshot, memory: Memory) -> AppFinishTimes:
    """Find the apps of this moment and remember how many there are from here on.

    Jobs that are held do not count: an app whose jobs are all held contends with nobody.
    """
    active = now.table.active
    numbers, first = np.unique(now.table.app[active], return_index=True)
    area = memory.scalar("apps_area") + memory.scalar("apps") * (now.now_s - memory.scalar("apps_looked_s"))
    memory.put_scalar("apps_area", area)
    memory.put_scalar("apps_looked_s", now.now_s)
    memory.put_scalar("apps", float(len(numbers)))

    new = memory.column("app_known", numbers) == 0
    begin_s = now.table.submit_s[active[first[new]]]
    memory.put("app_begin_s", numbers[new], begin_s)
    # Of the time before it was seen, if any, nothing is known but how many there are now.
    memory.put("app_area", numbers[new], area - len(numbers) * (now.now_s - begin_s))
    memory.put("app_known", numbers[new], np.ones(int(new.sum())))

    elapsed_s = now.now_s - memory.column("app_begin_s", numbers)
    life_area = area - memory.column("app_area", numbers)
    contention = np.divide(life_area, elapsed_s, out=np.full(len(numbers), float(len(numbers))), where=elapsed_s > 0)
    of_job = np.searchsorted(numbers, now.table.app[now.rows])
    return AppFinishTimes(numbers, of_job, elapsed_s, np.maximum(contention, 1.0))


def whole_demand(now: Snapshot, apps: AppFinishTimes) -> AppDemand:
    """What the apps are owed: all work of their jobs, those that finished too, but for those given up."""
    table, n = now.table, len(now.table)
    rows = np.flatnonzero(np.isin(table.app[:n], apps.numbers) & ~np.isin(table.state[:n], _GIVEN_UP))
    return _demand(now, apps, rows, table.work[rows])


def demand_left(now: Snapshot, apps: AppFinishTimes) -> AppDemand:
    """What the jobs of each app still need on each GPU type, those that may not run at this moment among them."""
    everybody = _everybody(now)
    return _demand(now, apps, everybody.rows, np.maximum(everybody.work_left, 0.0))


def alone_s(demand: AppDemand, gpus_by_type: Ints, contention: Floats) -> Floats:
    """T_id: seconds each app would take alone on its part of the cluster."""
    return demand.time_on(gpus_by_type / contention[:, None])


def seconds_left(now: Snapshot, apps: AppFinishTimes, lease_s: float) -> Floats:
    """What each app still needs with the GPUs its jobs have now, where they have them.

    Its jobs take turns on them, so that an app advances at the sum of their speeds, but no faster
    than its slowest job. An app without GPUs gets all it can use when the present lease is over.
    """
    everybody = _everybody(now)
    of_job = np.searchsorted(apps.numbers, now.table.app[everybody.rows])
    serial, speed, job_s = _progress(everybody)
    left = np.bincount(of_job, serial, minlength=len(apps))
    speeds = np.bincount(of_job, speed, minlength=len(apps))
    longest_s = np.zeros(len(apps))
    np.maximum.at(longest_s, of_job, job_s)
    nothing = speeds == 0
    capacity = now.cluster.gpus_by_type.astype(np.float64)
    at_best_s = demand_left(now, apps).time_on(np.broadcast_to(capacity, (len(apps), len(capacity))))
    turns_s = np.divide(left, speeds, out=np.zeros(len(apps)), where=~nothing)
    return np.where(nothing, lease_s + np.nan_to_num(at_best_s), np.maximum(turns_s, longest_s))


def rho(now: Snapshot, apps: AppFinishTimes, lease_s: float) -> Floats:
    """T_sh / T_id of each app, if everybody keeps what they have; 0 for an app that could run nowhere."""
    shared_s = apps.elapsed_s + seconds_left(now, apps, lease_s)
    fair_s = alone_s(whole_demand(now, apps), now.cluster.gpus_by_type, apps.contention)
    return np.asarray(np.nan_to_num(shared_s / fair_s), np.float64)


def _everybody(now: Snapshot) -> Snapshot:
    """The same moment with the jobs that are no candidates for GPUs: trials that pause, launches that failed."""
    if len(now.table.active) == len(now):
        return now
    return Snapshot(now.now_s, now.table.active, now.table, now.gpu_ledger, now.queues)


def _progress(now: Snapshot) -> tuple[Floats, Floats, Floats]:
    """Of each job, in seconds of one GPU of its best type: what is left, what a second brings; and seconds to its end.

    A job that loads counts with the speed it will have.
    """
    table, rows = now.table, now.rows
    rate = np.where(now.has_gpus, table.rate[rows], 0.0)
    loads = now.loading & (now.last_type >= 0)
    rate[loads] = now.rates[loads, now.last_type[loads]]
    best = np.maximum(table.best_rate[rows], np.finfo(np.float64).tiny)
    left = np.maximum(now.work_left, 0.0)
    to_end_s = left / np.where(rate > 0, rate, best)
    return left * now.gpus / best, rate * now.gpus / best, to_end_s


def _demand(now: Snapshot, apps: AppFinishTimes, rows: Ints, work: Floats) -> AppDemand:
    table = now.table
    app = np.searchsorted(apps.numbers, table.app[rows])
    gangs = table.gpus[rows], table.gpus_min[rows], table.gpus_max[rows]
    return AppDemand.of(app, len(apps), work, *gangs, table.rates[rows], now.cluster.gpus_by_type)
