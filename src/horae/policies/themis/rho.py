"""Finish-time fairness of apps: rho = T_sh / T_id (Themis, NSDI '20, section 3).

T_sh is the time since the app came plus the time it still needs. T_id is the time that the app would need alone on
1/N of the cluster, where N is the number of apps, averaged over the app's life. Both take account of GPU types, and
T_sh also of the place of running jobs. For the average the memory holds the integral of the number of apps over
time, and its value when each app came; the average over a life is a difference of two integrals.

A user with several apps counts as one in N, and goes first by the rho of all of them as if they were one app; its apps
divide that one's share (our choice, which can be switched off). Otherwise a user gains by splitting an app.

All columns are by app, in the order of `AppsNow.numbers`. Memory by app lies in ordinary memory columns, at the
app's number: there are never more apps than jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.app_demand import AppDemand
from horae.core.arrays import Floats, Ints
from horae.core.job_table import JobTable
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.states import ENDED, ENDING, FINISHED

#: Memory (stored) of policies that use rho: by app, whether it is known, when it came and the integral then;
#: the number of apps, the integral and the time at the last decision.
MEMORY = MemorySpec(
    columns={"app_known": 0, "app_begin_s": 0, "app_area": 0},
    by_app=("app_known", "app_begin_s", "app_area"),
    scalars={"apps": 0.0, "apps_area": 0.0, "apps_looked_s": 0.0},
)

#: What the setting `by-user` means.
BY_USER = "apps of one user divide one share of the cluster; false gives every app its own, as in the paper"

#: States of jobs whose work does not count for the app.
_GIVEN_UP = tuple(int(state) for state in (*ENDED, *ENDING) if state is not FINISHED)


@dataclass(frozen=True)
class AppsNow:
    """The apps with an active job at a moment, and how long and how crowded their lives were so far."""

    #: Number of each app in the job table, in order of its first job.
    numbers: Ints
    #: Position in `numbers` of the app of each job of the snapshot.
    of_job: Ints
    #: Seconds since each app came.
    elapsed_s: Floats
    #: Each app's share of the cluster is one of this many: the time average of the number of apps over its life, itself
    #: included, where the apps of one user count as one; times the number of apps that its user has now.
    contention: Floats

    #: Where users stand for their apps: for each of `numbers` the position of its entity, for each user number the
    #: position of its entity or -1, and when each entity came.
    entity: Ints | None = None
    entity_of_user: Ints | None = None
    begin_s: Floats | None = None

    def __len__(self) -> int:
        return len(self.elapsed_s)

    def of_rows(self, table: JobTable, rows: Ints) -> Ints:
        """Position of the app, or of the entity, of jobs in these rows; -1 for jobs of apps that are not there.

        Jobs of a user's apps that have ended since the user's entity came are still of it.
        """
        if not len(self.numbers):
            return np.full(len(rows), -1)
        at = np.minimum(np.searchsorted(self.numbers, table.app[rows]), len(self.numbers) - 1)
        found = np.where(self.numbers[at] == table.app[rows], at if self.entity is None else self.entity[at], -1)
        if self.entity_of_user is None or self.begin_s is None:
            return found
        users = np.where(table.owner[rows] >= 0, self.entity_of_user[table.owner[rows]], -1)
        since = (found < 0) & (users >= 0) & (table.submit_s[rows] >= self.begin_s[users])
        return np.where(since, users, found)


def find_apps(now: Snapshot, memory: Memory, by_user: bool = False) -> AppsNow:
    """The apps of this moment. Updates the memory. `by_user`: the apps of one user divide one share.

    Jobs on hold do not count: an app whose jobs are all on hold is not there.
    """
    active = now.table.active
    numbers, first = np.unique(now.table.app[active], return_index=True)
    of_user = now.table.owner[active[first]] if by_user else np.full(len(numbers), -1)
    entities, siblings = _count_by_user(of_user)
    area = memory.scalar("apps_area") + memory.scalar("apps") * (now.now_s - memory.scalar("apps_looked_s"))
    memory.put_scalar("apps_area", area)
    memory.put_scalar("apps_looked_s", now.now_s)
    memory.put_scalar("apps", float(entities))

    new = memory.column("app_known", numbers) == 0
    begin_s = now.table.submit_s[active[first[new]]]
    memory.put("app_begin_s", numbers[new], begin_s)
    # For the time before the app was first seen, the present number of apps is taken.
    memory.put("app_area", numbers[new], area - entities * (now.now_s - begin_s))
    memory.put("app_known", numbers[new], np.ones(int(new.sum())))

    elapsed_s = now.now_s - memory.column("app_begin_s", numbers)
    life_area = area - memory.column("app_area", numbers)
    contention = np.divide(life_area, elapsed_s, out=np.full(len(numbers), float(entities)), where=elapsed_s > 0)
    of_job = np.searchsorted(numbers, now.table.app[now.rows])
    return AppsNow(numbers, of_job, elapsed_s, np.maximum(contention, 1.0) * siblings)


def merged_by_user(now: Snapshot, apps: AppsNow) -> AppsNow | None:
    """The users with their apps, and the apps of nobody, as if each were one app; None if no user has several apps."""
    table = now.table
    first = table.active[np.unique(table.app[table.active], return_index=True)[1]]
    of_user = table.owner[first]
    entities, siblings = _count_by_user(of_user)
    if entities == len(apps):
        return None
    # Users are numbered from 0, apps of nobody after them.
    keys = np.where(of_user >= 0, of_user, of_user.max(initial=-1) + 1 + np.arange(len(of_user)))
    _, entity = np.unique(keys, return_inverse=True)
    elapsed_s, contention = np.zeros(entities), np.zeros(entities)
    np.maximum.at(elapsed_s, entity, apps.elapsed_s)
    oldest = np.lexsort((np.arange(len(apps)), apps.elapsed_s))
    contention[entity[oldest]] = (apps.contention / siblings)[oldest]
    entity_of_user = np.full(int(table.owner[: len(table)].max(initial=-1)) + 2, -1)
    entity_of_user[of_user[of_user >= 0]] = entity[of_user >= 0]
    return AppsNow(
        apps.numbers, entity[apps.of_job], elapsed_s, contention, entity, entity_of_user, now.now_s - elapsed_s
    )


def users_rho(now: Snapshot, apps: AppsNow, lease_s: float) -> Floats:
    """For each app the rho of its user, all of whose apps count as one; 0 for all if no user has several apps."""
    users = merged_by_user(now, apps)
    if users is None or users.entity is None:
        return np.zeros(len(apps))
    return rho(now, users, lease_s)[users.entity]


def _count_by_user(of_user: Ints) -> tuple[int, Floats]:
    """How many users and apps of nobody (-1) there are, and for each app, how many apps its user has."""
    siblings = np.ones(len(of_user))
    of_somebody = of_user >= 0
    users, which, counts = np.unique(of_user[of_somebody], return_inverse=True, return_counts=True)
    siblings[of_somebody] = counts[which]
    return len(users) + int(np.count_nonzero(~of_somebody)), siblings


def whole_demand(now: Snapshot, apps: AppsNow) -> AppDemand:
    """The whole work of each app: all its jobs, finished ones too, but not failed or cancelled ones."""
    table, n = now.table, len(now.table)
    of_apps = apps.of_rows(table, np.arange(n)) >= 0
    rows = np.flatnonzero(of_apps & ~np.isin(table.state[:n], _GIVEN_UP))
    return _demand(now, apps, rows, table.work[rows])


def demand_left(now: Snapshot, apps: AppsNow) -> AppDemand:
    """The work left of each app, on each GPU type, with jobs that may not run at this moment."""
    active = _all_active(now)
    return _demand(now, apps, active.rows, np.maximum(active.charged_left, 0.0))


def alone_s(demand: AppDemand, gpus_by_type: Ints, contention: Floats) -> Floats:
    """T_id: seconds that each app would take alone on its share of the cluster."""
    return demand.time_on(gpus_by_type / contention[:, None])


def seconds_left(now: Snapshot, apps: AppsNow, lease_s: float) -> Floats:
    """Seconds that each app still needs with the GPUs that its jobs have now.

    Jobs of an app take turns on its GPUs, so the app advances at the sum of their speeds, but ends no sooner than
    its longest job. An app without GPUs is taken to get all GPUs that it can use after one lease.
    """
    active = _all_active(now)
    of_job = apps.of_rows(now.table, active.rows)
    serial, speed, job_s = _progress(active)
    left = np.bincount(of_job, serial, minlength=len(apps))
    speeds = np.bincount(of_job, speed, minlength=len(apps))
    longest_s = np.zeros(len(apps))
    np.maximum.at(longest_s, of_job, job_s)
    without_gpus = speeds == 0
    capacity = now.cluster.gpus_by_type.astype(np.float64)
    at_best_s = demand_left(now, apps).time_on(np.broadcast_to(capacity, (len(apps), len(capacity))))
    turns_s = np.divide(left, speeds, out=np.zeros(len(apps)), where=~without_gpus)
    return np.where(without_gpus, lease_s + np.nan_to_num(at_best_s), np.maximum(turns_s, longest_s))


def rho(now: Snapshot, apps: AppsNow, lease_s: float) -> Floats:
    """T_sh / T_id of each app, if all jobs keep their GPUs; 0 for an app that cannot run on this cluster."""
    shared_s = apps.elapsed_s + seconds_left(now, apps, lease_s)
    isolated_s = alone_s(whole_demand(now, apps), now.cluster.gpus_by_type, apps.contention)
    return np.asarray(np.nan_to_num(shared_s / isolated_s), np.float64)


def _all_active(now: Snapshot) -> Snapshot:
    """The same moment with all active jobs: also those that may get no GPUs now (paused trials, failed launches)."""
    if len(now.table.active) == len(now):
        return now
    return Snapshot(now.now_s, now.table.active, now.table, now.gpu_ledger, now.queues)


def _progress(now: Snapshot) -> tuple[Floats, Floats, Floats]:
    """Of each job: GPU-seconds left on its fastest type, GPU-seconds of that type done in a second, seconds to its end.

    A loading job counts with the speed that it will have.
    """
    table, rows = now.table, now.rows
    rate = np.where(now.has_gpus, table.rate[rows], 0.0)
    loads = now.loading & (now.last_type >= 0)
    rate[loads] = now.rates[loads, now.last_type[loads]]
    best = np.maximum(table.best_rate[rows], np.finfo(np.float64).tiny)
    left = np.maximum(now.charged_left, 0.0)
    to_end_s = left / np.where(rate > 0, rate, best)
    return left * now.gpus / best, rate * now.gpus / best, to_end_s


def _demand(now: Snapshot, apps: AppsNow, rows: Ints, work: Floats) -> AppDemand:
    table = now.table
    app = apps.of_rows(table, rows)
    gangs = table.gpus[rows], table.gpus_min[rows], table.gpus_max[rows]
    return AppDemand.of(app, len(apps), work, *gangs, table.rates[rows], now.cluster.gpus_by_type)
