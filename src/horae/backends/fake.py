"""A backend without processes, for tests and for trying things out.

Its world is a script: how long each job takes and how it ends. Time is what `watch` is told.
The world outlives the backend, as processes outlive a daemon: `FakeBackend(nodes, world)`
with the world of another one is that one restarted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from horae.backends.protocol import RUN_AGAIN, Attempt, Start
from horae.core.cluster import Node
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeJoined, NodeLost


@dataclass(frozen=True, slots=True)
class Part:
    """What a job does when it is run."""

    #: Seconds of work over all attempts; what it did in one is kept if that one was stopped.
    lasts_s: float = math.inf
    exit_code: int = 0
    #: From the start to being ready, and from the notice to being gone.
    ready_s: float = 0.0
    stop_s: float = 0.0
    #: Why it cannot even be launched, if so.
    launch_fails: str = ""


@dataclass(slots=True)
class _Life:
    """One attempt: when things happen to it, and what is left of them to tell."""

    start: Start
    part: Part
    ready_at_s: float
    end_at_s: float
    stop_asked: bool = False
    ready_told: bool = False
    #: Work done when it ended.
    saved: float = 0.0
    end: Event | None = None


@dataclass
class World:
    """What runs, whoever watches."""

    parts: dict[str, Part] = field(default_factory=dict)
    default: Part = field(default_factory=Part)
    lives: dict[Attempt, _Life] = field(default_factory=dict)
    #: Attempts that may never start again, forgotten or not.
    over: set[Attempt] = field(default_factory=set)
    #: Share of each job's work that its checkpoint holds.
    saved: dict[str, float] = field(default_factory=dict)
    #: Every attempt that was really begun, in order.
    begun: list[Attempt] = field(default_factory=list)
    now_s: float = 0.0


class FakeBackend:
    """Plays what the world's script says."""

    def __init__(self, nodes: Sequence[Node], world: World | None = None) -> None:
        """Open a world, or an empty one."""
        self.world = world or World()
        self._nodes = {node.name: node for node in nodes}
        self._told: set[Attempt] = set()
        self._news: list[Event] = []

    def nodes(self) -> tuple[Node, ...]:
        """The nodes it has now."""
        return tuple(self._nodes.values())

    def start(self, start: Start) -> None:
        """Begin an attempt now, unless it was begun before."""
        attempt = (start.job, start.attempt)
        if attempt in self.world.lives or attempt in self.world.over:
            return
        part = self.world.parts.get(start.job, self.world.default)
        ready_at_s = self.world.now_s + part.ready_s
        left = 1.0 - self.world.saved.get(start.job, 0.0)
        life = _Life(start, part, ready_at_s, ready_at_s + part.lasts_s * left)
        self.world.lives[attempt] = life
        if part.launch_fails:
            life.end = LaunchFailed(0.0, *attempt, part.launch_fails)
        else:
            self.world.begun.append(attempt)

    def stop(self, job: str, attempt: int) -> None:
        """Let an attempt end after its time to stop; call one off that never began."""
        life = self.world.lives.get((job, attempt))
        if life is None:
            self.world.over.add((job, attempt))
            self._news.append(JobStopped(0.0, job, attempt, 0.0))
        elif not life.stop_asked and not life.end:
            life.stop_asked = True
            life.end_at_s = min(life.end_at_s, self.world.now_s + life.part.stop_s)

    def watch(self, now_s: float) -> list[Event]:
        """Play on until now, and tell what happened."""
        self.world.now_s = max(now_s, self.world.now_s)
        news, self._news = self._news, []
        for attempt, life in self.world.lives.items():
            news += self._news_of(attempt, life)
        return [replace(event, at_s=now_s) for event in news]

    def _news_of(self, attempt: Attempt, life: _Life) -> list[Event]:
        self._play(attempt, life)
        if life.end:
            told = attempt in self._told
            self._told.add(attempt)
            return [] if told else [life.end]
        if life.ready_told or life.ready_at_s > self.world.now_s:
            return []
        life.ready_told = True
        return [JobStarted(0.0, *attempt)]

    def _play(self, attempt: Attempt, life: _Life) -> None:
        """End an attempt whose time has come; only a stop saves what it did."""
        if life.end or life.end_at_s > self.world.now_s:
            return
        done_s = max(life.end_at_s - life.ready_at_s, 0.0)
        share = self.world.saved.get(attempt[0], 0.0) + done_s / life.part.lasts_s
        code = RUN_AGAIN if life.stop_asked and share < 1.0 - 1e-9 else life.part.exit_code
        if code == RUN_AGAIN:
            self.world.saved[attempt[0]] = share
        life.saved = self.world.saved.get(attempt[0], 0.0) * life.start.task.work
        life.end = _end_of(attempt, code, life)

    def alive(self) -> dict[str, tuple[Attempt, ...]]:
        """The attempts that live, by node."""
        living = {attempt: life for attempt, life in self.world.lives.items() if not life.end}
        return {
            node: tuple(sorted(one for one, life in living.items() if any(node == p.node for p in life.start.places)))
            for node in self._nodes
        }

    def forget(self, job: str, attempt: int) -> None:
        """Drop an attempt that is over; it never runs again."""
        life = self.world.lives.get((job, attempt))
        if life is None or life.end:
            self.world.lives.pop((job, attempt), None)
            self.world.over.add((job, attempt))

    def log_path(self, job: str, attempt: int) -> Path:
        """Where a log would be; a fake job prints nothing."""
        return Path("/dev/null")

    def close(self) -> None:
        """Leave; the world stays."""

    def lose(self, node: str) -> None:
        """A node goes, and all that runs there dies without a word."""
        del self._nodes[node]
        self._news.append(NodeLost(0.0, node))
        for attempt, life in list(self.world.lives.items()):
            if any(place.node == node for place in life.start.places):
                del self.world.lives[attempt]
                self.world.over.add(attempt)

    def join(self, node: Node) -> None:
        """A node comes, or comes back."""
        self._nodes[node.name] = node
        self._news.append(NodeJoined(0.0, node))


def _end_of(attempt: Attempt, code: int, life: _Life) -> Event:
    if code == 0:
        return JobFinished(0.0, *attempt)
    if code == RUN_AGAIN:
        return JobStopped(0.0, *attempt, life.saved)
    return JobFailed(0.0, *attempt, code, life.saved)
