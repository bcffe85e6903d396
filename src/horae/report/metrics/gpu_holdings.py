"""Which job held which GPU when, also where two jobs held the same GPU.

At every instant a GPU is divided equally among the jobs that hold it: half to each of
two. So the GPU-time that jobs held sums to the time in which GPUs were in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.gpu_ledger import SEATS
from horae.core.history import Attempts
from horae.report.metrics.step_functions import counting


@dataclass(frozen=True)
class Holdings:
    """One entry for each GPU of an attempt and stretch of time in which the number of holders stays the same.

    Columns of equal length. Entries of an attempt follow one another, and so do the
    stretches of each of its GPUs, in order of time.
    """

    attempt: Ints
    gpu: NDArray[np.int32]
    begin_s: Floats
    end_s: Floats
    #: Number of attempts that held the GPU, this attempt included.
    holders: Ints

    @staticmethod
    def of(attempts: Attempts) -> Holdings:
        """Cut attempts where another job began or ended to share their GPUs."""
        attempt = np.repeat(np.arange(len(attempts.job)), attempts.gpus)
        begin_s, end_s = attempts.begin_s[attempt], attempts.end_s[attempt]
        whole = Holdings(attempt, attempts.gpu_ids, begin_s, end_s, np.ones(len(attempt), np.int64))
        return _cut(whole) if _overlap(whole) else whole

    @property
    def gpu_s(self) -> Floats:
        """GPU-seconds of each entry: its length, divided among the holders."""
        return (self.end_s - self.begin_s) / self.holders

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Whether the attempt shared the GPU, by entry."""
        more: NDArray[np.bool_] = self.holders > 1
        return more

    @property
    def shared_share(self) -> float:
        """Share of the GPU-time held in which several jobs held the same GPU; 0 if no GPU was held."""
        gpu_s = self.gpu_s
        held = float(gpu_s.sum())
        return float(gpu_s[self.shared].sum()) / held if held > 0 else 0.0

    def inside(self, begin_s: float, end_s: float) -> Holdings:
        """The holdings between two times; entries outside get the length 0."""
        begin, end = np.clip(self.begin_s, begin_s, end_s), np.clip(self.end_s, begin_s, end_s)
        return Holdings(self.attempt, self.gpu, begin, end, self.holders)


def seats(attempts: Attempts) -> Ints:
    """The seat that each attempt has on its GPUs, from 0: a new attempt takes the first seat that is free.

    Jobs that share one GPU share all of theirs, so the first GPU of an attempt is enough to look at.
    """
    seat = np.zeros(len(attempts.job), dtype=np.int64)
    begin_s, end_s, gpu = attempts.begin_s.tolist(), attempts.end_s.tolist(), attempts.gpu_ids[attempts.first[:-1]]
    taken_until: dict[int, list[float]] = {number: [-math.inf] * SEATS for number in gpu.tolist()}
    for attempt in np.argsort(attempts.begin_s, kind="stable").tolist():
        until = taken_until[int(gpu[attempt])]
        free = [number for number in range(SEATS) if until[number] <= begin_s[attempt]]
        seat[attempt] = free[0] if free else SEATS - 1
        until[seat[attempt]] = end_s[attempt]
    return seat


def _overlap(whole: Holdings) -> bool:
    """Whether two attempts ever held the same GPU at the same time.

    It is enough to look at attempts that began one after the other on a GPU.
    """
    order = np.argsort(whole.begin_s, kind="stable")
    order = order[np.argsort(whole.gpu[order], kind="stable")]
    gpu, begin_s, end_s = whole.gpu[order], whole.begin_s[order], whole.end_s[order]
    return bool(np.any((gpu[1:] == gpu[:-1]) & (begin_s[1:] < end_s[:-1])))


def _cut(whole: Holdings) -> Holdings:
    """Entries of whole attempts, cut so that the number of holders is the same throughout each."""
    # 1. The moments at which an attempt began or ended on a GPU, GPU by GPU.
    gpu = np.concatenate((whole.gpu, whole.gpu))
    time_s = np.concatenate((whole.begin_s, whole.end_s))
    order = np.lexsort((time_s, gpu))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(gpu[order]) != 0) | (np.diff(time_s[order]) != 0)
    moment_s = time_s[order][new]
    moment = np.empty(len(order), dtype=np.int64)
    moment[order] = np.cumsum(new) - 1
    came, left = np.split(moment, 2)
    # 2. The number of holders from each moment to the next.
    count = len(moment_s)
    holders = np.cumsum(np.bincount(came, minlength=count) - np.bincount(left, minlength=count))
    # 3. Every entry from moment to moment, joined again where the number of holders did not change.
    entry = np.repeat(np.arange(len(came)), left - came)
    since = counting(came, left - came)
    new = np.ones(len(entry), dtype=bool)
    new[1:] = (np.diff(entry) != 0) | (np.diff(holders[since]) != 0)
    last = np.append(np.flatnonzero(new)[1:], len(entry)) - 1
    entry = entry[new]
    return Holdings(
        whole.attempt[entry], whole.gpu[entry], moment_s[since[new]], moment_s[since[last] + 1], holders[since[new]]
    )
