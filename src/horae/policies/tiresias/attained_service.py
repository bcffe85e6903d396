"""Attained service: the GPU-seconds that jobs have had, plain or weighted by the speed of the GPU type."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.snapshot import Snapshot
from horae.core.straight_lines import along

#: Help text of the setting `normalise`.
NORMALISE = "whether service counts by speed, in GPU-seconds on the job's fastest type"


def attained(now: Snapshot, rows: Ints, normalise: bool) -> Floats:
    """GPU-seconds that jobs have had. With `normalise`, GPU-seconds of a slower type count by the job's speed there.

    Only the GPU type counts: a job that is spread over machines, or slow by itself, has had its GPUs all the same.
    """
    table = now.table
    if normalise:
        return along(now.now_s, rows, table.fastest_gpu_seconds, table.executing_fastest, table.since_s, 1.0)
    return along(now.now_s, rows, table.gpu_seconds, table.executing_gpus, table.since_s, 1.0)


def attained_by_finished(now: Snapshot, before_s: float, normalise: bool) -> Floats:
    """Attained service of the jobs that had finished before a moment, retired jobs included."""
    in_table = attained(now, now.finished_before(before_s), normalise)
    return np.concatenate((now.table.past.service(normalise, before_s), in_table))


def attained_by_all(now: Snapshot, normalise: bool) -> Floats:
    """Attained service of all jobs ever submitted, retired jobs included."""
    in_table = attained(now, np.arange(len(now.table)), normalise)
    return np.concatenate((now.table.past.service(normalise), in_table))
