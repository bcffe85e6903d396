"""What a job runs: the part of a submission that backends read and the engine never sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Task:
    """What a job runs, and how. The engine never looks at it."""

    #: Safe as the name of a folder.
    job: str
    user: str
    name: str
    #: The arguments of a program, without a shell; a text for a shell is ("bash", "-c", text).
    run: tuple[str, ...]
    #: The same as `JobSpec.work`.
    work: float
    #: Text for a shell that is run before, in the same folder and environment.
    setup: str = ""
    #: Empty means the attempt's own folder.
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    #: Names alone: the values are files of these names in the daemon's folder of secrets, read at the start.
    secrets: tuple[str, ...] = ()
    #: One process a node, or one a GPU.
    processes: Literal["node", "gpu"] = "node"
    stop_signal: str = "SIGUSR1"
    grace_s: float = 30.0
    #: Empty means one of the job's own, in the daemon's folder.
    checkpoint_dir: str = ""
    max_duration_s: float | None = None

    def work_done(self, step: float, total: float | None) -> float:
        """Work in the engine's unit after so many steps, of so many in all where that is known."""
        done = step / total * self.work if total else step
        return min(max(done, 0.0), self.work)
