"""Rho, live: the same numbers that a report gives of the same past."""

from __future__ import annotations

import numpy as np
import pytest

from horae.core.cluster import Node
from horae.core.events import JobFinished, NodeJoined, NodeLost
from horae.report.metrics.fairness import finish_time_fairness
from horae.service.views.live_fairness import RECENT_S, slowdowns_by_queue
from tests.builders import Cell, Script, job


def test_two_equal_jobs_one_after_the_other() -> None:
    """A runs at once and B after it. A saw two apps, so 200 s were fair; B saw 1.5 on average, so 150 s."""
    cell = Cell("1x4", policy="fifo")
    cell.submit(0, job("a", 4, queue="team/a"), job("b", 4, queue="team/b"))
    cell.at(100, JobFinished(100, "a", 1))
    cell.at(200, JobFinished(200, "b", 1))
    found = slowdowns_by_queue(cell.engine.status(), 200)
    assert found["team/a"].avg == pytest.approx(100 / 200)
    assert found["team/b"].max == pytest.approx(200 / 150)


def test_a_job_is_judged_by_its_own_speed_not_by_what_was_guessed() -> None:
    """Guessed to take an hour, it took 10 s alone: that is its fair share, too."""
    cell = Cell("1x4", policy="fifo")
    cell.submit(0, job("a", 4, work=3600))
    cell.at(10, JobFinished(10, "a", 1))
    assert slowdowns_by_queue(cell.engine.status(), 10)["default"].avg == pytest.approx(1)


def test_only_apps_that_ended_lately_count_but_all_their_company_does() -> None:
    cell = Cell("1x4", policy="fifo")
    cell.submit(0, job("old", 4, queue="q"))
    cell.at(100, JobFinished(100, "old", 1))
    later = 100 + 2 * RECENT_S
    cell.submit(later, job("new", 4, 100, later, queue="q"), job("stays", 4, 1e9, later, queue="q"))
    cell.at(later + 50, JobFinished(later + 50, "new", 1))
    found = slowdowns_by_queue(cell.engine.status(), later + 50)
    assert found["q"].avg == found["q"].max == pytest.approx(0.5), "with one other there, half the cluster was fair"


def test_a_host_that_came_back_larger_counts_once_and_a_lost_one_not_at_all() -> None:
    """On the 4 GPUs that are there 200 s would have been fair; on 2 + 4 + 8 it would have been less."""
    cell = Cell("1x2", policy="fifo")
    old = cell.engine.gpus.cluster.nodes[0].name
    larger, left = Node(f"{old}~2", "v100", 4), Node("left", "v100", 8)
    cell.at(0, NodeJoined(0, left))
    cell.at(1, NodeLost(1, left.name), NodeLost(1, old))
    cell.at(2, NodeJoined(2, larger))
    many = {"gpus_min": 1, "gpus_max": 14}
    cell.submit(2, job("a", 4, 100, 2.0, queue="team/a", **many), job("b", 4, 100, 2.0, queue="team/b", **many))
    cell.at(102, JobFinished(102, "a", 1))
    assert slowdowns_by_queue(cell.engine.status(), 102)["team/a"].avg == pytest.approx(100 / 200)
    cell.at(103, NodeLost(103, larger.name))
    assert slowdowns_by_queue(cell.engine.status(), 103) == {}, "without any GPU nothing is fair"


def test_nothing_ended_nothing_told() -> None:
    cell = Cell("1x4", policy="fifo")
    assert slowdowns_by_queue(cell.engine.status(), 0) == {}
    cell.submit(0, job("a"))
    assert slowdowns_by_queue(cell.engine.status(), 5) == {}


def test_it_agrees_with_the_report_of_a_run() -> None:
    rng = np.random.default_rng(5)
    jobs = [
        job(f"j{n}", int(rng.integers(1, 5)), float(rng.integers(20, 200)), float(n * 20), queue=f"q{n % 3}")
        for n in range(30)
    ]
    script = Script(jobs, "1x4", policy="fifo-backfill")
    rho = finish_time_fairness(script.history).rho
    at = script.engine.status()
    found = slowdowns_by_queue(at, at.now_s)
    for number in range(3):
        assert found[f"q{number}"].avg == pytest.approx(rho[number::3].mean())
        assert found[f"q{number}"].max == pytest.approx(rho[number::3].max())
