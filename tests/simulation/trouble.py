"""Random workloads in a world where everything goes wrong, from one seed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np

from horae.core.cluster import Cluster, Node, Span
from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import (
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeObserved,
    SettingsChanged,
)
from horae.core.invariants import check
from horae.core.job import JobSpec
from horae.core.loss_curve import LossCurve
from horae.core.queues import Queue
from horae.core.states import State
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.placement import PLACEMENTS
from horae.placement.rules import make_placement
from horae.policies import POLICIES, describe, make_policy
from horae.simulator.driver import Driver
from horae.simulator.faults import Faults
from horae.simulator.world import World

FAULTS = Faults(
    node_losses_per_day=6.0,
    node_repair_s=900.0,
    stragglers=0.2,
    launch_failures=0.15,
    late_reports=0.15,
    late_s=120.0,
    duplicated_reports=0.15,
    progress_every_s=700.0,
)


#: Schedulers of the second app, by seed.
SCHEDULED = ("halving:eta=3,rungs=1", "hyperband:eta=2,rungs=2", "hyperdrive:rungs=4")


def same(a: object, b: object) -> bool:
    """Whether two states are equal, columns bit by bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


def difference(a: dict, b: dict) -> str:
    """The names of what differs, for a message."""
    parts = [key for key in a if not same(a[key], b[key])]
    columns = [name for name in a["jobs"] if not same(a["jobs"][name], b["jobs"][name])] if "jobs" in parts else []
    return f"{parts} {columns}"


