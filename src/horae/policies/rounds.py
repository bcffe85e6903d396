"""The round mechanism: from shares of time to who runs now (Gavel, OSDI '20, section 5).

A job that is entitled to the share X of its time on a GPU type is owed X * dt seconds there
as time goes by, and pays by running. Every round goes to the (job, type) pairs that are owed
the most. What is owed survives a new solution: to forget it at each would starve somebody.

Two choices are ours. A job that runs is preferred on the GPUs it has, as if it were owed
`stay` seconds more: changing places costs a restart, so being a little behind is not worth it.
And whatever is left idle goes to those that wait, on any type that they can use.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Memory, MemorySpec, Snapshot, Wishes
from horae.core.reasons import Reason
from horae.policies.quanta import next_quantum_s

Floats = NDArray[np.float64]

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


def next_round(now: Snapshot, memory: Memory, share: Floats, owed_s: Floats, round_s: float, stay_s: float) -> Wishes:
    """Remember what is owed and the new shares; wish for pairs in order of what they are owed."""
    memory.put("owed_s", now.rows, owed_s)
    memory.put("ran_s", now.rows, now.executed_s)
    memory.put("share", now.rows, share)
    memory.put_scalar("looked_s", now.now_s)
    usable = (now.rates > 0) & (now.open_gpus >= now.gpus[:, None])
    job, gpu_type = np.nonzero(usable)
    claim_s = owed_s[job, gpu_type]
    stays = now.has_gpus[job] & (now.last_type[job] == gpu_type)
    entitled = share[job, gpu_type] > 0
    slow = 1.0 - now.rates[job, gpu_type] / now.rates[job].max(axis=1)
    key = np.where(entitled | stays, -(claim_s + np.where(stays, stay_s, 0.0)), _LAST + slow)
    round_ends_s = next_quantum_s(now.now_s, round_s)
    return Wishes(
        job=now.rows[job],
        key=np.asarray(np.round(key, 6), np.float64),
        gpu_type=gpu_type,
        lease_until_s=round_ends_s,
        waiting=Reason.BEHIND_SHARE,
        wake_s=round_ends_s if len(now) else math.inf,
    )
