"""The app with the highest rho first: Themis without auctions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.next_quantum import next_quantum_s
from horae.policies.settings import RESERVE, setting
from horae.policies.themis.rho import BY_USER, MEMORY, find_apps, rho, users_rho


@dataclass(frozen=True)
class HighestRho:
    """Give GPUs to the app with the highest rho, all it can use, then to the next.

    The strawman of Themis (NSDI '20, section 3.2): fair in the long run, but it does not ask which app uses which
    GPUs best. GPUs are leased, so apps of like rho do not take GPUs from each other at every event. Leases end on
    the common time grid.
    """

    objective: ClassVar = "rho = finish time here / finish time alone on 1/N, highest app first"
    unit: ClassVar = "rho"
    paper: ClassVar = "Themis, NSDI '20, section 3.2 (strawman)"
    type_aware: ClassVar = False
    memory: ClassVar[MemorySpec] = MEMORY
    lease: float = setting(1200.0, "seconds that a job keeps the GPUs it got", least=0.001)
    reserve: float = setting(math.inf, RESERVE, least=0)
    by_user: bool = setting(True, BY_USER)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By rho of the job's app, rounded so that the last digit does not matter; then in the app's order."""
        apps = find_apps(now, memory, self.by_user)
        worst_first = -np.round(rho(now, apps, self.lease), 9)
        if self.by_user:
            # Users by the rho of all their apps, then the apps of a user by their own.
            of_users = -np.round(users_rho(now, apps, self.lease), 9)
            if of_users.any():
                _, ranks = np.unique(np.column_stack((of_users, worst_first)), axis=0, return_inverse=True)
                worst_first = ranks.reshape(-1).astype(np.float64)
        order = np.argsort(now.table.turn[now.rows], kind="stable")
        lease_ends_s = next_quantum_s(now.now_s, self.lease)
        any_waiting = not now.has_gpus.all()
        return Wishes(
            now.rows[order],
            worst_first[apps.of_job[order]],
            reserve_after_s=self.reserve,
            lease_until_s=lease_ends_s,
            waiting=Reason.BEHIND_SHARE,
            wake_s=lease_ends_s if any_waiting else math.inf,
        )
