"""Attained service: the GPU time that jobs have had, plain or by the speed of the GPUs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Snapshot

Floats = NDArray[np.float64]

#: The setting of all policies that may tell fast GPUs from slow ones.
NORMALISE = "whether service counts by speed: a second on a GPU type half as fast as the job's fastest is half a second"


def attained(now: Snapshot, normalise: bool) -> Floats:
    """GPU-seconds each job has had; by speed, those that its work would have taken on its fastest type.

    Work that was lost with a node is then service that the job has not had.
    """
    if not normalise:
        return now.gpu_seconds
    return (now.table.work[now.rows] - now.work_left) * _gpu_seconds_of_work(now, now.rows)


def growth(now: Snapshot, normalise: bool) -> Floats:
    """How much service each job gets in a second from now on."""
    return now.working_rate * _gpu_seconds_of_work(now, now.rows) if normalise else now.working_gpus


def in_all(now: Snapshot, finished: NDArray[np.int64], normalise: bool) -> Floats:
    """The service that jobs took that have finished."""
    table = now.table
    return table.work[finished] * _gpu_seconds_of_work(now, finished) if normalise else table.gpu_seconds[finished]


def _gpu_seconds_of_work(now: Snapshot, rows: NDArray[np.int64]) -> Floats:
    """GPU-seconds that a unit of work takes on each job's fastest type."""
    table = now.table
    return np.divide(table.gpus[rows], table.best_rate[rows], out=np.zeros(len(rows)), where=table.best_rate[rows] > 0)
