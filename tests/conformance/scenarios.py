"""The scenarios: every policy, crossed with everything that can befall jobs, nodes and settings.

Workloads come from a small generator of their own, so that no change of Horae's generators changes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from tests.conformance.recorder import (
    AgentChanged,
    Ask,
    BidAnswer,
    BidRow,
    Event,
    Faults,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSpec,
    JobsRetired,
    LossCurve,
    Node,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    Queue,
    Scenario,
    SettingsChanged,
    Span,
    SpeedTable,
)

# ------------------------------------------------------------------- machines


def nodes(*groups: tuple[int, int, str], nodes_per_rack: int = 0) -> tuple[Node, ...]:
    """Nodes from (count, GPUs each, type), cut into racks if asked."""
    kinds = [(gpus, gpu_type) for count, gpus, gpu_type in groups for _ in range(count)]
    return tuple(
        Node(f"n{k}", gpu_type, gpus, f"rack-{k // nodes_per_rack if nodes_per_rack else 0}")
        for k, (gpus, gpu_type) in enumerate(kinds)
    )


ONE_TYPE = nodes((3, 4, "v100"))
RACKS = nodes((6, 2, "v100"), nodes_per_rack=2)
THREE_TYPES = nodes((2, 2, "v100"), (2, 2, "p100"), (1, 4, "k80"))
CLASSES = ("resnet", "lstm", "vgg")
_SPEED = {"v100": 1.0, "p100": 0.55, "k80": 0.25}
#: How much each class gains from a fast GPU: 1 all of it.
_GAIN = {"resnet": 1.0, "lstm": 0.4, "vgg": 0.7}


# ---------------------------------------------------------------------- speeds


def speeds(pairs: bool = False, wrong_by: float = 1.0) -> SpeedTable:
    """Steps/s of every class on every type by GPU count; with `pairs` also of two jobs that share GPUs."""
    rows: list[tuple[str, str, int, int, str, float]] = []
    for job_class in CLASSES:
        for gpu_type, speed in _SPEED.items():
            for gpus in (1, 2, 4):
                alone = (2.0 * speed ** _GAIN[job_class] * gpus**0.9) * wrong_by
                span = int(Span.GPU if gpus == 1 else Span.NODE)
                rows.append((job_class, gpu_type, gpus, span, "", alone))
                if pairs:
                    rows.extend(
                        (job_class, gpu_type, gpus, span, other, alone * (0.95 if other != job_class else 0.7))
                        for other in CLASSES
                    )
    return tuple(rows)


# ------------------------------------------------------------------------ jobs


def jobs(seed: int, count: int = 40, every_s: float = 90.0, work_s: float = 900.0, **more: Any) -> tuple[JobSpec, ...]:
    """Gangs of 1 to 4 GPUs that arrive at random, with work that spreads over two orders of magnitude."""
    draw, submit_s, made = Random(seed), 0.0, []
    for number in range(count):
        submit_s += round(draw.expovariate(1.0 / every_s), 2)
        work = round(work_s * 10 ** draw.uniform(-1.2, 0.8), 1)
        gpus = (1, 1, 1, 2, 2, 4)[draw.randrange(6)]
        made.append(JobSpec(id=f"job-{number}", submit_s=submit_s, gpus=gpus, work=work, **more))
    return tuple(made)


def with_classes(specs: Iterable[JobSpec], seed: int, steps_per_s: float = 2.0) -> tuple[JobSpec, ...]:
    """The same jobs with a class, and with work in steps."""
    draw = Random(seed)
    return tuple(
        replace(one, job_class=CLASSES[draw.randrange(3)], unit="steps", work=round(one.work * steps_per_s))
        for one in specs
    )


def picky(specs: Iterable[JobSpec], seed: int) -> tuple[JobSpec, ...]:
    """The same jobs; some accept one GPU type alone, some bring their own speeds."""
    draw, made = Random(seed), []
    for one in specs:
        what = draw.random()
        if what < 0.3:
            made.append(replace(one, gpu_types=("v100",) if draw.random() < 0.7 else ("k80",)))
        elif what < 0.6:
            made.append(replace(one, unit="steps", throughput={"v100": 3.0, "k80": round(draw.uniform(0.5, 2.0), 2)}))
        else:
            made.append(one)
    return tuple(made)


def small(specs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """The same jobs on one GPU each, so that any two could share it."""
    return tuple(replace(one, gpus=1, gpus_min=0, gpus_max=0) for one in specs)


def in_queues(specs: Iterable[JobSpec], seed: int, *paths: str) -> tuple[JobSpec, ...]:
    """The same jobs, spread over queues."""
    draw = Random(seed)
    return tuple(replace(one, queue=paths[draw.randrange(len(paths))]) for one in specs)


def elastic(specs: Iterable[JobSpec], seed: int) -> tuple[JobSpec, ...]:
    """The same jobs; half of them may have fewer or more GPUs."""
    draw = Random(seed)
    return tuple(
        replace(one, gpus_min=max(1, one.gpus // 2), gpus_max=one.gpus + draw.randrange(1, 4))
        if draw.random() < 0.5
        else one
        for one in specs
    )


def on_nodes(specs: Iterable[JobSpec], seed: int) -> tuple[JobSpec, ...]:
    """The same jobs; half of them ask for 1, 2 or 4 nodes, alike, as far as their GPUs can be divided."""
    draw, made = Random(seed), []
    for one in specs:
        wanted = draw.choice((0, 0, 0, 1, 2, 4))
        made.append(one if wanted == 0 or one.gpus % wanted else replace(one, nodes=wanted))
    return tuple(made)


def with_losses(specs: Iterable[JobSpec], seed: int, reports: int = 6) -> tuple[JobSpec, ...]:
    """The same jobs, which report a falling loss so many times."""
    draw, made = Random(seed), []
    for one in specs:
        last = round(draw.uniform(0.0, 1.5), 3)
        curve = LossCurve(round(last + draw.uniform(0.5, 3.0), 3), last, round(one.work * draw.uniform(0.05, 0.6), 2))
        made.append(replace(one, loss=curve, report_every=one.work / reports if reports else 0.0))
    return tuple(made)


def in_apps(specs: Iterable[JobSpec], size: int, scheduler: str = "") -> tuple[JobSpec, ...]:
    """The same jobs as trials of apps of so many, all of one app submitted with its first."""
    specs = list(specs)
    return tuple(
        replace(
            one,
            app=f"app-{k // size}",
            app_scheduler=scheduler,
            submit_s=specs[k // size * size].submit_s,
            gpus=specs[k // size * size].gpus,
            gpus_min=0,
            gpus_max=0,
        )
        for k, one in enumerate(specs)
    )


def touched(specs: Iterable[JobSpec], seed: int) -> tuple[JobSpec, ...]:
    """The same jobs with the times that most jobs leave alone: saving, loading, starting, leaving, minimal run."""
    draw = Random(seed)
    return tuple(
        replace(
            one,
            slowdown=((1.0, 1.0, 1.0, 1.0), (1.0, 1.1, 1.3, 1.6))[draw.randrange(2)],
            skew=(None, 0.1, 0.7)[draw.randrange(3)],
            checkpoint_s=(None, 5.0, 20.0)[draw.randrange(3)],
            restore_s=(None, 0.0, 45.0)[draw.randrange(3)],
            start_s=(None, 10.0)[draw.randrange(2)],
            finish_s=(None, 4.0)[draw.randrange(2)],
            checkpoint_every_s=(0.0, 120.0)[draw.randrange(2)],
            min_runtime_s=(0.0, 0.0, 200.0)[draw.randrange(3)],
            weight=(1.0, 1.0, 3.0)[draw.randrange(3)],
        )
        for one in specs
    )


def with_deadlines(specs: Iterable[JobSpec], seed: int) -> tuple[JobSpec, ...]:
    """The same jobs; most have a deadline, some one that cannot be met."""
    draw = Random(seed)
    return tuple(
        replace(one, deadline_s=round(one.work * draw.choice((0.4, 1.2, 3.0, 8.0)), 1)) if draw.random() < 0.8 else one
        for one in specs
    )


# ---------------------------------------------------------------------- events


def requests(specs: Iterable[JobSpec], seed: int, share: float = 0.25) -> tuple[Event, ...]:
    """Users who hold, release and cancel some of their jobs, some of them twice or too late."""
    draw = Random(seed)
    made: list[Event] = []
    for one in specs:
        what, later_s = draw.random(), one.submit_s + draw.uniform(1.0, 1500.0)
        if what < share / 2:
            made.append(JobCancelled(round(later_s, 1), one.id, by="ann"))
        elif what < share:
            made.append(JobHeld(round(later_s, 1), one.id, by="bob"))
            made.append(JobReleased(round(later_s + draw.uniform(50.0, 900.0), 1), one.id, by="bob"))
    return tuple(made)


def operator(machines: tuple[Node, ...]) -> tuple[Event, ...]:
    """Nodes that are lost, come back, are drained in both ways, are looked at, and one that is new."""
    new = Node("late", machines[0].gpu_type, 4, machines[0].rack)
    first, second, last = machines[0], machines[1], machines[-1]
    return (
        NodeLost(400.0, first.name),
        NodeObserved(650.0, second.name, (("job-0", 99), ("stranger", 1))),
        NodeDraining(700.0, last.name, evict=True),
        NodeJoined(900.0, first),
        NodeDraining(1100.0, second.name),
        NodeObserved(1200.0, first.name, ()),
        NodeJoined(1500.0, last),
        NodeJoined(1600.0, new),
        NodeJoined(2100.0, second),
    )


def switch(at_s: float, policy: str, **settings: str) -> SettingsChanged:
    """An operator chooses another policy."""
    return SettingsChanged(at_s, policy, settings)


FAULTS = {
    "node losses": Faults(node_losses_per_day=40.0, node_repair_s=500.0),
    "stragglers": Faults(stragglers=0.4, straggler_speed=0.4, progress_every_s=250.0),
    "launch failures": Faults(launch_failures=0.3, launch_failure_s=7.0),
    "late": Faults(late_reports=0.3, late_s=90.0, duplicated_reports=0.3, progress_every_s=300.0),
    "all": Faults(
        node_losses_per_day=25.0,
        node_repair_s=600.0,
        stragglers=0.2,
        launch_failures=0.15,
        late_reports=0.15,
        late_s=120.0,
        duplicated_reports=0.15,
        progress_every_s=400.0,
    ),
}


# ---------------------------------------------------------------------- agents


def eager(ask: Ask) -> tuple[float, BidAnswer]:
    """An agent that answers after a second: the more GPUs of the first machines, the better."""
    pieces, rows, total = [], [], 0
    for machine, count, _ in ask.offer:
        total += count
        pieces.append((machine, count))
        rows.append(BidRow(tuple(pieces), round(ask.rho / (1 + total), 6)))
    return 1.0, BidAnswer(ask.app, ask.auction, ask.rho, tuple(rows))


def modest(ask: Ask) -> tuple[float, BidAnswer]:
    """An agent that bids for one GPU of the first machine."""
    machine = ask.offer[0][0]
    return 0.5, BidAnswer(ask.app, ask.auction, ask.rho, (BidRow(((machine, 1),), round(ask.rho / 2, 6)),))


def confused(ask: Ask) -> tuple[float, BidAnswer]:
    """An agent whose bids have a problem, or come too late."""
    if ask.auction % 2:
        return 0.7, BidAnswer(ask.app, ask.auction, problem="it is nonsense")
    return 60.0, BidAnswer(ask.app, ask.auction, ask.rho)


def silent(ask: Ask) -> None:
    """An agent that never answers."""


# ----------------------------------------------------------------- the scenarios

TEAMS = ("org/a", "org/a/x", "org/b", "lab")
QUOTAS = (
    Queue("org", gpus_max=9),
    Queue("org/a", gpus_min=2, gpus_max=6),
    Queue("org/b", weight=2.0, gpus_max=4),
    Queue("lab", gpus_min=3),
)


def _ordering() -> Iterable[Scenario]:
    """Policies that order jobs, on one type and on several."""
    yield Scenario("fifo", ONE_TYPE, "fifo", jobs(1), restart_cost_s=0.0)
    yield Scenario(
        "fifo-quotas-requests",
        RACKS,
        "fifo",
        in_queues(jobs(2), 2, *TEAMS),
        queues=QUOTAS,
        placement="consolidated",
        events=requests(jobs(2), 2),
    )
    yield Scenario("fifo-backfill", ONE_TYPE, "fifo-backfill", jobs(3, 60), restart_cost_s=0.0)
    yield Scenario(
        "fifo-backfill-reserve-racks",
        RACKS,
        "fifo-backfill",
        touched(jobs(4, 60), 4),
        {"reserve": "300"},
        placement="least-fragmentation",
    )
    yield Scenario("fifo-backfill-nodes", ONE_TYPE, "fifo-backfill", touched(jobs(5, 50), 5), events=operator(ONE_TYPE))
    yield Scenario(
        "fifo-backfill-reserve-alike",
        RACKS,
        "fifo-backfill",
        on_nodes(touched(jobs(35, 50), 35), 35),
        {"reserve": "300"},
        events=operator(RACKS),
    )
    yield Scenario(
        "tiresias-alike",
        nodes((3, 2, "v100"), (2, 4, "v100"), (3, 2, "k80"), nodes_per_rack=3),
        "tiresias",
        on_nodes(touched(jobs(36, 60, every_s=50.0), 36), 36),
        placement="tiresias",
        events=requests(jobs(36, 60, every_s=50.0), 36),
    )
    yield Scenario("smallest-first", RACKS, "smallest-first", jobs(6, 50), {"reserve": "400"}, placement="consolidated")
    mixed = nodes((1, 4, "v100"), (2, 2, "v100"), (1, 4, "k80"))
    yield Scenario(
        "smallest-first-picky",
        mixed,
        "smallest-first",
        picky(touched(jobs(15, 50), 15), 15),
        placement="consolidated",
        events=(
            NodeDraining(500.0, "n0"),
            NodeLost(800.0, "n3"),
            NodeJoined(2500.0, mixed[0]),
            NodeJoined(3000.0, mixed[3]),
        ),
    )
    yield Scenario("srtf", ONE_TYPE, "srtf", jobs(7, 60), placement="anywhere", restart_cost_s=0.0)
    yield Scenario(
        "srtf-three-types-requests",
        THREE_TYPES,
        "srtf",
        with_classes(touched(jobs(8), 8), 8),
        {"reserve": "600"},
        believed=speeds(),
        events=requests(jobs(8), 8),
    )
    yield Scenario("srsf", RACKS, "srsf", touched(jobs(9, 50), 9), placement="least-fragmentation")
    yield Scenario(
        "srsf-faults",
        ONE_TYPE,
        "srsf",
        touched(jobs(10), 10),
        {"reserve": "0"},
        placement="anywhere",
        faults=FAULTS["late"],
        seed=10,
    )
    yield Scenario("las", ONE_TYPE, "las", jobs(11, 50), {"quantum": "120"}, restart_cost_s=0.0)
    yield Scenario(
        "las-quotas-nodes",
        RACKS,
        "las",
        in_queues(touched(jobs(12), 12), 12, *TEAMS),
        {"quantum": "300", "reserve": "900"},
        queues=QUOTAS,
        events=(*operator(RACKS), SettingsChanged(1000.0, queues=(Queue("org/a", gpus_min=1, gpus_max=4),))),
    )
    yield Scenario("time-slice", ONE_TYPE, "time-slice", jobs(13, 30), {"quantum": "200"})
    yield Scenario(
        "time-slice-launch-failures",
        RACKS,
        "time-slice",
        touched(jobs(14, 30), 14),
        {"quantum": "300", "reserve": "900"},
        faults=FAULTS["launch failures"],
        seed=14,
    )


def _attained() -> Iterable[Scenario]:
    """Tiresias, with memory."""
    yield Scenario("tiresias", ONE_TYPE, "tiresias", jobs(20, 60), {"thresholds": "300,1500"}, placement="tiresias")
    yield Scenario(
        "tiresias-auto-promote",
        RACKS,
        "tiresias",
        touched(jobs(21, 50), 21),
        {"thresholds": "auto", "promote-knob": "1", "patience": "120", "reserve": "1200"},
        placement="tiresias:0.5",
        restart_cost_s=0.0,
    )
    yield Scenario(
        "tiresias-normalised-faults",
        THREE_TYPES,
        "tiresias",
        with_classes(touched(jobs(22), 22), 22),
        {"thresholds": "200,1500", "normalise": "true", "patience": "0"},
        believed=speeds(),
        faults=FAULTS["all"],
        seed=22,
    )
    yield Scenario(
        "tiresias-retired",
        ONE_TYPE,
        "tiresias",
        jobs(23, 40),
        {"thresholds": "300,1500", "promote-knob": "8"},
        events=(JobsRetired(1500.0, 1200.0), JobsRetired(3000.0, 2500.0)),
    )
    yield Scenario(
        "tiresias-gittins", ONE_TYPE, "tiresias-gittins", jobs(24, 50), {"thresholds": "300,1500"}, restart_cost_s=0.0
    )
    yield Scenario(
        "tiresias-gittins-supremum",
        RACKS,
        "tiresias-gittins",
        touched(jobs(25), 25),
        {"index": "supremum", "promote-knob": "1"},
        placement="tiresias",
        events=requests(jobs(25), 25),
    )


def _sharing() -> Iterable[Scenario]:
    """Gavel's policies and others that know GPU types, alone and with pairs."""
    count, round_s = 24, {"round": "240"}
    shared = {**round_s, "space-sharing": "true"}
    plain = with_classes(jobs(30, count, 45.0), 30)
    yield Scenario("max-min", THREE_TYPES, "max-min", plain, round_s, believed=speeds())
    yield Scenario(
        "max-min-pairs",
        THREE_TYPES,
        "max-min",
        with_classes(small(jobs(31, 28, 30.0)), 31),
        shared,
        believed=speeds(pairs=True),
    )
    yield Scenario(
        "max-min-pairs-faults",
        THREE_TYPES,
        "max-min",
        with_classes(touched(small(jobs(32, 24, 20.0)), 32), 32),
        {**shared, "half-life": "3600", "stay": "360"},
        believed=speeds(pairs=True),
        faults=FAULTS["all"],
        seed=32,
    )
    yield Scenario(
        "max-min-learns",
        THREE_TYPES,
        "max-min",
        with_classes(small(jobs(33, 24, 20.0)), 33),
        shared,
        believed=speeds(pairs=True, wrong_by=1.4),
        truth=speeds(pairs=True),
        faults=Faults(progress_every_s=300.0),
        seed=33,
    )
    yield Scenario(
        "max-min-unaware",
        THREE_TYPES,
        "max-min",
        touched(plain, 30),
        {**round_s, "aware": "false"},
        believed=speeds(),
        events=requests(plain, 30),
    )
    yield Scenario("water-filling", THREE_TYPES, "water-filling", plain, round_s, believed=speeds())
    yield Scenario(
        "hierarchical",
        THREE_TYPES,
        "hierarchical",
        in_queues(with_classes(jobs(34, count, 45.0), 34), 34, "org/a", "org/b", "lab/c/u", "lab/c/v"),
        round_s,
        queues=(Queue("org", weight=2.0), Queue("org/b", rule="fifo"), Queue("lab/c", weight=3.0, gpus_max=8)),
        believed=speeds(),
    )
    yield Scenario("finish-time", THREE_TYPES, "finish-time", plain, round_s, believed=speeds())
    yield Scenario("makespan", THREE_TYPES, "makespan", plain, round_s, believed=speeds(), restart_cost_s=0.0)
    yield Scenario(
        "total-throughput-pairs",
        THREE_TYPES,
        "total-throughput",
        with_classes(jobs(35, count, 45.0), 35),
        shared,
        believed=speeds(pairs=True),
    )
    yield Scenario("strategy-proof", THREE_TYPES, "strategy-proof", plain, round_s, believed=speeds())
    prices = {"prices": "v100:2.48,p100:1.46,k80:0.45"}
    yield Scenario("cost", THREE_TYPES, "cost", plain, {**round_s, **prices}, believed=speeds())
    yield Scenario(
        "cost-deadline",
        THREE_TYPES,
        "cost-deadline",
        with_deadlines(with_classes(jobs(36, count, 45.0), 36), 36),
        {**round_s, **prices},
        believed=speeds(),
    )
    yield Scenario(
        "gandiva-pairs",
        THREE_TYPES,
        "gandiva",
        with_classes(jobs(37, count, 45.0), 37),
        {**round_s, "seed": "5"},
        believed=speeds(pairs=True),
    )
    yield Scenario(
        "isolated-quotas",
        THREE_TYPES,
        "isolated",
        in_queues(with_classes(jobs(38, 30, 60.0), 38), 38, *TEAMS),
        round_s,
        queues=QUOTAS,
        believed=speeds(),
    )
    yield Scenario("fifo-aware", THREE_TYPES, "fifo-aware", plain, believed=speeds())
    yield Scenario(
        "sjf-aware-reserve", THREE_TYPES, "sjf-aware", plain, {"reserve": "600", "gain": "30"}, believed=speeds()
    )
    yield Scenario("allox", THREE_TYPES, "allox", plain, believed=speeds())
    yield Scenario(
        "allox-learns-nodes",
        THREE_TYPES,
        "allox",
        with_classes(touched(jobs(39, 30), 39), 39),
        believed=speeds(wrong_by=0.6),
        truth=speeds(),
        events=operator(THREE_TYPES),
        faults=FAULTS["stragglers"],
        seed=39,
    )


