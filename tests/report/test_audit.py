"""Verdicts on whole runs: cases made to fail each property, and cases in which it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from horae.core.cluster import Cluster
from horae.core.job import JobSpec
from horae.core.throughputs import Throughputs
from horae.report.audit.audit import judge
from horae.report.audit.html_section import render_verdicts
from horae.report.audit.verdict import Verdict, all_held
from horae.simulator.audit.observer import Observer, sample_times
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from tests.builders import cluster, job

PROPERTIES = [
    "sharing_incentive",
    "sharing_incentive_isolated",
    "no_idle_gpus",
    "no_better_exchange",
    "envy_free",
    "envy_free_but_one_gang",
    "strategy_proof",
]


def audit(jobs: list[JobSpec], spec: str | Cluster, policy: str, samples: int = 40, **more: Any) -> dict[str, Verdict]:
    """The verdicts on a run by name; restarts are free unless told otherwise."""
    machines, true = cluster(spec) if isinstance(spec, str) else spec, Throughputs()
    onlooker = Observer(sample_times(jobs, machines, true, samples, 0), true, 0)
    history = simulate(Scenario(jobs, machines, policy=policy, **{"restart_cost_s": 0.0, **more}), onlooker=onlooker)
    return {verdict.name: verdict for verdict in judge(history, onlooker.observations(), true)}


def test_two_alike_that_fit_beside_each_other_have_nothing_to_complain_of() -> None:
    jobs = [job("a", 2, 5000.0), job("b", 2, 5000.0)]
    for policy in ("themis", "max-min", "fifo"):
        verdicts = audit(jobs, "1x4", policy)
        assert list(verdicts) == PROPERTIES
        assert [name for name, verdict in verdicts.items() if verdict.holds is False] == [], policy
        assert all(verdict.counter_example == "" for verdict in verdicts.values())


def test_a_short_job_behind_a_long_one_would_have_been_better_off_alone() -> None:
    verdicts = audit([job("long", work=10_000.0), job("short", work=100.0, submit_s=1.0)], "1x1", "fifo")
    verdict = verdicts["sharing_incentive"]
    assert not verdict.holds
    (worst,) = verdict.numbers["worst"]
    # 10,099 s instead of 100 s of a GPU that two share, but for the last 100 s.
    contention = (2 * 9_999 + 100) / 10_099
    assert (worst["name"], worst["took_s"]) == ("short", 10_099.0)
    assert worst["rho"] == pytest.approx(10_099 / (100 * contention))
    assert "short took 2.81 h instead of 3.32 min: rho 50.7" in verdict.counter_example
    assert not verdicts["sharing_incentive_isolated"].holds
    assert "isolated_rho" in verdicts["sharing_incentive_isolated"].numbers


def test_max_min_fairness_gives_everybody_an_incentive_to_share() -> None:
    jobs = [
        job("a", work=20_000.0, throughput={"v100": 4.0, "k80": 1.0}),
        job("b", work=20_000.0, throughput={"v100": 2.0, "k80": 1.9}),
    ]
    verdict = audit(jobs, "v100:1x1,k80:1x1", "max-min")["sharing_incentive_isolated"]
    assert verdict.holds
    assert verdict.numbers["isolated_rho"]["max"] <= 1


def test_a_queue_that_blocks_leaves_gpus_idle_and_backfill_does_not() -> None:
    jobs = [job("a", 2, 100.0), job("b", 4, 100.0, submit_s=5.0), job("c", 1, 10.0, submit_s=10.0)]
    verdict = audit(jobs, "1x4", "fifo")["no_idle_gpus"]
    assert not verdict.holds
    assert verdict.numbers["gpu_seconds"] == 90.0
    assert verdict.numbers["share_of_capacity"] == pytest.approx(90 / (4 * 210))
    assert verdict.numbers["gpu_seconds_by_reason"] == {"BehindEarlier": 90.0}
    assert verdict.counter_example == (
        "At 10 s, for 90 s, 1 GPU idled that waiting jobs could have used: job c (1 GPU, BehindEarlier) could have had "
        "gpu-0/2."
    )
    assert audit(jobs, "1x4", "fifo-backfill")["no_idle_gpus"].holds


def test_who_comes_first_takes_the_fast_gpu_though_it_does_not_need_it() -> None:
    jobs = [
        job("any", work=4000.0, throughput={"v100": 1.0, "k80": 1.0}),
        job("picky", work=4000.0, submit_s=10.0, throughput={"v100": 4.0, "k80": 1.0}),
        job("later", work=10.0, submit_s=20.0, throughput={"v100": 1.0, "k80": 1.0}),
    ]
    verdict = audit(jobs, "v100:1x1,k80:1x1", "fifo", samples=400)["no_better_exchange"]
    assert not verdict.holds
    assert verdict.numbers["best"]["gain"] == 3.0
    assert verdict.counter_example == (
        "At 10 s job picky on k80-0/0 would be 4 times as fast on v100-0/0, in exchange with job any, which would be "
        "not slower."
    )
    first = [replace(jobs[1], submit_s=0.0), replace(jobs[0], submit_s=10.0)]
    assert audit(first, "v100:1x1,k80:1x1", "fifo", samples=400)["no_better_exchange"].holds


def test_a_job_that_stays_on_slow_gpus_while_fast_ones_idle() -> None:
    speeds = {"v100": 4.0, "k80": 1.0}
    jobs = [job("a", work=400.0, throughput=speeds), job("b", work=4000.0, throughput=speeds)]
    jobs.append(job("c", work=10.0, submit_s=200.0, throughput={"k80": 1.0}))
    verdict = audit(jobs, "v100:1x1,k80:2x1", "fifo")["no_better_exchange"]
    assert verdict.numbers["of_these_on_idle_gpus"] > 0
    assert "on k80-0/0 would be 4 times as fast on v100-0/0; nobody else had these." in verdict.counter_example


def test_envy_has_a_worst_pair_with_numbers() -> None:
    verdicts = audit([job("a", 2, 7200.0), job("b", 2, 7200.0)], "1x2", "fifo")
    worst = verdicts["envy_free"].numbers["worst"]
    assert worst == {"app": "b", "envies": "a", "common_s": 7200.0, "own_gpu_s": 0.0, "others_gpu_s": 14_400.0}
    assert verdicts["envy_free"].counter_example == (
        "In the 2 h that both were there app b had 0 GPU-hours, and what app a had would have been worth 4 to it."
    )
    assert verdicts["envy_free_but_one_gang"].holds
    # Those that take turns have had as much as each other, as far as they were there together.
    turns = audit([job("a", 2, 7200.0), job("b", 2, 7200.0)], "1x2", "time-slice", settings={"quantum": "60"})
    assert turns["envy_free"].numbers["worst"]["others_gpu_s"] - turns["envy_free"].numbers["worst"]["own_gpu_s"] <= 120


def test_one_gang_more_or_less_is_no_injustice_but_two_are() -> None:
    # A has four jobs, B two, on four GPUs: A came first and has them all.
    jobs = [job(f"a{k}", 1, 1000.0, app="A") for k in range(4)]
    jobs += [job(f"b{k}", 1, 1000.0, submit_s=1.0, app="B") for k in range(2)]
    verdict = audit(jobs, "1x4", "fifo")["envy_free_but_one_gang"]
    assert not verdict.holds
    assert verdict.numbers["worst"]["others_gpu_s"] == 2 * 999.0


def test_under_shortest_first_it_pays_to_claim_less_work() -> None:
    jobs = [job("short", work=400.0), job("long", work=1000.0, submit_s=100.0)]
    verdict = audit(jobs, "1x1", "srtf")["strategy_proof"]
    assert not verdict.holds
    largest = verdict.numbers["largest"]
    assert (largest["at_s"], largest["app"], largest["lie"]) == (100.0, "long", "1/8 of the work left")
    assert (largest["speed_honest"], largest["speed_lying"]) == (0.0, 1.0)
    # Alone on half of a GPU it would take 2,000 s.
    assert largest["rho_lying"] == pytest.approx(1000 / 2000)
    assert largest["rho_honest"] == pytest.approx((1200 + 1000) / 2000)
    assert verdict.numbers["by_lie"]["8 times the work left"]["gained"] == 0
    assert verdict.numbers["no_gain"] == verdict.numbers["probes"] - verdict.numbers["gained"]
    assert "(rho 0.50 instead of 1.10) if it had claimed: 1/8 of the work left." in verdict.counter_example
    assert audit(jobs, "1x1", "fifo")["strategy_proof"].holds
    assert audit(jobs, "1x1", "las")["strategy_proof"].holds


def test_a_run_without_jobs_gives_nothing_to_judge() -> None:
    verdicts = audit([], "1x4", "fifo")
    assert list(verdicts) == PROPERTIES
    assert {verdict.holds for verdict in verdicts.values()} == {None}
    assert all(verdict.summary.startswith("nothing to judge") for verdict in verdicts.values())
    assert all_held(verdicts.values()) is None


def test_who_was_alone_was_asked_about_nobody() -> None:
    verdicts = audit([job("a", 2, 5000.0)], "1x4", "fifo")
    assert [name for name, verdict in verdicts.items() if verdict.holds is None] == [
        "no_better_exchange",
        "envy_free",
        "envy_free_but_one_gang",
        "strategy_proof",
    ]
    assert all_held(verdicts.values()) is True
    page = "".join(render_verdicts(list(verdicts.values())))
    assert "3 of 3 properties held" in page
    assert page.count("not judged") == 4


def test_a_verdict_that_fails_shows_why() -> None:
    with pytest.raises(AssertionError, match="holds"):
        Verdict("x", "y", holds=False, summary="", numbers={})
