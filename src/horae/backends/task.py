"""What a job runs. The scheduler decides without it; a backend needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Task:
    """What a job runs, and how. The engine never looks at it."""

    #: [a-z0-9][a-z0-9._-]{0,62}: safe as the name of a folder.
    job: str
    user: str
    name: str
    #: The program and its arguments; no shell reads them.
    run: tuple[str, ...]
    #: The same as the job's own; see `work_done`.
    work: float
    #: Shell text run before, in the same folder and environment.
    setup: str = ""
    #: Empty stands for the attempt's own folder.
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    #: Names only: the values are files of these names, read at the start, never journalled or logged.
    secrets: tuple[str, ...] = ()
    #: One process a node, or one a GPU.
    processes: Literal["node", "gpu"] = "node"
    stop_signal: str = "SIGUSR1"
    grace_s: float = 30.0
    #: Empty stands for the job's own folder for checkpoints.
    checkpoint_dir: str = ""
    max_duration_s: float | None = None

    def work_done(self, step: float, total: float | None) -> float:
        """Work in the engine's unit: the share of the steps that are done, or the steps if nobody knows their total."""
        done = step / total * self.work if total else step
        return min(max(done, 0.0), self.work) if math.isfinite(done) else 0.0
