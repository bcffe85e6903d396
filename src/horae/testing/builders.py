"""Small builders for tests: they fill in what does not matter. Public: importable as `horae.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from horae.core.cluster import Cluster, Node
from horae.core.commands import Decided, Launch, Stop
from horae.core.engine import Engine, PolicyMaker
from horae.core.events import Event, JobStarted, JobStopped, JobSubmitted
from horae.core.history import History
from horae.core.invariants import check
from horae.core.job import JobSpec
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.states import ALIVE, LAUNCHING, RUNNING, State
from horae.placement.rules import make_placement
from horae.simulator.driver import Driver
from horae.simulator.run import simulate
from horae.simulator.scenario import PolicyChoice, Scenario
from horae.simulator.world import World
from horae.workload.clusters import parse_cluster


def job(name: str = "a", gpus: int = 1, work: float = 100.0, submit_s: float = 0.0, **more: Any) -> JobSpec:
    """A job of which only the interesting part is named."""
    return JobSpec(id=name, submit_s=submit_s, gpus=gpus, work=work, **more)


def cluster(spec: str = "1x4", nodes_per_rack: int = 0) -> Cluster:
    """A cluster from its short form, cut into racks if asked."""
    nodes = parse_cluster(spec).nodes
    if not nodes_per_rack:
        return Cluster(nodes)
    return Cluster(tuple(Node(n.name, n.gpu_type, n.gpus, f"rack-{k // nodes_per_rack}") for k, n in enumerate(nodes)))


class Cell:
    """An engine and a hand that answers its commands at once, unless told to keep still.

    `slow_stops` keeps JobStopped back and `slow_starts` keeps JobStarted back; the test
    then sends them itself. Every invariant is checked after every event and decision.
    """

    def __init__(
        self,
        spec: str | Cluster = "1x4",
        policy: str | type[Any] | Policy = "fifo-backfill",
        settings: Mapping[str, str] | None = None,
        placement: str = "best-effort",
        queues: Iterable[Queue] = (),
        slow_stops: bool = False,
        slow_starts: bool = False,
        quotas_fixed: bool = True,
    ) -> None:
        machines = cluster(spec) if isinstance(spec, str) else spec
        rule = make_placement(placement)
        chosen = PolicyChoice(policy, settings or {})
        self.engine = Engine(machines, _maker(chosen), chosen.name, chosen.shown_settings, rule, queues=queues)
        self.slow_stops, self.slow_starts, self._quotas_fixed = slow_stops, slow_starts, quotas_fixed
        self.decisions: list[Decided] = []

    def at(self, now_s: float, *events: Event) -> Decided:
        """Apply events, then decide until nothing is due; gives all that was decided as one record's worth."""
        for event in events:
            self.tell(event)
        first = len(self.decisions)
        while self.engine.due(now_s):
            self._decide(now_s)
        made = self.decisions[first:]
        return Decided(
            now_s,
            planned=any(entry.planned for entry in made),
            stops=tuple(stop for entry in made for stop in entry.stops),
            launches=tuple(launch for entry in made for launch in entry.launches),
            placed=tuple(placed for entry in made for placed in entry.placed),
            wake_s=self.engine.wake_s,
        )

    def submit(self, now_s: float, *jobs: JobSpec) -> Decided:
        """Jobs arrive together."""
        return self.at(now_s, *(JobSubmitted(now_s, entry) for entry in jobs))

    def tell(self, event: Event) -> None:
        """Apply one event without deciding."""
        self.engine.apply(event)
        check(self.engine, self._quotas_fixed)

    def _decide(self, now_s: float) -> None:
        record = self.engine.with_evidence(self.engine.decide(now_s))
        check(self.engine, self._quotas_fixed)
        self.decisions.append(record)
        for command in record.commands:
            if isinstance(command, Stop) and not self.slow_stops and command.job in self.engine.jobs.rows:
                self.tell(JobStopped(now_s, command.job, command.attempt, self.done(command.job, now_s)))
            if isinstance(command, Launch) and not self.slow_starts:
                self.tell(JobStarted(now_s, command.job, command.attempt))

    def row(self, name: str) -> int:
        """Row of a job in the engine's table."""
        return self.engine.jobs.rows[name]

    def done(self, name: str, now_s: float) -> float:
        """Work done by a job, by the engine's own line."""
        table, row = self.engine.jobs, self.row(name)
        left = table.work_left[row] - table.rate[row] * (now_s - table.since_s[row])
        return float(table.work[row] - left)

    def attempt(self, name: str) -> int:
        """Number of a job's last attempt."""
        return int(self.engine.jobs.attempt[self.row(name)])

    def state(self, name: str) -> State:
        """How a job stands."""
        return State(int(self.engine.jobs.state[self.row(name)]))

    def reason(self, name: str) -> Reason:
        """Why a job waits."""
        return Reason(int(self.engine.jobs.reason[self.row(name)]))

    def gpus(self, name: str) -> tuple[int, ...]:
        """GPUs that a job holds by plan."""
        return self.engine.gpus.held.get(self.row(name), ())

    @property
    def running(self) -> list[str]:
        """Jobs that run or start up, in order of submission."""
        return [spec.id for spec in self.engine.jobs.specs if self.state(spec.id) in (LAUNCHING, RUNNING)]

    @property
    def alive(self) -> list[str]:
        """Jobs that sit on GPUs, those that are told to stop among them."""
        return [spec.id for spec in self.engine.jobs.specs if self.state(spec.id) in ALIVE]


