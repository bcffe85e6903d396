"""Runs a scenario under a virtual clock and writes down everything it does, as lines that JSON can hold.

Every name of Horae that the conformance tests need is imported here and nowhere else in this package.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from horae.core import checkpoint as checkpoint
from horae.core.bidding import Ask, BidAnswer, BidRow
from horae.core.cluster import Cluster, Node, Span
from horae.core.codec import decode, encode
from horae.core.commands import Decided, Launch, Stop, StopWhy
from horae.core.engine import Engine
from horae.core.events import (
    PRECEDENCE,
    AgentChanged,
    BidReceived,
    Event,
    JobCancelled,
    JobFailed,
    JobHeld,
    JobReleased,
    JobsRetired,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.core.explain import explain
from horae.core.job import JobSpec
from horae.core.loss_curve import LossCurve
from horae.core.queues import Queue
from horae.core.throughputs import Origin, Setting, Speeds, Throughputs
from horae.placement.rules import make_placement
from horae.policies import POLICIES, make_policy
from horae.simulator.driver import Driver
from horae.simulator.faults import Faults
from horae.simulator.world import World

__all__ = [
    "POLICIES",
    "AgentChanged",
    "Ask",
    "BidAnswer",
    "BidRow",
    "Event",
    "Faults",
    "JobCancelled",
    "JobHeld",
    "JobReleased",
    "JobSpec",
    "JobsRetired",
    "LossCurve",
    "Node",
    "NodeDraining",
    "NodeJoined",
    "NodeLost",
    "NodeObserved",
    "Queue",
    "Scenario",
    "SettingsChanged",
    "Span",
]

FORMAT, VERSION = "horae conformance", 1
FOLDER = Path(__file__).parent / "recorded"
#: Moments of a run at which jobs are asked why they wait, and jobs asked at each.
MOMENTS, ASKED = 20, 12
#: Parts of a decision that may change: the order of the reason pairs, and what reasons rest on in a simulation.
#: The reason of each job and the sentence made from it are compared by themselves.
FREE = ("reason_rows", "reason_codes", "evidence")

Line = dict[str, Any]
#: What an agent of an app does when it is asked: seconds until it answers, and its answer; None keeps silent.
Agent = Callable[[Ask], tuple[float, BidAnswer] | None]
#: Steps/s by job class, GPU type, GPU count, span and neighbour.
SpeedTable = tuple[tuple[str, str, int, int, str, float], ...]


@dataclass(frozen=True)
class Scenario:
    """A whole run, given by values alone: what is not here takes the default of the engine."""

    name: str
    nodes: tuple[Node, ...]
    policy: str
    jobs: tuple[JobSpec, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    placement: str = "best-effort"
    restart_cost_s: float = 30.0
    queues: tuple[Queue, ...] = ()
    #: What users and operators do, besides submitting the jobs.
    events: tuple[Event, ...] = ()
    faults: Faults | None = None
    seed: int = 0
    #: Speeds that the engine is told, and true speeds where these differ; with true speeds the engine learns.
    believed: SpeedTable = ()
    truth: SpeedTable = ()
    #: By job: seconds after the launch of its first, second, ... attempt at which that attempt fails; its exit code.
    crashes: Mapping[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)

    @property
    def retires(self) -> bool:
        """Whether jobs leave in mid-run, and with them the rows by which simulations name jobs."""
        return any(isinstance(event, JobsRetired) for event in self.events)

    @property
    def file(self) -> Path:
        """Where its recording is."""
        return FOLDER / f"{self.name}.jsonl.gz"

    def engine(self) -> Engine:
        """A fresh engine to which nothing has happened."""
        rule, believed = make_placement(self.placement), _speeds(self.believed, Origin.ESTIMATED)
        return Engine(
            Cluster(self.nodes),
            make_policy,
            self.policy,
            self.settings,
            rule,
            believed,
            self.queues,
            learn=bool(self.truth),
        )

    def given(self) -> Line:
        """What the engine begins with, for the head of the recording; the jobs come as events."""
        return {
            "nodes": [[node.name, node.gpu_type, node.gpus, node.rack] for node in self.nodes],
            "policy": self.policy,
            "settings": dict(self.settings),
            "placement": self.placement,
            "restart_cost_s": self.restart_cost_s,
            "queues": [[one.path, one.weight, one.rule, one.gpus_min, one.gpus_max] for one in self.queues],
            "believed": [list(row) for row in self.believed],
            "truth": [list(row) for row in self.truth],
            "seed": self.seed,
        }


def _speeds(rows: SpeedTable, origin: Origin) -> Throughputs:
    table = Throughputs()
    for job_class, gpu_type, gpus, span, neighbour, steps_per_s in rows:
        table.put(Setting(job_class, gpu_type, gpus, Span(span), neighbour), steps_per_s, origin)
    return table


class _AllJobs:
    """What the simulated world reads of a job table, with a row for every job that ever comes: none is retired."""

    def __init__(self, scenario: Scenario, gpu_types: tuple[str, ...]) -> None:
        self.specs, self.gpu_types = list(scenario.jobs), gpu_types
        self.speeds = Speeds(_speeds(scenario.believed, Origin.GIVEN))


class _Outside(World):
    """The simulated world, with jobs that fail by themselves and with agents that answer when they are asked."""

    def __init__(self, scenario: Scenario, engine: Engine) -> None:
        truth = _speeds(scenario.truth, Origin.GIVEN) if scenario.truth else None
        cluster = engine.gpus.cluster
        table: Any = _AllJobs(scenario, cluster.gpu_types) if scenario.retires else engine.jobs
        super().__init__(table, cluster, scenario.restart_cost_s, scenario.faults, scenario.seed, truth)
        self._crashes, self._agents = scenario.crashes, scenario.agents
        self._extra: list[tuple[float, int, Event]] = []
        self._pushed = 0

    @property
    def next_s(self) -> float:
        """When the next event comes, these two kinds among them."""
        return min(super().next_s, self._extra[0][0] if self._extra else np.inf)

    def pop(self, now_s: float) -> list[Event]:
        """All events up to now; failures and bids come last."""
        events = super().pop(now_s)
        while self._extra and self._extra[0][0] <= now_s:
            event = heapq.heappop(self._extra)[2]
            if isinstance(event, JobFailed):
                # The process is gone in this world, too; the engine drops the second report of its end.
                self.stop(Stop(event.job, event.attempt, StopWhy.STRAY), now_s)
            events.append(event)
        return events

    def launch(self, row: int, launch: Launch, now_s: float) -> None:
        """Start a process, which fails later if the scenario says so."""
        super().launch(row, launch, now_s)
        crashes = self._crashes.get(launch.job, ())
        if launch.attempt <= len(crashes):
            after_s, exit_code = crashes[launch.attempt - 1]
            self._later(JobFailed(now_s + after_s, launch.job, launch.attempt, exit_code))

    def hear(self, asks: tuple[Ask, ...], now_s: float) -> None:
        """Let the agents answer what a decision asks them for the first time."""
        for ask in asks:
            said = self._agents[ask.app](ask) if ask.asked_s == now_s else None
            if said:
                self._later(BidReceived(now_s + said[0], said[1]))

    def _later(self, event: Event) -> None:
        self._pushed += 1
        heapq.heappush(self._extra, (event.at_s, self._pushed, event))


class Run:
    """One run of a scenario, from the beginning to the end, as lines."""

    def __init__(
        self,
        scenario: Scenario,
        moments: Mapping[int, list[str] | None],
        look: Callable[[Run], None] | None = None,
    ) -> None:
        """`moments` are decisions (by number) after which jobs are asked why; None chooses the jobs by itself.

        `look` is called at each of these moments, with the run as it then is.
        """
        self.engine, self.decisions = scenario.engine(), 0
        self.lines: list[Line] = [
            {"format": FORMAT, "v": VERSION, "scenario": scenario.name},
            {"given": scenario.given()},
        ]
        self._moments, self._look = moments, look
        self._codes: dict[str, int] = {}
        self._world = _Outside(scenario, self.engine)
        script = [*(JobSubmitted(job.submit_s, job) for job in scenario.jobs), *scenario.events]
        if scenario.retires:
            self._drive(script, {job.id: row for row, job in enumerate(scenario.jobs)})
        else:
            Driver(self.engine, self._world, script, self._watch).run()
        self.lines.append({"end": final_state(self.engine)})

    def _drive(self, script: list[Event], rows: Mapping[str, int]) -> None:
        """The simulator's loop, by names of jobs in place of the engine's rows."""
        engine, world = self.engine, self._world
        coming = sorted(script, key=lambda event: (event.at_s, PRECEDENCE[type(event)]), reverse=True)
        while coming or len(engine.jobs.active):
            scripted_s = coming[-1].at_s if coming else np.inf
            now_s = min(scripted_s, world.next_s, max(engine.wake_s, engine.now_s))
            events = world.pop(now_s)
            while coming and coming[-1].at_s <= now_s:
                world.take_note_of(coming[-1])
                events.append(coming.pop())
            self._apply(sorted(events, key=lambda event: PRECEDENCE[type(event)]))
            while engine.due(now_s):
                decided = engine.with_evidence(engine.decide(now_s))
                self._watch(engine, decided)
                for stop in decided.stops:
                    world.stop(stop, now_s)
                for launch in decided.launches:
                    world.launch(rows[launch.job], launch, now_s)
                self._apply(world.pop(now_s))

    def _apply(self, events: list[Event]) -> None:
        for event in events:
            self.engine.apply(event)
            self._watch(self.engine, event)

    def _watch(self, engine: Engine, record: Event | Decided) -> None:
        if not isinstance(record, Decided):
            self.lines.append({"event": encode(record)})
            return
        self._world.hear(record.asks, record.at_s)
        self.lines.append({"decided": encode(record), "reasons": self._changed_reasons()})
        if self.decisions in self._moments:
            names = self._moments[self.decisions]
            said = whys(engine, choose_jobs(engine) if names is None else names)
            self.lines.append({"moment": self.decisions, "why": said})
            if self._look:
                self._look(self)
        self.decisions += 1

    def _changed_reasons(self) -> dict[str, int]:
        """The reason code of every job whose code is not what it was after the decision before."""
        codes = reason_codes(self.engine)
        changed = {job: code for job, code in codes.items() if self._codes.get(job) != code}
        self._codes = codes
        return dict(sorted(changed.items()))


def reason_codes(engine: Engine) -> dict[str, int]:
    """The reason code of every job, by its name."""
    table = engine.jobs
    return {spec.id: code for spec, code in zip(table.specs, table.reason[: len(table)].tolist(), strict=True)}


def choose_jobs(engine: Engine) -> list[str]:
    """Jobs to be asked why: mostly ones that wait, spread evenly over the table."""
    codes, table = reason_codes(engine), engine.jobs
    waiting = [job for job, code in codes.items() if code]
    active = [table.specs[row].id for row in table.active.tolist() if not codes[table.specs[row].id]]
    most_waiting = max(ASKED - 2, ASKED - len(active))
    chosen = _spread(waiting, most_waiting)
    return [*chosen, *_spread(active, ASKED - len(chosen))]


def _spread(names: list[str], count: int) -> list[str]:
    """At most `count` of the names, evenly spaced."""
    if len(names) <= count:
        return names
    return [names[position * len(names) // count] for position in range(count)]


def whys(engine: Engine, jobs: list[str]) -> dict[str, Line]:
    """What `why` says of some jobs: code, sentence and numbers."""
    standing = engine.status()
    said = {job: explain(standing, job) for job in jobs}
    return {job: {"code": one.code, "sentence": one.sentence, "numbers": one.numbers} for job, one in said.items()}


def final_state(engine: Engine) -> dict[str, Line]:
    """How every job ended; a job that was retired is not among them."""
    table = engine.jobs
    columns = {
        name: getattr(table, name)[: len(table)].tolist()
        for name in ("state", "ended_s", "attempt", "preemptions", "gpu_seconds")
    }
    return {spec.id: {name: column[row] for name, column in columns.items()} for row, spec in enumerate(table.specs)}


def record(scenario: Scenario) -> None:
    """Run a scenario and write its recording, in place of an earlier one."""
    decisions = Run(scenario, {}).decisions
    moments = {(2 * k + 1) * decisions // (2 * MOMENTS): None for k in range(MOMENTS)}
    run = Run(scenario, moments)
    text = "".join(f"{to_text(line)}\n" for line in run.lines)
    FOLDER.mkdir(exist_ok=True)
    scenario.file.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def to_text(line: Line) -> str:
    """A line as it is stored."""
    return json.dumps(line, separators=(",", ":"))


def recorded(scenario: Scenario) -> list[Line]:
    """The lines of a scenario's recording."""
    return [json.loads(line) for line in gzip.decompress(scenario.file.read_bytes()).splitlines()]


def moments_of(lines: list[Line]) -> dict[int, list[str] | None]:
    """The moments of a recording, and the jobs that were asked at each."""
    return {line["moment"]: list(line["why"]) for line in lines if "moment" in line}


def replayed(scenario: Scenario, moments: Mapping[int, list[str] | None]) -> list[Line]:
    """The lines that the present code gives, after a trip through their text."""
    return [json.loads(to_text(line)) for line in Run(scenario, moments).lines]


def stream(lines: list[Line]) -> Iterator[Line]:
    """The encoded events and decisions of a recording, as a journal would hold them."""
    for line in lines:
        if "event" in line or "decided" in line:
            yield line.get("event") or line["decided"]


def folded(scenario: Scenario, lines: list[Line]) -> Engine:
    """An engine that recovered from the encoded stream alone, as a restarted service does."""
    engine = scenario.engine()
    for body in stream(lines):
        engine.apply(decode(body))
    return engine


def from_checkpoint(scenario: Scenario, engine: Engine) -> Engine:
    """An engine that recovered from a checkpoint of another."""
    other = scenario.engine()
    checkpoint.load(other, checkpoint.save(engine))
    return other
