"""What each policy runs, on examples small enough to do by hand.

Tests policies/next_quantum.py, policies/gavel/isolated.py, policies/ordering/fifo.py,
policies/ordering/least_attained.py, policies/ordering/shortest_first.py, policies/ordering/smallest_first.py and
policies/ordering/time_slice.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from horae.core.cluster import Cluster
from horae.core.events import JobFinished
from horae.core.history import History
from horae.core.job import JobSpec
from horae.policies.next_quantum import next_quantum_s
from horae.solve.allocation.problem import isolated_share
from tests.builders import Cell, cluster, ends, job, run, times


def seconds_on(history: History, machines: Cluster) -> dict[tuple[str, str], float]:
    """Time each job held GPUs of each type."""
    attempts = history.attempts
    spent: dict[tuple[str, str], float] = {}
    for i, row in enumerate(attempts.job):
        gpu_type = machines.gpu_types[machines.gpu_type[attempts.gpu_ids[attempts.first[i]]]]
        key = (history.jobs[row].id, gpu_type)
        spent[key] = spent.get(key, 0.0) + float(attempts.end_s[i] - attempts.begin_s[i])
    return spent


def test_fifo_lets_nobody_pass_and_backfill_does() -> None:
    jobs = [job("a", gpus=3, work=10), job("b", gpus=2, work=10, submit_s=1), job("c", gpus=1, work=10, submit_s=2)]
    assert [start for start, _ in times(run(jobs, "1x4", "fifo")).values()] == [0, 10, 10]
    assert [start for start, _ in times(run(jobs, "1x4", "fifo-backfill")).values()] == [0, 10, 2]


def test_smallest_first_preempts_the_larger_gang() -> None:
    jobs = [job("large", gpus=4, work=10), job("small", gpus=1, work=5, submit_s=2)]
    assert times(run(jobs, "1x4", "smallest-first")) == {"large": (0, 15), "small": (2, 7)}


def test_shortest_time_and_shortest_service_differ_on_wide_gangs() -> None:
    jobs = [job("wide", gpus=4, work=10), job("thin", gpus=1, work=20)]
    assert times(run(jobs, "1x4", "srtf"))["wide"] == (0, 10)
    assert times(run(jobs, "1x4", "srsf"))["thin"] == (0, 20)


def test_srtf_goes_by_what_is_left_not_by_the_whole_length() -> None:
    jobs = [job("long", work=100), job("mid", work=30, submit_s=80)]
    assert ends(run(jobs, "1x1", "srtf")) == [100, 130]


def test_srtf_counts_time_on_the_jobs_fastest_type() -> None:
    cell = Cell("v100:1x1", "srtf")
    cell.submit(0, job("a", work=300, unit="steps", throughput={"v100": 10.0}), job("b", work=40))
    assert cell.running == ["a"]


def test_las_lets_the_less_served_catch_up_at_the_quantum_and_at_once_at_an_event() -> None:
    cell = Cell("1x1", "las", {"quantum": "100"})
    cell.submit(0, job("a", work=1000))
    assert cell.submit(30, job("b", work=1000)).stops[0].job == "a"
    assert cell.engine.wake_s == 100
    assert cell.at(100).stops[0].job == "b", "b has had 70 s and a only 30"


def test_las_counts_gpu_time_so_a_wide_gang_ages_faster() -> None:
    cell = Cell("1x5", "las", {"quantum": "100"})
    cell.submit(0, job("wide", gpus=4, work=1000), job("thin", gpus=1, work=1000))
    cell.submit(60, job("new", gpus=1, work=1000))
    assert cell.running == ["thin", "new"]


def test_las_sleeps_while_everybody_runs() -> None:
    cell = Cell("1x2", "las")
    cell.submit(0, job("a"), job("b"))
    cell.at(600)
    assert cell.engine.wake_s == float("inf")


def test_two_jobs_take_turns_by_time_slice() -> None:
    history = run([job("a", work=1000), job("b", work=1000)], "1x1", "time-slice")
    assert ends(history) == [1600, 2000]
    assert history.attempts.begin_s.tolist() == [0, 600, 1200, 1600]


def test_a_slice_ends_early_when_its_job_does_and_nobody_is_disturbed_by_that() -> None:
    history = run([job("a", work=250), job("b", work=700), job("c", work=50)], "1x1", "time-slice")
    # a until 250, b until the grid at 600, c until 650, b to its end.
    assert ends(history) == [250, 1000, 650]


def test_those_that_waited_longest_take_the_next_slice() -> None:
    history = run([job(name, work=900) for name in "abc"], "1x1", "time-slice", settings={"quantum": "300"})
    assert history.attempts.job.tolist() == [0, 1, 2] * 3


def test_a_slice_on_a_cluster_with_room_ends_nothing() -> None:
    history = run([job("a", work=5000), job("b", work=5000)], "1x2", "time-slice")
    assert len(history.attempts.job) == 2


@pytest.mark.parametrize("n", [2, 3, 5])
def test_isolated_jobs_on_one_gpu_each_get_one_nth(n: int) -> None:
    jobs = [job(str(k), work=100_000) for k in range(n)]
    history = run(jobs, "1x1", "isolated", settings={"round": "100"})
    first_end = min(ends(history))
    held = np.zeros(n)
    for i, row in enumerate(history.attempts.job):
        inside = min(history.attempts.end_s[i], first_end) - min(history.attempts.begin_s[i], first_end)
        held[row] += inside
    assert held / first_end == pytest.approx(np.full(n, 1 / n), abs=200 / first_end)


def shared_types() -> tuple[Cluster, list[JobSpec]]:
    """Six jobs on one fast and two slow GPUs, all equally long on either."""
    return cluster("fast:1x1,slow:1x2"), [job(str(k), work=36_000) for k in range(6)]


def test_isolated_jobs_get_one_nth_of_every_gpu_type() -> None:
    machines, jobs = shared_types()
    spent = seconds_on(run(jobs, machines, "isolated", settings={"round": "60"}), machines)
    # 1/6 of one fast GPU and of two slow ones: a third of each job's time is fast.
    for one in jobs:
        assert spent[one.id, "fast"] == pytest.approx(12_000, rel=0.05)
        assert spent[one.id, "slow"] == pytest.approx(24_000, rel=0.05)


def test_isolated_shares_are_those_of_the_formula() -> None:
    gpus, gangs = np.array([8, 4]), np.array([1, 2, 4, 2])
    usable = np.array([[True, True], [True, True], [True, True], [True, False]])
    share = isolated_share(gpus, gangs, usable)
    assert share.tolist() == [[2 / 3, 1 / 3], [2 / 3, 1 / 3], [0.5, 0.25], [2 / 3, 0.0]]


def test_isolated_gives_freed_gpus_away_in_mid_round() -> None:
    cell = Cell("1x1", "isolated")
    cell.submit(0, job("a", work=50), job("b", work=1000))
    cell.at(50, JobFinished(50, "a", 1))
    assert cell.running == ["b"]


@pytest.mark.parametrize(("now_s", "quantum_s", "expected"), [(0, 600, 600), (599.9, 600, 600), (600, 600, 1200)])
def test_the_next_quantum_lies_after_now(now_s: float, quantum_s: float, expected: float) -> None:
    assert next_quantum_s(now_s, quantum_s) == expected


def test_the_next_quantum_lies_after_now_whatever_the_rounding() -> None:
    times_s = np.random.default_rng(0).uniform(0, 1e6, 2000)
    for now_s in [*times_s.tolist(), *(k * 0.1 for k in range(2000))]:
        assert now_s < next_quantum_s(now_s, 0.1) <= now_s + 0.2
