"""Attained service: the GPU time that jobs have had, as it is or by the speed of the GPUs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Snapshot
from horae.core.table import along

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The setting of all policies that may tell fast GPUs from slow ones.
NORMALISE = "whether service counts by speed, in GPU-seconds on the job's fastest type"


def attained(now: Snapshot, rows: Ints, normalise: bool) -> Floats:
    """GPU-seconds that jobs have had; by speed, those that their work would have taken on their fastest type.

    By speed, work that was lost with a node is service that a job has not had.
    """
    table = now.table
    if not normalise:
        return along(now.now_s, rows, table.gpu_seconds, table.executing_gpus, table.since_s, 1.0)
    left = along(now.now_s, rows, table.work_left, table.rate, table.since_s, -1.0)
    return (table.work[rows] - left) * _gpu_seconds_of_work(now, rows)


def pace(now: Snapshot, normalise: bool) -> Floats:
    """Service that each job gets in a second; the most it could get, where it does no work yet."""
    works = now.working_gpus > 0
    growth = now.working_rate * _gpu_seconds_of_work(now, now.rows) if normalise else now.working_gpus
    return np.where(works, growth, now.table.gpus_max[now.rows])


def _gpu_seconds_of_work(now: Snapshot, rows: Ints) -> Floats:
    """GPU-seconds that one unit of work takes on each job's fastest type."""
    gpus, rate = now.table.gpus[rows], now.table.best_rate[rows]
    return np.divide(gpus, rate, out=np.zeros(len(rows)), where=rate > 0)
