"""The jobs as columns: rows, apps, the active list, and straight lines through time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.job_table import COLUMNS, JobTable, along
from horae.core.queues import QueueTree
from horae.core.throughputs import Speeds, Throughputs
from tests.builders import job


def table(*types: str) -> JobTable:
    return JobTable(types or ("v100",), Speeds(Throughputs()), QueueTree())


def filled(count: int) -> JobTable:
    jobs = table()
    for number in range(count):
        jobs.add(job(f"j{number}", work=100.0 + number), now_s=float(number))
    return jobs


def test_a_table_grows_beyond_its_first_room_and_forgets_nothing() -> None:
    jobs = filled(200)
    assert len(jobs) == 200
    assert jobs.work[:200].tolist() == [100.0 + number for number in range(200)]
    assert jobs.submit_s[:200].tolist() == list(range(200))
    assert jobs.active.tolist() == list(range(200))
    assert all(len(getattr(jobs, name)) >= 200 for name in COLUMNS)
    assert len(jobs.rates) >= 200
    assert jobs.last_type[199] == -1, "a fresh row holds what its column declares"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 149), max_size=60))
def test_active_rows_stay_sorted_whoever_comes_and_goes(flips: list[int]) -> None:
    jobs, active = filled(150), set(range(150))
    for row in flips:
        (jobs.deactivate if row in active else jobs.activate)(row)
        active ^= {row}
        assert jobs.active.tolist() == sorted(active)


def test_a_row_that_is_not_active_cannot_leave() -> None:
    jobs = filled(3)
    jobs.deactivate(1)
    with pytest.raises(AssertionError, match="row 1 is not active"):
        jobs.deactivate(1)


def test_lines_rise_from_where_they_were_written_down() -> None:
    jobs = table("fast", "slow")
    row = jobs.add(job("a", gpus=2, work=100, throughput={"fast": 4.0, "slow": 1.0}), 0.0)
    jobs.last_type[row] = 1
    jobs.execute(row, 10.0, rate=1.0, gpus=2)
    rows = np.array([row])
    assert jobs.work_left_at(30, rows).tolist() == [80]
    assert jobs.gpu_seconds_at(30, rows).tolist() == [40]
    assert jobs.executed_s_at(30, rows).tolist() == [20]
    assert jobs.fastest_gpu_seconds_at(30, rows).tolist() == [10], "a slow GPU counts as a quarter of a fast one"
    assert jobs.work_left_at(1e6, rows).tolist() == [0]
    jobs.execute(row, 30.0, rate=2.0, gpus=1)
    assert (jobs.work_left[row], jobs.gpu_seconds[row], jobs.executed_s[row]) == (80, 40, 20)
    assert jobs.work_left_at(35, rows).tolist() == [70]
    assert jobs.gpu_seconds_at(35, rows).tolist() == [45]


def test_the_compiled_line_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    base, slope, since = rng.random((3, 20))
    rows = np.array([3, 0, 19, 3])
    expected = base[rows] - slope[rows] * (7.0 - since[rows])
    np.testing.assert_array_equal(along(7.0, rows, base, slope, since, -1.0), expected)


def test_of_losses_the_first_and_the_last_two_are_kept_and_old_news_says_nothing() -> None:
    jobs = filled(1)
    assert jobs.note_loss(0, 10, 5.0)
    assert jobs.note_loss(0, 20, 3.0)
    assert not jobs.note_loss(0, 20, 9.0)
    assert not jobs.note_loss(0, 15, 9.0)
    assert jobs.note_loss(0, 30, 2.0)
    kept = (jobs.loss_first[0], jobs.loss_before[0], jobs.loss_work_before[0], jobs.loss[0], jobs.loss_work[0])
    assert kept == (5.0, 3.0, 20, 2.0, 30)


def test_a_name_of_an_app_that_comes_again_after_its_end_is_another_app() -> None:
    jobs = table()
    for name in ("a", "b"):
        jobs.add(job(name, app="search"), 0.0)
    jobs.ended_s[:2] = [10.0, 20.0]
    assert jobs.add(job("c", app="search"), 20.0) == 2
    assert jobs.app[:3].tolist() == [0, 0, 0], "the last had not ended before this moment"
    jobs.ended_s[2] = 25.0
    jobs.add(job("d", app="search"), 26.0)
    assert jobs.app[3] == 1
    assert jobs.apps == ("search", "search")
    assert (jobs.app_goes_on(0), jobs.app_goes_on(1)) == (False, True)


def test_long_over_are_whole_apps_that_ended_before_a_moment_but_not_the_newest() -> None:
    jobs = table()
    for name, app in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")):
        jobs.add(job(name, app=app), 0.0)
    jobs.ended_s[:4] = [1.0, 5.0, 2.0, 0.5]
    assert jobs.long_over(5.0).tolist() == [2], "b ended at 5, and d is the newest"
    assert jobs.long_over(5.1).tolist() == [0, 1, 2]


def test_jobs_submitted_before_a_moment() -> None:
    assert filled(3).submitted_before(2.0) == ["j0", "j1"]


def test_new_gpu_types_bring_new_rates_for_all() -> None:
    jobs = table("slow")
    jobs.add(job("a", throughput={"fast": 4.0, "slow": 1.0}), 0.0)
    assert (jobs.rates[0].tolist(), jobs.best_rate[0], jobs.types[0]) == ([1.0], 1.0, 0b1)
    jobs.know_types(("slow", "fast"))
    assert (jobs.rates[0].tolist(), jobs.best_rate[0], jobs.types[0]) == ([1.0, 4.0], 4.0, 0b11)
