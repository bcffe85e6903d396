"""A backend without processes, for tests and for trying things out.

Its world is a script: how long each job takes and how it ends. Time is what `watch` is told.
The world outlives the backend, as processes outlive a daemon: `FakeBackend(nodes, world)`
with the world of another one is that one restarted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from horae.backends.protocol import RUN_AGAIN, Attempt, Start
from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeJoined, NodeLost


@dataclass(frozen=True, slots=True)
class Part:
    """What a job does when it is run."""

    #: Seconds of work over all attempts; what it did in one is kept if that one was stopped.
    lasts_s: float = math.inf
    exit_code: int = 0
    #: Whether it saves what it did before it asks to be run again.
    saves: bool = True
    #: From the start to being ready, and from the notice to being gone.
    ready_s: float = 0.0
    stop_s: float = 0.0
    #: Why it cannot even be launched, if so.
    launch_fails: str = ""


@dataclass(slots=True)
class _Life:
    """One attempt that runs."""

    start: Start
    part: Part
    ready_at_s: float
    end_at_s: float
    stop_asked: bool = False


@dataclass
class FakeWorld:
    """What runs and what has ended, whoever watches."""

    #: What jobs do, by id; `default` is for all others.
    parts: dict[str, Part] = field(default_factory=dict)
    default: Part = field(default_factory=Part)
    lives: dict[Attempt, _Life] = field(default_factory=dict)
    #: How attempts ended, until forgotten.
    ends: dict[Attempt, Event] = field(default_factory=dict)
    forgotten: set[Attempt] = field(default_factory=set)
    #: Work that each job's checkpoint holds.
    saved: dict[str, float] = field(default_factory=dict)
    #: Every attempt that was really begun, in order.
    begun: list[Attempt] = field(default_factory=list)
    now_s: float = 0.0

    def knows(self, attempt: Attempt) -> bool:
        """Whether an attempt was begun, or called off, or is over."""
        return attempt in self.lives or attempt in self.ends or attempt in self.forgotten


class FakeBackend:
    """Plays what the world's script says."""

    def __init__(self, nodes: Sequence[Node], world: FakeWorld | None = None) -> None:
        """Open a world, or an empty one."""
        self.world = world or FakeWorld()
        self._nodes = {node.name: node for node in nodes}
        #: Attempts of which it was told that they are ready, and that they are over.
        self._ready: set[Attempt] = set()
        self._told: set[Attempt] = set()
        self._news: list[Event] = []

    def nodes(self) -> tuple[Node, ...]:
        """The nodes it has now."""
        return tuple(self._nodes.values())

    def start(self, start: Start) -> None:
        """Begin an attempt now, unless it was begun before."""
        attempt, world = (start.job, start.attempt), self.world
        if world.knows(attempt):
            return
        part = world.parts.get(start.job, world.default)
        if part.launch_fails:
            world.ends[attempt] = LaunchFailed(0.0, *attempt, part.launch_fails)
            return
        ready_at_s = world.now_s + part.ready_s
        left = 1.0 - world.saved.get(start.job, 0.0) / start.task.work
        world.lives[attempt] = _Life(start, part, ready_at_s, ready_at_s + part.lasts_s * left)
        world.begun.append(attempt)

    def stop(self, job: str, attempt: int) -> None:
        """Let an attempt end after its time to stop; call one off that never began."""
        life = self.world.lives.get((job, attempt))
        if life and not life.stop_asked:
            life.stop_asked = True
            life.end_at_s = min(life.end_at_s, self.world.now_s + life.part.stop_s)
        elif not life and (job, attempt) not in self.world.ends:
            self.world.ends[job, attempt] = JobStopped(0.0, job, attempt, self.world.saved.get(job, 0.0))

    def watch(self, now_s: float) -> list[Event]:
        """Play on until now, and tell what happened."""
        self.world.now_s = max(now_s, self.world.now_s)
        news, self._news = self._news, []
        for attempt, life in list(self.world.lives.items()):
            news += self._play(attempt, life)
        untold = [attempt for attempt in self.world.ends if attempt not in self._told]
        self._told.update(untold)
        return [replace(event, at_s=now_s) for event in news + [self.world.ends[one] for one in untold]]

    def _play(self, attempt: Attempt, life: _Life) -> list[Event]:
        """End an attempt whose time has come, or tell that it is ready."""
        if life.end_at_s <= self.world.now_s:
            self.world.ends[attempt] = self._end(attempt, life)
            del self.world.lives[attempt]
        elif life.ready_at_s <= self.world.now_s and attempt not in self._ready:
            self._ready.add(attempt)
            return [JobStarted(0.0, *attempt)]
        return []

    def _end(self, attempt: Attempt, life: _Life) -> Event:
        """How an attempt ends; only one that is to run again saves what it did."""
        job, work = attempt[0], life.start.task.work
        saved = self.world.saved.get(job, 0.0)
        done = saved + max(life.end_at_s - life.ready_at_s, 0.0) / life.part.lasts_s * work
        early = life.stop_asked and done < work * (1.0 - 1e-9)
        code = RUN_AGAIN if early else life.part.exit_code
        if code == 0:
            return JobFinished(0.0, *attempt)
        if code != RUN_AGAIN or not (life.stop_asked or (life.part.saves and done > saved)):
            return JobFailed(0.0, *attempt, code, saved)
        self.world.saved[job] = done
        return JobStopped(0.0, *attempt, done)

    def alive(self) -> dict[str, tuple[Attempt, ...]]:
        """The attempts that live, by node."""
        return {node: tuple(sorted(self._on(node))) for node in self._nodes}

    def _on(self, node: str) -> list[Attempt]:
        """The attempts that live on a node."""
        lives = self.world.lives.items()
        return [attempt for attempt, life in lives if any(place.node == node for place in life.start.places)]

    def forget(self, job: str, attempt: int) -> None:
        """Drop an attempt that is over; it never runs again."""
        if self.world.ends.pop((job, attempt), None):
            self.world.forgotten.add((job, attempt))

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Drop what jobs saved, and that they ever ran."""
        world = self.world
        unforgotten = {job for job, _ in (*world.lives, *world.ends)}
        gone = [job for job in jobs if job not in unforgotten]
        for job in gone:
            world.saved.pop(job, None)
        world.forgotten = {attempt for attempt in world.forgotten if attempt[0] not in set(gone)}
        return gone

    def log_path(self, job: str, attempt: int) -> Path:
        """Where a log would be; a fake job prints nothing."""
        return Path("/dev/null")

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Fake secrets are their own names."""
        return {name: name for name in names}

    def close(self) -> None:
        """Leave; the world stays."""

    def lose(self, node: str) -> None:
        """A node goes, and all that runs there dies without a word."""
        for attempt in self._on(node):
            del self.world.lives[attempt]
            self.world.forgotten.add(attempt)
        del self._nodes[node]
        self._news.append(NodeLost(0.0, node))

    def join(self, node: Node) -> None:
        """A node comes, or comes back."""
        self._nodes[node.name] = node
        self._news.append(NodeJoined(0.0, node))
