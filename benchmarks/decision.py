"""One decision at a time: how long it takes with a long queue, and what its snapshot costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks import naive
from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from benchmarks.workload import CLUSTER
from horae.core.cluster import Cluster
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobStarted, JobStopped, JobSubmitted
from horae.core.gpu_ledger import GpuLedger
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.queues import QueueTree
from horae.core.snapshot import Snapshot
from horae.core.throughputs import Speeds, Throughputs
from horae.placement.rules import make_placement
from horae.policies import make_policy
from horae.workload.clusters import parse_cluster
from horae.workload.generator import generate, preset

_POLICIES = ("fifo-backfill", "srtf", "las")
_PLACEMENTS = ("anywhere", "best-effort")

#: A decision on the largest cluster to plan for takes less.
LIMIT_S = 1.0


@dataclass(frozen=True)
class Timing:
    """One instant: the decision with the events before it, and all of it to the last answer to a command."""

    decision_s: float
    instant_s: float
    commands: int


def measure_decisions(bench: Bench) -> Part:
    """A job ends, another comes, the engine decides: for long queues, and on the largest cluster to plan for."""
    waiting, nodes = bench.sizes.large
    scales = [(CLUSTER, queued) for queued in bench.sizes.queued] + [(f"{nodes}x8", waiting)]
    rows: list[Row] = []
    missed: list[str] = []
    for spec, queued in scales:
        for policy in _POLICIES:
            for placement in _PLACEMENTS:
                note(f"decisions, {policy}, {queued:,} queued, {spec}, {placement}")
                timings = _timings(parse_cluster(spec), policy, placement, queued, bench.sizes.steps)
                rows.append({"cluster": spec, "queued": queued, "policy": policy, "placement": placement})
                rows[-1] |= _summary(timings)
                worst_s = max(timing.decision_s for timing in timings)
                if worst_s > LIMIT_S:
                    missed.append(f"{policy}, {placement}: a decision on {spec} took {worst_s:.2f} s.")
    notes = [
        f"{bench.sizes.steps} instants each: one job ends, one comes, the engine decides (decision_ms, worst_ms).",
        "instant_ms adds the engine's part in performing the commands, to the last answer.",
        "las is at its worst: all jobs are of like age, so that it swaps the whole cluster at every decision.",
    ]
    return Part(f"One decision (limit: {LIMIT_S:g} s)", rows, notes, missed)


def _summary(timings: list[Timing]) -> Row:
    return {
        "decision_ms": round(1e3 * median(timing.decision_s for timing in timings), 2),
        "worst_ms": round(1e3 * max(timing.decision_s for timing in timings), 2),
        "instant_ms": round(1e3 * median(timing.instant_s for timing in timings), 2),
        "commands": round(median(timing.commands for timing in timings)),
    }


def _timings(cluster: Cluster, policy: str, placement: str, queued: int, steps: int) -> list[Timing]:
    """Fill a cluster, let jobs queue, then time some instants a minute apart."""
    engine = Engine(cluster, make_policy, policy, {}, make_placement(placement))
    jobs = _jobs(cluster)
    asked = 0
    while asked < cluster.gpus:
        spec = next(jobs)
        asked += spec.gpus
        engine.apply(JobSubmitted(0.0, spec))
    perform(engine, engine.decide(0.0))
    for _ in range(queued):
        engine.apply(JobSubmitted(0.0, next(jobs)))
    perform(engine, engine.decide(0.0))
    return [_time_instant(engine, 60.0 * step, next(jobs)) for step in range(1, steps + 1)]


def _jobs(cluster: Cluster) -> Iterator[JobSpec]:
    """Jobs in Philly's sizes without end; when they come is up to the caller."""
    for seed in count():
        settings = preset("plain", jobs=1_000, sizes="philly", arrivals_per_hour=np.inf)
        for job in generate(settings, cluster, None, seed):
            yield replace(job, id=f"{seed}-{job.id}")


def _time_instant(engine: Engine, now_s: float, comes: JobSpec) -> Timing:
    row = next(iter(engine.gpus.occupied))
    ends = JobFinished(now_s, engine.jobs.specs[row].id, int(engine.jobs.attempt[row]))
    began_s = time.perf_counter()
    engine.apply(ends)
    engine.apply(JobSubmitted(now_s, comes))
    record = engine.decide(now_s)
    decided_s = time.perf_counter()
    commands = len(record.commands) + perform(engine, record)
    return Timing(decided_s - began_s, time.perf_counter() - began_s, commands)


def perform(engine: Engine, record: Decided) -> int:
    """Answer commands at once, as a backend without delay would; gives how many more there were."""
    answers: list[Event] = [JobStopped(record.at_s, stop.job, stop.attempt, work_done=0.0) for stop in record.stops]
    answers += [JobStarted(record.at_s, launch.job, launch.attempt) for launch in record.launches]
    for answer in answers:
        engine.apply(answer)
    if not engine.due(record.at_s):
        return 0
    again = engine.decide(record.at_s)
    return len(again.commands) + perform(engine, again)


# ----------------------------------------------------------------- snapshots


def measure_snapshots(bench: Bench) -> Part:
    """Ways to show a policy the active jobs, a few thousand rows among all those of the trace."""
    table = JobTable(("gpu",), Speeds(Throughputs()), QueueTree())
    for spec in bench.workload.jobs:
        table.add(spec, spec.submit_s)
    ledger = GpuLedger(parse_cluster(CLUSTER))
    rng = np.random.default_rng(0)
    rows: dict[str, Row] = {}
    for queued in bench.sizes.queued:
        note(f"snapshots, {queued:,} active")
        active = np.sort(rng.choice(len(table), queued, replace=False)).astype(np.int64)
        for way, act in _ways(table, active, ledger).items():
            rows.setdefault(way, {"in microseconds": way})[f"{queued:,} active"] = round(1e6 * _shortest_s(act), 1)
    notes = [
        "A policy's columns are gathered by index when it first looks at them.",
        "Views need the active jobs side by side: every job that ends then closes a gap in every column.",
    ]
    return Part("What a snapshot costs", list(rows.values()), notes)


def _ways(table: JobTable, active: NDArray[np.int64], ledger: GpuLedger) -> dict[str, Callable[[], object]]:
    columns = list(table.columns().values())
    n, middle = len(active), len(active) // 2

    def look() -> Snapshot:
        return Snapshot(float(table.submit_s[active[-1]]), active, table, ledger, QueueTree())

    def close_gap() -> None:
        for column in columns:
            column[middle : n - 1] = column[middle + 1 : n]

    return {
        "gather what srtf uses (remaining_s)": lambda: look().remaining_s,
        "gather what las uses (gpu_seconds, has_gpus)": lambda: (look().gpu_seconds, look().has_gpus),
        f"copy all {len(columns)} columns": lambda: [column[active] for column in columns],
        f"views of {len(columns)} columns": lambda: [column[:n] for column in columns],
        "close one gap, so that views are possible": close_gap,
        "an object a job": lambda: [
            naive.Job(row, float(table.submit_s[row]), int(table.gpus[row]), float(table.work_left[row]))
            for row in active
        ],
    }


def _shortest_s(act: Callable[[], object], repeats: int = 30) -> float:
    """The time of the fastest of some tries: what the work takes when nothing else gets in its way."""
    times_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        act()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)
