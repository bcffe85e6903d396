"""Optimus: each GPU goes to the job whose remaining time it shortens most."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.compared_by import ComparedBy
from horae.core.memory import Memory, MemorySpec
from horae.core.quotas import QuotaUse
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.next_quantum import next_quantum_s
from horae.policies.settings import setting


@dataclass(frozen=True)
class Optimus:
    """Give out GPUs one by one, each to the job whose remaining time it shortens most.

    After Optimus (EuroSys '18, section 4.1): every job gets its smallest gang first, then elastic jobs grow by
    marginal gain. Where not all gangs fit, the first gang of any job shortens an infinite time, so gains do not
    order them; here the job with the least GPU time left goes first, which is best for the average completion
    time. A job's speed is taken to be linear in its GPU count.
    """

    objective: ClassVar = "remaining time, shortened most by each GPU"
    unit: ClassVar = "s"
    paper: ClassVar = "Optimus, EuroSys '18, section 4.1"
    type_aware: ClassVar = False
    memory: ClassVar[MemorySpec] = MemorySpec()
    quantum: float = setting(600.0, "seconds that a job keeps the GPUs it got", least=0.001)
    gain: float = setting(60.0, "seconds that more GPUs must save before a running job restarts on them", least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Gangs in order of the GPU time left, each as large as marginal gains have made it."""
        time_on_one_s = np.maximum(now.remaining_s * now.gpus, 0.0)
        order = np.argsort(time_on_one_s, kind="stable")
        least, most = now.table.gpus_min[now.rows], _most_ever(now)
        wanted = marginal_gains(time_on_one_s, least, most, order, int(now.open_gpus.sum()))
        gpus = self._gpus_asked(now, time_on_one_s, wanted)[order]
        quantum_ends_s = next_quantum_s(now.now_s, self.quantum)
        return Wishes(
            now.rows[order],
            gpus_min=gpus,
            gpus_max=gpus,
            lease_until_s=quantum_ends_s,
            waiting=Reason.BEHIND_SHORTER,
            compared_by=ComparedBy.SERVICE_LEFT,
            wake_s=quantum_ends_s if len(now) else math.inf,
        )

    def _gpus_asked(self, now: Snapshot, time_on_one_s: Floats, wanted: Ints) -> Ints:
        """GPU count that each job asks for. A running job keeps its count while leased, or if more save little."""
        has = gpus_held(now)
        runs = has > 0
        leased = now.table.lease_until_s[now.rows] > now.now_s
        saves_little = (wanted > has) & (time_on_one_s / np.maximum(has, 1) - time_on_one_s / wanted <= self.gain)
        return np.where(runs & (leased | saves_little), has, wanted)


def marginal_gains(time_on_one_s: Floats, least: Ints, most: Ints, order: Ints, gpus: int) -> Ints:
    """GPU count of each job: smallest gangs in the given order, then one GPU at a time to the largest gain.

    Ties go by the given order. A job whose smallest gang does not fit still gets that count: the job waits for it.
    """
    wanted, left = least.copy(), gpus
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    #: Heap of (negative gain in seconds, rank, position) of the jobs that can grow.
    growing: list[tuple[float, int, int]] = []
    for i in order.tolist():
        if left < least[i]:
            continue
        left -= int(least[i])
        if most[i] > least[i]:
            growing.append((-_gain_s(time_on_one_s[i], int(least[i])), int(rank[i]), i))
    heapq.heapify(growing)
    while left and growing:
        _, rank_of_job, i = heapq.heappop(growing)
        wanted[i] += 1
        left -= 1
        if wanted[i] < most[i]:
            heapq.heappush(growing, (-_gain_s(time_on_one_s[i], int(wanted[i])), rank_of_job, i))
    return wanted


def _gain_s(time_on_one_s: float, gpus: int) -> float:
    """Seconds that one GPU more saves a job that has `gpus`."""
    return time_on_one_s / gpus - time_on_one_s / (gpus + 1)


def _most_ever(now: Snapshot) -> Ints:
    """The most GPUs that each job could have: at most as many as a type it can use has, and as its queue may have.

    A job that asked for more would wait for ever.
    """
    of_one_type = np.where(now.rates > 0, now.open_gpus, 0).max(axis=1, initial=0)
    most: Ints = np.minimum(now.table.gpus_max[now.rows], of_one_type)
    if now.queues.has_maximum:
        nothing = QuotaUse(now.queues)
        most = np.minimum(most, np.array([nothing.room(node) for node in now.quota.tolist()], np.int64))
    return np.asarray(np.maximum(most, now.table.gpus_min[now.rows]), np.int64)


def gpus_held(now: Snapshot) -> Ints:
    """Number of GPUs that each job has, or that are set aside for it."""
    holders = now.gpu_ledger.holders
    count = np.bincount(holders[holders >= 0], minlength=len(now.table))
    return np.asarray(count[now.rows], np.int64)
