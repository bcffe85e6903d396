"""The runnable half of a job (command, environment, stop signal), read by backends only.

`JobSpec` is the schedulable half. Stored: change by addition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Task:
    """Command and environment of a job. The engine never reads it."""

    #: Job id, [a-z0-9][a-z0-9._-]{0,62}: safe as the name of a folder.
    job: str
    user: str
    name: str
    #: The program and its arguments, started without a shell.
    run: tuple[str, ...]
    #: Total work of the job, as in its `JobSpec`; see `work_done`.
    work: float
    #: Shell commands that run before `run`, in the same folder and environment.
    setup: str = ""
    #: Working folder; empty means the attempt's own folder.
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    #: Names of secrets. The values are read from files at the start, and are never journalled or logged.
    secrets: tuple[str, ...] = ()
    #: Start one process per node, or one per GPU.
    processes: Literal["node", "gpu"] = "node"
    stop_signal: str = "SIGUSR1"
    grace_s: float = 30.0
    #: Folder for checkpoints; empty means the job's own checkpoint folder.
    checkpoint_dir: str = ""
    max_duration_s: float | None = None
    #: CPUs and memory (MiB) for each GPU; None means the node's, by the job's share of its GPUs.
    cpus_per_gpu: int | None = None
    memory_mb_per_gpu: int | None = None
    #: Container image; empty means none.
    image: str = ""
    #: Key of the job in the cluster manager that its user gave it to; empty if it was submitted to the service.
    found_as: str = ""
    #: File of each secret, below the folder of secrets; a secret without one is a file right in it.
    secret_files: Mapping[str, str] = field(default_factory=dict)

    def secret_file(self, name: str) -> str:
        """The file of a secret, below the folder of secrets."""
        return self.secret_files.get(name, name)

    def work_done(self, step: float, total: float | None) -> float:
        """Work done in the engine's unit: `work` times the share of steps done, or `step` if the total is unknown."""
        done = step / total * self.work if total else step
        return min(max(done, 0.0), self.work) if math.isfinite(done) else 0.0
