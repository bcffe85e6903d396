"""What the gate times: one short workload for each family of policies and each layer, and its reference.

Inputs are generated from fixed seeds and need no data files. The workloads call the same entry points that users do, so
that they outlive changes inside. A workload takes 50 to 250 ms of CPU time; its reference is repeated until it takes
about as long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from benchmarks import naive, plain
from benchmarks.bidding import draw_auction
from benchmarks.gate.calibration import calibrate
from benchmarks.recovery import busy_day
from benchmarks.reference import check_same
from benchmarks.serving import GPUS
from benchmarks.speeds import draw_differing, draw_problem, draw_queued, made_up_speeds
from horae.backends.local.gpu_detection import parse_virtual
from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event
from horae.core.history import History
from horae.core.job import JobSpec
from horae.service.initial_settings import InitialSettings
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.solve.allocation.hierarchy import hierarchical
from horae.solve.allocation.problem import AllocationProblem
from horae.solve.allocation.programs import finish_time, makespan, max_min
from horae.solve.auction.auction import hold_auction
from horae.workload.clusters import parse_cluster
from horae.workload.generator import generate, preset

_CLUSTER, _LARGE = "16x8", "1250x8"
_THREE_TYPES = "v100:9x4,p100:9x4,k80:9x4"
_SEED = 0

Act = Callable[[], object]


@dataclass(frozen=True)
class TimedPair:
    """A workload and the reference that is timed beside it."""

    workload: Act
    reference: Act


def _whole_seconds(jobs: Sequence[JobSpec]) -> list[JobSpec]:
    """Times in whole seconds: sums of them are exact, so that the naive loop gives the same schedule."""
    return [replace(job, submit_s=float(round(job.submit_s)), work=float(round(job.work) or 1)) for job in jobs]


def _plain_jobs(count: int, cluster: str, load: float) -> list[JobSpec]:
    settings = preset("plain", jobs=count, sizes="philly", load=load)
    return _whole_seconds(generate(settings, parse_cluster(cluster), None, _SEED))


# ------------------------------------------------------------ ordering policies


def _against_naive(policy: str, jobs: int, load: float) -> TimedPair:
    """A simulation beside the naive loop, which must come to the same schedule."""
    specs, cluster = _plain_jobs(jobs, _CLUSTER, load), parse_cluster(_CLUSTER)

    def workload() -> History:
        return simulate(Scenario(specs, cluster, policy=policy, placement="anywhere", restart_cost_s=0.0))

    def reference() -> list[naive.Job]:
        return naive.run(specs, cluster.gpus, policy)

    check_same(workload(), reference())
    return TimedPair(workload, reference)


def fifo_backfill() -> TimedPair:
    """Jobs queue and pass one another; nobody is preempted."""
    return _against_naive("fifo-backfill", 600, 1.2)


def srtf() -> TimedPair:
    """Short jobs preempt long ones."""
    return _against_naive("srtf", 450, 1.2)


def las() -> TimedPair:
    """Jobs preempt one another by attained service; the naive loop beside it runs the same jobs under `srtf`."""
    specs, cluster = _plain_jobs(450, _CLUSTER, 1.2), parse_cluster(_CLUSTER)
    return TimedPair(
        lambda: simulate(Scenario(specs, cluster, policy="las", placement="anywhere", restart_cost_s=0.0)),
        lambda: naive.run(specs, cluster.gpus, "srtf"),
    )


# ------------------------------------------------- policies beside calibration


def _simulated(
    policy: str, preset_name: str, jobs: int, cluster: str, load: float, placement: str = "best-effort"
) -> TimedPair:
    """A simulation of generated jobs beside the calibration."""
    nodes = parse_cluster(cluster)
    specs = generate(preset(preset_name, jobs=jobs, load=load), nodes, None, _SEED)
    return TimedPair(lambda: simulate(Scenario(specs, nodes, policy=policy, placement=placement)), calibrate)


def tiresias() -> TimedPair:
    """Jobs move between queues by attained service; gangs of known models are consolidated."""
    return _simulated("tiresias", "tiresias", 300, _CLUSTER, 1.1)


def themis() -> TimedPair:
    """Apps of several trials bid for leases of 20 minutes."""
    return _simulated("themis", "themis", 60, "8x8", 1.2)


def auction() -> TimedPair:
    """Auctions of 256 GPUs among 50 apps, half of the bids for machines by name."""
    drawn = [draw_auction(50, 256, seed, named) for seed in (0, 1) for named in (False, True)]
    return TimedPair(lambda: [hold_auction(offer, bids) for offer, bids in drawn], calibrate)


def placement() -> TimedPair:
    """Gangs of 1 to 16 GPUs on nodes of eight types under `srtf`: where they go is most of the work."""
    return _simulated("srtf", "tiresias", 400, "a:4x8,b:3x8,c:2x8,d:2x8,e:2x8,f:2x8,g:2x8,h:2x8", 1.1)


def large_cluster() -> TimedPair:
    """10,000 GPUs on which hardly any job waits: the cost must lie in what changes, not in the cluster's size."""
    return _simulated("fifo-backfill", "plain", 350, _LARGE, 0.9)


