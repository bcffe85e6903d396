"""The view of each app that its agent gets, taken from a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.cluster import Span
from horae.core.quotas import QuotaUse
from horae.core.snapshot import Snapshot
from horae.core.straight_lines import along
from horae.policies.themis.app_split import Counts
from horae.policies.themis.bidding_agent import AppView
from horae.policies.themis.rho import AppsNow

#: Slow-down by span where the speeds are unknown: none.
_NO_SLOWDOWN = np.ones(4)
_NO_JOBS = np.empty(0, np.int64)


@dataclass(frozen=True)
class AppViews:
    """The apps of a snapshot, with columns by job that are cut into views of single apps."""

    now: Snapshot
    apps: AppsNow
    #: T_id of each app: finish time alone on its share, in seconds.
    alone_s: Floats
    lease_s: float
    #: GPU count by machine, by position of the job, of jobs that get a new lease before the auction.
    granted: Mapping[int, Counts] = field(default_factory=dict)

    @cached_property
    def leased(self) -> NDArray[np.bool_]:
        """Jobs whose GPUs are not offered in this auction."""
        leased: NDArray[np.bool_] = self.now.has_gpus & (
            self.now.table.protected_until_s[self.now.rows] > self.now.now_s
        )
        leased[list(self.granted)] = True
        return leased

    @cached_property
    def serial_s(self) -> Floats:
        """GPU-seconds left of each job on each GPU type; infinite where the type cannot hold the job now."""
        now = self.now
        work = np.maximum(now.charged_left, 1e-9 * now.table.work[now.rows]) * now.gpus
        serial_s: Floats = np.divide(work[:, None], now.rates, out=np.full(now.rates.shape, np.inf), where=now.usable)
        return serial_s

    @cached_property
    def runnable(self) -> NDArray[np.bool_]:
        """Jobs for which some GPU type, and their queue's quota, have room now."""
        runnable: NDArray[np.bool_] = np.asarray(np.isfinite(self.serial_s).any(axis=1))
        if self.now.queues.has_maximum:
            use = self.queue_use()
            wanting = np.flatnonzero(~self.leased).tolist()
            allowed = [use.allows(int(self.now.quota[i]), int(self.now.gpus[i])) for i in wanting]
            runnable[wanting] &= np.array(allowed, np.bool_)
        return runnable

    def queue_use(self) -> QuotaUse:
        """GPUs of each queue whose jobs keep them through this auction."""
        use, ledger = QuotaUse(self.now.queues), self.now.gpu_ledger
        offered = set(self.now.rows[~self.leased].tolist()) | set(self.now.rows[list(self.granted)].tolist())
        for row, gpu_ids in ledger.held.items():
            if row not in offered:
                use.add(int(self.now.table.quota[row]), len(gpu_ids))
        for i, places in self.granted.items():
            use.add(int(self.now.quota[i]), sum(places.values()))
        return use

    @cached_property
    def jobs_of(self) -> list[Ints]:
        """Positions of each app's jobs that can run, in the app's order; ties by time left, longest first."""
        left_s = np.where(self.runnable, self.serial_s.min(axis=1) / self.now.gpus, 0.0)
        turn = self.now.table.turn[self.now.rows]
        order = np.lexsort((np.arange(len(left_s)), -np.round(left_s, 6), turn, self.apps.of_job))
        order = order[self.runnable[order]]
        cuts = np.searchsorted(self.apps.of_job[order], np.arange(len(self.apps) + 1))
        return [order[cuts[k] : cuts[k + 1]] for k in range(len(self.apps))]

    @cached_property
    def may_bid(self) -> NDArray[np.bool_]:
        """Apps that may have a job which could use GPUs, or faster GPUs than it has."""
        wanting = self.runnable & (~self.leased | (self._speed < self.now.gpus))
        return np.bincount(self.apps.of_job[wanting], minlength=len(self.apps)) > 0

    @cached_property
    def _paused_s(self) -> Floats:
        """GPU-seconds left of each app's trials that pause at a rung, on their fastest types."""
        now, table = self.now, self.now.table
        rows = np.setdiff1d(table.active, now.rows, assume_unique=True)
        left = along(now.now_s, rows, table.work_left, table.rate, table.since_s, -1.0) * table.gpus[rows]
        serial_s = np.divide(left, table.best_rate[rows], out=np.zeros(len(rows)), where=table.best_rate[rows] > 0)
        app = np.searchsorted(self.apps.numbers, table.app[rows])
        return np.bincount(app, serial_s, minlength=len(self.apps)).astype(np.float64)

    @cached_property
    def _speed(self) -> Floats:
        """Speed of each leased job, in GPUs of its fastest type; 0 for other jobs."""
        now, table = self.now, self.now.table
        best = np.maximum(table.best_rate[now.rows], 1e-300)
        rate = np.where(table.rate[now.rows] > 0, table.rate[now.rows], np.inf)
        rate[list(self.granted)] = np.inf
        for i in np.flatnonzero(self.leased & np.isinf(rate)).tolist():
            rate[i] = self._expected_rate(i)
        return np.where(self.leased, rate * now.gpus / best, 0.0)

    def _expected_rate(self, i: int) -> float:
        """Work per second that a loading job will do on the GPUs that it has, or is granted."""
        row, gpu_ids = int(self.now.rows[i]), self._gpu_ids(i)
        gpu_type = int(self.now.cluster.gpu_type[gpu_ids[0]])
        return self.now.table.rate_on(row, gpu_type, len(gpu_ids), self.now.machines.span(gpu_ids))

    def _gpu_ids(self, i: int) -> list[int]:
        """GPU numbers of a leased job. For a granted job only the machines are fixed: any GPUs of them."""
        if i not in self.granted:
            return list(self.now.gpu_ledger.held[int(self.now.rows[i])])
        of_gpu = self.now.machines.of_gpu
        return [gpu for machine, gpus in self.granted[i].items() for gpu in np.flatnonzero(of_gpu == machine)[:gpus]]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return self.now.table.apps

    @cached_property
    def _offered(self) -> NDArray[np.bool_]:
        """Jobs with GPUs whose lease is over."""
        offered: NDArray[np.bool_] = self.now.has_gpus & ~self.leased
        return offered

    def view(self, app: int) -> AppView:
        """The view of one app, for its agent."""
        now, jobs = self.now, self.jobs_of[app]
        return AppView(
            name=self._names[int(self.apps.numbers[app])],
            elapsed_s=float(self.apps.elapsed_s[app]),
            alone_s=float(self.alone_s[app]),
            lease_s=self.lease_s,
            gpus=now.gpus[jobs],
            serial_s=self.serial_s[jobs],
            find_slowdown=lambda: self._slowdown(int(now.rows[jobs[np.argmax(now.gpus[jobs])]])),
            speed=self._speed[jobs],
            share=float(now.cluster.gpus / self.apps.contention[app]),
            paused_s=float(self._paused_s[app]),
            near=self._near(jobs),
            granted=np.flatnonzero(np.isin(jobs, list(self.granted))) if self.granted else _NO_JOBS,
        )

    def _slowdown(self, row: int) -> Floats:
        """Slow-down of an app by GPU type and span: that of its largest gang, which is in this row."""
        table = self.now.table
        gpus = int(table.gpus[row])
        if gpus == 1:
            return np.ones((len(table.gpu_types), len(Span)))
        slowdown = []
        for gpu_type, best in enumerate(table.rates[row].tolist()):
            rates = [table.rate_on(row, gpu_type, gpus, span) if best > 0 else 0.0 for span in tuple(Span)[1:]]
            slowdown.append([1.0, *(best / rate if rate > 0 else np.inf for rate in rates)] if best else _NO_SLOWDOWN)
        return np.array(slowdown)

    def _near(self, jobs: Ints) -> dict[int, int]:
        """GPU count by machine of the jobs whose lease is over."""
        now = self.now
        near: dict[int, int] = {}
        for i in jobs[self._offered[jobs]].tolist():
            for machine in now.machines.of_gpu[list(now.gpu_ledger.held[int(now.rows[i])])].tolist():
                near[machine] = near.get(machine, 0) + 1
        return near
