"""SLAQ: GPUs go to the jobs whose training loss falls fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.next_quantum import next_quantum_s
from horae.policies.settings import RESERVE, setting


@dataclass(frozen=True)
class Slaq:
    """Run the jobs whose loss falls most for a second of a GPU.

    After SLAQ (SoCC '17, sections 3 and 4): a job's loss is expected to fall as it did between its last two
    reports. The fall counts as a fraction of the whole fall so far, because losses of different models do not
    compare. (SLAQ divides by the largest fall between two reports; for curves that flatten the order is the same.)
    A job without two reports goes first for its first `chance` seconds of work, and is expected to gain nothing
    after that. GPUs change hands on the common time grid.
    """

    objective: ClassVar = "normalised fall of the loss for a GPU-second, largest first"
    unit: ClassVar = "1/GPU-s"
    paper: ClassVar = "SLAQ, SoCC '17, section 4"
    type_aware: ClassVar = False
    memory: ClassVar[MemorySpec] = MemorySpec()
    quantum: float = setting(600.0, "seconds that a job keeps the GPUs it got", least=0.001)
    chance: float = setting(
        1800.0, "seconds of work within which a job goes first until it has reported twice", least=0
    )
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Jobs within their chance, then by expected fall of the loss, largest first; ties by arrival."""
        few_reports = np.isnan(now.table.loss_before[now.rows])
        has_chance = few_reports & (now.executed_s < self.chance)
        quantum_ends_s = next_quantum_s(now.now_s, self.quantum)
        return Wishes(
            now.rows,
            np.where(has_chance, -np.inf, -expected_fall(now)),
            reserve_after_s=self.reserve,
            lease_until_s=quantum_ends_s,
            waiting=Reason.BEHIND_BETTER,
            wake_s=quantum_ends_s if not now.has_gpus.all() else math.inf,
        )


def expected_fall(now: Snapshot) -> Floats:
    """Expected fall of each job's loss for a GPU-second, as a fraction of its whole fall so far.

    Speeds are those of the job's fastest GPU type. A loss that rose is expected to stay as it is.
    """
    table, rows = now.table, now.rows
    fall = np.nan_to_num(np.maximum(table.loss_before[rows] - table.loss[rows], 0.0))
    work = np.nan_to_num(table.loss_work[rows] - table.loss_work_before[rows], nan=1.0)
    fallen = np.nan_to_num(table.loss_first[rows] - table.loss[rows])
    fraction = np.divide(fall, fallen, out=np.zeros(len(rows)), where=fallen > 0)
    return np.asarray(fraction / work * table.best_rate[rows] / now.gpus, np.float64)
