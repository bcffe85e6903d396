"""Gandiva: random pairs of jobs share GPUs, and pairs that gain by it stay together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.rounds import MEMORY, TimeShares, next_round, owed, owed_per_s, remember
from horae.policies.gavel.type_preference import free_gpus
from horae.policies.settings import setting
from horae.solve.allocation.problem import isolated_share


@dataclass(frozen=True)
class Gandiva:
    """Put random pairs of jobs onto the same GPUs when GPUs are short, and keep the pairs that gain by it.

    The packing of Gandiva (OSDI '18, section 3) as Gavel compares itself with it (section 7): jobs and pairs take
    equal turns on all GPU types, a job moves to a faster type only while GPUs of it are free, and a pair stays
    together as long as its two throughputs, each divided by that of the job alone, sum to at least 1. Only jobs with
    a known speed beside another job share GPUs. A live service knows no such speeds, so all jobs take equal turns
    there.
    """

    objective: ClassVar = "equal turns of jobs and of random pairs that gain by sharing"
    unit: ClassVar = "s"
    paper: ClassVar = "Gandiva, OSDI '18; Gavel, OSDI '20, section 7"
    type_aware: ClassVar = True
    shares_gpus: ClassVar = True
    memory: ClassVar[MemorySpec] = MemorySpec(
        #: Row of each job's partner, plus 1; 0 if the job has no partner.
        columns={**MEMORY.columns, "mate": 0},
        naming_rows=("mate",),
        by_type=MEMORY.by_type,
        scalars={**MEMORY.scalars, "looks": 0.0},
    )
    round: float = setting(360.0, "length of a round in seconds", least=0.001)
    stay: float = setting(
        720.0, "seconds that a waiting job must be owed more than a running job before it takes its GPUs", least=0
    )
    seed: int = setting(0, "seed of the random pairs; the seed of the run, unless given", least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Part pairs that lose or need not share, draw new pairs if GPUs are short, and give all equal turns."""
        owed_s = owed(now, memory, math.inf)
        gain = _gains(now)
        partner = _part_needless_pairs(now, _gaining_partners(now, memory, gain), gain)
        partner = self._draw_pairs(now, memory, partner, gain)
        memory.put("mate", now.rows, np.where(partner >= 0, now.rows[partner] + 1.0, 0.0))
        shares = _equal_turns(now, partner)
        remember(now, memory, shares, owed_s)
        # The claim is the time owed on all types together. A job moves to idle GPUs on which it is faster.
        claim_s = np.repeat(owed_s.sum(axis=1, keepdims=True), owed_s.shape[1], axis=1)
        claim_s[_moves(now, partner)] += 2 * self.stay
        per_s = np.repeat(owed_per_s(now, shares).sum(axis=1, keepdims=True), owed_s.shape[1], axis=1)
        return next_round(now, shares, claim_s, self.round, self.stay, per_s)

    def _draw_pairs(self, now: Snapshot, memory: Memory, partner: Ints, gain: Floats) -> Ints:
        """Pair jobs without a partner at random, until all jobs and pairs fit on the GPUs."""
        decisions = memory.scalar("looks")
        memory.put_scalar("looks", decisions + 1)
        needed = _gpus_needed(now, partner)
        if needed <= now.open_gpus.sum():
            return partner
        order = np.random.default_rng([self.seed, int(decisions)]).permutation(len(now))
        #: The last job drawn without a partner, by GPU count: only jobs of equal size pair up.
        single: dict[int, int] = {}
        for m in order[(partner[order] < 0) & (now.job_kind[order] >= 0)].tolist():
            other = single.pop(int(now.gpus[m]), None)
            if other is None:
                single[int(now.gpus[m])] = m
            elif gain[now.job_kind[m], now.job_kind[other]] >= 1:
                partner[m], partner[other] = other, m
                needed -= now.gpus[m]
            if needed <= now.open_gpus.sum():
                break
        return partner


def _gains(now: Snapshot) -> Floats:
    """Throughput of a pair, each job's divided by its throughput alone, by the kinds of the two jobs.

    The mean over the GPUs of all types that the two jobs can share.
    """
    kinds = len(now.pair_rates)
    alone = np.zeros((kinds, len(now.open_gpus)))
    sharing = now.job_kind >= 0
    alone[now.job_kind[sharing]] = now.rates[sharing]
    ratio = np.divide(now.pair_rates, alone[:, None, :], out=np.zeros_like(now.pair_rates), where=alone[:, None, :] > 0)
    fits = now.pair_rates > 0
    weight = fits * now.open_gpus
    total = weight.sum(axis=2)
    gains = ((ratio + ratio.transpose(1, 0, 2)) * weight).sum(axis=2)
    return np.asarray(np.divide(gains, total, out=np.zeros_like(gains), where=total > 0))


def _gaining_partners(now: Snapshot, memory: Memory, gain: Floats) -> Ints:
    """Position of each job's partner; -1 if there is none, it has left, or the pair does not gain."""
    rows = memory.column("mate", now.rows).astype(np.int64) - 1
    partner = np.minimum(np.searchsorted(now.rows, rows), len(now) - 1)
    present = (rows >= 0) & (now.rows[partner] == rows)
    gains = gain[now.job_kind, now.job_kind[partner]] >= 1 if len(gain) else np.zeros(len(now), np.bool_)
    return np.where(present & gains, partner, -1)


def _moves(now: Snapshot, partner: Ints) -> tuple[Ints, Ints]:
    """Jobs that run alone, and for each the faster GPU type with idle GPUs to move to. The largest gains come first."""
    free, running = free_gpus(now), np.flatnonzero(now.has_gpus & (partner < 0) & (now.companion < 0))
    rate = now.rates[running, now.last_type[running]]
    moves: list[tuple[int, int]] = []
    for k in np.argsort(rate / now.rates[running].max(axis=1), kind="stable").tolist():
        m = int(running[k])
        best = int(np.argmax(np.where(free >= now.gpus[m], now.rates[m], 0.0)))
        if free[best] >= now.gpus[m] and now.rates[m, best] > rate[k]:
            free[best] -= now.gpus[m]
            free[now.last_type[m]] += now.gpus[m]
            moves.append((m, best))
    jobs, types = np.array(moves, np.int64).reshape(-1, 2).T
    return jobs, types


def _gpus_needed(now: Snapshot, partner: Ints) -> int:
    """GPUs that all jobs need at once, where a pair needs the GPUs of one job."""
    return int(now.gpus[(partner < 0) | (partner > np.arange(len(now)))].sum())


def _part_needless_pairs(now: Snapshot, partner: Ints, gain: Floats) -> Ints:
    """Part pairs while there are GPUs for both jobs, the pair with the least gain first."""
    free = int(now.open_gpus.sum()) - _gpus_needed(now, partner)
    first = np.flatnonzero(partner > np.arange(len(now)))
    for m in first[np.argsort(gain[now.job_kind[first], now.job_kind[partner[first]]], kind="stable")].tolist():
        if now.gpus[m] <= free:
            free -= int(now.gpus[m])
            partner[partner[m]] = partner[m] = -1
    return partner


def _equal_turns(now: Snapshot, partner: Ints) -> TimeShares:
    """Each single job, and each pair, has 1/N of every GPU type that it can use."""
    usable = now.usable
    first = np.flatnonzero(partner > np.arange(len(now)))
    pairs = np.stack((first, partner[first]), axis=1)
    alone = np.flatnonzero(partner < 0)
    fits = now.pair_rates[now.job_kind[pairs[:, 0]], now.job_kind[pairs[:, 1]]] > 0 if len(pairs) else usable[:0]
    share = isolated_share(
        now.open_gpus,
        np.concatenate((now.gpus[alone], now.gpus[first])),
        np.concatenate((usable[alone], usable[first] & usable[partner[first]] & fits)),
    )
    single = np.zeros(usable.shape)
    single[alone] = share[: len(alone)]
    return TimeShares(single, pairs, share[len(alone) :])