def _apps() -> Iterable[Scenario]:
    """Apps with their schedulers and agents, and policies that look at losses."""
    trials = with_losses(jobs(40, 48, 60.0), 40, 0)
    yield Scenario("themis", RACKS, "themis", in_apps(jobs(41, 32), 4), {"lease": "300", "f": "0.5"})
    yield Scenario(
        "themis-halving-touched",
        RACKS,
        "themis",
        touched(in_apps(trials, 6, "halving:eta=2,rungs=2"), 40),
        {"lease": "400", "denominator": "isolated", "bid-error": "0.1", "seed": "3"},
    )
    yield Scenario(
        "themis-agents",
        RACKS,
        "themis",
        in_apps(jobs(42, 32), 4),
        {"lease": "300", "f": "0", "answer": "5"},
        events=(
            *(AgentChanged(0.0, f"app-{k}", present=True, by="ann") for k in (0, 1, 2, 3, 5)),
            AgentChanged(900.0, "app-1", present=False, by="ann"),
        ),
        agents={"app-0": eager, "app-1": silent, "app-2": modest, "app-3": confused, "app-5": eager},
    )
    yield Scenario(
        "themis-three-types-faults",
        THREE_TYPES,
        "themis",
        with_classes(in_apps(jobs(43, 24), 3), 43),
        {"lease": "300"},
        believed=speeds(),
        faults=FAULTS["node losses"],
        seed=43,
    )
    yield Scenario(
        "highest-rho-hyperband",
        ONE_TYPE,
        "highest-rho",
        in_apps(trials, 8, "hyperband:eta=2,rungs=2"),
        {"lease": "400", "reserve": "900"},
    )
    yield Scenario(
        "las-hyperdrive", ONE_TYPE, "las", in_apps(trials, 6, "hyperdrive:rungs=5,promising=0.4"), {"quantum": "200"}
    )
    yield Scenario(
        "fifo-backfill-hyperdrive-faults",
        ONE_TYPE,
        "fifo-backfill",
        in_apps(trials, 6, "hyperdrive:rungs=4,margin=0.2"),
        faults=FAULTS["all"],
        seed=44,
        events=requests(trials, 44, 0.15),
    )
    yield Scenario("slaq", ONE_TYPE, "slaq", with_losses(jobs(45, 40), 45), {"quantum": "300", "reserve": "900"})
    yield Scenario("optimus", ONE_TYPE, "optimus", with_losses(elastic(jobs(46, 36), 46), 46), {"quantum": "300"})
    yield Scenario("fifo-backfill-elastic", ONE_TYPE, "fifo-backfill", elastic(touched(jobs(47, 50), 47), 47))
    yield Scenario(
        "optimus-learns",
        THREE_TYPES,
        "optimus",
        with_losses(elastic(with_classes(jobs(48, 24), 48), 48), 48),
        {"quantum": "300"},
        believed=speeds(wrong_by=1.5),
        truth=speeds(),
        faults=Faults(progress_every_s=200.0),
        seed=48,
    )


