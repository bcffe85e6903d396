"""Attained service: the GPU time that jobs have had, as it is or by the speed of the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The setting of all policies that may tell fast GPUs from slow ones.
NORMALISE = "whether service counts by speed, in GPU-seconds on the job's fastest type"


@dataclass(frozen=True)
class Service:
    """Service of the jobs of a snapshot in GPU-seconds, and how much of it a second adds."""

    attained: Floats
    growth: Floats

    @classmethod
    def of(cls, now: Snapshot, normalise: bool) -> Service:
        """GPU time had so far; by speed, that which the work done would have taken on each job's fastest type.

        By speed, work that was lost with a node is service that the job has not had.
        """
        if not normalise:
            return cls(now.gpu_seconds, now.working_gpus)
        cost = _gpu_seconds_of_work(now, now.rows)
        return cls((now.table.work[now.rows] - now.work_left) * cost, now.working_rate * cost)


def service_in_all(now: Snapshot, finished: Ints, normalise: bool) -> Floats:
    """The service that jobs took which have finished."""
    table = now.table
    return table.work[finished] * _gpu_seconds_of_work(now, finished) if normalise else table.gpu_seconds[finished]


def _gpu_seconds_of_work(now: Snapshot, rows: Ints) -> Floats:
    """GPU-seconds that one unit of work takes on each job's fastest type."""
    gpus, rate = now.table.gpus[rows], now.table.best_rate[rows]
    return np.divide(gpus, rate, out=np.zeros(len(rows)), where=rate > 0)
