"""The fluid isolated run against its definition, and against figures of real traces."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.report.metrics.isolated_run import isolated_app_end_s, isolated_jct

TYPES = ("v100", "p100", "k80")


def by_definition(submit, gpus, work, rates, gpus_by_type):
    """Every job's speed anew at every event, straight from the isolated shares."""
    left, ends, now = dict(enumerate(work)), {}, 0.0
    while left:
        active = [m for m in left if submit[m] <= now]
        speed = {}
        for m in active:
            share = [n / len(active) / gpus[m] for n in gpus_by_type]
            share = [x / max(sum(share), 1.0) for x in share]
            speed[m] = sum(rate * x for rate, x in zip(rates[m], share, strict=True))
        coming = [submit[m] for m in left if submit[m] > now]
        step = min([left[m] / speed[m] for m in active] + [at - now for at in coming])
        for m in active:
            left[m] -= step * speed[m]
            if left[m] <= 1e-9 * work[m]:
                ends[m] = now + step
                del left[m]
        now = min([at for at in coming if at <= now + step * (1 + 1e-12)], default=now + step)
    return [ends[m] - submit[m] for m in range(len(work))]


def apps_by_definition(app, submit, gpus, work, rates, gpus_by_type):
    """Every job's seconds left, where each app gives its share to the jobs with the most left."""
    total = sum(gpus_by_type)
    left = {
        m: work[m] * total / sum(rate * n for rate, n in zip(rates[m], gpus_by_type, strict=True))
        for m in range(len(work))
    }
    ends, now = {}, 0.0
    while left:
        active = [m for m in left if submit[m] <= now + 1e-9]
        present = {app[m] for m in active}
        speed, waits = {}, [submit[m] - now for m in left if m not in active]
        for number in present:
            levels = _levels([m for m in active if app[m] == number], left)
            free = total / len(present)
            for level in levels:
                wanted = sum(gpus[m] for m in level)
                speed |= {m: min(free, wanted) / wanted for m in level}
                free -= min(free, wanted)
            # A level that is faster than the next comes down to it.
            for (high, *_), (low, *_) in pairwise(levels):
                if speed[high] > speed[low]:
                    waits.append((left[high] - left[low]) / (speed[high] - speed[low]))
        step = min([*waits, *(left[m] / speed[m] for m in active if speed[m] > 0)])
        now += step
        for m in active:
            left[m] -= step * speed[m]
            if left[m] <= 1e-9:
                ends[app[m]] = now
                del left[m]
    return ends


def _levels(jobs, left):
    """Jobs with the most seconds left first; jobs with equally many together."""
    levels = []
    for m in sorted(jobs, key=lambda m: -left[m]):
        if levels and left[levels[-1][0]] - left[m] <= 1e-9 * (1 + left[m]):
            levels[-1].append(m)
        else:
            levels.append([m])
    return levels


job = st.tuples(
    st.integers(0, 50),
    st.sampled_from([1, 2, 3, 8]),
    st.integers(1, 1000),
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=2),
)


@given(st.lists(job, min_size=1, max_size=12), st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_shared_clocks_give_what_the_definition_gives(jobs, gpus_by_type):
    submit, gpus, work, rates = zip(*jobs, strict=True)
    found = isolated_jct(
        np.array(submit, float), np.array(gpus), np.array(work, float), np.array(rates), np.array(gpus_by_type)
    )
    assert found == pytest.approx(by_definition(submit, gpus, work, rates, gpus_by_type), rel=1e-6)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 3), job), min_size=1, max_size=10),
    st.booleans(),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_an_app_ends_when_its_longest_jobs_first_could_have_ended(apps_and_jobs, at_once, gpus_by_type):
    app, jobs = zip(*apps_and_jobs, strict=True)
    submit, gpus, work, rates = zip(*jobs, strict=True)
    if at_once:
        submit = [10 * number for number in app]
    columns = np.array(submit, float), np.array(gpus), np.array(work, float), np.array(rates)
    found = isolated_app_end_s(np.array(app), 4, *columns, np.array(gpus_by_type))
    wanted = apps_by_definition(app, submit, gpus, work, rates, gpus_by_type)
    assert found.tolist() == pytest.approx([wanted.get(number, math.nan) for number in range(4)], rel=1e-6, nan_ok=True)


