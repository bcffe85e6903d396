"""The base of Gavel's policies: solve an allocation problem for shares of time, and run the shares in rounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.rounds import MEMORY, TimeShares, next_round, owed, owed_per_s, remember
from horae.policies.settings import BadSetting, setting
from horae.solve.allocation.problem import AllocationProblem, Sharing, Solution

#: Shares of time below this are rounding errors of the solver.
_LEAST_SHARE = 1e-6


def problem_of(now: Snapshot, isolated_s: Floats, left: Floats) -> AllocationProblem:
    """The allocation problem of a snapshot, with this work left.

    A job has speed 0 on a GPU type that is too small for its gang now.
    """
    return AllocationProblem(
        gpu_types=now.cluster.gpu_types,
        capacity=now.open_gpus.astype(np.float64),
        ids=tuple(str(row) for row in now.rows.tolist()),
        gpus=now.gpus.astype(np.float64),
        speed=np.where(now.open_gpus >= now.gpus[:, None], now.rates, 0.0),
        weight=now.weight,
        steps_left=np.maximum(left, 1e-9 * now.table.work[now.rows]),
        elapsed_s=now.now_s - now.submit_s,
        isolated_s=isolated_s,
        deadline_s=now.deadline_s - now.now_s,
        queue=now.queue,
        queues=now.queues,
    )


@dataclass(frozen=True)
class AllocationPolicy(ABC):
    """Solve for the share of time of each job on each GPU type, at every event, and run the shares in rounds."""

    paper: ClassVar = "Gavel, OSDI '20, section 4"
    type_aware: ClassVar = True
    memory: ClassVar[MemorySpec] = MEMORY
    round: float = setting(360.0, "length of a round in seconds", least=0.001)
    stay: float = setting(
        720.0, "seconds that a waiting job must be owed more than a running job before it takes its GPUs", least=0
    )
    half_life: float = setting(
        math.inf, "seconds after which half of the time owed is forgotten; off for never", least=1
    )
    aware: bool = setting(True, "whether each GPU type has its own speed; false takes one average speed for all")
    space_sharing: bool = setting(False, "whether two jobs may share GPUs where that is faster than taking turns")

    #: Whether the shares depend on jobs and GPUs alone, not on time; equal problems are then solved once.
    timeless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.space_sharing and not self.aware:
            raise BadSetting(
                "space-sharing=true needs speeds to be told apart, and aware=false does not: leave one of them out."
            )

    def check(self, gpu_types: tuple[str, ...], pairs_known: bool) -> None:
        """Refuse space sharing where no speeds of pairs are known."""
        if self.space_sharing and not pairs_known:
            raise BadSetting(
                "space-sharing=true needs speeds of two jobs on the same GPUs, and none are known: "
                "leave it out, or, in a simulation, name a table that has them with --throughputs FILE."
            )

    @abstractmethod
    def allocate(self, problem: AllocationProblem) -> Solution:
        """Solve a problem for shares of time."""

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Update the time owed, solve for shares, and wish for the next round."""
        owed_s = owed(now, memory, self.half_life)
        # Jobs that no GPU type can hold now are left out of the problem, and have no share.
        runnable = np.asarray(now.usable.any(axis=1))
        shares = self._shares(now, memory, runnable) if runnable.any() else TimeShares(np.zeros_like(owed_s))
        remember(now, memory, shares, owed_s)
        claim_s, per_s = self.claims(now, shares, owed_s), self.claims_per_s(now, shares)
        wishes = next_round(now, shares, claim_s, self.round, self.stay, per_s)
        return wishes._replace(wake_s=min(wishes.wake_s, self.next_claim_s(now, shares)))

    def claims(self, now: Snapshot, shares: TimeShares, owed_s: Floats) -> Floats:
        """Claim of each job (rows) to each GPU type (columns), in seconds; the time owed, by default."""
        return owed_s

    def claims_per_s(self, now: Snapshot, shares: TimeShares) -> Floats | None:
        """How much each claim grows in a second, or None if that is not known; as the time owed does, by default."""
        return owed_per_s(now, shares)

    def next_claim_s(self, now: Snapshot, shares: TimeShares) -> float:
        """When claims change although nothing happens, if before the end of the round; never, by default."""
        return math.inf

    def least_share(self, solution: Solution) -> Floats:
        """Share of each job below which a share is a rounding error of the solver, and dropped."""
        return np.full(len(solution.share), _LEAST_SHARE)

    def _shares(self, now: Snapshot, memory: Memory, runnable: Bools) -> TimeShares:
        """Solve for the jobs that can run now; the others have no share."""
        problem = problem_of(now, self._isolated_s(now, memory), self._left(now))
        if self.space_sharing:
            problem = replace(problem, sharing=Sharing(now.job_kind, now.pair_rates))
        problem = problem.only(runnable)
        solution = self._solve(problem if self.aware else problem.agnostic())
        self.note(now, memory, now.rows[runnable], solution)
        least = self.least_share(solution)
        alone = np.zeros((len(now), len(problem.gpu_types)))
        alone[runnable] = np.where(solution.share < least[:, None], 0.0, solution.share)
        together = np.where(
            solution.pair_share < least[solution.pairs].min(axis=1, keepdims=True), 0.0, solution.pair_share
        )
        return TimeShares(alone, np.flatnonzero(runnable)[solution.pairs], together)

    def note(self, now: Snapshot, memory: Memory, rows: Ints, solution: Solution) -> None:  # noqa: B027, optional
        """Remember more of a solution than its shares (nothing, by default); `rows[m]` is the row of its job m."""

    def _solve(self, problem: AllocationProblem) -> Solution:
        """Allocate, or return the last solution if the problem is the same: most rounds end without any change."""
        if not self.timeless:
            return self.allocate(problem)
        key = problem.fingerprint
        if key not in self._last:
            self._last.clear()
            self._last[key] = self.allocate(problem)
        return self._last[key]

    @cached_property
    def _last(self) -> dict[bytes, Solution]:
        """A cache of one entry; it can be lost at any time."""
        return {}

    def _left(self, now: Snapshot) -> Floats:
        """Work left of each job that the shares go by."""
        return now.work_left

    def _isolated_s(self, now: Snapshot, memory: Memory) -> Floats:
        """Seconds that each job's work so far would have taken on its isolated share; 0 by default."""
        return np.zeros(len(now))
