"""The backend protocol: what starts and stops the processes of jobs. Public.

A backend performs the engine's commands and reports the results as events. It keeps records of its own:
after a crash, a backend opened on the same records continues where the last one stopped. An attempt is
identified by (job, number), and no attempt ever runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.events import Event

#: An attempt: job id and attempt number, from 1.
Attempt = tuple[str, int]

#: Exit code by which a job says "I saved my work, run me again" (EX_TEMPFAIL of sysexits.h).
RUN_AGAIN = 75
#: Exit code reported for an attempt that was killed, by Horae or by the machine: 128 + SIGKILL.
KILLED = 137


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of one node, by their numbers on that node, from 0."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """One attempt to start. `env` may hold secrets, such as the job's token."""

    job: str
    attempt: int
    task: Task
    gpu_type: str
    places: tuple[Place, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Steps at which the job must report its progress at once.
    report_at: tuple[float, ...] = ()


class Backend(Protocol):
    """Starts, stops and watches attempts. No method waits for a process."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes of this backend."""

    def start(self, start: Start) -> None:
        """Start an attempt. Does nothing if the attempt was started before, even if it has ended."""

    def stop(self, job: str, attempt: int) -> None:
        """Send an attempt its stop signal, and kill it after its grace period. A second call changes nothing.

        If the attempt was never started, `watch` reports it as stopped, and it can never start.
        """

    def watch(self, now_s: float) -> list[Event]:
        """Events since the last call, each once.

        A restarted backend reports again which attempts have started, and the ends of all attempts not yet forgotten.
        If an attempt ends before it was reported as started, but was up, `JobStarted` with its `up_s` comes first:
        its GPU time counts from there.
        """

    def alive(self) -> dict[str, tuple[Attempt, ...]]:
        """Attempts with living processes, by node. Every node is a key."""

    def forget(self, job: str, attempt: int) -> None:
        """Drop the records of an attempt whose end is in the journal. A living attempt is kept."""

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete all files of jobs that left the service, logs included; returns the jobs whose files are gone.

        The files of a job stay while one of its attempts is not forgotten, or while a task in `kept` names its folder.
        """

    def log_path(self, job: str, attempt: int) -> Path:
        """The log file of an attempt: its standard output and standard error."""

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of the secrets of these names; secrets that cannot be read are left out."""

    def close(self) -> None:
        """Release all resources. Running attempts go on."""