# ------------------------------------------------------------------ allocation


def gavel_simulation() -> TimedPair:
    """Rounds of `max-min` on three GPU types, beside plain programs for problems of like size."""
    nodes = parse_cluster(_THREE_TYPES)
    specs = generate(preset("plain", jobs=60, sizes="gavel", load=1.0), nodes, None, _SEED)
    problem = draw_differing(made_up_speeds(), 128)
    return TimedPair(
        lambda: simulate(Scenario(specs, nodes, policy="max-min", settings={"round": "1800"})),
        lambda: [plain.max_min(replace(problem)) for _ in range(10)],
    )


def gavel_problems() -> TimedPair:
    """Each of Gavel's objectives solved once, beside plain programs with a row for each job."""
    speeds = made_up_speeds()
    alike, differing = draw_problem(speeds, 2048), draw_differing(speeds, 768)
    queued, small = draw_queued(speeds, 768, 32), draw_differing(speeds, 96)

    def workload() -> list[object]:
        solve: list[tuple[Callable[[AllocationProblem], object], AllocationProblem]] = [
            (max_min, alike),
            (max_min, differing),
            (hierarchical, queued),
            (finish_time, differing),
            (makespan, differing),
        ]
        # A problem keeps what is derived from it; each solution begins with a new one.
        return [solver(replace(problem)) for solver, problem in solve]

    return TimedPair(workload, lambda: [plain.max_min(replace(differing)), plain.finish_time(replace(small))])


# ---------------------------------------------------------- engine and journal


class _Notes:
    """Keeps every event and decision of a simulation."""

    def __init__(self) -> None:
        self.records: list[Event | Decided] = []

    def expect(self, engine: Engine, now_s: float) -> None:
        """Nothing is kept before a decision."""

    def see(self, engine: Engine, what: Event | Decided) -> None:
        """Keep what was applied or decided."""
        self.records.append(what)


def engine() -> TimedPair:
    """The engine alone: events of a simulation applied, and every decision taken anew."""
    nodes, notes = parse_cluster(_CLUSTER), _Notes()
    simulate(Scenario(_plain_jobs(400, _CLUSTER, 1.2), nodes, policy="srtf"), onlooker=notes)
    initial = InitialSettings(nodes.nodes, "srtf")

    def workload() -> Engine:
        fresh = initial.engine(learn=False)
        for record in notes.records:
            if isinstance(record, Decided):
                fresh.decide(record.at_s)
            else:
                fresh.apply(record)
        return fresh

    assert not workload().gpus.occupied, "the engine took other decisions than it did in the simulation"
    return TimedPair(workload, calibrate)


def journal() -> TimedPair:
    """Records of a service with 500 queued jobs written as JSON, read again and folded, as a restart does."""
    initial = InitialSettings(parse_virtual(GPUS), "fifo-backfill")
    records = list(islice(busy_day(initial.engine(), [], queued=500), 3_000))

    def workload() -> None:
        fresh = initial.engine()
        for record in records:
            fresh.apply(decode(json.loads(json.dumps(encode(record)))))

    return TimedPair(workload, calibrate)


#: By the name that a failure gives.
WORKLOADS: dict[str, Callable[[], TimedPair]] = {
    "fifo-backfill": fifo_backfill,
    "srtf": srtf,
    "las": las,
    "tiresias": tiresias,
    "themis": themis,
    "auction": auction,
    "gavel-problems": gavel_problems,
    "gavel-simulation": gavel_simulation,
    "placement": placement,
    "large-cluster": large_cluster,
    "engine": engine,
    "journal": journal,
}