@dataclass
class Trouble:
    """One seed: a cluster, a policy, a workload, and what users and operators do to them."""

    seed: int
    jobs: int = 14
    journal: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        rng = self.rng
        self.cluster = self._cluster()
        self.placement = str(rng.choice(list(PLACEMENTS)))
        self.policy, self.settings = self._policy()
        self.queues = self._queues()
        self.wrong_by = float(rng.choice([0.6, 1.0, 1.5]))
        self.restart_cost_s = float(rng.choice([0.0, 30.0]))
        self.specs = [self._trial(number, self._job(number)) for number in range(self.jobs)]

    def _cluster(self) -> Cluster:
        rng = self.rng
        nodes = [
            Node(f"n{k}", f"t{k % int(rng.integers(1, 4))}", int(rng.integers(1, 5)), f"r{k % 2}")
            for k in range(int(rng.integers(2, 6)))
        ]
        return Cluster(tuple(nodes))

    def _policy(self) -> tuple[str, dict[str, str]]:
        name = str(self.rng.choice(list(POLICIES)))
        settings = {}
        for parameter in describe(name).parameters:
            if parameter.name in ("quantum", "round", "lease"):
                settings[parameter.name] = str(self.rng.choice([50, 300, 600]))
            if parameter.name == "reserve":
                settings[parameter.name] = str(self.rng.choice(["off", "0", "200"]))
            if parameter.name in ("space-sharing", "aware"):
                settings[parameter.name] = str(self.rng.choice(["true", "false"]))
            if parameter.name == "space-sharing" and settings["aware"] == "false":
                settings[parameter.name] = "false"
            if parameter.name == "prices":
                settings[parameter.name] = "t0:3,t1:2,t2:1,t-late:1"
            if parameter.name == "thresholds":
                settings[parameter.name] = str(self.rng.choice(["auto", "100,1500", "40", "3250,7200"]))
            if parameter.name == "promote-knob":
                settings[parameter.name] = str(self.rng.choice(["off", "8", "1", "0.05"]))
            if parameter.name == "normalise":
                settings[parameter.name] = str(self.rng.choice(["true", "false"]))
            if parameter.name == "index":
                settings[parameter.name] = str(self.rng.choice(["quantum", "supremum"]))
        return name, settings

    def _queues(self) -> tuple[Queue, ...]:
        largest = int(self.cluster.gpus_by_type.max())
        top = int(self.rng.integers(largest, self.cluster.gpus + 1))
        low = int(self.rng.integers(0, min(3, top) + 1))
        limited = Queue("org/a", gpus_min=low, gpus_max=top)
        return (limited,) if self.rng.random() < 0.5 else ()

    def _job(self, number: int) -> JobSpec:
        rng = self.rng
        largest = int(self.cluster.gpus_by_type.max())
        gpus = int(rng.integers(1, largest + 1))
        elastic = rng.random() < 0.3
        return JobSpec(
            id=f"job-{number}",
            submit_s=float(rng.choice([0, rng.integers(0, 4000)])),
            gpus=gpus,
            gpus_min=int(rng.integers(1, gpus + 1)) if elastic else gpus,
            gpus_max=gpus + int(rng.integers(0, 3)) if elastic else gpus,
            work=float(rng.integers(1, 1500)),
            job_class=str(rng.choice(["", "m", "n"])),
            skew=None if rng.random() < 0.3 else float(rng.random()),
            slowdown=(1.0, 1.0, 1.2, 1.5) if rng.random() < 0.5 else (1.0, 1.0, 1.0, 1.0),
            queue=str(rng.choice(["org/a", "org/a/x", "org/b"])),
            checkpoint_s=float(rng.choice([0.0, 20.0])),
            restore_s=None if rng.random() < 0.5 else float(rng.choice([0.0, 45.0])),
            start_s=(None, 0.0, 25.0)[number % 3],
            checkpoint_every_s=float(rng.choice([0.0, 200.0])),
            min_runtime_s=float(rng.choice([0.0, 0.0, 250.0])),
        )

    def _trial(self, number: int, spec: JobSpec) -> JobSpec:
        """Some jobs are trials of two apps that have schedulers; others only report their losses."""
        rng, app = self.rng, number % 4
        if app == 3:
            return spec
        curve = LossCurve(float(rng.uniform(2, 4)), float(rng.uniform(0, 2)), float(rng.uniform(20, 600)))
        every = spec.work / float(rng.integers(2, 20)) if rng.random() < 0.5 else 0.0
        scheduler = ("", "halving:eta=2,rungs=2", SCHEDULED[self.seed % len(SCHEDULED)])[app]
        return replace(
            spec, app=f"app-{app}" if scheduler else "", app_scheduler=scheduler, loss=curve, report_every=every
        )

    def _speeds(self, origin: Origin, wrong_by: float) -> Throughputs:
        """Speeds of two classes, alone and beside each other; a believed table may be wrong."""
        table = Throughputs()
        for gpu_type in ("t0", "t1", "t2", "t-late"):
            for gpus in range(1, 24):
                for one, other in (("m", ""), ("n", ""), ("m", "m"), ("m", "n"), ("n", "m")):
                    speed = (1.0 if other == "" else 0.7) * (1.3 if one == "n" else 1.0) * wrong_by
                    span = Span.GPU if gpus == 1 else Span.NODE
                    table.put(Setting(one, gpu_type, gpus, span, other), speed, origin)
        return table

    def script(self) -> list[Event]:
        """Submissions, and users and operators who change their minds."""
        rng, events = self.rng, [JobSubmitted(spec.submit_s, spec) for spec in self.specs]
        for spec in self.specs:
            if rng.random() < 0.3:
                held_s = float(rng.integers(0, 6000))
                events.append(JobHeld(held_s, spec.id))
                events.append(JobReleased(held_s + float(rng.integers(0, 3000)), spec.id))
            if rng.random() < 0.1:
                events.append(JobCancelled(float(rng.integers(0, 6000)), spec.id))
        for node in self.cluster.nodes:
            if rng.random() < 0.4:
                at_s = float(rng.integers(0, 5000))
                events.append(NodeDraining(at_s, node.name, evict=bool(rng.random() < 0.5)))
                events.append(NodeJoined(at_s + float(rng.integers(1, 3000)), node))
            if rng.random() < 0.2:
                events.append(NodeObserved(float(rng.integers(0, 5000)), node.name, (("job-0", 99),)))
        if rng.random() < 0.3:
            name, settings = self._policy()
            events.append(SettingsChanged(float(rng.integers(0, 5000)), name, settings))
        if rng.random() < 0.3:
            events.append(NodeJoined(float(rng.integers(0, 3000)), Node("late", "t-late", 4, "r0")))
        # Whatever was held for good by a late hold is let go in the end.
        return [*events, *(JobReleased(20000.0, spec.id) for spec in self.specs)]

    def engine(self) -> Engine:
        """A fresh engine with this seed's settings."""
        rule, believed = make_placement(self.placement), self._speeds(Origin.ESTIMATED, self.wrong_by)
        return Engine(self.cluster, make_policy, self.policy, self.settings, rule, believed, self.queues, learn=True)

    def run(self) -> Engine:
        """Run to the end: after every event the invariants hold, and two shadows agree.

        One shadow recovers: it folds the journal, through its text form, and never asks a
        policy. The other plans again: it hears the events and must decide what was decided.
        """
        engine, recovering, planning = self.engine(), self.engine(), self.engine()

        def watch(live: Engine, record: Event | Decided) -> None:
            check(live)
            text = json.dumps(encode(record))
            self.journal.append(text)
            recovering.apply(decode(json.loads(text)))
            assert same(live.contents(), recovering.contents()), (
                f"seed {self.seed}: {difference(live.contents(), recovering.contents())}"
            )
            if isinstance(record, Decided):
                again = planning.with_evidence(planning.decide(record.at_s))
                assert encode(again) == encode(record), f"seed {self.seed}: planned {again}, was {record}"
            else:
                planning.apply(record)

        truth = self._speeds(Origin.GIVEN, 1.0)
        world = World(engine.jobs, self.cluster, self.restart_cost_s, FAULTS, self.seed, truth)
        Driver(engine, world, self.script(), watch).run()
        return engine

    def unfinished(self, engine: Engine) -> list[str]:
        """Jobs that neither finished nor were cancelled."""
        ended = (State.FINISHED, State.CANCELLED)
        return [spec.id for row, spec in enumerate(engine.jobs.specs) if State(engine.jobs.state[row]) not in ended]
