"""How long jobs would have taken for what they did, alone on 1/N of every GPU type, kept as it evolves.

What a job does between two looks would have taken it that work over its isolated throughput of then.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.gavel.allocation_policy import problem_of

#: What is remembered of each job.
COLUMNS = {"isolated_s": 0, "left": 0, "isolated_rate": 0}


def isolated_s(now: Snapshot, memory: Memory) -> Floats:
    """Seconds of each job so far; remembers its isolated throughput from here on."""
    so_far_s, rate = memory.column("isolated_s", now.rows), memory.column("isolated_rate", now.rows)
    known = rate > 0
    done = memory.column("left", now.rows) - now.work_left
    so_far_s[known] += np.maximum(done[known], 0.0) / rate[known]
    memory.put("isolated_s", now.rows, so_far_s)
    memory.put("left", now.rows, now.work_left)
    if len(now):
        memory.put("isolated_rate", now.rows, problem_of(now, so_far_s).isolated_throughput)
    return so_far_s


def isolated_in_all_s(now: Snapshot, memory: Memory) -> Floats:
    """Seconds of each job from beginning to end, if as many stay as there are now; infinite if it could not run."""
    so_far_s = isolated_s(now, memory)
    rate = memory.column("isolated_rate", now.rows)
    left_s = np.divide(now.work_left, rate, out=np.full(len(now), np.inf), where=rate > 0)
    return np.asarray(so_far_s + left_s, np.float64)
