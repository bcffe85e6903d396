"""Reports on long runs take little memory beside the history."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from horae.core.cluster import Cluster, Span
from horae.core.history import Attempts, History
from horae.core.states import State
from horae.report.metrics import gpu_holdings
from horae.report.metrics.measure import measure
from tests.builders import cluster, job
from tests.report.sample import Loop, random_jobs


def one_after_the_other(machines: Cluster, attempts: int, gpus: int) -> History:
    """Attempts of ten jobs that take turns on the GPUs, `gpus` at a time, a second each."""
    turns = machines.gpus // gpus
    number = np.arange(attempts)
    begin_s = (number // turns).astype(np.float64)
    held = Attempts(
        job=number % 10,
        begin_s=begin_s,
        work_s=begin_s,
        stop_s=begin_s + 1,
        end_s=begin_s + 1,
        span=np.full(attempts, Span.NODE, dtype=np.int8),
        preempted=np.zeros(attempts, dtype=bool),
        first=np.arange(attempts + 1) * gpus,
        gpu_ids=(number[:, None] % turns * gpus + np.arange(gpus)).ravel().astype(np.int32),
    )
    jobs = tuple(job(f"j{k}", gpus=gpus, work=100.0) for k in range(10))
    ends_s = np.full(10, begin_s[-1] + 1)
    state = np.full(10, State.FINISHED, dtype=np.uint8)
    return History(machines, jobs, state, np.zeros(10), ends_s, np.ones((10, 1)), held, "by-hand")


def test_a_report_takes_little_memory_for_each_gpu_number():
    history = one_after_the_other(cluster("8x8"), attempts=200_000, gpus=8)
    tracemalloc.start()
    try:
        report = measure(history)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.utilization, report.gpu_hours * 3600) == (1.0, pytest.approx(1.6e6))
    # A single column with a number of 8 bytes for each would be 8, and five such columns were needed once.
    assert peak / len(history.attempts.gpu_ids) < 25


@pytest.mark.parametrize("part", [1, 7])
def test_the_size_of_parts_changes_no_number(part, monkeypatch):
    history = Loop(random_jobs(3, 60, ("gpu",)), cluster("3x4"), load_s=3.3, save_s=1.7, preempt_every=3).run()
    wanted = measure(history).as_dict()
    monkeypatch.setattr(gpu_holdings, "_PART", part)
    assert measure(history).as_dict() == wanted
