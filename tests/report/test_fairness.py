"""Finish-time fairness against a slow reading of its definition, and on cases worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Cluster
from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.states import State
from horae.report.metrics.fairness import Fairness, finish_time_fairness
from horae.report.metrics.measure import measure
from tests.report.sample import Loop, history_of, random_jobs

GPU8 = Cluster.of([("gpu", 1, 8)])


def by_definition(history: History) -> dict[str, tuple[float, float]]:
    """The two forms of rho of each app whose jobs all finished, with loops and no cleverness."""
    apps: dict[str, list[int]] = {}
    for number, job in enumerate(history.jobs):
        apps.setdefault(job.app_id, []).append(number)
    life = {
        app: (min(history.jobs[i].submit_s for i in members), max(history.end_s[i] for i in members))
        for app, members in apps.items()
    }
    found = {}
    for app, members in apps.items():
        begin, end = life[app]
        contention = sum(max(min(end, e) - max(begin, b), 0) for b, e in life.values()) / (end - begin)
        fair = min(_time(history, members, k, contention) for k in range(len(history.cluster.gpu_types)))
        whole = min(_time(history, members, k, 1) for k in range(len(history.cluster.gpu_types)))
        found[app] = ((end - begin) / fair, (end - begin) / (whole * contention))
    return found


def _time(history: History, members: list[int], kind: int, divided_by: float) -> float:
    """Time of an app on a part of the GPUs of one type."""
    capacity = history.cluster.gpus_by_type[kind]
    serial, longest, parallelism = 0.0, 0.0, 0
    for i in members:
        job, rate = history.jobs[i], history.rates[i, kind]
        if rate == 0 or job.gpus_min > capacity:
            return math.inf
        alone = job.work / rate * job.gpus
        serial, parallelism = serial + alone, parallelism + job.gpus_max
        longest = max(longest, alone / min(job.gpus_max, capacity))
    return max(serial / min(capacity / divided_by, parallelism), longest)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 25), st.sampled_from([0, 3, 8]), st.booleans())
def test_rho_is_what_its_definition_says(seed, count, apps, elastic):
    cluster = Cluster.of([("v100", 2, 4), ("k80", 1, 4)])
    jobs = random_jobs(seed, count, cluster.gpu_types, apps=apps)
    if elastic:
        jobs = [replace(job, gpus_max=2 * job.gpus) for job in jobs]
    history = Loop(jobs, cluster, load_s=20, save_s=5, preempt_every=3).run()
    found, wanted = finish_time_fairness(history), by_definition(history)
    for number, job in enumerate(jobs):
        app = found.of_job[number]
        assert (found.rho[app], found.rho_paper[app]) == pytest.approx(wanted[job.app_id], rel=1e-9)


def test_an_app_alone_that_runs_at_once_has_rho_1_exactly():
    history = history_of([JobSpec("a", 10.0, 4, 700.0)], GPU8, start_s=[10.0], end_s=[710.0])
    apps = finish_time_fairness(history)
    assert apps.rho.tolist() == [1.0]
    assert apps.rho_paper.tolist() == [1.0]


def test_a_small_job_among_many_is_owed_its_own_gpu_and_no_more():
    jobs = [JobSpec(str(n), 0.0, 1, 100.0) for n in range(4)]
    history = history_of(jobs, GPU8, start_s=[0.0] * 4, end_s=[100.0] * 4)
    apps = finish_time_fairness(history)
    assert apps.rho.tolist() == [1.0] * 4
    assert apps.rho_paper.tolist() == [0.25] * 4


def test_jobs_that_fill_the_cluster_in_turn_are_owed_half_each():
    jobs = [JobSpec("first", 0.0, 8, 100.0), JobSpec("second", 0.0, 8, 100.0)]
    history = history_of(jobs, GPU8, start_s=[0.0, 100.0], end_s=[100.0, 200.0])
    # The first saw two apps all its life, the second 1.5 on average.
    assert finish_time_fairness(history).rho == pytest.approx([100 / 200, 200 / 150])


def test_an_app_is_owed_no_less_than_its_longest_job_needs():
    jobs = [JobSpec("long", 0.0, 1, 1000.0, app="a"), JobSpec("short", 0.0, 1, 10.0, app="a")]
    history = history_of(jobs, GPU8, start_s=[0.0, 0.0], end_s=[1000.0, 10.0])
    assert finish_time_fairness(history).rho.tolist() == [1.0]


def test_an_app_whose_jobs_need_different_types_is_spread_over_them():
    cluster = Cluster.of([("v100", 1, 2), ("k80", 1, 4)])
    jobs = [
        JobSpec("a", 0.0, 1, 100.0, gpu_types=("v100",), app="both"),
        JobSpec("b", 0.0, 4, 300.0, gpu_types=("k80",), app="both"),
    ]
    history = history_of(jobs, cluster, start_s=[0.0, 0.0], end_s=[100.0, 600.0])
    assert finish_time_fairness(history).rho.tolist() == [2.0]


def test_the_best_type_counts_only_if_the_gang_fits_it():
    cluster = Cluster.of([("fast", 1, 2), ("slow", 1, 4)])
    jobs = [JobSpec("a", 0.0, 4, 100.0, unit="steps", throughput={"fast": 10.0, "slow": 1.0})]
    history = history_of(jobs, cluster, start_s=[0.0], end_s=[100.0])
    assert finish_time_fairness(history).rho.tolist() == [1.0]


def test_an_app_that_has_not_ended_has_no_rho_but_contends():
    jobs = [JobSpec("open", 0.0, 8, 100.0), JobSpec("done", 0.0, 8, 100.0)]
    history = history_of(jobs, GPU8, start_s=[100.0, 0.0], end_s=[math.nan, 100.0])
    rho = finish_time_fairness(history).rho
    assert math.isnan(rho[0])
    assert rho[1] == pytest.approx(0.5)


def test_a_cancelled_trial_adds_nothing_to_what_its_app_is_owed():
    jobs = [JobSpec("kept", 0.0, 8, 100.0, app="a"), JobSpec("dropped", 0.0, 8, 900.0, app="a")]
    history = history_of(jobs, GPU8, start_s=[0.0, 100.0], end_s=[100.0, 150.0])
    history = replace(history, state=np.array([State.FINISHED, State.CANCELLED], dtype=np.uint8))
    assert finish_time_fairness(history).rho.tolist() == [1.0]


def isolated(history: History) -> list[float]:
    """`app_isolated_rho` of each app."""
    return measure(history).outcomes.isolated_rho_by_app.tolist()


def test_ending_another_app_sooner_raises_rho_but_not_the_isolated_one():
    jobs = [JobSpec("first", 0.0, 8, 100.0), JobSpec("second", 0.0, 8, 100.0)]
    in_turn = history_of(jobs, GPU8, start_s=[0.0, 100.0], end_s=[100.0, 200.0])
    together = history_of(jobs, GPU8, start_s=[0.0, 0.0], end_s=[200.0, 200.0])
    # The second app ends at 200 s in both runs. In the first run it had less company, and so was owed more.
    assert finish_time_fairness(in_turn).rho[1] == pytest.approx(200 / 150)
    assert finish_time_fairness(together).rho[1] == pytest.approx(1.0)
    assert isolated(in_turn) == pytest.approx([0.5, 1.0])
    assert isolated(together) == pytest.approx([1.0, 1.0])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 25))
def test_the_isolated_time_of_an_app_does_not_depend_on_the_policy(seed, count):
    cluster = Cluster.of([("v100", 2, 4), ("k80", 1, 4)])
    jobs = random_jobs(seed, count, cluster.gpu_types, apps=5)
    calm, restless = (Loop(jobs, cluster, load_s=20, preempt_every=every).run() for every in (0, 2))
    alone_s = [measure(history).outcomes.apps.shared_s / isolated(history) for history in (calm, restless)]
    assert alone_s[0] == pytest.approx(alone_s[1], rel=1e-9)


def test_an_app_alone_that_runs_at_once_has_an_isolated_rho_of_1():
    jobs = [JobSpec(f"t{n}", 10.0, gpus, 700.0 / gpus, app="a") for n, gpus in enumerate((1, 2, 4))]
    history = history_of(jobs, GPU8, start_s=[10.0] * 3, end_s=[10.0 + job.work for job in jobs])
    assert isolated(history) == [1.0]


def test_where_every_job_is_an_app_both_isolated_figures_agree():
    cluster = Cluster.of([("v100", 2, 4), ("k80", 1, 4)])
    single = random_jobs(3, 20, cluster.gpu_types)
    # A pair of jobs that comes when all others are gone, so that not every job is an app.
    pair = [replace(single[0], id=f"pair-{n}", app="pair", submit_s=1e7) for n in range(2)]
    history = Loop([*single, *pair], cluster, load_s=20, preempt_every=3).run()
    assert isolated(history)[:20] == pytest.approx(measure(history).outcomes.isolated_rho[:20].tolist())
    alone = measure(Loop(single, cluster).run())
    assert alone.app_isolated_rho == alone.isolated_rho


def test_an_app_that_has_not_ended_has_no_isolated_rho_but_takes_part():
    done = [JobSpec(f"done-{n}", 0.0, 4, 100.0, app="a") for n in range(2)]
    jobs = [JobSpec("open", 0.0, 8, 100.0), *done]
    history = history_of(jobs, GPU8, start_s=[100.0, 0.0, 0.0], end_s=[math.nan, 100.0, 100.0])
    assert isolated(history) == pytest.approx([math.nan, 0.5], nan_ok=True)


def test_a_cancelled_trial_is_left_out_of_the_isolated_run():
    jobs = [
        JobSpec("kept", 0.0, 8, 100.0, app="a"),
        JobSpec("dropped", 0.0, 8, 900.0, app="a"),
        JobSpec("other", 0.0, 8, 100.0),
    ]
    history = history_of(jobs, GPU8, start_s=[0.0, 100.0, 150.0], end_s=[100.0, 150.0, 250.0])
    state = np.array([State.FINISHED, State.CANCELLED, State.FINISHED], dtype=np.uint8)
    assert isolated(replace(history, state=state)) == pytest.approx([0.5, 1.25])


def test_fairness_in_four_numbers():
    found = Fairness.of(np.array([0.5, 1.0, 1.0 + 1e-12, 2.0, math.nan]))
    assert found.avg == pytest.approx(1.125)
    assert found.max == 2.0
    assert found.over_1 == 0.25
    assert found.jain == pytest.approx(4.5**2 / (4 * 6.25))


def test_jain_is_1_over_n_when_one_bears_it_all():
    assert Fairness.of(np.array([5.0, 0.0, 0.0, 0.0])).jain == pytest.approx(0.25)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long doubles are no longer than doubles here")
def test_short_lives_late_in_a_long_run_keep_their_precision():
    crowd = [JobSpec(f"c{n}", 0.0, 1, 1e7 - n / 7) for n in range(2000)]
    late = [JobSpec(f"late{n}", 1e7 + 5, 8, 1.0) for n in range(2)]
    start_s, end_s = [0.0] * 2000 + [1e7 + 5] * 2, [job.work for job in crowd] + [1e7 + 6 + 2**-20] * 2
    apps = finish_time_fairness(history_of([*crowd, *late], GPU8, start_s, end_s))
    assert apps.contention[-2:] == pytest.approx([2.0, 2.0], abs=1e-9)
