"""Entitlement and usage of each queue, in GPUs and in GPUs normalised by speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.core.queues import Queue
from horae.core.states import ENDED, State
from horae.core.status import ClusterStatus
from horae.service.views.job_list import in_states

#: States of jobs that have GPUs or want GPUs.
_WANTING = tuple(state for state in State if state not in (*ENDED, State.HELD))


@dataclass
class _Usage:
    """GPUs and jobs of a queue, including the queues below it."""

    gpus: float = 0.0
    normalised: float = 0.0
    running: int = 0
    waiting: int = 0

    def add(self, other: _Usage) -> None:
        """Add the usage of another queue."""
        self.gpus += other.gpus
        self.normalised += other.normalised
        self.running += other.running
        self.waiting += other.waiting


class QueueShares:
    """The queue tree of a cluster status. GPUs of lost nodes do not count."""

    def __init__(self, status: ClusterStatus) -> None:
        self._status = status
        self._gpu_present = status.gpu_there
        self._gpu_speed = _relative_speeds(status)[status.cluster.gpu_type]
        self._usage = [_Usage() for _ in status.queue_paths]
        #: Queues that have jobs of their own, not only in queues below.
        self._queues_with_jobs: set[int] = set()
        self._count()
        self._children: dict[int, list[int]] = {}
        for queue, parent in enumerate(status.queue_parents):
            if self._busy(queue):
                self._children.setdefault(parent, []).append(queue)

    def records(self) -> list[dict[str, Any]]:
        """Every queue, parents before their children.

        A queue is entitled to a share of its parent's entitlement, by its weight among the siblings that have jobs now,
        within its quota. What a quota cuts off goes to the siblings. A queue without jobs is entitled to nothing.
        """
        total = float(np.count_nonzero(self._gpu_present))
        normalised = float(self._gpu_speed[self._gpu_present].sum())
        entitled = self._entitled(total)
        return [
            self._record(queue, usage, entitled.get(queue, 0.0), total, normalised)
            for queue, usage in enumerate(self._usage)
        ]

    def _record(self, queue: int, usage: _Usage, entitled: float, total: float, normalised: float) -> dict[str, Any]:
        path, settings = self._status.queue_paths[queue], self._settings(queue)
        return {
            "queue": path or "(all)",
            "weight": settings.weight,
            "gpus_min": settings.gpus_min,
            "gpus_max": settings.gpus_max,
            "running": usage.running,
            "waiting": usage.waiting,
            "entitled_gpus": entitled,
            "used_gpus": usage.gpus,
            "entitled_share": entitled / total if total else 0.0,
            "used_share": usage.gpus / total if total else 0.0,
            "used_share_normalised": usage.normalised / normalised if normalised else 0.0,
        }

    # --------------------------------------------------------------------- use

    def _count(self) -> None:
        status, usage = self._status, self._usage
        rows = np.flatnonzero(in_states(status, _WANTING))
        queues = np.asarray(status.columns["queue"][rows], np.int64)
        self._queues_with_jobs.update(queues.tolist())
        runs = np.isin(rows, list(status.occupied))
        for queue, waiting in enumerate(np.bincount(queues[~runs], minlength=len(usage)).tolist()):
            usage[queue].waiting = waiting
        occupied = np.array([gpu for gpus in status.occupied.values() for gpu in gpus], np.int64)
        # Jobs that share a GPU count a fraction of it each.
        fraction = self._gpu_present / np.maximum(np.bincount(occupied, minlength=len(self._gpu_present)), 1)
        normalised = fraction * self._gpu_speed
        for row, queue in zip(rows[runs].tolist(), queues[runs].tolist(), strict=True):
            gpus = list(status.occupied[row])
            usage[queue].add(_Usage(float(fraction[gpus].sum()), float(normalised[gpus].sum()), running=1))
        # Children come after their parents.
        for queue in range(len(usage) - 1, 0, -1):
            usage[status.queue_parents[queue]].add(usage[queue])

    def _busy(self, queue: int) -> bool:
        return self._usage[queue].running + self._usage[queue].waiting > 0

    # ---------------------------------------------------------------- entitled

    def _entitled(self, total: float) -> dict[int, float]:
        """Entitlement in GPUs of each queue that has jobs. Parents come before their children."""
        entitled = {0: total}
        for parent in sorted(self._children.keys() - {-1}):
            children = self._children[parent]
            bounds = [self._bounds(child, total) for child in children]
            weights = [self._settings(child).weight for child in children]
            entitled.update(zip(children, divide_by_weight(entitled[parent], weights, bounds), strict=True))
        return entitled

    def _bounds(self, queue: int, total: float) -> tuple[float, float]:
        """Least and most GPUs of a queue, by its own quota and the quotas of the queues below it."""
        below = [self._bounds(child, total) for child in self._children.get(queue, ())]
        settings = self._settings(queue)
        most = total if settings.gpus_max is None else min(total, settings.gpus_max)
        if queue not in self._queues_with_jobs:
            most = min(most, sum(top for _, top in below))
        return min(most, max(settings.gpus_min, sum(low for low, _ in below))), most

    def _settings(self, queue: int) -> Queue:
        path = self._status.queue_paths[queue]
        return self._status.queues.get(path) or Queue(path or "root")


def divide_by_weight(amount: float, weights: Sequence[float], bounds: Sequence[tuple[float, float]]) -> list[float]:
    """Divide an amount by weights within (least, most) bounds. If the least exceed the amount, they are scaled down."""
    least = sum(low for low, _ in bounds)
    if least >= amount:
        return [low * amount / least if least else 0.0 for low, _ in bounds]
    amounts, free = dict.fromkeys(range(len(bounds)), 0.0), set(range(len(bounds)))
    while free:
        left, weight = amount - sum(amounts.values()), sum(weights[index] for index in free)
        wanted = {index: left * weights[index] / weight for index in free}
        within = {index: min(max(want, bounds[index][0]), bounds[index][1]) for index, want in wanted.items()}
        # Fix the shares at their least if these take more than the shares at their most free; else the latter.
        over = sum(within[index] - wanted[index] for index in free)
        fixed = {index for index in free if over == 0 or (within[index] - wanted[index]) * over > 0}
        amounts |= {index: within[index] for index in fixed}
        free -= fixed
    return list(amounts.values())


def _relative_speeds(status: ClusterStatus) -> NDArray[np.float64]:
    """Speed of each GPU type relative to the fastest, averaged over the jobs that can use several types."""
    rates = status.rates[in_states(status, _WANTING)]
    rates = rates[np.count_nonzero(rates > 0, axis=1) > 1]
    speeds = rates / rates.max(axis=1, initial=0.0, keepdims=True) if len(rates) else rates
    jobs = np.count_nonzero(speeds > 0, axis=0)
    return np.where(jobs > 0, speeds.sum(axis=0) / np.maximum(jobs, 1), 1.0)
