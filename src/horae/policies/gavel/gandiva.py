"""Packing by trial and error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.rounds import MEMORY, TimeShares, next_round, owed, remember
from horae.policies.gavel.type_preference import free_gpus
from horae.policies.settings import setting
from horae.solve.allocation.problem import isolated_share


@dataclass(frozen=True)
class Gandiva:
    """Put random pairs of jobs onto the same GPUs when there are too few, and keep those that gain by it.

    The packing of Gandiva (OSDI '18, section 3) as Gavel compares itself with it (section 7): types
    are not told apart, jobs and pairs take equal turns, a pair stays together as long as its two
    throughputs, each over that of the job alone, sum to at least 1. Only jobs whose speeds side by side
    are known somewhere share; in a running service none are, and all jobs take equal turns.
    """

    objective: ClassVar = "equal turns of jobs and of random pairs that gain by sharing"
    unit: ClassVar = "s"
    paper: ClassVar = "Gandiva, OSDI '18; Gavel, OSDI '20, section 7"
    memory: ClassVar[MemorySpec] = MemorySpec(
        #: The row of the job that each is paired with, plus 1; 0 for none.
        columns={**MEMORY.columns, "mate": 0},
        naming_rows=("mate",),
        by_type=MEMORY.by_type,
        scalars={**MEMORY.scalars, "looks": 0.0},
    )
    round: float = setting(360.0, "length of a round in seconds", least=0.001)
    stay: float = setting(720.0, "seconds a running job may be behind others before it gives way", least=0)
    seed: int = setting(0, "what the random pairs are drawn from; that of the run, unless given", least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Drop pairs that lose, draw new ones where GPUs are short, and give all equal turns."""
        owed_s = owed(now, memory, math.inf)
        gain = _gains(now)
        mate = self._pair_up(now, memory, _as_few(now, _proven(now, memory, gain), gain), gain)
        memory.put("mate", now.rows, np.where(mate >= 0, now.rows[mate] + 1.0, 0.0))
        shares = _equal_turns(now, mate)
        remember(now, memory, shares, owed_s)
        # What counts is time owed on any type; a job moves where GPUs lie idle that it would be faster on.
        claim_s = np.repeat(owed_s.sum(axis=1, keepdims=True), owed_s.shape[1], axis=1)
        claim_s[_moves(now, mate)] += 2 * self.stay
        return next_round(now, shares, claim_s, self.round, self.stay)

    def _pair_up(self, now: Snapshot, memory: Memory, mate: Ints, gain: Floats) -> Ints:
        """Pair jobs that are single, at random, until those that are left fit."""
        looks = memory.scalar("looks")
        memory.put_scalar("looks", looks + 1)
        wanted = _wanted(now, mate)
        if wanted <= now.open_gpus.sum():
            return mate
        order = np.random.default_rng([self.seed, int(looks)]).permutation(len(now))
        single: dict[int, int] = {}
        for m in order[(mate[order] < 0) & (now.kind[order] >= 0)].tolist():
            other = single.pop(int(now.gpus[m]), None)
            if other is None:
                single[int(now.gpus[m])] = m
            elif gain[now.kind[m], now.kind[other]] >= 1:
                mate[m], mate[other] = other, m
                wanted -= now.gpus[m]
            if wanted <= now.open_gpus.sum():
                break
        return mate


def _gains(now: Snapshot) -> Floats:
    """Sum of two throughputs together, each over that alone, by kind: the mean over the GPUs of types they share."""
    kinds = len(now.beside)
    alone = np.zeros((kinds, len(now.open_gpus)))
    known = now.kind >= 0
    alone[now.kind[known]] = now.rates[known]
    part = np.divide(now.beside, alone[:, None, :], out=np.zeros_like(now.beside), where=alone[:, None, :] > 0)
    fits = now.beside > 0
    weight = fits * now.open_gpus
    total = weight.sum(axis=2)
    gains = ((part + part.transpose(1, 0, 2)) * weight).sum(axis=2)
    return np.asarray(np.divide(gains, total, out=np.zeros_like(gains), where=total > 0))


def _proven(now: Snapshot, memory: Memory, gain: Floats) -> Ints:
    """Position of each job's mate, -1 where it has none, it is gone, or the two do not gain together."""
    rows = memory.column("mate", now.rows).astype(np.int64) - 1
    at = np.minimum(np.searchsorted(now.rows, rows), len(now) - 1)
    there = (rows >= 0) & (now.rows[at] == rows)
    gains = gain[now.kind, now.kind[at]] >= 1 if len(gain) else np.zeros(len(now), np.bool_)
    return np.where(there & gains, at, -1)


def _moves(now: Snapshot, mate: Ints) -> tuple[Ints, Ints]:
    """Jobs that run alone, and the types with idle GPUs that they should move to: those that gain most first."""
    free, runs = free_gpus(now), np.flatnonzero(now.has_gpus & (mate < 0) & (now.companion < 0))
    here = now.rates[runs, now.last_type[runs]]
    moves: list[tuple[int, int]] = []
    for at in np.argsort(here / now.rates[runs].max(axis=1), kind="stable").tolist():
        m = int(runs[at])
        best = int(np.argmax(np.where(free >= now.gpus[m], now.rates[m], 0.0)))
        if free[best] >= now.gpus[m] and now.rates[m, best] > here[at]:
            free[best] -= now.gpus[m]
            free[now.last_type[m]] += now.gpus[m]
            moves.append((m, best))
    jobs, types = np.array(moves, np.int64).reshape(-1, 2).T
    return jobs, types


def _wanted(now: Snapshot, mate: Ints) -> int:
    """GPUs it takes to run everybody, pairs together."""
    return int(now.gpus[(mate < 0) | (mate > np.arange(len(now)))].sum())


def _as_few(now: Snapshot, mate: Ints, gain: Floats) -> Ints:
    """Part pairs as far as there are GPUs for both, those that gain least first."""
    free = int(now.open_gpus.sum()) - _wanted(now, mate)
    first = np.flatnonzero(mate > np.arange(len(now)))
    for m in first[np.argsort(gain[now.kind[first], now.kind[mate[first]]], kind="stable")].tolist():
        if now.gpus[m] <= free:
            free -= int(now.gpus[m])
            mate[mate[m]] = mate[m] = -1
    return mate


def _equal_turns(now: Snapshot, mate: Ints) -> TimeShares:
    """Each job without a mate, and each pair, has 1/N of every GPU type that it can use."""
    usable = now.usable
    first = np.flatnonzero(mate > np.arange(len(now)))
    pairs = np.stack((first, mate[first]), axis=1)
    alone = np.flatnonzero(mate < 0)
    fits = now.beside[now.kind[pairs[:, 0]], now.kind[pairs[:, 1]]] > 0 if len(pairs) else usable[:0]
    share = isolated_share(
        now.open_gpus,
        np.concatenate((now.gpus[alone], now.gpus[first])),
        np.concatenate((usable[alone], usable[first] & usable[mate[first]] & fits)),
    )
    single = np.zeros(usable.shape)
    single[alone] = share[: len(alone)]
    return TimeShares(single, pairs, share[len(alone) :])
