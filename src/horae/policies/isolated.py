"""Everybody alone on 1/N of the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Memory, MemorySpec, Snapshot, Wishes
from horae.core.reasons import Reason
from horae.policies.quanta import next_quantum_s
from horae.policies.settings import setting


@dataclass(frozen=True)
class Isolated:
    """Give each of the N jobs 1/N of the time of every GPU type, in rounds.

    The share is that of Gavel (OSDI '20, section 4.2): (GPUs of the type / N) / gang, at most
    all of the time. A round goes to the jobs whose share has run up the most against the
    time they had; what they are owed is carried over from round to round.
    """

    objective: ClassVar = "time owed on each GPU type, most first"
    unit: ClassVar = "s"
    paper: ClassVar = "Gavel, OSDI '20, section 4.2"
    memory: ClassVar = MemorySpec(columns={"ran_s": 0}, by_type=("owed_s", "share"), scalars={"looked_s": 0.0})
    round: float = setting(360.0, "length of a round in seconds", least=0.001)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Settle what each job is owed, then wish for (job, type) in order of it."""
        owed_s = self._owed(now, memory)
        fits = now.open_gpus >= now.gpus[:, None]
        share = isolated_share(now.open_gpus, now.gpus, (now.rates > 0) & fits)
        memory.put("owed_s", now.rows, owed_s)
        memory.put("ran_s", now.rows, now.executed_s)
        memory.put("share", now.rows, share)
        memory.put_scalar("looked_s", now.now_s)
        job, gpu_type = np.nonzero(share > 0)
        round_ends_s = next_quantum_s(now.now_s, self.round)
        return Wishes(
            job=now.rows[job],
            key=-np.round(owed_s[job, gpu_type], 6),
            gpu_type=gpu_type,
            lease_until_s=round_ends_s,
            waiting=Reason.BEHIND_SHARE,
            wake_s=round_ends_s if len(now) else math.inf,
        )

    def _owed(self, now: Snapshot, memory: Memory) -> NDArray[np.float64]:
        """What was owed, plus the share of the time since, less the time run since, on the type it ran on."""
        elapsed_s = now.now_s - memory.scalar("looked_s")
        owed_s = memory.column("owed_s", now.rows) + memory.column("share", now.rows) * elapsed_s
        ran_s = now.executed_s - memory.column("ran_s", now.rows)
        ran = np.flatnonzero(now.last_type >= 0)
        owed_s[ran, now.last_type[ran]] -= ran_s[ran]
        return owed_s


def isolated_share(
    gpus_by_type: NDArray[np.int64], gangs: NDArray[np.int64], usable: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Share of time each job (rows) would have on each GPU type (columns) of its 1/N of the cluster."""
    if len(gangs) == 0:
        return np.zeros(usable.shape)
    share = gpus_by_type[None, :] / len(gangs) / gangs[:, None]
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    return np.where(usable, share, 0.0)
