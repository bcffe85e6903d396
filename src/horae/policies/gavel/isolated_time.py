"""Isolated time: seconds that a job's work would have taken alone on 1/N of every GPU type, while N changes.

Work done between two decisions counts as that work divided by the isolated throughput at the earlier decision. Work
that was lost counts as done (`Snapshot.charged_left`): otherwise a job gains by not saving.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.gavel.allocation_policy import problem_of

#: Memory (stored), by job: isolated time so far, work left and isolated throughput at the last decision.
COLUMNS = {"isolated_s": 0, "left": 0, "isolated_rate": 0}


def isolated_s(now: Snapshot, memory: Memory) -> Floats:
    """Isolated seconds of each job's work so far. Updates the memory."""
    so_far_s, rate = memory.column("isolated_s", now.rows), memory.column("isolated_rate", now.rows)
    counted = rate > 0
    done = memory.column("left", now.rows) - now.charged_left
    so_far_s[counted] += np.maximum(done[counted], 0.0) / rate[counted]
    memory.put("isolated_s", now.rows, so_far_s)
    memory.put("left", now.rows, now.charged_left)
    if len(now):
        memory.put("isolated_rate", now.rows, problem_of(now, so_far_s, now.charged_left).isolated_throughput)
    return so_far_s


def isolated_total_s(now: Snapshot, memory: Memory) -> Floats:
    """Isolated seconds of each whole job, if N stays as it is now; infinite if the job cannot run."""
    so_far_s = isolated_s(now, memory)
    rate = memory.column("isolated_rate", now.rows)
    left_s = np.divide(now.charged_left, rate, out=np.full(len(now), np.inf), where=rate > 0)
    return np.asarray(so_far_s + left_s, np.float64)
