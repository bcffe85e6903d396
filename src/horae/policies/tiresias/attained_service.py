"""Attained service: the GPU time that jobs have had, as it is or by the speed of the GPUs."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.job_table import along
from horae.core.snapshot import Snapshot

#: The setting of all policies that may tell fast GPUs from slow ones.
NORMALISE = "whether service counts by speed, in GPU-seconds on the job's fastest type"


def attained(now: Snapshot, rows: Ints, normalise: bool) -> Floats:
    """GPU-seconds that jobs have had; by speed, those of a slower type count by how fast the job is on it.

    Only the type counts: a job that is spread, or slow for reasons of its own, has had its GPUs all the same.
    """
    table = now.table
    if normalise:
        return along(now.now_s, rows, table.fastest_gpu_seconds, table.executing_fastest, table.since_s, 1.0)
    return along(now.now_s, rows, table.gpu_seconds, table.executing_gpus, table.since_s, 1.0)


def attained_by_finished(now: Snapshot, before_s: float, normalise: bool) -> Floats:
    """The same, of the jobs that had finished before a moment."""
    here = attained(now, now.finished_before(before_s), normalise)
    return np.concatenate((now.table.past.service(normalise, before_s), here))


def attained_by_all(now: Snapshot, normalise: bool) -> Floats:
    """The same, of all jobs that ever came."""
    here = attained(now, np.arange(len(now.table)), normalise)
    return np.concatenate((now.table.past.service(normalise), here))


def pace(now: Snapshot, normalise: bool) -> Floats:
    """Service that each job gets in a second; the most it could get, where it does no work yet."""
    works = now.working_gpus > 0
    growth = now.table.executing_fastest[now.rows] if normalise else now.working_gpus
    return np.where(works, growth, now.table.gpus_max[now.rows])
