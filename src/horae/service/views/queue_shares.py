"""What each queue is entitled to and uses: in GPUs, and in GPUs counted by their speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.core.queues import Queue
from horae.core.states import ENDED, State
from horae.core.status import ClusterStatus
from horae.service.views.job_list import among

#: Jobs that have GPUs or want some.
_WANTING = tuple(state for state in State if state not in (*ENDED, State.HELD))


@dataclass
class _Use:
    """What a queue and all below it have, and how many jobs there run and wait."""

    gpus: float = 0.0
    worth: float = 0.0
    running: int = 0
    waiting: int = 0

    def add(self, other: _Use) -> None:
        """Count what another has, too."""
        self.gpus += other.gpus
        self.worth += other.worth
        self.running += other.running
        self.waiting += other.waiting


class QueueShares:
    """The queue tree at one moment. GPUs that are gone are nobody's."""

    def __init__(self, standing: ClusterStatus) -> None:
        self._at = standing
        self._there = standing.gpu_there
        self._worth = _worths(standing)[standing.cluster.gpu_type]
        self._use = [_Use() for _ in standing.queue_paths]
        #: Queues in which jobs are that count, not those above them.
        self._own: set[int] = set()
        self._count()
        self._children: dict[int, list[int]] = {}
        for queue, parent in enumerate(standing.queue_parents):
            if self._busy(queue):
                self._children.setdefault(parent, []).append(queue)

    def records(self) -> list[dict[str, Any]]:
        """Every queue, parents before their children.

        Entitled is the queue's weight among its siblings that have jobs now, of what its parent is entitled to, within
        its quota; what one may not have falls to the others. A queue without jobs is entitled to what it needs: none.
        """
        total = float(np.count_nonzero(self._there))
        worth = float(self._worth[self._there].sum())
        entitled = self._entitled(total)
        return [self._record(queue, use, entitled.get(queue, 0.0), total, worth) for queue, use in enumerate(self._use)]

    def _record(self, queue: int, use: _Use, entitled: float, total: float, worth: float) -> dict[str, Any]:
        path, settings = self._at.queue_paths[queue], self._settings(queue)
        return {
            "queue": path or "(all)",
            "weight": settings.weight,
            "gpus_min": settings.gpus_min,
            "gpus_max": settings.gpus_max,
            "running": use.running,
            "waiting": use.waiting,
            "entitled_gpus": entitled,
            "used_gpus": use.gpus,
            "entitled_share": entitled / total if total else 0.0,
            "used_share": use.gpus / total if total else 0.0,
            "used_share_normalised": use.worth / worth if worth else 0.0,
        }

    # --------------------------------------------------------------------- use

    def _count(self) -> None:
        at, use = self._at, self._use
        rows = np.flatnonzero(among(at, _WANTING))
        queues = np.asarray(at.columns["queue"][rows], np.int64)
        self._own.update(queues.tolist())
        runs = np.isin(rows, list(at.occupied))
        for queue, waiting in enumerate(np.bincount(queues[~runs], minlength=len(use)).tolist()):
            use[queue].waiting = waiting
        held = np.array([gpu for gpus in at.occupied.values() for gpu in gpus], np.int64)
        # Who shares a GPU has its part of it.
        part = self._there / np.maximum(np.bincount(held, minlength=len(self._there)), 1)
        worth = part * self._worth
        for row, queue in zip(rows[runs].tolist(), queues[runs].tolist(), strict=True):
            gpus = list(at.occupied[row])
            use[queue].add(_Use(float(part[gpus].sum()), float(worth[gpus].sum()), running=1))
        # Children come after their parents.
        for queue in range(len(use) - 1, 0, -1):
            use[at.queue_parents[queue]].add(use[queue])

    def _busy(self, queue: int) -> bool:
        return self._use[queue].running + self._use[queue].waiting > 0

    # ---------------------------------------------------------------- entitled

    def _entitled(self, total: float) -> dict[int, float]:
        """GPUs of each queue that has jobs; parents come before their children."""
        entitled = {0: total}
        for parent in sorted(self._children.keys() - {-1}):
            children = self._children[parent]
            bounds = [self._bounds(child, total) for child in children]
            weights = [self._settings(child).weight for child in children]
            entitled.update(zip(children, divided(entitled[parent], weights, bounds), strict=True))
        return entitled

    def _bounds(self, queue: int, total: float) -> tuple[float, float]:
        """The least and the most that a queue may have: by its own quota, and by those of the queues below it."""
        below = [self._bounds(child, total) for child in self._children.get(queue, ())]
        settings = self._settings(queue)
        most = total if settings.gpus_max is None else min(total, settings.gpus_max)
        if queue not in self._own:
            most = min(most, sum(top for _, top in below))
        return min(most, max(settings.gpus_min, sum(low for low, _ in below))), most

    def _settings(self, queue: int) -> Queue:
        path = self._at.queue_paths[queue]
        return self._at.queues.get(path) or Queue(path or "root")


def divided(amount: float, weights: Sequence[float], bounds: Sequence[tuple[float, float]]) -> list[float]:
    """An amount by weights, none below its least or above its most; the least are cut down if there is not enough."""
    least = sum(low for low, _ in bounds)
    if least >= amount:
        return [low * amount / least if least else 0.0 for low, _ in bounds]
    parts, free = dict.fromkeys(range(len(bounds)), 0.0), set(range(len(bounds)))
    while free:
        left, weight = amount - sum(parts.values()), sum(weights[one] for one in free)
        wanted = {one: left * weights[one] / weight for one in free}
        within = {one: min(max(want, bounds[one][0]), bounds[one][1]) for one, want in wanted.items()}
        # Those at their least stay there if they take more from the others than those at their most leave them.
        over = sum(within[one] - wanted[one] for one in free)
        settled = {one for one in free if over == 0 or (within[one] - wanted[one]) * over > 0}
        parts |= {one: within[one] for one in settled}
        free -= settled
    return list(parts.values())


def _worths(at: ClusterStatus) -> NDArray[np.float64]:
    """What a GPU of each type counts for: its speed against the fastest, on average over the jobs that may choose."""
    rates = at.rates[among(at, _WANTING)]
    rates = rates[np.count_nonzero(rates > 0, axis=1) > 1]
    speeds = rates / rates.max(axis=1, initial=0.0, keepdims=True) if len(rates) else rates
    jobs = np.count_nonzero(speeds > 0, axis=0)
    return np.where(jobs > 0, speeds.sum(axis=0) / np.maximum(jobs, 1), 1.0)