def test_two_apps_by_hand():
    # With half of 8 GPUs, app 0 runs its longer job to 60 s, then both jobs at half speed. App 1 needs 400 GPU-seconds
    # and ends at 100 s. App 0 has 160 GPU-seconds left then, and the whole cluster for them.
    gpus, work = np.array([4, 4, 8]), np.array([100.0, 40.0, 50.0])
    end_s = isolated_app_end_s(np.array([0, 0, 1]), 2, np.zeros(3), gpus, work, np.ones((3, 1)), np.array([8]))
    assert end_s == pytest.approx([120.0, 100.0])


def test_an_app_cannot_use_more_gpus_than_its_jobs_want():
    # The share of app 0 is 4 GPUs, and its jobs want 1 and 2.
    gpus, work = np.array([1, 2, 8]), np.array([100.0, 30.0, 500.0])
    end_s = isolated_app_end_s(np.array([0, 0, 1]), 2, np.zeros(3), gpus, work, np.ones((3, 1)), np.array([8]))
    assert end_s == pytest.approx([100.0, 100.0 + (8 * 500 - 4 * 100) / 8])


def test_a_job_that_comes_later_finds_the_others_level():
    # With one of two GPUs, app 0 brings both of its jobs to 70 s left by 50 s, when app 1 ends. At 60 s both have 60 s
    # left and its third job comes: 130 GPU-seconds for two GPUs.
    app, submit_s = np.array([0, 0, 0, 1]), np.array([0.0, 0.0, 60.0, 0.0])
    gpus, work = np.array([1, 1, 1, 2]), np.array([100.0, 90.0, 10.0, 25.0])
    end_s = isolated_app_end_s(app, 2, submit_s, gpus, work, np.ones((4, 1)), np.array([2]))
    assert end_s == pytest.approx([125.0, 50.0])


def test_an_app_is_absent_until_it_submits_again():
    # App 0 has a job of 10 s at 0 and one at 100 s; in between app 1 has the cluster to itself.
    app, submit_s = np.array([0, 1, 0]), np.array([0.0, 0.0, 100.0])
    work = np.array([10.0, 50.0, 10.0])
    end_s = isolated_app_end_s(app, 2, submit_s, np.full(3, 8), work, np.ones((3, 1)), np.array([8]))
    assert end_s == pytest.approx([110.0, 60.0])


def test_a_job_alone_runs_at_the_average_speed_of_the_types():
    jct = isolated_jct(np.array([5.0]), np.array([1]), np.array([60.0]), np.array([[1.0, 4.0]]), np.array([1, 2]))
    assert jct == pytest.approx([20.0])


def test_a_job_that_no_type_can_run_takes_nothing_from_the_others():
    both = isolated_jct(np.zeros(2), np.array([1, 1]), np.ones(2), np.array([[1.0], [0.0]]), np.array([4]))
    assert both[0] == 1.0
    assert math.isnan(both[1])


def test_no_jobs_give_no_times():
    assert len(isolated_jct(np.zeros(0), np.zeros(0, int), np.zeros(0), np.zeros((0, 1)), np.array([4]))) == 0


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_more_gpus_never_slow_a_job_down(seed):
    draw = np.random.default_rng(seed)
    count = 20
    submit, gpus = draw.uniform(0, 100, count), draw.integers(1, 9, count)
    work, rates = draw.uniform(1, 500, count), draw.uniform(0.5, 2, (count, 1))
    small = isolated_jct(submit, gpus, work, rates, np.array([8]))
    large = isolated_jct(submit, gpus, work, rates, np.array([16]))
    assert (large <= small * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("trace", "avg_jct_s", "last_s"),
    [("max_min_fairness", 22_361, 81_524), ("minimize_makespan", 42_124, 83_827)],
)
def test_the_published_traces_give_the_known_figures(shared_data: Path, trace, avg_jct_s, last_s):
    table = json.loads((shared_data / "gavel/simulation_throughputs.json").read_text())
    lines = [line.split("\t") for line in (shared_data / f"gavel/{trace}.trace").read_text().splitlines()]
    submit = np.array([float(line[9]) for line in lines])
    rates = np.array([[table[name][f"('{line[0]}', {line[6]})"]["null"] for name in TYPES] for line in lines])
    gpus, work = np.array([int(line[6]) for line in lines]), np.array([float(line[5]) for line in lines])
    jct = isolated_jct(submit, gpus, work, rates, np.array([8, 16, 24]))
    assert round(jct.mean()) == avg_jct_s
    assert round((submit + jct).max()) == last_s
