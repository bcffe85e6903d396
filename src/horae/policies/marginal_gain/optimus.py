"""GPUs where they shorten most."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.compared_by import ComparedBy
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.settings import setting
from horae.policies.time_grid import next_quantum_s


@dataclass(frozen=True)
class Optimus:
    """Give out GPUs one by one, each to the job whose remaining time it shortens most.

    After Optimus (EuroSys '18, section 4.1): first everybody gets the gang without which it does not run, then
    marginal gains decide, as far as jobs are elastic. Where not all gangs fit, every first gang shortens an
    endless time; what differs is what it costs, so that the least GPU time left goes first, which is best for
    the average as well. Remaining times are the work left over a speed linear in GPUs.
    """

    objective: ClassVar = "remaining time, shortened most by each GPU"
    unit: ClassVar = "s"
    paper: ClassVar = "Optimus, EuroSys '18, section 4.1"
    memory: ClassVar[MemorySpec] = MemorySpec()
    quantum: float = setting(600.0, "seconds that a job keeps the GPUs it got", least=0.001)
    gain: float = setting(60.0, "seconds that more GPUs must save before a running job restarts on them", least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Gangs in order of the GPU time left, each as large as marginal gains have made it."""
        time_on_one_s = np.maximum(now.remaining_s * now.gpus, 0.0)
        order = np.argsort(time_on_one_s, kind="stable")
        least, most = now.table.gpus_min[now.rows], now.table.gpus_max[now.rows]
        wanted = marginal_gains(time_on_one_s, least, most, order, int(now.open_gpus.sum()))
        gpus = self._settled(now, time_on_one_s, wanted)[order]
        quantum_ends_s = next_quantum_s(now.now_s, self.quantum)
        return Wishes(
            now.rows[order],
            gpus_min=gpus,
            gpus_max=gpus,
            lease_until_s=quantum_ends_s,
            waiting=Reason.BEHIND_SHORTER,
            measure=ComparedBy.SERVICE_LEFT,
            wake_s=quantum_ends_s if len(now) else math.inf,
        )

    def _settled(self, now: Snapshot, time_on_one_s: Floats, wanted: Ints) -> Ints:
        """What each job asks for: those that run keep their number inside a lease, and where more would gain little."""
        has = gpus_held(now)
        runs = has > 0
        leased = now.table.lease_until_s[now.rows] > now.now_s
        few = np.maximum(has, 1)
        saves_little = (wanted > has) & (time_on_one_s / few - time_on_one_s / wanted <= self.gain)
        return np.where(runs & (leased | saves_little), has, wanted)


def marginal_gains(time_on_one_s: Floats, least: Ints, most: Ints, order: Ints, gpus: int) -> Ints:
    """GPUs for each job: first gangs in the given order, then one at a time where it shortens most; ties in order.

    A job whose first gang does not fit is given it nonetheless: it waits for it.
    """
    wanted, left = least.copy(), gpus
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    grows: list[tuple[float, int, int]] = []
    for one in order.tolist():
        if left < least[one]:
            continue
        left -= int(least[one])
        if most[one] > least[one]:
            grows.append((-_shortened_s(time_on_one_s[one], int(least[one])), int(rank[one]), one))
    heapq.heapify(grows)
    while left and grows:
        _, at, one = heapq.heappop(grows)
        wanted[one] += 1
        left -= 1
        if wanted[one] < most[one]:
            heapq.heappush(grows, (-_shortened_s(time_on_one_s[one], int(wanted[one])), at, one))
    return wanted


def _shortened_s(time_on_one_s: float, gpus: int) -> float:
    """By how much one GPU more shortens a job."""
    return time_on_one_s / gpus - time_on_one_s / (gpus + 1)


def gpus_held(now: Snapshot) -> Ints:
    """How many GPUs each job has, or has set aside."""
    holders = now.gpu_ledger.holders
    count = np.bincount(holders[holders >= 0], minlength=len(now.table))
    return np.asarray(count[now.rows], np.int64)
