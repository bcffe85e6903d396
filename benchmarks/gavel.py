"""Gavel's experiments: its recorded trace under `max-min`, and jobs that come at a constant rate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from benchmarks.process import Cost, horae
from benchmarks.workload import find_data

#: CPU seconds beyond the start of the process.
LIMIT_S = 0.5
_CLUSTER = "v100:8x1,p100:16x1,k80:24x1"
_TRIES = 3
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Experiment:
    """Jobs of a preset that come at some rates, under some policies."""

    preset: str
    rates: tuple[float, ...]
    policies: tuple[str, ...]


EXPERIMENTS = (
    Experiment(
        "gavel-single",
        (4.0, 5.2, 5.6),
        ("max-min:aware=false", "max-min", "max-min:space-sharing=true", "fifo-aware", "allox"),
    ),
    Experiment(
        "gavel-single",
        (5.2,),
        (*"sjf-aware gandiva total-throughput cost cost-deadline hierarchical finish-time".split(),),
    ),
    Experiment("gavel", (1.6, 2.2, 2.6), ("max-min:aware=false", "max-min", "fifo-aware")),
)
#: What the published curves call a policy.
_PUBLISHED = {
    "max-min:aware=false": "max_min_fairness",
    "max-min": "max_min_fairness_perf",
    "max-min:space-sharing=true": "max_min_fairness_packed",
    "allox": "allox",
}


def measure_max_min(bench: Bench) -> Part:
    """The recorded trace on three GPU types, beyond the start of the process."""
    trace, speeds = find_data("gavel/max_min_fairness.trace"), find_data("gavel/simulation_throughputs.json")
    arguments = ["simulate", "--trace", trace, "--throughputs", speeds, "--cluster", _CLUSTER, "--policy", "max-min"]
    arguments += ["--placement", "anywhere", "--restart-cost", "0"]
    horae(arguments, bench.cache)
    note("max-min on Gavel's trace")
    fastest = min((horae(arguments, bench.cache) for _ in range(_TRIES)), key=lambda cost: cost.cpu_s)
    start_s = bench.start[1].cpu_s
    beyond_s = fastest.cpu_s - start_s
    holds = beyond_s < LIMIT_S
    row: Row = {"policy": "max-min", "cpu_s": round(fastest.cpu_s, 2), "start_cpu_s": round(start_s, 2)}
    row |= {"beyond_s": round(beyond_s, 2), "limit_s": LIMIT_S, "holds": "yes" if holds else "NO"}
    missed = [] if holds else [f"max-min took {beyond_s:.2f} CPU s beyond process start; under {LIMIT_S:g} is allowed."]
    notes = [f"`max_min_fairness.trace` on `{_CLUSTER}`, the fastest of {_TRIES} processes with compiled code at hand."]
    return Part("max-min on Gavel's trace", [row], notes, missed)


def measure_rates(bench: Bench) -> Part:
    """Average JCT of jobs in the middle of a long stream, and the CPU time of the runs."""
    rows = [
        row
        for experiment in EXPERIMENTS
        for policy in experiment.policies
        for row in _rate_rows(experiment, policy, _sweep(bench, experiment, policy))
    ]
    notes = [
        "Jobs come at a constant rate; of 5,000 the last 1,000 are measured, with one seed and one worker process.",
        "cpu_s is that of the whole `horae sweep` over the policy's rates. published_h is what Gavel published.",
    ]
    return Part("Gavel's continuous experiment", rows, notes)


def _sweep(bench: Bench, experiment: Experiment, policy: str) -> Cost:
    note(f"sweep, {experiment.preset}, {policy}")
    vary = "rate=" + ",".join(map(str, experiment.rates))
    speeds = find_data("gavel/simulation_throughputs.json")
    arguments = ["sweep", "--generate", experiment.preset, "--throughputs", speeds, "--vary", vary, "--policy", policy]
    return horae([*arguments, "--workers", 1], bench.cache)


def _rate_rows(experiment: Experiment, policy: str, cost: Cost) -> Sequence[Row]:
    return [
        {
            "jobs": experiment.preset,
            "policy": policy,
            "rate_an_hour": point["value"],
            "avg_jct_h": round(point["avg_jct_s"] / _HOUR_S, 1),
            "published_h": _published(experiment.preset, policy, float(point["value"])),
            "cpu_s": round(cost.cpu_s, 1),
        }
        for point in cost.report["points"]
    ]


def _published(preset: str, policy: str, rate: float) -> object:
    path = find_data("published/gavel_curves.json")
    if preset != "gavel-single" or policy not in _PUBLISHED or not path.is_file():
        return "-"
    curves = json.loads(path.read_text())["continuous_jobs"]["JCT_h"]
    return curves.get(_PUBLISHED[policy], {}).get(f"{rate:.1f}", "-")
