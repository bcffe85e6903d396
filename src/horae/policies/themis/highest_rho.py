"""The app that is worst off first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.settings import RESERVE, setting
from horae.policies.themis.rho import MEMORY, look, rho
from horae.policies.time_grid import next_quantum_s


@dataclass(frozen=True)
class HighestRho:
    """Give GPUs to the app with the highest rho, all it can use, then to the next.

    The strawman of Themis (NSDI '20, section 3.2): fair in the long run, blind to who could use
    which GPUs best. GPUs are leased, so that apps of like rho do not take them from each other
    at every event; leases end on a common grid.
    """

    objective: ClassVar = "rho = finish time here / finish time alone on 1/N, highest app first"
    unit: ClassVar = "rho"
    paper: ClassVar = "Themis, NSDI '20, section 3.2 (strawman)"
    memory: ClassVar[MemorySpec] = MEMORY
    lease: float = setting(1200.0, "seconds that a job keeps the GPUs it got", least=0.001)
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By rho of the job's app, rounded, so that nothing hangs on the last digit; within an app as the app wants."""
        apps = look(now, memory)
        worst_first = -np.round(rho(now, apps, self.lease), 9)
        order = np.argsort(now.table.turn[now.rows], kind="stable")
        lease_ends_s = next_quantum_s(now.now_s, self.lease)
        anybody_waits = not now.has_gpus.all()
        return Wishes(
            now.rows[order],
            worst_first[apps.of_job[order]],
            reserve_after_s=self.reserve,
            lease_until_s=lease_ends_s,
            waiting=Reason.BEHIND_SHARE,
            wake_s=lease_ends_s if anybody_waits else math.inf,
        )
