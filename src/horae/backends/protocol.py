"""The backend protocol: what starts and stops the processes of jobs. Public.

Intentions go in, events come out. A backend notes what to start and stop, and tells what became of it by `watch`.
What it cannot see it does not guess: `sight` is None, nothing is told of the nodes and attempts concerned, and
`trouble` says why. It keeps records of its own: after a crash, a backend opened on the same records continues where
the last one stopped. An attempt is identified by (job, number), and no attempt ever runs twice.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from horae.backends.task import Task
from horae.core.cluster import BadCluster, Node, host_of
from horae.core.events import Event

#: An attempt: job id and attempt number, from 1.
Attempt = tuple[str, int]

#: Exit code by which a job says "I saved my work, run me again" (EX_TEMPFAIL of sysexits.h).
RUN_AGAIN = 75
#: Exit code reported for an attempt that was killed, by Horae or by the machine: 128 + SIGKILL.
KILLED = 137

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT)


def is_shortage(error: Exception) -> bool:
    """Whether this machine is short of something for now (descriptors, memory, space): no fault of what is started."""
    return isinstance(error, OSError) and error.errno in _SHORT


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
    #: Term of the service that starts it; 0 if unknown.
    term: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as its backend sees it. Its name stays the same when the machine changes, and has no `~`."""

    name: str
    gpu_type: str
    gpus: int
    rack: str = "rack-0"
    #: Whether the backend gives the node new jobs; False while its own operators keep it closed.
    open: bool = True
    #: Why the node is closed, in the words of who closed it; empty if it is open, or nobody said.
    why: str = ""
    #: CPUs and MiB of memory for the jobs on these GPUs; 0 means that they are not counted.
    cpus: int = 0
    memory_mb: int = 0

    def __post_init__(self) -> None:
        if host_of(self.as_node(self.name).name) != self.name:
            raise BadCluster(f"The name of node {self.name!r} must not have a ~.")

    @staticmethod
    def of(node: Node, is_open: bool = True) -> Seen:
        """A node of the engine as a backend sees it."""
        return Seen(node.name, node.gpu_type, node.gpus, node.rack, is_open, "", node.cpus, node.memory_mb)

    def as_node(self, name: str) -> Node:
        """The same machine as a node of the engine, under this name."""
        return Node(name, self.gpu_type, self.gpus, self.rack, self.cpus, self.memory_mb)


@dataclass(frozen=True, slots=True)
class Sight:
    """All nodes that there are now. A node that is missing is gone, with the attempts on it."""

    nodes: tuple[Seen, ...] = ()


class Backend(Protocol):
    """Starts, stops and watches attempts.

    `sight`, `start`, `stop`, `watch` and `forget` are called by the daemon's loop: they neither wait nor raise.
    Trouble is not raised, but told by `trouble`.
    """

    @property
    def shares_gpus(self) -> bool:
        """Whether two jobs can have the same GPUs. If not, the service refuses policies that share GPUs."""

    @property
    def honours(self) -> frozenset[str]:
        """What else than GPUs jobs can ask for, of `cpus_per_gpu`, `memory_per_gpu` and `image`.

        Other requests for CPUs and memory are told to be ignored; other requests for an image are refused.
        """

    @property
    def trouble(self) -> str:
        """What is wrong, in one sentence; empty if nothing is. Anybody may read it: it names no job and no path."""

    def sight(self) -> Sight | None:
        """The nodes that there are now; None while that is unknown. The same object until something changes."""

    def start(self, start: Start) -> None:
        """Note an attempt to start; `watch` tells what became of it, `LaunchFailed` if it cannot be started.

        Starts nothing if the attempt was started before, even if it has ended. Of one that has ended and was forgotten
        it may tell `LaunchFailed`: another attempt had the same id.
        """

    def stop(self, job: str, attempt: int) -> None:
        """Note that an attempt must stop: it gets its stop signal, and is killed after its grace period.

        A second call changes nothing. If the attempt was never started, `watch` reports it as stopped, and it can
        never start.
        """

    def gone(self, node: str) -> None:
        """Note that an operator is sure: nothing runs on a node any more, and its attempts have ended.

        Neither waits nor raises. A sign of life that an attempt gives later on proves the operator wrong.
        """

    def watch(self, now_s: float) -> list[Event]:
        """Events since the last call, each once.

        A restarted backend reports again which attempts have started, and the ends of all attempts not yet forgotten.
        If an attempt ends before it was reported as started, but was up, `JobStarted` with its `up_s` comes first:
        its GPU time counts from there.

        `NodeObserved` names the attempts on a node that live, or may live. It is told for each node once it can be
        seen: after opening, and after each time out of sight. An attempt that it leaves out is run again, unless it
        was only about to start.
        Nodes that come, go or close are not told here: `sight` shows them.
        """

    def forget(self, job: str, attempt: int) -> None:
        """Drop the records of an attempt whose end is in the journal. A living attempt is kept."""

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete all files of jobs that left the service, logs included; returns the jobs whose files are gone.

        May return before that is done: what is not gone yet is asked for again later.
        The files of a job stay while one of its attempts is not forgotten, or while a task in `kept` names its folder.
        """

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """File with the standard output and error of an attempt's processes on one of its nodes, counted from 0.

        May wait, for example to fetch the file. Called from any thread but the daemon's.
        """

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of these files below the folder of secrets; those that cannot be read are left out. For any thread."""

    def close(self) -> None:
        """Release all resources. Running attempts go on."""