def _maker(chosen: PolicyChoice) -> PolicyMaker:
    """Makes the chosen policy, with whatever settings an event gives it; every other one by its name."""

    def make(name: str, settings: Mapping[str, str]) -> Policy:
        return chosen.make(settings) if name == chosen.name else PolicyChoice(name, settings).make()

    return make


def run(
    jobs: Sequence[JobSpec],
    spec: str | Cluster = "1x4",
    policy: str | type[Any] | Policy = "fifo-backfill",
    **more: Any,
) -> History:
    """Simulate; restarts are free unless told otherwise."""
    machines = cluster(spec) if isinstance(spec, str) else spec
    return simulate(Scenario(jobs, machines, policy=policy, **{"restart_cost_s": 0.0, **more}))


def times(history: History) -> dict[str, tuple[float, float]]:
    """Start and end of every job by name."""
    return {
        spec.id: (float(start), float(end))
        for spec, start, end in zip(history.jobs, history.start_s, history.end_s, strict=True)
    }


def ends(history: History) -> list[float]:
    """When each job ended, in order of submission."""
    return [float(end) for end in history.end_s]


class Script:
    """A simulation in which users and operators do things at given times; every invariant is checked."""

    def __init__(
        self,
        jobs: Sequence[JobSpec],
        spec: str | Cluster = "1x4",
        policy: str | type[Any] | Policy = "fifo-backfill",
        settings: Mapping[str, str] | None = None,
        events: Sequence[Event] = (),
        placement: str = "best-effort",
        restart_cost_s: float = 0.0,
        queues: Iterable[Queue] = (),
        most_decisions: int = 10_000,
        look: Callable[[Engine, Event | Decided], None] | None = None,
    ) -> None:
        machines = cluster(spec) if isinstance(spec, str) else spec
        rule = make_placement(placement)
        chosen = PolicyChoice(policy, settings or {})
        self.engine = Engine(machines, _maker(chosen), chosen.name, chosen.shown_settings, rule, queues=queues)
        self.records: list[Decided] = []
        self._most, self._look = most_decisions, look
        world = World(self.engine.jobs, machines, restart_cost_s, None, 0)
        arrivals = [JobSubmitted(entry.submit_s, entry) for entry in jobs]
        driver = Driver(self.engine, world, [*arrivals, *events], self._watch)
        driver.run()
        self.history = driver.history({})

    def _watch(self, engine: Engine, what: Event | Decided) -> None:
        check(engine, quotas_fixed=False)
        if isinstance(what, Decided):
            self.records.append(what)
            assert len(self.records) <= self._most, f"{self._most} decisions and no end: now is {engine.now_s}"
        if self._look:
            self._look(engine, what)
