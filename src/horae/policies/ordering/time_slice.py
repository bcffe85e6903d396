"""Time slicing: jobs take turns on the GPUs (round robin)."""

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

#: Seconds. Puts jobs with GPUs after all waiting jobs: later than any time, and small enough that floats still tell
#: milliseconds apart.
_AFTER_WAITING_JOBS = 2.0**40


@dataclass(frozen=True)
class TimeSlice:
    """Take turns: the job that has waited longest runs next, until its slice ends.

    Time slicing as in Gandiva (OSDI '18, section 3): slices end on a common grid, so that
    gangs change places together. A job keeps its GPUs while no job waits for them.
    """

    objective: ClassVar = "time since the last turn, longest first"
    unit: ClassVar = "s"
    paper: ClassVar = "Gandiva, OSDI '18 (time slicing)"
    type_aware: ClassVar = False
    memory: ClassVar = MemorySpec()
    quantum: float = setting(600.0, "length of a time slice in seconds", least=0.001)
    reserve: float = setting(math.inf, RESERVE, least=0)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Loading jobs, then waiting jobs (longest wait first), then running jobs (longest on their GPUs last).

        A slice begins when the job begins to work, so a loading job has not had its turn.
        """
        slice_ends_s = next_quantum_s(now.now_s, self.quantum)
        any_waiting = not now.has_gpus.all()
        turn = np.where(now.has_gpus, _AFTER_WAITING_JOBS - now.launched_s, now.waiting_since_s + self._skipped_s(now))
        return Wishes(
            now.rows,
            np.where(now.loading, -np.inf, turn),
            reserve_after_s=self.reserve,
            lease_until_s=slice_ends_s,
            waiting=Reason.BEHIND_TURN,
            wake_s=slice_ends_s if any_waiting else math.inf,
        )

    def _skipped_s(self, now: Snapshot) -> Floats:
        """Seconds by which waiting jobs stand farther back: a job whose last slice was longer skips as many turns.

        Slices are longer for jobs that saved nothing when they were preempted (`JobTable.slice_s`). A round takes as
        many slices as jobs wait for each that runs.
        """
        turns = np.maximum(now.table.slice_s[now.rows] / (2.0 * self.quantum) - 1.0, 0.0)
        running = int(np.count_nonzero(now.has_gpus))
        return np.asarray(turns * self.quantum * (len(now) - running) / max(1, running), np.float64)
