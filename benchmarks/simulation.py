"""Whole simulations, each a process of its own: limits, cost against length, other clusters, cold start."""

from __future__ import annotations

import numpy as np

from benchmarks.bench import Bench
from benchmarks.part import Part, Row
from benchmarks.process import Cost
from benchmarks.workload import CLUSTER, PHILLY_JOBS

#: CPU seconds that the whole Philly trace may take with compiled code at hand.
LIMITS_S = {"fifo-backfill": 12.0, "srtf": 20.0, "las": 45.0, "tiresias": 40.0}
MEMORY_LIMIT_MB = 500.0

#: As many GPUs as `CLUSTER`, in eight types; the largest gang, 128 GPUs, fits only the first.
EIGHT_TYPES = "a:16x8,b:6x8,c:6x8,d:6x8,e:6x8,f:6x8,g:5x8,h:5x8"

_COMPARED = ("fifo-backfill", "srtf")


def _spent(cost: Cost) -> Row:
    return {"cpu_s": round(cost.cpu_s, 1), "wall_s": round(cost.wall_s, 1), "peak_rss_mb": round(cost.peak_rss_mb)}


def measure_start(bench: Bench) -> Part:
    """What a process costs that does next to nothing, with and without compiled code at hand."""
    cold, warm = bench.start
    rows = [{"cache": name, **_spent(cost)} for name, cost in (("cold", cold), ("warm", warm))]
    notes = [f"Compilation costs {bench.compile_s:.1f} CPU s, once for each installation; imports are in both rows."]
    return Part("Start: ten jobs", rows, notes)


def measure_limits(bench: Bench) -> Part:
    """The whole trace against its limits, with compiled code at hand."""
    rows: list[Row] = []
    missed: list[str] = []
    judged = bench.workload.limited
    for policy, limit_s in LIMITS_S.items():
        cost = bench.simulate(policy)
        first_s = cost.cpu_s + bench.compile_s
        misses = _misses(policy, cost, limit_s) if judged else []
        missed += misses
        row = {"policy": policy, **_spent(cost), "reported_cpu_s": round(cost.report["cpu_s"], 1)}
        rows.append({**row, "cold_cpu_s": round(first_s, 1), "limit_cpu_s": limit_s, "holds": _verdict(judged, misses)})
    notes = [
        "The compile cache was warm: filled by the cold start before, and nothing was added to it since.",
        (
            "cold_cpu_s adds compilation, which `make` does when it installs and no limit counts. "
            "reported_cpu_s is what horae says."
        ),
        f"Memory limit: {MEMORY_LIMIT_MB:g} MB.",
    ]
    if not judged:
        notes.append(f"The limits are for all {PHILLY_JOBS:,} jobs of Philly; this is {bench.workload.about}.")
    return Part(f"Whole trace on {CLUSTER}, anywhere, restarts free", rows, notes, missed)


def _misses(policy: str, cost: Cost, limit_s: float) -> list[str]:
    """The limits that a run did not keep, each as a sentence."""
    misses = []
    if cost.cpu_s > limit_s:
        misses.append(f"{policy} took {cost.cpu_s:.1f} CPU s; at most {limit_s:g} are allowed.")
    if cost.peak_rss_mb >= MEMORY_LIMIT_MB:
        misses.append(f"{policy} took {cost.peak_rss_mb:.0f} MB; less than {MEMORY_LIMIT_MB:g} are allowed.")
    return misses


def _verdict(judged: bool, misses: list[str]) -> str:
    return "-" if not judged else "NO" if misses else "yes"


def measure_lengths(bench: Bench) -> Part:
    """CPU time against the number of jobs, and the exponent that fits it."""
    rows: list[Row] = []
    notes = [
        "A longer prefix also has longer queues (mean_active: jobs in the system), so a decision looks at more jobs."
    ]
    start_s = bench.start[1].cpu_s
    for policy in _COMPARED:
        costs = {count: bench.simulate(policy, count) for count in bench.sizes.lengths}
        rows += [_length_row(policy, count, cost, start_s) for count, cost in costs.items()]
        net = [cost.cpu_s - start_s for cost in costs.values()]
        exponent = float(np.polyfit(np.log(list(costs)), np.log(net), 1)[0])
        notes.append(f"{policy}: CPU time less the start ({start_s:.1f} s) grows as jobs to the power {exponent:.2f}.")
    return Part(f"Cost against trace length, {CLUSTER}, anywhere", rows, notes)


def _length_row(policy: str, count: int, cost: Cost, start_s: float) -> Row:
    report = cost.report
    return {
        "policy": policy,
        "jobs": count,
        "cpu_s": round(cost.cpu_s, 1),
        "us_a_job": round((cost.cpu_s - start_s) / count * 1e6),
        "mean_active": round(count * report["avg_jct_s"] / report["makespan_s"]),
        "preemptions": report["preemptions"],
    }


def measure_variants(bench: Bench) -> Part:
    """The same jobs where nodes matter, and where there are eight GPU types."""
    settings = (
        (CLUSTER, "anywhere"),
        (CLUSTER, "best-effort"),
        (EIGHT_TYPES, "anywhere"),
        (EIGHT_TYPES, "best-effort"),
    )
    rows: list[Row] = []
    for policy in _COMPARED:
        for cluster, placement in settings:
            cost = bench.simulate(policy, cluster=cluster, placement=placement)
            types = 1 + cluster.count(",")
            row = {"policy": policy, "placement": placement, "gpu_types": types, **_spent(cost)}
            rows.append({**row, "preemptions": cost.report["preemptions"], "avg_jct_s": cost.report["avg_jct_s"]})
    notes = [f"Eight types: {EIGHT_TYPES}; every job may run on any, on one at a time."]
    return Part("Whole trace, other placements and clusters", rows, notes)
