"""The fluid isolated run against its definition, and against figures of real traces."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.report.metrics.isolated_run import isolated_jct

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
