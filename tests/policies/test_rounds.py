"""Shares of time, run in rounds: the worked example, and Gavel's own trace.

Tests policies/gavel/finish_time.py, policies/gavel/gandiva.py, policies/gavel/isolated_time.py and
policies/gavel/makespan.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from horae.core.snapshot import Snapshot
from horae.policies.gavel.rounds import TimeShares, next_round
from tests.builders import Cell, job, run, times
from tests.policies.unlike_gpus import gavel


def test_who_is_owed_the_most_runs_next() -> None:
    """Two equal jobs on one GPU take turns, round by round, however often the shares are solved anew."""
    history = run([job("a", work=3600), job("b", work=3600)], "1x1", "max-min", settings={"stay": "0"})
    rounds = np.diff(np.append(history.attempts.begin_s, history.attempts.end_s.max()))
    assert (rounds[:-2] <= 720).all()
    assert abs(times(history)["a"][1] - times(history)["b"][1]) <= 360


def test_a_running_job_stays_until_it_is_far_enough_ahead() -> None:
    jobs = [job("a", work=36_000), job("b", work=36_000)]
    stops = {
        stay: int(run(jobs, "1x1", "max-min", settings={"stay": stay}).attempts.preempted.sum())
        for stay in ("0", "720", "3600")
    }
    assert stops["0"] > stops["720"] > stops["3600"] > 0


def test_a_freed_gpu_is_filled_at_once_and_not_at_the_end_of_the_round() -> None:
    history = run([job("a", work=100), job("b", work=100)], "1x1", "max-min")
    assert times(history) == {"a": (0, 100), "b": (100, 200)}


def test_a_new_job_on_an_idle_cluster_waits_for_no_round() -> None:
    history = run([job("a", work=1000), job("b", work=50, submit_s=17)], "1x2", "max-min")
    assert times(history)["b"] == (17, 67)


def test_each_job_gets_the_type_that_suits_it() -> None:
    cell = Cell("fast:1x1,slow:1x1", "max-min")
    cell.submit(
        0,
        job("gains", work=1e5, throughput={"fast": 10.0, "slow": 1.0}),
        job("does not", work=1e5, throughput={"fast": 1.1, "slow": 1.0}),
    )
    assert cell.gpus("gains") == (0,)
    assert cell.gpus("does not") == (1,)


def test_the_worked_example_of_round_priorities() -> None:
    """Four rounds of X were due; those that got the least of theirs are next: 2 on V100, 0 on P100, 1 on K80."""
    share = np.array([[0.6, 0.4, 0], [0.2, 0.6, 0.2], [0.2, 0, 0.8]])
    received = np.array([[3, 1, 0], [1, 3, 0], [0, 0, 4]])
    cell = Cell("v100:1x1,p100:1x1,k80:1x1", "max-min")
    everywhere = {"v100": 1.0, "p100": 1.0, "k80": 1.0}
    cell.submit(0, *(job(str(m), work=1e5, throughput=everywhere) for m in range(3)))
    engine = cell.engine
    now = Snapshot(0.0, engine.jobs.active, engine.jobs, engine.gpus, engine.queues)
    wishes = next_round(now, TimeShares(share), 360.0 * (4 * share - received), 360.0, stay_s=0.0)
    first = np.argsort(wishes.key, kind="stable")[:3]
    assert {(int(wishes.job[i]), int(wishes.gpu_type[i])) for i in first} == {(2, 0), (0, 1), (1, 2)}


def test_makespan_lets_short_jobs_pass_while_the_long_one_has_time_to_spare() -> None:
    jobs = [job("long", work=10_000), job("middle", work=6000), *(job(f"s{k}", work=100) for k in range(10))]
    history = run(jobs, "1x2", "makespan")
    assert max(history.end_s) == pytest.approx(10_000)
    assert times(history)["s0"][1] == pytest.approx(100)


@pytest.mark.parametrize(
    ("policy", "settings", "jct_s"),
    [
        ("max-min", {"aware": "false"}, 19_989),
        ("max-min", {}, 14_623),
        ("max-min", {"space_sharing": "true"}, 14_083),
        ("water-filling", {}, 14_378),
        ("finish-time", {}, 15_010),
        ("fifo-aware", {}, 19_527),
    ],
)
def test_completion_times_are_at_least_as_good_as_gavels_own(
    shared_data: Path, policy: str, settings: dict[str, str], jct_s: float
) -> None:
    report = gavel(shared_data, policy, **settings)
    assert report.finished == 96
    assert report.avg_jct_s <= jct_s


def test_max_min_is_fast_fair_and_calm_in_one_run(shared_data: Path) -> None:
    report = gavel(shared_data, "max-min")
    assert report.avg_jct_s < 14_000
    assert report.isolated_rho.max <= 1.05
    assert report.preemptions <= 650


def test_under_finish_time_fairness_nobody_fares_worse_than_alone(shared_data: Path) -> None:
    assert gavel(shared_data, "finish-time").isolated_rho.max <= 1.0


def test_the_makespan_is_short_and_short_jobs_do_not_starve(shared_data: Path) -> None:
    report = gavel(shared_data, "makespan")
    assert report.makespan_s <= 61_513, "Gavel's own; a bound that knows the future is 61,327"
    assert report.avg_jct_s <= 22_973
    assert report.isolated_rho.max < 5


def test_random_packing_is_at_least_as_good_as_gavels_over_ten_seeds(shared_data: Path) -> None:
    jct_s = [gavel(shared_data, "gandiva", seed=str(seed)).avg_jct_s for seed in range(10)]
    assert np.mean(jct_s) <= 17_379
    assert len(set(jct_s)) > 1, "the seed decides who is paired with whom"


def test_restarts_that_cost_are_weighed_against_what_is_owed(shared_data: Path) -> None:
    free, charged = gavel(shared_data, "max-min"), gavel(shared_data, "max-min", 30.0)
    restless = gavel(shared_data, "max-min", 30.0, stay="0")
    assert charged.avg_jct_s <= 1.03 * free.avg_jct_s
    assert 3 * charged.preemptions <= restless.preemptions
