"""AlloX: who is matched to what, what it comes to, and that gangs and idle GPUs are not forgotten."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.events import JobFinished
from horae.core.job import JobSpec
from tests.builders import Cell, ends, job, run, times
from tests.policies.unlike_gpus import gavel, typed, types_of

FREE = {"gain": "0"}


def jct_sum(jobs: list[JobSpec], spec: str, policy: str, **more: object) -> float:
    history = run(jobs, spec, policy, **more)
    return float(sum(end - one.submit_s for end, one in zip(ends(history), history.jobs, strict=True)))


def test_the_worked_example_puts_the_longest_job_on_the_type_that_it_does_not_mind() -> None:
    speeds = [(2, 1, 0.5), (3, 2, 1), (4, 3, 2), (1, 1, 1)]
    names = ("v100", "p100", "k80")
    jobs = [
        job(f"{m}", work=work, throughput=dict(zip(names, map(float, row), strict=True)))
        for m, (row, work) in enumerate(zip(speeds, (300, 500, 1000, 500), strict=True))
    ]
    cell = Cell("v100:1x2,p100:1x1,k80:1x3", "allox")
    cell.submit(0, *jobs)
    chosen = types_of(cell)
    assert chosen["0"] == "v100"
    assert sorted((chosen["1"], chosen["2"])) == ["p100", "v100"]
    assert chosen["3"] == "k80"
    assert jct_sum(jobs, "v100:1x2,p100:1x1,k80:1x3", "allox", settings=FREE) <= 1150 + 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_on_one_gpu_it_is_shortest_remaining_time_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [job(f"{k}", work=float(rng.integers(1, 400)), submit_s=float(rng.integers(0, 2000))) for k in range(20)]
    assert jct_sum(jobs, "1x1", "allox", settings=FREE) == pytest.approx(jct_sum(jobs, "1x1", "srtf"), abs=1e-3)


def best_schedule(jobs: list[JobSpec], gpu_types: list[str]) -> float:
    """The least sum of completion times of jobs that all come at 0, however spread over a GPU of each type."""
    least = np.inf
    for choice in itertools.product(gpu_types, repeat=len(jobs)):
        total = 0.0
        for gpu_type in gpu_types:
            mine = sorted(
                one.work / one.throughput[gpu_type] for one, its in zip(jobs, choice, strict=True) if its == gpu_type
            )
            total += sum(time * (len(mine) - place) for place, time in enumerate(mine))
        least = min(least, total)
    return float(least)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_jobs_that_come_together_end_on_average_as_soon_as_in_the_best_fixed_schedule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [typed(f"{k}", *rng.uniform(0.2, 5, 2), work=float(rng.uniform(50, 1000))) for k in range(6)]
    ours = jct_sum(jobs, "fast:1x1,slow:1x1", "allox", settings=FREE)
    assert ours <= best_schedule(jobs, ["fast", "slow"]) * (1 + 1e-6)


def test_a_gpu_that_everybody_would_rather_not_have_is_used_while_others_are_waited_for() -> None:
    """Both would sooner queue for the fast GPU than run to the end on the slow one."""
    jobs = [typed("a", 10, 1, work=1000), typed("b", 10, 1, work=1100)]
    cell = Cell("fast:1x1,slow:1x1", "allox")
    cell.submit(0, *jobs)
    assert types_of(cell) == {"a": "fast", "b": "slow"}
    cell.at(100, JobFinished(100, "a", 1))
    assert types_of(cell) == {"b": "fast"}
    assert times(run(jobs, "fast:1x1,slow:1x1", "allox"))["b"] == (0, 200)


@pytest.mark.parametrize(("work", "preempts"), [(150, False), (130, True)])
def test_a_running_job_gives_way_only_to_one_that_is_shorter_by_enough(work: float, preempts: bool) -> None:
    cell = Cell("1x1", "allox", {"gain": "60"})
    cell.submit(0, job("a", work=300))
    cell.submit(100, job("b", work=work))
    assert cell.running == (["b"] if preempts else ["a"])


def test_equal_jobs_do_not_change_places() -> None:
    cell = Cell("1x2", "allox", FREE)
    cell.submit(0, *(job(name, work=100) for name in "abcd"))
    assert cell.submit(0, job("e", work=100)).stops == ()
    assert cell.running == ["a", "b"]


def test_a_gang_does_not_starve_behind_a_stream_of_small_jobs() -> None:
    stream = [job(f"s{k}", work=100, submit_s=10.0 * k) for k in range(200)]
    gang = job("gang", gpus=4, work=300, submit_s=50)
    started, ended = times(run([*stream, gang], "1x6", "allox"))["gang"]
    assert started == 50, "there is a slot for every size"
    assert ended == 350


def test_a_gang_that_may_run_gets_a_whole_node_though_single_jobs_sit_on_all_of_them() -> None:
    cell = Cell("2x4", "allox", placement="consolidated")
    cell.submit(0, *(job(f"s{k}", work=100.0 if k in (2, 6) else 9000.0) for k in range(8)))
    cell.at(100, JobFinished(100, "s2", 1), JobFinished(100, "s6", 1))
    cell.submit(101, job("gang", gpus=4, work=50))
    assert len({gpu // 4 for gpu in cell.gpus("gang")}) == 1
    assert len(cell.running) == 5


def test_whoever_is_too_large_for_what_is_left_of_the_cluster_waits_and_is_told_why() -> None:
    cell = Cell("fast:1x2,slow:1x4", "allox")
    cell.submit(0, job("large", gpus=4, gpu_types=("fast",)), job("b", gpus=2))
    assert cell.running == ["b"]
    assert cell.reason("large").code == "ClusterTooSmall"


def test_an_elastic_job_whose_full_size_fits_nowhere_still_runs() -> None:
    cell = Cell("1x4", "allox")
    cell.submit(0, job("elastic", gpus=8, gpus_min=2, gpus_max=8))
    assert len(cell.gpus("elastic")) == 4


def test_who_is_not_aware_of_types_does_the_same_whichever_is_fast() -> None:
    def chosen(first: float, second: float) -> dict[str, str]:
        cell = Cell("fast:1x2,slow:1x2", "allox", {"aware": "false"})
        cell.submit(0, *(typed(f"j{k}", first, second, work=1000 + k) for k in range(6)))
        return types_of(cell)

    assert chosen(9, 1) == chosen(1, 9)


def test_on_gavels_trace_jobs_end_sooner_on_average_than_in_any_run_of_gavels_own(shared_data: Path) -> None:
    report = gavel(shared_data, "allox")
    assert report.finished == 96
    assert report.avg_jct_s < 13_000, "Gavel's best, with space sharing, has 14,083 s"
    assert report.preemptions <= 300
    assert report.isolated_rho.max <= 1.2
    assert gavel(shared_data, "allox", 30).avg_jct_s <= 1.03 * report.avg_jct_s
