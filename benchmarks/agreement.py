"""Does a simulation tell what a live run will do? The same jobs, live and simulated, side by side.

A first live run calibrates: a few jobs of each class on each GPU type, preempted now and then. A second one, on a
service of its own, runs the workload. The simulation of that workload knows its jobs and when they came; how fast they
are, and how long they take to start, to save, to come back and to leave, it has from the first run alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.bench import Bench, note
from benchmarks.machine import ROOT
from benchmarks.part import Part, Row
from horae.client.journal import JournalReader, read_past
from horae.client.service_client import ServiceClient, records_of, service
from horae.core.arrays import Floats
from horae.core.history import History
from horae.core.job import JobSpec
from horae.service.history.simulation_costs import Calibration, calibrate
from horae.service.job_file import class_of
from horae.service.server import ServeOptions, Server
from horae.service.tokens import operator
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.testing.demo_clusters import environment

#: Starts that are less apart than this may swap.
MAY_SWAP_S = 1.0
#: How far the average JCT may be off.
MAY_DIFFER = 0.05
LEAST_PREEMPTIONS = 20
#: By how much costs of a job are off in simulations with noise, and how many there are. Live costs differ more.
NOISE, NOISY_RUNS = 0.5, 10
#: Live runs end long before; a machine that takes longer is of no use for this.
_PATIENCE_S = 1200.0


@dataclass(frozen=True)
class Kind:
    """A class of jobs: its gang, how long a step takes on the fast GPU type, and how fast it is on the slow one."""

    gpus: int
    step_ms: float
    slow: float


@dataclass(frozen=True)
class Site:
    """Where jobs run: a cluster for each service, a fast and a slow GPU type, the jobs' program and classes."""

    #: Starts the cluster of a service with this state folder, and gives options for the service (`ServeOptions`).
    start: Callable[[Path], AbstractContextManager[Mapping[str, Any]]]
    gpu_types: tuple[str, str]
    #: Takes `--steps`, `--step-ms` and `--speed` as `examples/train_numpy.py` does.
    program: tuple[str, ...]
    envs: Mapping[str, str]
    kinds: Mapping[str, Kind]


