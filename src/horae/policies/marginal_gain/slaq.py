"""Quality first."""

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
from horae.policies.settings import RESERVE, setting
from horae.policies.time_grid import next_quantum_s


@dataclass(frozen=True)
class Slaq:
    """Run the jobs whose loss falls most for a second of a GPU.

    After SLAQ (SoCC '17, sections 3 and 4): the fall between the last two reports is what the next are expected
    to bring, as a part of all that the loss has fallen so far, for losses of different models do not compare
    (SLAQ divides by the largest fall between two reports, which says the same of curves that flatten). A job
    without two reports goes first until it has had its chance; whoever has reported nothing by then is expected
    to bring nothing. GPUs change hands on a common grid.
    """

    objective: ClassVar = "normalised fall of the loss for a GPU-second, largest first"
    unit: ClassVar = "1/GPU-s"
    paper: ClassVar = "SLAQ, SoCC '17, section 4"
    memory: ClassVar[MemorySpec] = MemorySpec()
    quantum: float = setting(600.0, "seconds that a job keeps the GPUs it got", least=0.001)
    chance: float = setting(
        1800.0, "seconds of work within which a job goes first until it has reported twice", least=0
    )
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Those that still have their chance, then by what they are expected to bring; ties by arrival."""
        unknown = np.isnan(now.table.loss_before[now.rows])
        has_chance = unknown & (now.executed_s < self.chance)
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
    """By how much of all it has fallen a job's loss is expected to fall in a second, for each of its GPUs.

    Speeds are those of each job's best GPU type. Losses that rise are expected to stay.
    """
    table, rows = now.table, now.rows
    fall = np.nan_to_num(np.maximum(table.loss_before[rows] - table.loss[rows], 0.0))
    work = np.nan_to_num(table.loss_work[rows] - table.loss_work_before[rows], nan=1.0)
    fallen = np.nan_to_num(table.loss_first[rows] - table.loss[rows])
    share = np.divide(fall, fallen, out=np.zeros(len(rows)), where=fallen > 0)
    return np.asarray(share / work * table.best_rate[rows] / now.gpus, np.float64)
