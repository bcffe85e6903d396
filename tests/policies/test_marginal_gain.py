"""The baselines that look at losses and at marginal gains, on examples small enough to do by hand.

Tests policies/marginal_gain/optimus.py and policies/marginal_gain/slaq.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.events import JobFinished, JobProgressed
from horae.core.loss_curve import LossCurve
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.policies.marginal_gain.optimus import marginal_gains
from tests.builders import Cell, ends, job, run, times


def cell_with_reports(**falls: tuple[float, float]) -> Cell:
    """Jobs on one GPU, each with two reports: the loss before and after 100 s of work; none of them runs."""
    cell = Cell("1x8", "slaq", {"quantum": "100"})
    cell.submit(0, *(job(name, work=5000) for name in falls))
    for name, (before, after) in falls.items():
        cell.at(10, JobProgressed(10, name, 1, 10.0, before))
        cell.at(20, JobProgressed(20, name, 1, 110.0, after))
    return cell


def test_the_loss_that_falls_fastest_goes_first_whatever_its_scale() -> None:
    cell = cell_with_reports(slow=(400.0, 300.0), fast=(4.0, 3.0))
    for name, loss in (("slow", 290.0), ("fast", 2.5)):
        cell.at(30, JobProgressed(30, name, 1, 210.0, loss))
    cell.at(30, JobProgressed(30, "slow", 1, 310.0, 280.0))
    cell.at(30, JobProgressed(30, "fast", 1, 310.0, 2.0))
    # Of all that each has fallen, 10 of 120 against 0.5 of 2. The new job takes all other GPUs.
    cell.submit(40, job("new", gpus=7, work=100))
    cell.at(100)
    assert cell.running == ["fast", "new"]
    assert cell.reason("slow") is Reason.BEHIND_BETTER


def test_a_gang_must_bring_more_to_cost_more() -> None:
    cell = Cell("1x4", "slaq", {"quantum": "100"})
    cell.submit(0, job("wide", gpus=3, work=5000), job("thin", gpus=1, work=5000))
    for name in ("wide", "thin"):
        cell.at(10, JobProgressed(10, name, 1, 10.0, 5.0))
        cell.at(20, JobProgressed(20, name, 1, 20.0, 4.0))
    cell.submit(30, job("new", gpus=2, work=100))
    cell.at(100)
    assert cell.running == ["thin", "new"]


def test_a_job_without_reports_has_its_chance_once_and_then_goes_last() -> None:
    cell = Cell("1x1", "slaq", {"quantum": "100", "chance": "150"})
    cell.submit(0, job("known", work=5000))
    cell.at(10, JobProgressed(10, "known", 1, 10.0, 5.0))
    cell.at(20, JobProgressed(20, "known", 1, 20.0, 4.9))
    cell.submit(30, job("mute", work=5000))
    cell.at(100)
    assert cell.running == ["mute"]
    cell.at(200)
    assert cell.running == ["mute"], "100 s of 150"
    cell.at(300)
    assert cell.running == ["known"]


def test_slaq_drives_quality_where_it_grows_and_everybody_ends() -> None:
    curves = [LossCurve(5.0, 1.0, halves_at) for halves_at in (50.0, 400.0, 3000.0)]
    jobs = [job(f"j{k}", work=2000, loss=curve, report_every=100.0) for k, curve in enumerate(curves)]
    history = run(jobs, "1x1", "slaq", settings={"quantum": "200"})
    assert max(ends(history)) == 6000
    # Once each has had its chance, whoever still falls as at its start goes before who has come down.
    first_end = int(np.argmin(history.end_s))
    assert first_end == 2


def test_optimus_runs_the_cheapest_gangs_first() -> None:
    jobs = [job("wide", gpus=4, work=100), job("thin", gpus=1, work=300), job("mid", gpus=2, work=100)]
    assert times(run(jobs, "1x4", "optimus")) == {"wide": (300, 400), "thin": (0, 300), "mid": (0, 100)}


def test_optimus_gives_a_gpu_to_the_job_that_it_shortens_most() -> None:
    cell = Cell("1x6", "optimus")
    cell.submit(0, job("long", work=6000, gpus_max=8), job("short", work=600, gpus_max=8))
    assert (len(cell.gpus("long")), len(cell.gpus("short"))) == (4, 2)


def test_optimus_keeps_sizes_within_a_lease_and_where_growing_gains_little() -> None:
    cell = Cell("1x4", "optimus", {"quantum": "100", "gain": "60"})
    cell.submit(0, job("a", work=1000, gpus_max=4), job("b", work=10))
    assert len(cell.gpus("a")) == 3
    cell.submit(20, job("c", work=20))
    assert (len(cell.gpus("a")), cell.running) == (3, ["a", "b"]), "inside the lease"
    cell.at(100)
    assert (len(cell.gpus("a")), cell.running) == (2, ["a", "b", "c"])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 7))
def test_marginal_gains_make_the_sum_of_remaining_times_least(seed: int, jobs: int, spare: int) -> None:
    rng = np.random.default_rng(seed)
    time_s = rng.integers(1, 1000, jobs).astype(float)
    least = rng.integers(1, 3, jobs)
    most = least + rng.integers(0, 4, jobs)
    gpus = int(least.sum()) + spare
    wanted = marginal_gains(time_s, least, most, np.argsort(time_s, kind="stable"), gpus)
    assert (wanted >= least).all()
    assert (wanted <= most).all()
    assert wanted.sum() == min(gpus, most.sum())
    choices = itertools.product(*(range(a, b + 1) for a, b in zip(least, most, strict=True)))
    best = min(float((time_s / choice).sum()) for choice in choices if sum(choice) <= gpus)
    assert float((time_s / wanted).sum()) == pytest.approx(best)


def test_a_job_does_not_grow_beyond_the_quota_of_its_queue() -> None:
    cell = Cell("1x8", "optimus", {"quantum": "100"}, queues=[Queue("a", gpus_max=5)])
    cell.submit(0, job("x", gpus=2, work=500, queue="a"), job("y", gpus=4, work=400, queue="b"))
    cell.submit(10, job("grows", work=9000, gpus_max=6, queue="a"))
    assert len(cell.gpus("grows")) == 2
    cell.at(400, JobFinished(400, "y", 1))
    cell.at(401)
    assert len(cell.gpus("grows")) <= 3, "x has 2 of the 5"


def test_an_elastic_job_asks_for_no_more_than_one_type_or_its_queue_can_ever_give() -> None:
    grows = job("grows", gpus=2, gpus_min=2, gpus_max=8, work=1000, queue="lab")
    unlike = Cell("a100:1x4,k80:1x6", "optimus")
    unlike.submit(0, grows)
    assert len(unlike.engine.gpus.held[0]) == 6
    limited = Cell("1x8", "optimus", queues=[Queue("lab", gpus_max=3)])
    limited.submit(0, grows)
    assert len(limited.engine.gpus.held[0]) == 3
