"""What a backend is: the part of the world that really starts and stops processes.

A backend carries out the engine's commands and tells what became of them as events. It
remembers what it was told: after a crash, one opened on the same records goes on where the
last left off. Attempts are known by (job, number), and no attempt ever runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.events import Event

#: An attempt: the job and its number, from 1.
Attempt = tuple[str, int]

#: What a job exits with to say "stopped on notice, run me again" (EX_TEMPFAIL of sysexits.h).
RUN_AGAIN = 75
#: What is reported of an attempt that was killed, by us or by the machine: 128 + SIGKILL.
KILLED = 137


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of one node by their numbers there, from 0."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """One attempt to start. `env` may hold what nobody else should read, such as the job's token."""

    job: str
    attempt: int
    task: Task
    gpu_type: str
    places: tuple[Place, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Steps at which the job is to report at once.
    report_at: tuple[float, ...] = ()


class Backend(Protocol):
    """Starts, stops and watches attempts. No method waits for a process."""

    def nodes(self) -> tuple[Node, ...]:
        """The machines it has."""

    def start(self, start: Start) -> None:
        """Start an attempt, once: nothing happens if it was begun before, or is even over."""

    def stop(self, job: str, attempt: int) -> None:
        """Give notice to an attempt, and after its grace end it; asking twice changes nothing.

        Of an attempt that was never begun, `watch` reports that it stopped, and it never will begin.
        """

    def watch(self, now_s: float) -> list[Event]:
        """What happened since last asked, each once.

        One that was restarted tells again that attempts have started, and how those ended that are not forgotten.
        """

    def alive(self) -> dict[str, tuple[Attempt, ...]]:
        """The attempts that really live, by node; every node is there."""

    def forget(self, job: str, attempt: int) -> None:
        """The end of an attempt is journalled: its records may go. A living one is kept."""

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """These jobs have left for good: what is kept of them, logs and all, may go; gives those of which it has.

        A job stays as it is while an attempt of it is not forgotten, or a task that is kept speaks of its folder.
        """

    def log_path(self, job: str, attempt: int) -> Path:
        """The file with what an attempt printed."""

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """What secrets of these names hold now; those that cannot be read are left out."""

    def close(self) -> None:
        """Leave; what runs goes on."""
