"""The round mechanism: from shares of time to the jobs that run now (Gavel, OSDI '20, section 5).

A job with share X of a GPU type is owed X seconds there in every second, and pays by running there. Each round goes
to the (job, GPU type) pairs that are owed the most. Time owed survives a new solution: forgetting it at each
solution would starve jobs.

Two choices are ours. A running job is preferred on the GPUs that it has, as if it were owed `stay` seconds more: a
move costs a restart, which being a little behind is not worth. And idle GPUs go to waiting jobs, on any type
that they can use.

Two jobs that share GPUs are each owed the time of the pair. The claim of the pair is the larger of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Bools, Floats, Ints
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.next_quantum import next_quantum_s

#: Memory (stored): seconds owed and share of time by job and type; time run by job, and the time, at the last decision.
MEMORY = MemorySpec(columns={"ran_s": 0}, by_type=("owed_s", "share"), scalars={"looked_s": 0.0})

#: Keys of (job, type) pairs without a share begin here: after all pairs that are owed time.
_NO_SHARE_KEY = 1e15
_NO_KEYS = np.empty(0, np.float64)


def owed(now: Snapshot, memory: Memory, half_life_s: float) -> Floats:
    """Seconds owed to each job on each type: owed before, plus share of the time since, less the time run."""
    elapsed_s = now.now_s - memory.scalar("looked_s")
    kept = 0.5 ** (elapsed_s / half_life_s)
    owed_s: Floats = memory.column("owed_s", now.rows) * kept + memory.column("share", now.rows) * elapsed_s
    ran_s = now.executed_s - memory.column("ran_s", now.rows)
    ran = np.flatnonzero(now.last_type >= 0)
    owed_s[ran, now.last_type[ran]] -= ran_s[ran]
    return owed_s


@dataclass(frozen=True)
class TimeShares:
    """Shares of time of the jobs of a snapshot, by position and GPU type: alone, and in pairs."""

    alone: Floats
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    together: Floats = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def total(self) -> Floats:
        """Share of each job on each type, alone and in pairs together."""
        total = self.alone.copy()
        for side in range(2 if len(self.pairs) else 0):
            np.add.at(total, self.pairs[:, side], self.together)
        return total


def remember(now: Snapshot, memory: Memory, shares: TimeShares, owed_s: Floats) -> None:
    """Remember the time owed now, and the shares that hold from now on."""
    memory.put("owed_s", now.rows, owed_s)
    memory.put("ran_s", now.rows, now.executed_s)
    memory.put("share", now.rows, shares.total)
    memory.put_scalar("looked_s", now.now_s)


def owed_per_s(now: Snapshot, shares: TimeShares) -> Floats:
    """How much the time owed to each job on each type grows in a second, if the jobs that run go on to run."""
    per_s, runs = shares.total, np.flatnonzero(now.has_gpus & ~now.loading)
    per_s[runs, now.last_type[runs]] -= 1.0
    return per_s


def next_round(
    now: Snapshot,
    shares: TimeShares,
    claim_s: Floats,
    round_s: float,
    stay_s: float,
    claim_per_s: Floats | None = None,
) -> Wishes:
    """Wishes for jobs and pairs of jobs, largest claim first. A claim is the time owed, for most policies.

    `claim_per_s` is how much each claim grows in a second, if that is known.
    """
    job, gpu_type, key, stays = _alone(now, shares, claim_s, stay_s)
    round_ends_s = next_quantum_s(now.now_s, round_s)
    partner = np.empty(0, np.int64)
    if len(shares.pairs):
        first, second, shared_type, shared_key, stay = _together(now, shares, claim_s, stay_s)
        partner = np.concatenate((np.full(len(job), -1), now.rows[second]))
        job, gpu_type = np.concatenate((job, first)), np.concatenate((gpu_type, shared_type))
        key, stays = np.concatenate((key, shared_key)), np.concatenate((stays, stay))
    return Wishes(
        job=now.rows[job],
        key=np.asarray(np.round(key, 6), np.float64),
        gpu_type=gpu_type,
        partner=partner,
        lease_until_s=round_ends_s,
        waiting=Reason.BEHIND_SHARE,
        wake_s=round_ends_s if len(now) else math.inf,
        unkept_key=np.asarray(np.round(key + np.where(stays, stay_s, 0.0), 6), np.float64) if stay_s else _NO_KEYS,
        key_per_s=_NO_KEYS if claim_per_s is None else -claim_per_s[job, gpu_type],
    )


def _alone(now: Snapshot, shares: TimeShares, claim_s: Floats, stay_s: float) -> tuple[Ints, Ints, Floats, Bools]:
    """Wishes of jobs for GPUs of their own: position of the job, GPU type, key, and whether it has these GPUs."""
    job, gpu_type = np.nonzero(now.usable)
    stays = now.has_gpus[job] & (now.last_type[job] == gpu_type) & (now.companion[job] < 0)
    entitled = shares.alone[job, gpu_type] > 0
    slowness = 1.0 - now.rates[job, gpu_type] / now.rates[job].max(axis=1)
    pair_claim_s = claim_s[job, gpu_type] + np.where(stays, stay_s, 0.0)
    return job, gpu_type, np.where(entitled | stays, -pair_claim_s, _NO_SHARE_KEY + slowness), stays


def _together(
    now: Snapshot, shares: TimeShares, claim_s: Floats, stay_s: float
) -> tuple[Ints, Ints, Ints, Floats, Bools]:
    """Wishes of pairs for GPUs to share: positions of the two jobs, GPU type, key, and whether they have these GPUs."""
    pair, gpu_type = np.nonzero(shares.together > 0)
    first, second = shares.pairs[pair].T
    stays = (now.companion[first] == now.rows[second]) & (now.last_type[first] == gpu_type)
    pair_claim_s = np.maximum(claim_s[first, gpu_type], claim_s[second, gpu_type])
    return first, second, gpu_type, -(pair_claim_s + np.where(stays, stay_s, 0.0)), stays
