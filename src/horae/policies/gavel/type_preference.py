"""Which GPU type suits a job best now, and when changing it is worth a restart."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.snapshot import Snapshot

#: The setting of all policies that look at time left on each type.
GAIN = "seconds by which somebody must end sooner before a running job moves or gives way"

#: Not even a free restart is worth less.
_LEAST_GAIN_S = 1e-6


def held_type(now: Snapshot) -> Ints:
    """Number of the GPU type on which each job runs, starts up or has GPUs set aside; -1 for those that wait."""
    held = np.full(len(now), -1, np.int64)
    for holder in now.gpu_ledger.holders:
        gpus = np.flatnonzero(np.isin(holder, now.rows))
        held[np.searchsorted(now.rows, holder[gpus])] = now.cluster.gpu_type[gpus]
    return held


def free_gpus(now: Snapshot) -> Ints:
    """GPUs of each type that nobody holds."""
    ledger = now.gpu_ledger
    free = ledger.gpu_open & (ledger.holders[0] < 0)
    return np.bincount(now.cluster.gpu_type[free], minlength=len(now.open_gpus)).astype(np.int64)


def times_left(now: Snapshot, aware: bool) -> Floats:
    """Seconds that each job (rows) still takes on each type (columns), infinite where it cannot run.

    Who is not aware of types takes each for the average of the cluster.
    """
    usable = now.rates > 0
    average = now.rates @ now.cluster.gpus_by_type / now.cluster.gpus
    rates = now.rates if aware else np.repeat(average[:, None], usable.shape[1], axis=1)
    work = np.maximum(now.work_left, 0.0)[:, None]
    return np.asarray(np.divide(work, rates, out=np.full(usable.shape, np.inf), where=usable))


def less_where_held(time_s: Floats, held: Ints, gain_s: float) -> Floats:
    """The same times, with a job that has GPUs `gain_s` shorter on their type: elsewhere it would have to restart."""
    shorter_s, runs = time_s.copy(), np.flatnonzero(held >= 0)
    shorter_s[runs, held[runs]] -= max(gain_s, _LEAST_GAIN_S)
    return shorter_s
