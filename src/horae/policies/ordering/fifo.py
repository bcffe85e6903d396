"""First come, first served: jobs in order of arrival, with or without backfilling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.settings import RESERVE, setting


@dataclass(frozen=True)
class Fifo:
    """Run jobs in order of arrival; the first that does not fit blocks all behind it.

    The capacity scheduler of YARN, which Tiresias measures itself against (NSDI '19, section 5).
    """

    objective: ClassVar = "order of arrival"
    unit: ClassVar = "-"
    paper: ClassVar = "baseline (Tiresias, NSDI '19)"
    type_aware: ClassVar = False
    preempts: ClassVar = False
    memory: ClassVar = MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """All jobs in order of arrival; no job passes another."""
        return Wishes(now.rows, preempt=False, blocking=True, waiting=Reason.BEHIND_EARLIER)


@dataclass(frozen=True)
class FifoBackfill:
    """Run jobs in order of arrival; jobs that fit pass those that do not.

    With `reserve=0` this is the backfill of batch schedulers: the first job that does
    not fit gets a time when it will, and only jobs that do not delay it may pass.
    """

    objective: ClassVar = "order of arrival"
    unit: ClassVar = "-"
    paper: ClassVar = "baseline (Tiresias, NSDI '19)"
    type_aware: ClassVar = False
    preempts: ClassVar = False
    memory: ClassVar = MemorySpec()
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """All jobs in order of arrival; a job that fits may pass one that does not."""
        return Wishes(now.rows, preempt=False, reserve_after_s=self.reserve, waiting=Reason.NO_FREE_GPUS)
