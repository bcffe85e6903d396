"""Simulation and live run side by side, on a real Slurm of four nodes with two types of made-up GPUs.

As `benchmarks/agreement.py`, with apps of three teams, gangs over nodes, and ten minutes of `themis`, `max-min` or
`tiresias`. Beside the times of jobs, what a report says of fairness must be the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.agreement import (
    MAY_DIFFER,
    Comparison,
    Kind,
    Plan,
    Site,
    Wanted,
    calibration_plan,
    compare,
    missed_by,
    rows_of,
    summary_of,
)
from benchmarks.machine import ROOT, cpu_name, load_average
from benchmarks.page import markdown_table
from benchmarks.part import Part, Row
from benchmarks.results import clean_commit
from horae.core.history import History
from horae.core.throughputs import Speeds, Throughputs
from horae.report.audit.envy import judge_envy
from horae.report.audit.sharing_incentive import judge_isolated_rho, judge_rho
from horae.report.audit.verdict import Verdict
from horae.report.metrics.fairness import Fairness, finish_time_fairness
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.job_outcomes import outcomes
from horae.testing.demo_clusters import slurm_environment
from horae.testing.slurm_cluster import PARTITION, SlurmCluster


@dataclass(frozen=True)
class Trial:
    """A policy with leases and rounds that fit jobs of a minute, and its workload.

    Noise in a simulation changes little in these workloads: they were chosen by that. With others nothing could tell
    who goes first.
    """

    settings: Mapping[str, str]
    seed: int
    #: Seconds from one app to the next, on average.
    every_s: float = 22.0


TRIALS = {
    "themis": Trial({"lease": "20"}, seed=47, every_s=30.0),
    "max-min": Trial({"round": "20", "stay": "20"}, seed=22),
    "tiresias": Trial({"thresholds": "60,240"}, seed=166),
}
TEAMS = ("vision", "speech", "search")
KINDS = {
    "resnet": Kind(1, 150, 0.5),
    "lstm": Kind(1, 200, 0.8),
    "gnmt": Kind(2, 180, 0.6),
    "bert": Kind(4, 200, 0.5),
    "gpt": Kind(8, 250, 0.7),
}
#: How far rho of a single app may be off, beyond what noise does to it: what evens out among all jobs does not here.
APP_MAY_DIFFER = 0.10
#: Headings for the verdicts that a history alone allows.
_SHORT = {
    "sharing_incentive": "sharing incentive",
    "sharing_incentive_isolated": "by job, isolated",
    "envy_free": "no envy",
    "envy_free_but_one_gang": "but one gang",
}


@contextmanager
def _started_slurm(state: Path) -> Iterator[Mapping[str, Any]]:
    """A Slurm beside the state folder, which needs a short path; it is ended afterwards."""
    folder = state.with_name(f"{state.name}-slurm")
    with SlurmCluster(folder) as slurm, slurm_environment(slurm):
        yield {"backend": "slurm", "partition": PARTITION, "shared": state.with_name(f"{state.name}-shared")}


SLURM = Site(
    _started_slurm,
    ("v100", "p100"),
    (sys.executable, "-S", str(ROOT / "benchmarks" / "sleeping_job.py")),
    {"PYTHONPATH": str(ROOT / "src")},
    KINDS,
)


def slurm_plan(policy: str, trial: Trial | None = None, apps: int = 14) -> Plan:
    """Apps of three teams: each is one to four jobs of one class that come together."""
    trial = trial or TRIALS[policy]
    rng, wanted = np.random.default_rng(trial.seed), list[Wanted]()
    names = [str(name) for name in rng.permutation([*KINDS] * (apps // len(KINDS) + 1))[:apps]]
    at_s = 1.0
    for number, name in enumerate(names):
        kind, team = KINDS[name], TEAMS[number % len(TEAMS)]
        for _ in range(max(1, min(4, 6 // kind.gpus))):
            steps = round(float(rng.uniform(40, 120)) * 1000 / kind.step_ms)
            wanted.append(Wanted(name, at_s, steps, app=f"{team}-{number}", queue=team))
        at_s += trial.every_s * float(rng.uniform(0.7, 1.3))
    return Plan(tuple(wanted), policy, trial.settings, SLURM)


def slurm_calibration() -> Plan:
    """Jobs that take turns of 12 s: as leases and rounds do, turns end together, and launches come in bursts."""
    return calibration_plan(SLURM, "time-slice", {"quantum": "12"}, long_s=30.0, every_s=0.8)


# --------------------------------------------------------------------- fairness


def verdicts(history: History) -> list[Verdict]:
    """What can be said of the fairness of a run by its history alone, live or simulated."""
    result = outcomes(history, Holdings.of_gangs(history.attempts))
    return [
        judge_rho(history, result),
        judge_isolated_rho(history, result),
        *judge_envy(history, Speeds(Throughputs()), seed=0),
    ]


def other_verdicts(found: Comparison) -> list[str]:
    """Properties that held in one of the runs only."""
    pairs = zip(verdicts(found.live), verdicts(found.simulated), strict=True)
    return [live.name for live, simulated in pairs if live.holds != simulated.holds]


def rho_by_app(history: History) -> dict[str, float]:
    """Slow-down of each app against its fair share."""
    fairness = finish_time_fairness(history)
    names = [history.jobs[job].app_id for job in fairness.first_job.tolist()]
    return dict(zip(names, fairness.rho.tolist(), strict=True))


def rho_off(found: Comparison) -> dict[str, float]:
    """How far the simulated rho of each app is off, of the live one."""
    simulated = rho_by_app(found.simulated)
    return {app: simulated[app] / rho - 1 for app, rho in rho_by_app(found.live).items()}


def rho_with_noise(found: Comparison) -> dict[str, tuple[float, float, float]]:
    """Rho of each app in the live run, and the least and the most in simulations, with and without noise."""
    simulated = [rho_by_app(run) for run in (found.simulated, *found.noisy)]
    bounds = {app: [run[app] for run in simulated] for app in simulated[0]}
    return {app: (rho, min(bounds[app]), max(bounds[app])) for app, rho in rho_by_app(found.live).items()}


# ------------------------------------------------------------------- the command


def measure_on_slurm(policy: str) -> Part:
    """A live run of ten minutes on Slurm beside its simulation."""
    with TemporaryDirectory(prefix="horae-slurm-", ignore_cleanup_errors=True) as name:
        found = compare(Path(name).resolve(), slurm_calibration(), slurm_plan(policy))
    return part_of(policy, found)


def part_of(policy: str, found: Comparison) -> Part:
    """Both runs, and whether a report says the same of them."""
    rows = [
        {**row, "rho, mean": round(fairness.avg, 3), "worst": round(fairness.max, 3), **_held(history)}
        for row, history in zip(rows_of(found), (found.live, found.simulated), strict=True)
        for fairness in [Fairness.of(finish_time_fairness(history).rho)]
    ]
    off = rho_off(found)
    worst = max(off, key=lambda app: abs(off[app]))
    rho = f"Rho of the {len(off)} apps: {_mean_rho_off(found):+.1%} on average, {off[worst]:+.1%} at worst ({worst})."
    settings = ", ".join(f"{name}={value}" for name, value in TRIALS[policy].settings.items())
    return Part(f"Live on Slurm and simulated: {policy}, {settings}", rows, [summary_of(found), rho], _missed(found))


def _held(history: History) -> Row:
    words = {True: "holds", False: "does not", None: "-"}
    return {_SHORT[verdict.name]: words[verdict.holds] for verdict in verdicts(history)}


def _mean_rho_off(found: Comparison) -> float:
    live, simulated = (np.nanmean([*rho_by_app(run).values()]) for run in (found.live, found.simulated))
    return float(simulated / live - 1)


def _missed(found: Comparison) -> list[str]:
    missed = missed_by(found)
    missed += [f"{name} holds in one of the runs only" for name in other_verdicts(found)]
    if abs(_mean_rho_off(found)) > MAY_DIFFER:
        missed.append(f"the mean rho is {_mean_rho_off(found):+.1%} off, {MAY_DIFFER:.0%} is the most")
    missed += [
        f"rho of {app} is {rho:.2f} live and {low:.2f} to {high:.2f} in simulations with noise"
        for app, (rho, low, high) in rho_with_noise(found).items()
        if not low * (1 - APP_MAY_DIFFER) <= rho <= high * (1 + APP_MAY_DIFFER)
    ]
    return missed


def write_page(path: Path, part: Part, load: float) -> str:
    """Write a table with what it was measured on, as Markdown."""
    commit = clean_commit()
    at = f"commit {commit[:7]}" if commit else "changes that are not committed"
    date = datetime.now(UTC).strftime("%d %B %Y")
    notes = [*part.notes, f"Measured at {at}, {date}, on {cpu_name()}; load {load:g} before, {load_average():g} after."]
    missed = [f"- **Missed:** {miss}" for miss in part.missed]
    lines = [f"## {part.title}", *markdown_table(part.rows), "", *(f"- {note}" for note in notes), *missed, ""]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def main() -> int:
    """Run the policies that were asked for, one after the other; 1 if a limit was missed."""
    parser = argparse.ArgumentParser("python -m benchmarks.agreement_slurm", description="Live on Slurm and simulated.")
    parser.add_argument("policy", nargs="+", choices=TRIALS, help="twelve minutes each; writes build/agreement-*.md")
    missed = 0
    for policy in parser.parse_args().policy:
        load = load_average()
        part = measure_on_slurm(policy)
        print(write_page(ROOT / "build" / f"agreement-slurm-{policy}.md", part, load), flush=True)
        missed += len(part.missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