def _changes() -> Iterable[Scenario]:
    """Failing jobs, policies that are switched in mid-run, and jobs that leave."""
    failing = tuple(replace(one, max_restarts=2, retry_exit_codes=(1, 75)) for one in jobs(50, 40))
    yield Scenario(
        "srtf-failing-jobs",
        ONE_TYPE,
        "srtf",
        failing,
        crashes={
            f"job-{k}": tuple((20.0 * (k % 5 + 1), (1, 75, 2)[(k + n) % 3]) for n in range(k % 4))
            for k in range(0, 40, 2)
        },
    )
    yield Scenario(
        "switch-las-tiresias-srtf",
        RACKS,
        "las",
        in_queues(touched(jobs(51, 60), 51), 51, *TEAMS),
        events=(
            switch(800.0, "tiresias", thresholds="200,1500"),
            switch(2000.0, "srtf"),
            switch(2600.0, "tiresias", thresholds="auto"),
            SettingsChanged(2800.0, queues=QUOTAS),
        ),
    )
    sized = with_classes(jobs(52, 24), 52)
    yield Scenario(
        "switch-themis-max-min-retired",
        THREE_TYPES,
        "themis",
        in_apps(sized, 3),
        {"lease": "300"},
        believed=speeds(pairs=True),
        events=(
            JobsRetired(1000.0, 900.0),
            switch(1400.0, "max-min", **{"space-sharing": "true"}),
            JobsRetired(2200.0, 2000.0),
            switch(2600.0, "fifo-backfill"),
            *requests(sized, 52, 0.2),
        ),
    )


SCENARIOS: dict[str, Scenario] = {
    one.name: one for family in (_ordering, _attained, _sharing, _apps, _changes) for one in family()
}
