"""First come and shortest first over unlike GPUs: who gets which type, who moves, who is spared.

Tests policies/gavel/type_preference.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from horae.core.events import JobFinished, JobStopped
from tests.builders import Cell, job, run, times
from tests.policies.unlike_gpus import gavel, typed, types_of

BOTH = ("fifo-aware", "sjf-aware")


def test_the_first_to_come_gets_its_best_type_and_the_next_the_best_that_is_left() -> None:
    cell = Cell("slow:1x1,fast:1x1", "fifo-aware")
    cell.submit(0, typed("first", 2, 1), typed("second", 10, 1), typed("third", 10, 1))
    assert types_of(cell) == {"first": "fast", "second": "slow"}
    assert cell.reason("third").code == "BehindEarlier"


def test_whose_best_type_another_job_finds_slow_gets_it_there() -> None:
    cell = Cell("slow:1x1,fast:1x1", "fifo-aware")
    cell.submit(0, typed("odd", 1, 3), typed("usual", 3, 1))
    assert types_of(cell) == {"odd": "slow", "usual": "fast"}


def test_jobs_move_up_in_order_of_arrival_when_a_better_type_comes_free() -> None:
    cell = Cell("fast:1x1,slow:1x2", "fifo-aware")
    cell.submit(0, typed("a", 2, 1), typed("b", 2, 1), typed("c", 2, 1), typed("d", 2, 1))
    assert types_of(cell) == {"a": "fast", "b": "slow", "c": "slow"}
    cell.at(500, JobFinished(500, "a", 1))
    assert types_of(cell) == {"b": "fast", "c": "slow", "d": "slow"}


def test_an_earlier_job_takes_a_better_type_from_a_later_one() -> None:
    cell = Cell("fast:1x2,slow:1x2", "fifo-aware")
    cell.submit(0, job("holds", work=100, gpus=2, gpu_types=("fast",)), typed("early", 4, 1, gpus=2))
    cell.at(100, JobFinished(100, "holds", 1))
    assert types_of(cell) == {"early": "fast"}
    cell = Cell("fast:1x1,slow:1x1", "fifo-aware")
    cell.submit(0, job("holds", work=100, gpu_types=("fast",)))
    cell.submit(1, typed("early", 4, 1))
    cell.submit(2, typed("late", 4, 1))
    assert types_of(cell) == {"holds": "fast", "early": "slow"}
    cell.at(100, JobFinished(100, "holds", 1))
    assert types_of(cell) == {"early": "fast", "late": "slow"}


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize(("gain", "moved"), [("0", True), ("99", True), ("101", False)])
def test_a_running_job_moves_only_if_it_gains_enough(policy: str, gain: str, moved: bool) -> None:
    """It has 200 s left where it is and would have 100 s on the better type."""
    cell = Cell("fast:1x1,slow:1x1", policy, {"gain": gain})
    cell.submit(0, job("holds", work=100, gpu_types=("fast",)), typed("a", 2, 1, work=300))
    cell.at(100, JobFinished(100, "holds", 1))
    assert types_of(cell)["a"] == ("fast" if moved else "slow")


@pytest.mark.parametrize("policy", BOTH)
def test_nobody_moves_to_a_type_that_is_as_fast(policy: str) -> None:
    cell = Cell("fast:1x1,slow:1x1", policy, {"gain": "0"})
    cell.submit(0, job("holds", work=100, gpu_types=("fast",)), typed("a", 1, 1, work=300))
    assert cell.at(100, JobFinished(100, "holds", 1)).stops == ()


def test_small_jobs_pass_a_gang_that_does_not_fit_and_give_way_when_it_does() -> None:
    cell = Cell("1x4", "fifo-aware")
    cell.submit(0, job("half", gpus=2, work=100))
    cell.submit(1, job("gang", gpus=4, work=100))
    cell.submit(2, job("small", gpus=1, work=1000), job("other", gpus=1, work=1000))
    assert cell.running == ["half", "small", "other"]
    cell.at(100, JobFinished(100, "half", 1))
    assert cell.running == ["gang"]


def test_a_gang_does_not_starve_behind_a_stream_of_small_jobs() -> None:
    stream = [job(f"s{k}", work=100, submit_s=30.0 * k) for k in range(40)]
    ended = times(run([*stream, job("gang", gpus=4, work=100, submit_s=5)], "1x4", "fifo-aware"))
    assert ended["gang"] == (100, 200)


def test_of_a_move_that_waits_for_gpus_nothing_is_taken_back() -> None:
    """The job is set aside GPUs of the better type, and is still said to run on the old ones."""
    cell = Cell("fast:1x1,slow:1x1", "fifo-aware", slow_stops=True)
    cell.submit(0, job("holds", work=100, gpu_types=("fast",)), typed("a", 4, 1, work=5000))
    assert [stop.job for stop in cell.at(100, JobFinished(100, "holds", 1)).stops] == ["a"]
    cell.submit(101, job("new", gpu_types=("slow",)))
    cell.at(102, JobStopped(102, "a", 1, 100.0))
    assert types_of(cell) == {"a": "fast", "new": "slow"}
    assert cell.running == ["a", "new"]


def test_gpus_that_are_set_aside_for_a_job_are_not_given_up_for_a_trifle() -> None:
    cell = Cell("fast:1x1,slow:1x1", "sjf-aware", slow_stops=True)
    cell.submit(0, job("holds", work=100, gpu_types=("fast",)), job("long", work=9000, gpu_types=("slow",)))
    assert [stop.job for stop in cell.submit(50, typed("a", 1.1, 1, work=220)).stops] == ["long"]
    assert types_of(cell) == {"holds": "fast", "a": "slow"}
    cell.at(100, JobFinished(100, "holds", 1))
    assert types_of(cell) == {"a": "slow"}, "20 s sooner on the fast type, and the slow one is as good as free"


def test_the_shortest_on_its_best_type_chooses_first() -> None:
    cell = Cell("fast:1x1,slow:1x1", "sjf-aware")
    cell.submit(0, typed("long", 10, 1, work=5000), typed("short", 1, 1, work=400), typed("mid", 10, 5, work=4500))
    assert types_of(cell) == {"short": "fast", "mid": "slow"}
    assert cell.reason("long").code == "BehindShorter"


@pytest.mark.parametrize(("work", "preempts"), [(150, False), (130, True)])
def test_a_running_job_gives_way_only_to_one_that_is_shorter_by_enough(work: float, preempts: bool) -> None:
    cell = Cell("1x1", "sjf-aware", {"gain": "60"})
    cell.submit(0, job("a", work=300))
    cell.submit(100, job("b", work=work))
    assert cell.running == (["b"] if preempts else ["a"])


def test_a_gang_that_waited_too_long_gets_a_reservation_from_shortest_first() -> None:
    stream = [job(f"s{k}", work=100, submit_s=30.0 * k) for k in range(40)]
    jobs = [*stream, job("gang", gpus=4, work=400, submit_s=5)]
    assert times(run(jobs, "1x4", "sjf-aware"))["gang"][0] > 1000
    assert times(run(jobs, "1x4", "sjf-aware", settings={"reserve": "200"}))["gang"][0] < 400


@pytest.mark.parametrize("policy", BOTH)
def test_who_is_not_aware_of_types_does_the_same_whichever_is_fast(policy: str) -> None:
    def chosen(first: float, second: float) -> dict[str, str]:
        cell = Cell("fast:1x3,slow:1x3", policy, {"aware": "false"})
        cell.submit(0, *(typed(f"j{k}", first, second, work=1000 + k) for k in range(5)))
        return types_of(cell)

    assert chosen(9, 1) == chosen(1, 9)
    assert sorted(chosen(9, 1).values()) == ["fast"] * 3 + ["slow"] * 2


@pytest.mark.parametrize("policy", BOTH)
def test_who_is_not_aware_of_types_takes_the_one_with_the_most_gpus_free_and_stays(policy: str) -> None:
    cell = Cell("slow:1x2,fast:1x3", policy, {"aware": "false"})
    cell.submit(0, typed("a", 1, 9), typed("b", 1, 9, gpus=2))
    assert types_of(cell) == {"a": "fast", "b": "fast"}
    cell.submit(1, typed("c", 1, 9))
    assert types_of(cell) == {"a": "fast", "b": "fast", "c": "slow"}
    assert cell.at(2, JobFinished(2, "b", 1)).stops == ()


def test_completion_times_are_better_than_gavels_own(shared_data: Path) -> None:
    report = gavel(shared_data, "fifo-aware")
    assert report.finished == 96
    assert report.avg_jct_s <= 17_000, "Gavel's aware FIFO has 19,527 s"
    assert report.makespan_s <= 72_320
    assert gavel(shared_data, "sjf-aware").avg_jct_s <= 15_000


@pytest.mark.parametrize("policy", BOTH)
def test_restarts_cost_little_for_moves_must_be_worth_them(shared_data: Path, policy: str) -> None:
    assert gavel(shared_data, policy, 30).avg_jct_s <= 1.03 * gavel(shared_data, policy).avg_jct_s


@pytest.mark.parametrize("policy", BOTH)
def test_awareness_of_types_pays(shared_data: Path, policy: str) -> None:
    assert gavel(shared_data, policy).avg_jct_s < 0.8 * gavel(shared_data, policy, aware="false").avg_jct_s
