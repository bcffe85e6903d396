"""Horae against the naive loop: the same start and end for every job, and how much faster."""

from __future__ import annotations

import time

import numpy as np

from benchmarks import naive
from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from benchmarks.workload import CLUSTER
from horae.core.history import History
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.workload.clusters import parse_cluster


def check_same(history: History, jobs: list[naive.Job]) -> None:
    """Stop with the first job that the two schedulers started or ended at different times."""
    starts, ends = np.array([job.start_s for job in jobs]), np.array([job.end_s for job in jobs])
    differing = np.flatnonzero((starts != history.start_s) | (ends != history.end_s))
    if differing.size:
        n = int(differing[0])
        raise AssertionError(
            f"job {history.jobs[n].id}: horae ran it from {history.start_s[n]} to {history.end_s[n]}, "
            f"the naive loop from {starts[n]} to {ends[n]}; {differing.size} jobs differ"
        )


def measure_ratios(bench: Bench) -> Part:
    """CPU time of both in this process, without imports, compilation, reading and reporting."""
    cluster = parse_cluster(CLUSTER)
    _run_horae(bench, 100, "srtf")
    rows: list[Row] = []
    for policy in naive.ORDERS:
        for count in bench.sizes.naive:
            note(f"naive loop, {policy}, {count:,} jobs")
            began_s = time.process_time()
            history = _run_horae(bench, count, policy)
            ours_s = time.process_time()
            jobs = naive.run(bench.workload.jobs[:count], cluster.gpus, policy)
            naive_s = time.process_time() - ours_s
            ours_s -= began_s
            check_same(history, jobs)
            row = {"policy": policy, "jobs": count, "horae_s": round(ours_s, 2), "naive_s": round(naive_s, 2)}
            active = sum(job.end_s - job.submit_s for job in jobs) / max(job.end_s for job in jobs)
            rows.append({**row, "ratio": round(naive_s / ours_s, 2), "mean_active": round(active)})
    notes = [
        "Both gave every job the same start and end.",
        "The naive loop sorts all jobs at every event, so that its cost grows with jobs times queue (mean_active).",
        "It only counts GPUs: no numbers, commands, records or reasons. Where few jobs wait, that makes it faster.",
    ]
    return Part("Naive loop over Horae, CPU s of the scheduling alone", rows, notes)


def _run_horae(bench: Bench, count: int, policy: str) -> History:
    jobs, cluster = bench.workload.jobs[:count], parse_cluster(CLUSTER)
    return simulate(Scenario(jobs, cluster, policy=policy, placement="anywhere", restart_cost_s=0.0))
