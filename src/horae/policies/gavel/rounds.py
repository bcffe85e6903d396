"""The round mechanism: from shares of time to who runs now (Gavel, OSDI '20, section 5).

A job that is entitled to the share X of its time on a GPU type is owed X * dt seconds there
as time goes by, and pays by running. Every round goes to the (job, type) pairs that are owed
the most. What is owed survives a new solution: to forget it at each would starve somebody.

Two choices are ours. A job that runs is preferred on the GPUs it has, as if it were owed
`stay` seconds more: changing places costs a restart, so being a little behind is not worth it.
And whatever is left idle goes to those that wait, on any type that they can use.

Two jobs that are to share GPUs are owed that time each, and claim it together: the larger of what
the two are owed is the claim of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.time_grid import next_quantum_s

#: What the mechanism remembers: seconds owed and the share of time, by job and type; time run when it last looked.
MEMORY = MemorySpec(columns={"ran_s": 0}, by_type=("owed_s", "share"), scalars={"looked_s": 0.0})

#: Keys of pairs that nobody is entitled to begin here: after everybody who is owed anything.
_LAST = 1e15


def owed(now: Snapshot, memory: Memory, half_life_s: float) -> Floats:
    """Seconds owed to each job on each type: what was owed, plus its share of the time since, less the time run."""
    elapsed_s = now.now_s - memory.scalar("looked_s")
    kept = 0.5 ** (elapsed_s / half_life_s)
    owed_s: Floats = memory.column("owed_s", now.rows) * kept + memory.column("share", now.rows) * elapsed_s
    ran_s = now.executed_s - memory.column("ran_s", now.rows)
    ran = np.flatnonzero(now.last_type >= 0)
    owed_s[ran, now.last_type[ran]] -= ran_s[ran]
    return owed_s


@dataclass(frozen=True)
class TimeShares:
    """What a solution entitles jobs to, by position in a snapshot: time alone by type, and time of pairs."""

    alone: Floats
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    together: Floats = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def total(self) -> Floats:
        """Time of each job on each type, alone or not."""
        total = self.alone.copy()
        for side in range(2 if len(self.pairs) else 0):
            np.add.at(total, self.pairs[:, side], self.together)
        return total


def remember(now: Snapshot, memory: Memory, shares: TimeShares, owed_s: Floats) -> None:
    """Write down what is owed by now and the shares that count from here."""
    memory.put("owed_s", now.rows, owed_s)
    memory.put("ran_s", now.rows, now.executed_s)
    memory.put("share", now.rows, shares.total)
    memory.put_scalar("looked_s", now.now_s)


def next_round(now: Snapshot, shares: TimeShares, claim_s: Floats, round_s: float, stay_s: float) -> Wishes:
    """Wish for jobs, and pairs of them, in order of their claims: what they are owed, as a rule."""
    job, gpu_type, key = _alone(now, shares, claim_s, stay_s)
    round_ends_s = next_quantum_s(now.now_s, round_s)
    partner = np.empty(0, np.int64)
    if len(shares.pairs):
        one, other, shared_type, shared_key = _together(now, shares, claim_s, stay_s)
        partner = now.rows[other]
        partner = np.concatenate((np.full(len(job), -1), partner))
        job, gpu_type = np.concatenate((job, one)), np.concatenate((gpu_type, shared_type))
        key = np.concatenate((key, shared_key))
    return Wishes(
        job=now.rows[job],
        key=np.asarray(np.round(key, 6), np.float64),
        gpu_type=gpu_type,
        partner=partner,
        lease_until_s=round_ends_s,
        waiting=Reason.BEHIND_SHARE,
        wake_s=round_ends_s if len(now) else math.inf,
    )


def _alone(now: Snapshot, shares: TimeShares, claim_s: Floats, stay_s: float) -> tuple[Ints, Ints, Floats]:
    """Wishes of jobs for GPUs of their own: job, type and key."""
    job, gpu_type = np.nonzero(now.usable)
    stays = now.has_gpus[job] & (now.last_type[job] == gpu_type) & (now.companion[job] < 0)
    entitled = shares.alone[job, gpu_type] > 0
    slow = 1.0 - now.rates[job, gpu_type] / now.rates[job].max(axis=1)
    its_claim_s = claim_s[job, gpu_type] + np.where(stays, stay_s, 0.0)
    return job, gpu_type, np.where(entitled | stays, -its_claim_s, _LAST + slow)


def _together(now: Snapshot, shares: TimeShares, claim_s: Floats, stay_s: float) -> tuple[Ints, Ints, Ints, Floats]:
    """Wishes of pairs for GPUs to share: the two jobs, type and key."""
    pair, gpu_type = np.nonzero(shares.together > 0)
    one, other = shares.pairs[pair].T
    stays = (now.companion[one] == now.rows[other]) & (now.last_type[one] == gpu_type)
    both_s = np.maximum(claim_s[one, gpu_type], claim_s[other, gpu_type])
    return one, other, gpu_type, -(both_s + np.where(stays, stay_s, 0.0))
