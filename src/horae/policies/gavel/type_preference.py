"""Time left of each job on each GPU type, and when a faster type is worth a restart."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.snapshot import Snapshot

#: Help text of the setting `gain`.
GAIN = "seconds that a move or a preemption must save before a running job is restarted for it"

#: Least gain in seconds: without it rounding errors could move a job.
_LEAST_GAIN_S = 1e-6


def held_type(now: Snapshot) -> Ints:
    """Number of the GPU type of which each job has GPUs, or has GPUs set aside; -1 for waiting jobs."""
    held = np.full(len(now), -1, np.int64)
    for holder in now.gpu_ledger.holders:
        gpus = np.flatnonzero(np.isin(holder, now.rows))
        held[np.searchsorted(now.rows, holder[gpus])] = now.cluster.gpu_type[gpus]
    return held


def free_gpus(now: Snapshot) -> Ints:
    """GPUs of each type that no job has."""
    ledger = now.gpu_ledger
    free = ledger.gpu_open & (ledger.holders[0] < 0)
    return np.bincount(now.cluster.gpu_type[free], minlength=len(now.open_gpus)).astype(np.int64)


def times_left(now: Snapshot, aware: bool) -> Floats:
    """Seconds left of each job (rows) on each GPU type (columns); infinite where the job cannot run.

    Without `aware` every type has the average speed of the cluster.
    """
    usable = now.rates > 0
    average = now.rates @ now.cluster.gpus_by_type / now.cluster.gpus
    rates = now.rates if aware else np.repeat(average[:, None], usable.shape[1], axis=1)
    work = np.maximum(now.work_left, 0.0)[:, None]
    return np.asarray(np.divide(work, rates, out=np.full(usable.shape, np.inf), where=usable))


def less_where_held(time_s: Floats, held: Ints, gain_s: float) -> Floats:
    """The same times, `gain_s` less on the type of which a job has GPUs: on another type it would have to restart."""
    shorter_s, holders = time_s.copy(), np.flatnonzero(held >= 0)
    shorter_s[holders, held[holders]] -= max(gain_s, _LEAST_GAIN_S)
    return shorter_s