LOCAL = Site(
    lambda _state: nullcontext({"gpus": "v100:4,k80:4"}),
    ("v100", "k80"),
    (sys.executable, str(ROOT / "examples" / "train_numpy.py")),
    {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    {"resnet": Kind(1, 60, 0.5), "lstm": Kind(1, 100, 0.8), "gnmt": Kind(2, 80, 0.6), "bert": Kind(4, 120, 0.5)},
)


@dataclass(frozen=True)
class Wanted:
    """A job of a workload: its class, when it comes, how many steps it has, and the GPU type if only one will do."""

    kind: str
    at_s: float
    steps: int
    gpu_type: str = ""
    app: str = ""
    queue: str = "default"

    def form(self, site: Site, believed: Mapping[str, float]) -> dict[str, Any]:
        """The job as it is submitted, with the speeds that are believed."""
        kind, (fast, slow) = site.kinds[self.kind], site.gpu_types
        script = ["--steps", str(self.steps), "--step-ms", str(kind.step_ms), "--speed", f"{fast}=1,{slow}={kind.slow}"]
        wants = f"{self.gpu_type}:{kind.gpus}" if self.gpu_type else kind.gpus
        return {
            "name": self.kind,
            "class": self.kind,
            "app": self.app,
            "queue": self.queue,
            "run": [*site.program, *script],
            "envs": dict(site.envs),
            "resources": {"gpus": wants},
            "estimate": {"steps": self.steps, "throughput": dict(believed)},
        }


@dataclass(frozen=True)
class Plan:
    """What is run: the jobs, the policy that decides, and where."""

    jobs: tuple[Wanted, ...]
    policy: str
    settings: Mapping[str, str] = field(default_factory=dict)
    site: Site = LOCAL


def calibration_plan(
    site: Site = LOCAL,
    policy: str = "tiresias",
    settings: Mapping[str, str] = MappingProxyType({"thresholds": "10"}),
    long_s: float = 15.0,
    every_s: float = 1.6,
) -> Plan:
    """Jobs of every class on each GPU type: long ones, and short ones that come while those run and take their place.

    They come one by one, as jobs do: a machine takes longer to start several at once.
    """
    jobs = []
    for number, name in enumerate((*site.kinds, *site.kinds, *site.kinds)):
        kind, lasts_s = site.kinds[name], long_s / 3 if number >= len(site.kinds) else long_s
        for half, (gpu_type, speed) in enumerate(zip(site.gpu_types, (1.0, kind.slow), strict=True)):
            steps = round(lasts_s * 1000 / kind.step_ms * speed)
            jobs.append(Wanted(name, every_s * (2 * number + half), steps, gpu_type))
    return Plan(tuple(jobs), policy, settings, site)


def workload_plan(jobs: int = 34, every_s: float = 4.0, seed: int = 163) -> Plan:
    """Short and long jobs of all classes that come faster than the GPUs can take them.

    In this workload the order of first starts is not a matter of tenths of a second: noise of that size, in a
    simulation, leaves it as it is. With most seeds it does not, and nothing could tell who goes first.
    """
    rng = np.random.default_rng(seed)
    kinds, at_s, wanted = LOCAL.kinds, 1.0, []
    for number in range(jobs):
        name = [*kinds][int(rng.choice(len(kinds), p=[0.35, 0.25, 0.25, 0.15]))]
        lasts_s = float(rng.uniform(4, 8) if number % 2 else rng.uniform(16, 36))
        wanted.append(Wanted(name, at_s, round(lasts_s * 1000 / kinds[name].step_ms)))
        at_s += every_s * float(rng.uniform(0.7, 1.3))
    return Plan(tuple(wanted), "tiresias", {"thresholds": "20", "promote_knob": "off"})


# ------------------------------------------------------------------------- live


def run_live(plan: Plan, state: Path, believed: Calibration | None = None) -> JournalReader:
    """Run jobs for real, each submitted when its time comes, and read the journal."""
    site = plan.site
    with _serving(plan, state) as at:
        began = time.monotonic()
        for at_s, jobs in groupby(plan.jobs, lambda job: job.at_s):
            time.sleep(max(0.0, began + at_s - time.monotonic()))
            at.post("/v1/jobs", [job.form(site, _believed(site, job, believed)) for job in jobs])
        _wait(at, began + _PATIENCE_S)
        return read_past(at)


def _believed(site: Site, job: Wanted, known: Calibration | None) -> Mapping[str, float]:
    """Speeds that the service believes. A class that was not measured is a mistake: the simulation would know more."""
    return known.speeds[class_of(operator(), job.kind), site.kinds[job.kind].gpus] if known else {}


@contextmanager
def _serving(plan: Plan, state: Path) -> Iterator[ServiceClient]:
    with plan.site.start(state) as options:
        server = Server(ServeOptions(state, port=0, policy=plan.policy, settings=plan.settings, **options))
        token = server.token_file.read_text(encoding="utf-8").strip()
        try:
            with environment({"HORAE_TOKEN": token}), service(server.url) as at:
                _await_nodes(at, time.monotonic() + _PATIENCE_S)
                yield at
        finally:
            server.close()


def _await_nodes(at: ServiceClient, until: float) -> None:
    """Wait until nodes are in sight: a cluster is looked at by a thread of its own."""
    while not any(node["state"] == "up" for node in records_of(at.get("/v1/nodes"), "nodes")):
        assert time.monotonic() < until, "no node came into sight"
        time.sleep(0.1)


def _wait(at: ServiceClient, until: float) -> None:
    while True:
        jobs = records_of(at.get("/v1/jobs", {"all": True, "limit": 0, "fields": "id,state"}), "jobs")
        left = [job for job in jobs if job["state"] != "finished"]
        if not left:
            return
        assert time.monotonic() < until, f"after {_PATIENCE_S:.0f} s these have not finished: {left}"
        time.sleep(0.5)


# ------------------------------------------------------------------- comparison


def run_simulated(live: JournalReader, plan: Plan, known: Calibration) -> History:
    """The jobs of a live run, as they were submitted, at the speeds and costs of an earlier one."""
    return _simulated(live, plan, [known.applied(spec) for spec in live.history.jobs])


def run_with_noise(live: JournalReader, plan: Plan, known: Calibration, seed: int) -> History:
    """The simulation with costs that differ from job to job, as they do in a live run: how far it is to be trusted."""
    rng = np.random.default_rng(seed)
    return _simulated(live, plan, [_with_noise(known.applied(spec), rng) for spec in live.history.jobs])


def _with_noise(job: JobSpec, rng: np.random.Generator) -> JobSpec:
    names = ("start_s", "restore_s", "checkpoint_s", "finish_s")
    noisy = {name: getattr(job, name) * float(rng.uniform(1 - NOISE, 1 + NOISE)) for name in names}
    return replace(job, **noisy)


def _simulated(live: JournalReader, plan: Plan, jobs: Sequence[JobSpec]) -> History:
    return simulate(
        Scenario(
            jobs,
            live.history.cluster,
            policy=plan.policy,
            settings=plan.settings,
            placement=live.beginning.placement,
            restart_cost_s=0.0,
            queues=live.queues,
        )
    )


@dataclass(frozen=True)
class Comparison:
    """A live run beside its simulation; jobs are in the same order in both."""

    live: History
    simulated: History
    #: Simulations with noise.
    noisy: Sequence[History] = ()

    @property
    def jct_s(self) -> tuple[float, float]:
        """Average JCT, live and simulated."""
        return _average_jct_s(self.live), _average_jct_s(self.simulated)

    @property
    def difference(self) -> float:
        """How far the simulated average JCT is off, of the live one."""
        live_s, simulated_s = self.jct_s
        return simulated_s / live_s - 1

    @property
    def noise(self) -> tuple[float, float]:
        """How far noise moves the simulated average JCT: the least and the most."""
        moved = [_average_jct_s(run) / self.jct_s[1] - 1 for run in self.noisy]
        return min(moved), max(moved)

    @property
    def preemptions(self) -> tuple[int, int]:
        """Preemptions, live and simulated."""
        return int(self.live.attempts.preempted.sum()), int(self.simulated.attempts.preempted.sum())

    @property
    def swapped(self) -> list[tuple[str, str]]:
        """Pairs of jobs whose first starts have another order, unless they are close together in both runs."""
        return swapped([job.id for job in self.live.jobs], self.live.start_s, self.simulated.start_s)

    @property
    def off_s(self) -> float:
        """By how much a start is off, at the median."""
        return float(np.median(np.abs(self.live.start_s - self.simulated.start_s)))


def _average_jct_s(run: History) -> float:
    return float((run.end_s - run.submit_s).mean())


def swapped(names: Sequence[str], one_s: Floats, other_s: Floats) -> list[tuple[str, str]]:
    """Pairs that come in one order here and in another there, at least once by more than may be."""
    pairs = []
    for a in range(len(names)):
        for b in range(a):
            gaps = one_s[a] - one_s[b], other_s[a] - other_s[b]
            if gaps[0] * gaps[1] < 0 and max(map(abs, gaps)) >= MAY_SWAP_S:
                pairs.append((names[a], names[b]))
    return pairs


# ------------------------------------------------------------------- the part


def compare(folder: Path, calibration: Plan, plan: Plan) -> Comparison:
    """Calibrate, run live, simulate."""
    note(f"live, to calibrate: {len(calibration.jobs)} jobs")
    known = calibrate(run_live(calibration, folder / "calibration").history)
    note(f"live: {len(plan.jobs)} jobs, {plan.policy}")
    live = run_live(plan, folder / "live", known)
    noisy = [run_with_noise(live, plan, known, seed) for seed in range(NOISY_RUNS)]
    return Comparison(live.history, run_simulated(live, plan, known), noisy)


def measure_agreement(bench: Bench) -> Part:
    """A live run beside its simulation."""
    found = compare(bench.folder / "agreement", calibration_plan(), workload_plan())
    order = (
        f"{len(found.swapped)} pairs of first starts swapped that are at least {MAY_SWAP_S:g} s apart; "
        f"a first start is off by {found.off_s:.2f} s at the median."
    )
    missed = missed_by(found)
    if found.swapped:
        missed.append(f"{len(found.swapped)} pairs start in another order, such as {found.swapped[0]}")
    return Part("Live and simulated", rows_of(found), [summary_of(found), order], missed)


def rows_of(found: Comparison) -> list[Row]:
    """A row for each run."""
    return [
        {"run": name, "jobs": len(run.jobs), "preemptions": preemptions, "avg JCT, s": round(jct_s, 2)}
        for name, run, preemptions, jct_s in zip(
            ("live", "simulated"), (found.live, found.simulated), found.preemptions, found.jct_s, strict=True
        )
    ]


def summary_of(found: Comparison) -> str:
    """How far the simulation is off, and how far it is to be trusted."""
    least, most = found.noise
    return (
        f"Average JCT {found.difference:+.2%}. Costs that are off by up to {NOISE:.0%}, job by job, move that "
        f"of the simulation by {least:+.1%} to {most:+.1%} ({len(found.noisy)} runs)."
    )


def missed_by(found: Comparison) -> list[str]:
    """Limits that were missed."""
    missed = []
    if abs(found.difference) > MAY_DIFFER:
        missed.append(f"simulated average JCT is {found.difference:+.1%} off, {MAY_DIFFER:.0%} is the most")
    if found.preemptions[0] < LEAST_PREEMPTIONS:
        missed.append(f"{found.preemptions[0]} preemptions prove little, {LEAST_PREEMPTIONS} are the least")
    return missed
