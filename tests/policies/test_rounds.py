"""Shares of time, run in rounds: the worked example, and Gavel's own trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builders import Cell, job, run, times
from horae.report.metrics import Report, measure
from horae.simulate.run import simulate
from horae.workload.clusters import parse_cluster
from horae.workload.speeds import load_throughputs
from horae.workload.traces import load_trace


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


def gavel(shared_data: Path, policy: str, **settings: str) -> Report:
    """Gavel's physical trace on 8 V100, 16 P100 and 24 K80, restarts free, as its own simulator had it."""
    speeds = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    jobs = load_trace(shared_data / "gavel" / "max_min_fairness.trace", throughputs=speeds).jobs
    machines = parse_cluster("v100:8x1,p100:16x1,k80:24x1")
    history = simulate(
        jobs, machines, policy=policy, settings=settings, placement="anywhere", restart_cost_s=0, throughputs=speeds
    )
    return measure(history)


@pytest.mark.parametrize(
    ("policy", "settings", "jct_s"),
    [
        ("max-min", {"aware": "false"}, 19_989),
        ("max-min", {}, 14_623),
        ("finish-time", {}, 15_010),
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
