"""What each agent is shown of its app, taken from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Span
from horae.core.plan import Snapshot
from horae.policies.agent import AppView
from horae.policies.finish_fairness import Apps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Where speeds are unknown a job is as fast as it can be.
_NO_SLOWDOWN = np.ones(4)


@dataclass(frozen=True)
class Views:
    """The apps of a moment, with columns by job that are cut into views of single apps."""

    now: Snapshot
    apps: Apps
    #: T_id of each app.
    alone_s: Floats
    lease_s: float

    @cached_property
    def leased(self) -> NDArray[np.bool_]:
        """Which jobs have GPUs that stay theirs."""
        leased: NDArray[np.bool_] = self.now.has_gpus & (
            self.now.table.protected_until_s[self.now.rows] > self.now.now_s
        )
        return leased

    @cached_property
    def serial_s(self) -> Floats:
        """GPU-seconds left of each job on each type that can hold it now."""
        now = self.now
        usable = (now.rates > 0) & (now.open_gpus >= now.gpus[:, None])
        work = np.maximum(now.work_left, 1e-9 * now.table.work[now.rows]) * now.gpus
        serial_s: Floats = np.divide(work[:, None], now.rates, out=np.full(now.rates.shape, np.inf), where=usable)
        return serial_s

    @cached_property
    def runs(self) -> NDArray[np.bool_]:
        """Which jobs some type can hold now."""
        return np.asarray(np.isfinite(self.serial_s).any(axis=1), np.bool_)

    @cached_property
    def jobs_of(self) -> list[Ints]:
        """Positions of each app's jobs that can run, longest first: so the app ends soonest."""
        left_s = np.where(self.runs, self.serial_s.min(axis=1) / self.now.gpus, 0.0)
        order = np.lexsort((np.arange(len(left_s)), -np.round(left_s, 6), self.apps.of_job))
        order = order[self.runs[order]]
        cuts = np.searchsorted(self.apps.of_job[order], np.arange(len(self.apps) + 1))
        return [order[cuts[k] : cuts[k + 1]] for k in range(len(self.apps))]

    @cached_property
    def wants(self) -> NDArray[np.bool_]:
        """Which apps may have a job that could use GPUs beside those it has, or instead of them."""
        wanting = self.runs & (~self.leased | (self._speed < self.now.gpus))
        return np.bincount(self.apps.of_job[wanting], minlength=len(self.apps)) > 0

    @cached_property
    def _speed(self) -> Floats:
        """Speed of each job that has its GPUs for sure, in GPUs of its best type."""
        now, table = self.now, self.now.table
        best = np.maximum(table.best_rate[now.rows], 1e-300)
        rate = np.where(table.rate[now.rows] > 0, table.rate[now.rows], np.inf)
        for i in np.flatnonzero(self.leased & np.isinf(rate)).tolist():
            rate[i] = self._expected_rate(i)
        return np.where(self.leased, rate * now.gpus / best, 0.0)

    def _expected_rate(self, i: int) -> float:
        """Speed that a job which loads will have, where it is."""
        row = int(self.now.rows[i])
        gpu_ids = list(self.now.gpu_ledger.held[row])
        gpu_type = int(self.now.cluster.gpu_type[gpu_ids[0]])
        return self.now.table.rate_on(row, gpu_type, len(gpu_ids), span_of(self.now, gpu_ids))

    def view(self, app: int) -> AppView:
        """One app, for its agent."""
        now, jobs = self.now, self.jobs_of[app]
        return AppView(
            name=now.table.apps[int(self.apps.numbers[app])],
            elapsed_s=float(self.apps.elapsed_s[app]),
            alone_s=float(self.alone_s[app]),
            lease_s=self.lease_s,
            gpus=now.gpus[jobs],
            serial_s=self.serial_s[jobs],
            slowdown=self._slowdown(int(now.rows[jobs[0]])),
            speed=self._speed[jobs],
            near=self._near(jobs),
        )

    def _slowdown(self, row: int) -> Floats:
        """Slow-down by type and span of an app, which is that of its first job."""
        table = self.now.table
        gpus = int(table.gpus[row])
        if gpus == 1:
            return np.ones((len(table.gpu_types), len(Span)))
        slowdown = []
        for gpu_type, close in enumerate(table.rates[row].tolist()):
            rates = [table.rate_on(row, gpu_type, gpus, span) if close > 0 else 0.0 for span in tuple(Span)[1:]]
            slowdown.append([1.0, *(close / rate if rate > 0 else np.inf for rate in rates)] if close else _NO_SLOWDOWN)
        return np.array(slowdown)

    def _near(self, jobs: Ints) -> dict[int, int]:
        """GPUs by machine of jobs whose lease is over."""
        now = self.now
        near: dict[int, int] = {}
        for i in jobs[now.has_gpus[jobs] & ~self.leased[jobs]].tolist():
            for machine in now.machines.of_gpu[list(now.gpu_ledger.held[int(now.rows[i])])].tolist():
                near[machine] = near.get(machine, 0) + 1
        return near


def span_of(now: Snapshot, gpu_ids: list[int]) -> Span:
    """How far apart GPUs lie, by the machines of the placement rule."""
    machines = np.unique(now.machines.of_gpu[gpu_ids])
    if len(gpu_ids) == 1:
        return Span.GPU
    if len(machines) == 1:
        return Span.NODE
    return Span.RACK if len(np.unique(now.machines.rack[machines])) == 1 else Span.CLUSTER
