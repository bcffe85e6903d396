"""Who held which GPU when, also where two jobs held the same one.

At every instant a GPU is divided equally among those that hold it: half to each of
two. So what jobs held sums to the time in which GPUs were in use, and no GPU counts
for more than itself, however many share it.
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
    """One entry for each GPU of an attempt and stretch of time in which it had as many companions there.

    Columns of equal length. Entries of an attempt follow one another, and so do the
    stretches of each of its GPUs, in order of time.
    """

    attempt: Ints
    gpu: NDArray[np.int32]
    begin_s: Floats
    end_s: Floats
    #: How many attempts held the GPU, this one among them.
    holders: Ints

    @staticmethod
    def of(attempts: Attempts) -> Holdings:
        """Cut attempts where somebody came to share their GPUs, or left."""
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
        """Where an attempt was not alone on its GPU."""
        more: NDArray[np.bool_] = self.holders > 1
        return more

    @property
    def shared_share(self) -> float:
        """Share of the GPU-time held in which several held the same GPU; 0 if nothing was held."""
        gpu_s = self.gpu_s
        held = float(gpu_s.sum())
        return float(gpu_s[self.shared].sum()) / held if held > 0 else 0.0

    def inside(self, begin_s: float, end_s: float) -> Holdings:
        """The same between two times; what lies outside has no length."""
        begin, end = np.clip(self.begin_s, begin_s, end_s), np.clip(self.end_s, begin_s, end_s)
        return Holdings(self.attempt, self.gpu, begin, end, self.holders)


def seats(attempts: Attempts) -> Ints:
    """Which of a GPU's seats each attempt has, from 0: whoever comes takes the first that is free.

    Jobs that share one GPU share all of theirs, so the first GPU of an attempt speaks for the others.
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

    If any two did, then so did two that came to that GPU one after the other.
    """
    order = np.argsort(whole.begin_s, kind="stable")
    order = order[np.argsort(whole.gpu[order], kind="stable")]
    gpu, begin_s, end_s = whole.gpu[order], whole.begin_s[order], whole.end_s[order]
    return bool(np.any((gpu[1:] == gpu[:-1]) & (begin_s[1:] < end_s[:-1])))


def _cut(whole: Holdings) -> Holdings:
    """Entries of whole attempts, cut so that the number of holders is the same throughout each."""
    # 1. The moments at which somebody came to a GPU or left it, GPU by GPU.
    gpu = np.concatenate((whole.gpu, whole.gpu))
    time_s = np.concatenate((whole.begin_s, whole.end_s))
    order = np.lexsort((time_s, gpu))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(gpu[order]) != 0) | (np.diff(time_s[order]) != 0)
    moment_s = time_s[order][new]
    moment = np.empty(len(order), dtype=np.int64)
    moment[order] = np.cumsum(new) - 1
    came, left = np.split(moment, 2)
    # 2. How many held the GPU from each moment to the next.
    count = len(moment_s)
    holders = np.cumsum(np.bincount(came, minlength=count) - np.bincount(left, minlength=count))
    # 3. Every entry from moment to moment, joined again where one companion took another's place.
    entry = np.repeat(np.arange(len(came)), left - came)
    since = counting(came, left - came)
    new = np.ones(len(entry), dtype=bool)
    new[1:] = (np.diff(entry) != 0) | (np.diff(holders[since]) != 0)
    last = np.append(np.flatnonzero(new)[1:], len(entry)) - 1
    entry = entry[new]
    return Holdings(
        whole.attempt[entry], whole.gpu[entry], moment_s[since[new]], moment_s[since[last] + 1], holders[since[new]]
    )
