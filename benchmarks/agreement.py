"""Does a simulation tell what a live run will do? The same jobs, live and simulated, side by side.

A first live run calibrates: a few jobs of each class on each GPU type, preempted now and then. A second one, on a
service of its own, runs the workload. The simulation of that workload knows its jobs and when they came; how fast they
are, and how long they take to start, to save, to come back and to leave, it has from the first run alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from horae.client.journal import JournalReader, read_past
from horae.client.service_client import ServiceClient, records_of, service
from horae.core.arrays import Floats
from horae.core.history import History
from horae.service.history.simulation_costs import Calibration, calibrate
from horae.service.job_file import class_of
from horae.service.server import ServeOptions, Server
from horae.service.tokens import operator
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario

_ROOT = Path(__file__).resolve().parents[1]
GPUS = "v100:4,k80:4"
#: Starts that are less apart than this may swap.
MAY_SWAP_S = 1.0
#: How far the average JCT may be off.
MAY_DIFFER = 0.05
LEAST_PREEMPTIONS = 20
#: Live runs end long before; a machine that takes longer is of no use for this.
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Kind:
    """A class of jobs: its gang, how long a step takes on a V100, and how fast it is on a K80."""

    gpus: int
    step_ms: float
    k80: float


KINDS = {
    "resnet": Kind(1, 60, 0.5),
    "lstm": Kind(1, 100, 0.8),
    "gnmt": Kind(2, 80, 0.6),
    "bert": Kind(4, 120, 0.5),
}


@dataclass(frozen=True)
class Wanted:
    """A job of a workload: its class, when it comes, how many steps it has, and the GPU type if only one will do."""

    kind: str
    at_s: float
    steps: int
    gpu_type: str = ""

    def form(self, believed: Mapping[str, float]) -> dict[str, Any]:
        """The job as it is submitted, with the speeds that are believed."""
        kind = KINDS[self.kind]
        speed = f"v100=1,k80={kind.k80}"
        script = ["--steps", str(self.steps), "--step-ms", str(kind.step_ms), "--speed", speed]
        wants = f"{self.gpu_type}:{kind.gpus}" if self.gpu_type else kind.gpus
        return {
            "name": self.kind,
            "class": self.kind,
            "run": [sys.executable, str(_ROOT / "examples" / "train_numpy.py"), *script],
            "envs": {"PYTHONPATH": str(_ROOT / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            "resources": {"gpus": wants},
            "estimate": {"steps": self.steps, "throughput": dict(believed)},
        }


@dataclass(frozen=True)
class Plan:
    """What is run: the jobs, and the policy that decides."""

    jobs: tuple[Wanted, ...]
    policy: str
    settings: Mapping[str, str]


def calibration_plan(long_s: float = 15.0, short_s: float = 5.0, every_s: float = 1.6) -> Plan:
    """Jobs of every class on each GPU type: long ones, and short ones that come while those run and take their place.

    They come one by one, as jobs do: a machine takes longer to start several at once.
    """
    jobs = []
    for number, name in enumerate((*KINDS, *KINDS, *KINDS)):
        step_ms, lasts_s = KINDS[name].step_ms, short_s if number >= len(KINDS) else long_s
        for half, (gpu_type, speed) in enumerate((("v100", 1.0), ("k80", KINDS[name].k80))):
            steps = round(lasts_s * 1000 / step_ms * speed)
            jobs.append(Wanted(name, every_s * (2 * number + half), steps, gpu_type))
    return Plan(tuple(jobs), "tiresias", {"thresholds": "10"})


def workload_plan(jobs: int = 34, every_s: float = 4.0, seed: int = 163) -> Plan:
    """Short and long jobs of all classes that come faster than the GPUs can take them.

    In this workload the order of first starts is not a matter of tenths of a second: noise of that size, in a
    simulation, leaves it as it is. With most seeds it does not, and nothing could tell who goes first.
    """
    rng = np.random.default_rng(seed)
    names, at_s, wanted = list(KINDS), 1.0, []
    for number in range(jobs):
        name = names[int(rng.choice(len(names), p=[0.35, 0.25, 0.25, 0.15]))]
        lasts_s = float(rng.uniform(4, 8) if number % 2 else rng.uniform(16, 36))
        wanted.append(Wanted(name, at_s, round(lasts_s * 1000 / KINDS[name].step_ms)))
        at_s += every_s * float(rng.uniform(0.7, 1.3))
    return Plan(tuple(wanted), "tiresias", {"thresholds": "20", "promote_knob": "off"})


# ------------------------------------------------------------------------- live


def run_live(plan: Plan, state: Path, believed: Calibration | None = None) -> JournalReader:
    """Run jobs for real, each submitted when its time comes, and read the journal."""
    with _serving(plan, state) as at:
        began = time.monotonic()
        for job in plan.jobs:
            time.sleep(max(0.0, began + job.at_s - time.monotonic()))
            # What was not measured is a mistake here: the simulation would know more than the service did.
            speeds = believed.speeds[class_of(operator(), job.kind), KINDS[job.kind].gpus] if believed else {}
            at.post("/v1/jobs", [job.form(speeds)])
        _wait(at, began + _PATIENCE_S)
        return read_past(at)


@contextmanager
def _serving(plan: Plan, state: Path) -> Iterator[ServiceClient]:
    server = Server(ServeOptions(state=state, port=0, gpus=GPUS, policy=plan.policy, settings=plan.settings))
    token = server.token_file.read_text(encoding="utf-8").strip()
    before = os.environ.get("HORAE_TOKEN")
    os.environ["HORAE_TOKEN"] = token
    try:
        with service(server.url) as at:
            yield at
    finally:
        os.environ.pop("HORAE_TOKEN")
        if before is not None:
            os.environ["HORAE_TOKEN"] = before
        server.close()


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
    jobs = [known.applied(spec) for spec in live.history.jobs]
    placement, cluster = live.beginning.placement, live.history.cluster
    return simulate(
        Scenario(jobs, cluster, policy=plan.policy, settings=plan.settings, placement=placement, restart_cost_s=0.0)
    )


@dataclass(frozen=True)
class Comparison:
    """A live run beside its simulation; jobs are in the same order in both."""

    live: History
    simulated: History

    @property
    def jct_s(self) -> tuple[float, float]:
        """Average JCT, live and simulated."""
        live_s, simulated_s = (float((run.end_s - run.submit_s).mean()) for run in (self.live, self.simulated))
        return live_s, simulated_s

    @property
    def difference(self) -> float:
        """How far the simulated average JCT is off, of the live one."""
        live_s, simulated_s = self.jct_s
        return simulated_s / live_s - 1

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
    return Comparison(live.history, run_simulated(live, plan, known))


def measure_agreement(bench: Bench) -> Part:
    """A live run beside its simulation."""
    found = compare(bench.folder / "agreement", calibration_plan(), workload_plan())
    rows: list[Row] = [
        {"run": name, "jobs": len(run.jobs), "preemptions": preemptions, "avg JCT, s": round(jct_s, 2)}
        for name, run, preemptions, jct_s in zip(
            ("live", "simulated"), (found.live, found.simulated), found.preemptions, found.jct_s, strict=True
        )
    ]
    summary = (
        f"Average JCT {found.difference:+.2%}; {len(found.swapped)} pairs of first starts swapped that are at least "
        f"{MAY_SWAP_S:g} s apart; a first start is off by {found.off_s:.2f} s at the median."
    )
    return Part("Live and simulated", rows, [summary], _missed(found))


def _missed(found: Comparison) -> list[str]:
    missed = []
    if abs(found.difference) > MAY_DIFFER:
        missed.append(f"simulated average JCT is {found.difference:+.1%} off, {MAY_DIFFER:.0%} is the most")
    if found.swapped:
        missed.append(f"{len(found.swapped)} pairs start in another order, such as {found.swapped[0]}")
    if found.preemptions[0] < LEAST_PREEMPTIONS:
        missed.append(f"{found.preemptions[0]} preemptions prove little, {LEAST_PREEMPTIONS} are the least")
    return missed
