"""Fake backend without processes, for tests and experiments.

A `FakeWorld` holds the script: how long each job takes and how it ends. Time is the argument of `watch`.
The world outlives the backend, as processes outlive a daemon: `FakeBackend(nodes, world)` with the world
of an earlier backend acts as that backend after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from horae.backends.protocol import RUN_AGAIN, Attempt, Seen, Sight, Start
from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeObserved


@dataclass(frozen=True, slots=True)
class FakeJob:
    """Script of one job: how long it works and how it ends."""

    #: Seconds of work over all attempts; the work of a stopped attempt counts, that of a failed one is lost.
    lasts_s: float = math.inf
    exit_code: int = 0
    #: Whether the job saves its work before it is gone.
    saves: bool = True
    #: Seconds from the start until the job is ready.
    ready_s: float = 0.0
    #: Seconds from the stop request until the job is gone.
    stop_s: float = 0.0
    #: Seconds from the end of the work until the job is gone.
    exit_s: float = 0.0
    #: Reason why the launch fails; empty if it succeeds.
    launch_fails: str = ""


@dataclass(slots=True)
class _RunningAttempt:
    """One running attempt."""

    start: Start
    script: FakeJob
    ready_at_s: float
    end_at_s: float
    stop_requested: bool = False


@dataclass
class FakeWorld:
    """Running and ended attempts. Several backends may use one world, one after the other."""

    #: Scripts by job id; all other jobs follow `default`.
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    default: FakeJob = field(default_factory=FakeJob)
    running: dict[Attempt, _RunningAttempt] = field(default_factory=dict)
    #: End events of attempts that were not forgotten yet.
    ends: dict[Attempt, Event] = field(default_factory=dict)
    forgotten: set[Attempt] = field(default_factory=set)
    #: Work in each job's checkpoint.
    saved: dict[str, float] = field(default_factory=dict)
    #: Every attempt that was started, in order.
    started: list[Attempt] = field(default_factory=list)
    now_s: float = 0.0

    def has_seen(self, attempt: Attempt) -> bool:
        """Whether an attempt was started, cancelled before its start, or has ended."""
        return attempt in self.running or attempt in self.ends or attempt in self.forgotten


class FakeBackend:
    """Backend that follows the scripts of a `FakeWorld`. While it is `blind`, it sees and does nothing."""

    def __init__(
        self, nodes: Sequence[Node], world: FakeWorld | None = None, blind: bool = False, shares_gpus: bool = True
    ) -> None:
        """Continue `world`, or start with an empty one."""
        self.world, self.blind, self.shares_gpus = world or FakeWorld(), blind, shares_gpus
        #: What else than GPUs jobs can ask for; tests set it.
        self.honours: frozenset[str] = frozenset()
        self._sight = Sight(tuple(Seen.of(node) for node in nodes))
        #: Starts and stops that wait until the backend can see.
        self._noted: list[Start | Attempt] = []
        #: Nodes of which `watch` has told the attempts.
        self._observed: set[str] = set()
        #: Attempts already reported as started, and as ended.
        self._ready: set[Attempt] = set()
        self._reported: set[Attempt] = set()

    @property
    def trouble(self) -> str:
        """What is wrong: nothing, unless the backend is blind."""
        return "The cluster is out of sight." if self.blind else ""

    def sight(self) -> Sight | None:
        """The nodes that are up."""
        return None if self.blind else self._sight

    def start(self, start: Start) -> None:
        """Start an attempt at the next `watch`, or now if the backend can see."""
        self._note(start)

    def stop(self, job: str, attempt: int) -> None:
        """End an attempt after its `stop_s`; cancel an attempt that was never started."""
        self._note((job, attempt))

    def gone(self, node: str) -> None:
        """End the attempts on a node, with what they had saved."""
        for job, attempt in self._on(node):
            del self.world.running[job, attempt]
            self.world.ends[job, attempt] = JobStopped(0.0, job, attempt, self.world.saved.get(job, 0.0))

    def _note(self, intention: Start | Attempt) -> None:
        self._noted.append(intention)
        if not self.blind:
            self._perform()

    def _perform(self) -> None:
        """Do what was noted, in order."""
        noted, self._noted = self._noted, []
        for intention in noted:
            if isinstance(intention, Start):
                self._start(intention)
            else:
                self._stop(*intention)

    def _start(self, start: Start) -> None:
        """Start an attempt, unless it was started before."""
        attempt, world = (start.job, start.attempt), self.world
        if world.has_seen(attempt):
            return
        script = world.jobs.get(start.job, world.default)
        if script.launch_fails:
            world.ends[attempt] = LaunchFailed(0.0, *attempt, script.launch_fails)
            return
        ready_at_s = world.now_s + script.ready_s
        left = 1.0 - world.saved.get(start.job, 0.0) / start.task.work
        end_at_s = ready_at_s + script.lasts_s * left + script.exit_s
        world.running[attempt] = _RunningAttempt(start, script, ready_at_s, end_at_s)
        world.started.append(attempt)

    def _stop(self, job: str, attempt: int) -> None:
        run = self.world.running.get((job, attempt))
        if run and not run.stop_requested:
            run.stop_requested = True
            run.end_at_s = min(run.end_at_s, self.world.now_s + run.script.stop_s)
        elif not run and (job, attempt) not in self.world.ends:
            self.world.ends[job, attempt] = JobStopped(0.0, job, attempt, self.world.saved.get(job, 0.0))

    def watch(self, now_s: float) -> list[Event]:
        """Advance the world to `now_s`; return what happened since the last call."""
        self.world.now_s = max(now_s, self.world.now_s)
        if self.blind:
            self._observed.clear()
            return []
        self._perform()
        events: list[Event] = []
        for attempt, run in list(self.world.running.items()):
            events += self._play(attempt, run)
        unreported = [attempt for attempt in self.world.ends if attempt not in self._reported]
        self._reported.update(unreported)
        events += [self.world.ends[attempt] for attempt in unreported]
        return [replace(event, at_s=now_s) for event in [*events, *self._observe()]]

    def _observe(self) -> list[Event]:
        """The attempts on each node that was not observed yet."""
        unobserved = [node.name for node in self._sight.nodes if node.name not in self._observed]
        self._observed.update(unobserved)
        return [NodeObserved(0.0, node, tuple(sorted(self._on(node)))) for node in unobserved]

    def _play(self, attempt: Attempt, run: _RunningAttempt) -> list[Event]:
        """End an attempt whose end time has come, or report that it has started."""
        if run.end_at_s <= self.world.now_s:
            self.world.ends[attempt] = self._end(attempt, run)
            del self.world.running[attempt]
        elif run.ready_at_s <= self.world.now_s and attempt not in self._ready:
            self._ready.add(attempt)
            return [JobStarted(0.0, *attempt)]
        return []

    def _end(self, attempt: Attempt, run: _RunningAttempt) -> Event:
        """The end event of an attempt. Only an attempt that will run again saves its work."""
        job, work = attempt[0], run.start.task.work
        saved = self.world.saved.get(job, 0.0)
        done = min(saved + max(run.end_at_s - run.ready_at_s, 0.0) / run.script.lasts_s * work, work)
        early = run.stop_requested and done < work * (1.0 - 1e-9)
        code = RUN_AGAIN if early else run.script.exit_code
        if code == 0:
            return JobFinished(0.0, *attempt)
        if code != RUN_AGAIN or not (run.stop_requested or (run.script.saves and done > saved)):
            return JobFailed(0.0, *attempt, code, saved)
        self.world.saved[job] = done if run.script.saves else saved
        return JobStopped(0.0, *attempt, self.world.saved[job])

    def _on(self, node: str) -> list[Attempt]:
        """Running attempts of a node."""
        running = self.world.running.items()
        return [attempt for attempt, run in running if any(place.node == node for place in run.start.places)]

    def forget(self, job: str, attempt: int) -> None:
        """Drop the end event of an attempt; the attempt never runs again."""
        if self.world.ends.pop((job, attempt), None):
            self.world.forgotten.add((job, attempt))

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Drop the checkpoints and the attempts of these jobs."""
        world = self.world
        unforgotten = {job for job, _ in (*world.running, *world.ends)}
        gone = [job for job in jobs if job not in unforgotten]
        for job in gone:
            world.saved.pop(job, None)
        world.forgotten = {attempt for attempt in world.forgotten if attempt[0] not in set(gone)}
        return gone

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """An empty file: a fake job prints nothing."""
        return Path("/dev/null")

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Fake secrets: the value of a secret is its name, without the folders above it."""
        return {name: name.rpartition("/")[2] for name in names}

    def close(self) -> None:
        """Nothing to release; the world stays."""

    def lose(self, node: str) -> None:
        """Remove a node. Attempts on it disappear without an end event."""
        for attempt in self._on(node):
            del self.world.running[attempt]
            self.world.forgotten.add(attempt)
        self._observed.discard(node)
        self._sight = Sight(tuple(seen for seen in self._sight.nodes if seen.name != node))

    def join(self, node: Node, is_open: bool = True) -> None:
        """Add a node, bring it back, or change it; `is_open`: whether it takes new jobs."""
        others = {seen.name: seen for seen in self._sight.nodes}
        self._sight = Sight(tuple({**others, node.name: Seen.of(node, is_open)}.values()))
