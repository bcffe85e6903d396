"""The numbers of a report against slow loops over the same history, and on cases worked by hand."""

from __future__ import annotations

import json
import math
import pickle
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Cluster
from horae.core.errors import UserError
from horae.core.history import Attempts, History
from horae.core.job import JobSpec
from horae.core.states import State
from horae.report.metrics.measure import JOB_COLUMNS, job_rows, measure
from horae.report.metrics.step_functions import StepFunction, overlap
from horae.report.process_cost import process_cost
from tests.report.sample import Loop, columns, history_of, random_jobs

MIXED = Cluster.of([("v100", 2, 4), ("k80", 3, 2)])
NODE4 = Cluster.of([("gpu", 2, 4)])

#: The keys other programs rely on.
CONTRACT = {
    "policy", "jobs", "finished", "avg_jct_s", "median_jct_s", "p95_jct_s", "p99_jct_s", "makespan_s",
    "utilization", "preemptions", "rho", "isolated_rho", "app_isolated_rho",
}  # fmt: skip


def random_history(seed: int, count: int, preempt_every: int = 3) -> History:
    jobs = random_jobs(seed, count, MIXED.gpu_types, apps=max(count // 2, 1), queues=3)
    return Loop(jobs, MIXED, load_s=40, save_s=10, preempt_every=preempt_every).run()


histories = st.builds(random_history, st.integers(0, 10_000), st.integers(1, 30), st.sampled_from([0, 1, 3]))


def free_by_moment(history: History, begin_s: float, end_s: float):
    """Length of each moment between changes, and the free GPUs of every node during it."""
    attempts = history.attempts
    moments = sorted({begin_s, end_s, *attempts.begin_s, *attempts.end_s})
    for now, then in pairwise(moments):
        if begin_s <= now and then <= end_s:
            free = np.diff(history.cluster.first_gpu).copy()
            for i in np.flatnonzero((attempts.begin_s <= now) & (attempts.end_s > now)):
                for gpu in attempts.gpu_ids[attempts.first[i] : attempts.first[i + 1]]:
                    free[history.cluster.gpu_node[gpu]] -= 1
            yield then - now, free


@settings(max_examples=40, deadline=None)
@given(histories, st.data())
def test_cluster_numbers_agree_with_a_walk_through_every_moment(history, data):
    first = data.draw(st.integers(0, len(history.jobs) - 1))
    report = measure(history, first, data.draw(st.integers(first + 1, len(history.jobs))))
    size, idle, broken, length = np.diff(history.cluster.first_gpu), 0.0, 0.0, 0.0
    for seconds, free in free_by_moment(history, report.window.begin_s, report.window.end_s):
        assert (free >= 0).all()
        length += seconds
        idle += seconds * free.sum()
        broken += seconds * free[free < size].sum()
    assert report.makespan_s == pytest.approx(length)
    assert report.utilization == pytest.approx(1 - idle / (length * history.cluster.gpus))
    assert report.fragmentation == pytest.approx(broken / idle if idle else 0.0, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_job_numbers_agree_with_loops_over_the_attempts(history):
    report, attempts = measure(history), history.attempts
    held, lost, waits = 0.0, 0.0, []
    for number, job in enumerate(history.jobs):
        own = np.flatnonzero(attempts.job == number)
        for i in own:
            gpus = attempts.first[i + 1] - attempts.first[i]
            held += gpus * (attempts.end_s[i] - attempts.begin_s[i])
            works = not math.isnan(attempts.work_s[i]) and attempts.work_s[i] < attempts.stop_s[i]
            worked = attempts.stop_s[i] - attempts.work_s[i] if works else 0.0
            lost += gpus * (attempts.end_s[i] - attempts.begin_s[i] - worked)
        waits.append(history.end_s[number] - job.submit_s - (attempts.end_s - attempts.begin_s)[own].sum())
    jct = history.end_s - history.submit_s
    assert report.avg_jct_s == pytest.approx(jct.mean())
    assert report.p99_jct_s == pytest.approx(np.percentile(jct, 99))
    assert report.gpu_hours == pytest.approx(held / 3600)
    assert report.restart_overhead.gpu_seconds == pytest.approx(lost, abs=1e-6)
    assert report.waiting_s.avg == pytest.approx(np.mean(waits), abs=1e-6)
    assert report.queueing_delay_s.median == pytest.approx(np.median(history.start_s - history.submit_s))
    assert report.preemptions == attempts.preempted.sum()
    assert report.finished == report.jobs == len(history.jobs)


@settings(max_examples=30, deadline=None)
@given(histories)
def test_the_parts_sum_to_the_whole(history):
    report = measure(history)
    assert sum(part.jobs for part in report.by_queue.values()) == report.jobs
    assert sum(part.gpu_hours for part in report.by_queue.values()) == pytest.approx(report.gpu_hours)
    assert sum(part.preemptions for part in report.by_queue.values()) == report.preemptions
    assert sum(part.gpu_hours for part in report.by_gpu_type.values()) == pytest.approx(report.gpu_hours)
    assert max(part.rho.max for part in report.by_queue.values() if part.rho.max == part.rho.max) == report.rho.max
    worst = [part.app_isolated_rho.max for part in report.by_queue.values()]
    assert np.nanmax(worst) == report.app_isolated_rho.max
    for name, part in report.by_queue.items():
        members = [i for i, job in enumerate(history.jobs) if job.queue == name]
        assert part.avg_jct_s == pytest.approx((history.end_s - history.submit_s)[members].mean())


@settings(max_examples=30, deadline=None)
@given(histories, st.data())
def test_windows_side_by_side_share_nothing_and_miss_nothing(history, data):
    cut = data.draw(st.integers(1, max(len(history.jobs) - 1, 1)))
    whole = measure(history)
    parts = [measure(history, 0, cut)] + ([measure(history, cut)] if cut < len(history.jobs) else [])
    for name in ("jobs", "apps", "preemptions", "finished"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    assert sum(part.gpu_hours for part in parts) == pytest.approx(whole.gpu_hours)
    for part in parts:
        assert sum(kind.gpu_hours for kind in part.by_gpu_type.values()) == pytest.approx(part.gpu_hours)
    assert max(part.rho.max for part in parts if part.rho.max == part.rho.max) == whole.rho.max


def test_json_has_the_promised_keys_and_no_nan():
    record = measure(random_history(1, 12)).as_dict()
    assert set(record) >= CONTRACT
    for key in ("rho", "isolated_rho", "app_isolated_rho"):
        assert set(record[key]) == {"avg", "max", "over_1", "jain"}
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_a_run_in_which_nothing_happened_is_all_null():
    history = History(
        NODE4, (JobSpec("a", 5.0, 1, 10.0),), np.array([State.WAITING], dtype=np.uint8), np.array([math.nan]),
        np.array([math.nan]), np.ones((1, 1)), columns([], 5.0), "fifo",
    )  # fmt: skip
    record = json.loads(json.dumps(measure(history).as_dict(), allow_nan=False))
    assert record["jobs"] == 1
    assert record["finished"] == 0
    assert record["avg_jct_s"] is record["makespan_s"] is record["utilization"] is record["rho"]["avg"] is None
    assert list(job_rows(history)) == [("a", "5", "", "", "", "1", "0", "0", "", "", "")]


def test_a_run_without_jobs_can_be_measured():
    history = History(
        NODE4, (), np.zeros(0, np.uint8), np.zeros(0), np.zeros(0), np.zeros((0, 1)), columns([], 0.0), "fifo"
    )
    record = json.loads(json.dumps(measure(history).as_dict(), allow_nan=False))
    assert (record["jobs"], record["avg_jct_s"], record["by_queue"]) == (0, None, {})


def test_failed_and_cancelled_jobs_end_without_a_completion_time():
    jobs = [JobSpec(name, 0.0, 1, 100.0) for name in ("good", "bad", "gone")]
    history = history_of(jobs, NODE4, start_s=[0.0] * 3, end_s=[100.0, 7.0, 9.0])
    history = replace(history, state=np.array([State.FINISHED, State.FAILED, State.CANCELLED], dtype=np.uint8))
    report = measure(history)
    assert (report.finished, report.failed, report.cancelled) == (1, 1, 1)
    assert report.avg_jct_s == 100.0
    assert [row[4] for row in job_rows(history)] == ["100", "", ""]


def test_an_app_takes_from_its_first_submission_to_the_end_of_its_last_job():
    jobs = [JobSpec("a", 0.0, 1, 100.0, app="x"), JobSpec("b", 10.0, 1, 50.0), JobSpec("c", 20.0, 1, 300.0, app="x")]
    report = measure(history_of(jobs, NODE4, start_s=[0.0, 10.0, 20.0], end_s=[100.0, 60.0, 320.0]))
    assert report.app_completion_s.avg == (320 + 50) / 2
    assert report.jobs_in_company == 1
    running = history_of(jobs, NODE4, start_s=[0.0, 10.0, 20.0], end_s=[100.0, 60.0, np.nan])
    assert measure(running).app_completion_s.avg == 50


def test_a_run_that_was_cut_off_counts_what_still_runs_as_held():
    history = Loop(random_jobs(3, 10, MIXED.gpu_types), MIXED).run(until_s=500.0)
    report = measure(history)
    assert report.finished < report.jobs
    assert report.window.end_s == 500.0
    assert 0 < report.utilization <= 1
    json.dumps(report.as_dict(), allow_nan=False)


def test_restart_overhead_by_hand():
    # Loads 30 s, works to 100, saves until 110; then stopped while it still loads; then works to the end.
    attempts = Attempts(
        job=np.array([0, 0, 0]),
        begin_s=np.array([0.0, 200.0, 300.0]),
        work_s=np.array([30.0, math.nan, 330.0]),
        stop_s=np.array([100.0, 220.0, 400.0]),
        end_s=np.array([110.0, 230.0, 400.0]),
        span=np.ones(3, dtype=np.int64),
        preempted=np.array([True, False, False]),
        first=np.array([0, 2, 4, 6]),
        gpu_ids=np.array([0, 1, 0, 1, 4, 5]),
    )
    finished, times = np.array([State.FINISHED], dtype=np.uint8), (np.array([0.0]), np.array([400.0]))
    history = History(NODE4, (JobSpec("a", 0.0, 2, 140.0),), finished, *times, np.ones((1, 1)), attempts, "by-hand")
    report = measure(history)
    assert report.restart_overhead.gpu_seconds == 2 * (30 + 10 + 30 + 30)
    assert report.restart_overhead.share == pytest.approx(200 / 480)
    assert report.preemptions == 1
    assert report.waiting_s.avg == 400 - 240
    # Two of the four GPUs of one node held: the other two are in pieces, the other node is whole.
    assert report.fragmentation == pytest.approx(480 / (8 * 400 - 480))


def test_whole_seconds_are_written_without_a_point():
    jobs = [JobSpec("exact", 0.0, 1, 100.0), JobSpec("not", 100.25, 1, 100.0)]
    rows = list(job_rows(history_of(jobs, NODE4, start_s=[0.0, 100.25], end_s=[100.0, 200.3])))
    assert len(JOB_COLUMNS) == len(rows[0])
    assert rows[0][:8] == ("exact", "0", "0", "100", "100", "1", "100", "0")
    assert rows[1][:8] == ("not", "100.25", "100.25", "200.3", "100.05", "1", "100.05", "0")


@pytest.mark.parametrize("window", [(3, 3), (-1, None), (5, None), (4, 2), (7, 9)])
def test_an_empty_window_is_refused_with_one_sentence(window):
    with pytest.raises(UserError, match="choose a window inside"):
        measure(random_history(1, 5), *window)


def test_a_window_that_ends_beyond_the_run_ends_with_it():
    assert measure(random_history(1, 5), 2, 1000).window.end_job == 5


def test_the_same_history_gives_the_same_report_also_from_another_process():
    history = random_history(2, 20)
    report = pickle.loads(pickle.dumps(measure(history)))
    assert report.as_dict() == measure(history).as_dict()
    assert list(job_rows(history, report)) == list(job_rows(history))


def test_cost_counts_this_process_from_its_start():
    cost = process_cost()
    assert cost["cpu_s"] >= time.process_time() - 0.1
    assert cost["wall_s"] > 0
    assert cost["peak_rss_mb"] > 10
    assert process_cost(time.perf_counter())["wall_s"] < cost["wall_s"], "or from a moment that is given"


def test_overlap_and_its_means():
    present = overlap(np.array([0.0, 5.0]), np.array([10.0, 10.0]), np.array([1, 4]))
    assert present.values.tolist() == [1.0, 5.0, 0.0]
    assert present.binned(np.array([0.0, 5.0, 10.0, 20.0])).tolist() == [1.0, 5.0, 0.0]
    assert present.means(np.array([2.5]), np.array([7.5])).tolist() == [3.0]
    assert StepFunction(np.zeros(0), np.zeros(0)).binned(np.array([0.0, 1.0])).tolist() == [0.0]
