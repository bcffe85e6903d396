"""Replays of a service whose backend takes time: a launch 1 s, a stop 0.5 s, an end 0.5 s until it is noticed.

Tests service/history/simulation_costs.py and service/history/journal_history.py, and `notice_s` of simulator/world.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from horae.backends.fake import FakeJob
from horae.core.history import History
from horae.core.job import JobSpec
from horae.service.history.journal_history import read_history
from horae.service.history.simulation_costs import Costs, calibrate, replayable
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.testing import job
from horae.workload.clusters import parse_cluster
from tests.service.stepped_service import SteppedService

JOBS = 12
POLICIES: dict[str, dict[str, str]] = {"fifo": {}, "time-slice": {"quantum": "4"}, "las": {}}


def lived(folder: Path, policy: str) -> History:
    """A live run of twelve jobs of two GPUs on four, which report four times a second."""
    cell = SteppedService(folder, policy, gpus=4, **POLICIES[policy])
    draw = np.random.default_rng(3)
    lengths_s = draw.integers(6, 20, JOBS).tolist()
    coming = list(zip(np.cumsum(draw.integers(0, 5, JOBS)).tolist(), lengths_s, strict=True))
    while coming or cell.world.running or cell.now_s < 5.0:
        while coming and coming[0][0] <= cell.now_s:
            _, lasts_s = coming.pop(0)
            script = FakeJob(lasts_s=float(lasts_s), ready_s=1.0, stop_s=0.5, exit_s=0.5)
            cell.world.jobs[f"train-{JOBS - len(coming)}"] = script
            estimate = {"steps": 100 * lasts_s, "duration": float(lasts_s)}
            cell.submit(name="train", resources={"gpus": 2}, estimate=estimate, **{"class": "train"})
        cell.to(cell.now_s + 0.25, step_s=0.25)
        report_all(cell)
        assert cell.now_s < 500, "the jobs never end"
    cell.to(cell.now_s + 1.0)
    history = read_history(cell.daemon.initial_settings, (record for _, record in cell.store.tail(0)))
    cell.crash()
    assert history.finished.all()
    return history


def report_all(cell: SteppedService) -> None:
    """Every job that works tells how far it is."""
    for (name, attempt), run in list(cell.world.running.items()):
        work = run.start.task.work
        worked_s = cell.now_s - run.ready_at_s
        done = cell.world.saved.get(name, 0.0) + worked_s / run.script.lasts_s * work
        if worked_s >= 0 and done < work and not run.stop_requested:
            cell.ask(partial(cell.operations.progress, name, attempt, done, work))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, History]:
    return {policy: lived(tmp_path_factory.mktemp("live") / policy, policy) for policy in POLICIES}


def average_jct_s(history: History) -> float:
    return float((history.end_s - history.submit_s).mean())


def error(jobs: Sequence[JobSpec], policy: str, runs: dict[str, History]) -> float:
    """How far the simulated average JCT under a policy is from what the service really did under it."""
    scenario = Scenario(jobs, runs[policy].cluster, policy, POLICIES[policy], restart_cost_s=0.0)
    return average_jct_s(simulate(scenario)) / average_jct_s(runs[policy]) - 1.0


@pytest.mark.parametrize("past", ["time-slice", "las"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_replay_is_true_where_launches_and_stops_take_time(runs: dict[str, History], past: str, policy: str) -> None:
    jobs = replayable(runs[past])
    free = [replace(job, start_s=0.0, restore_s=0.0, checkpoint_s=0.0, finish_s=0.0, notice_s=0.0) for job in jobs]
    assert abs(error(jobs, policy, runs)) < 0.02
    assert abs(error(free, policy, runs)) > 0.1, "without the latencies it is not"


@pytest.mark.parametrize("past", ["time-slice", "las"])
def test_what_is_learnt_is_what_the_backend_takes(runs: dict[str, History], past: str) -> None:
    learnt = calibrate(runs[past]).costs["ann/train"]
    assert learnt == Costs(1.0, 1.0, 0.5, pytest.approx(0.5, abs=0.01), pytest.approx(0.5, abs=0.01))


def test_work_after_a_stop_request_counts(runs: dict[str, History]) -> None:
    """Each turn of 4 s would lose 0.5 s of 3.5 s of work."""
    jobs = replayable(runs["time-slice"])
    deaf = [replace(job, notice_s=None) for job in jobs]
    assert abs(error(jobs, "time-slice", runs)) < 0.02
    assert error(deaf, "time-slice", runs) > 0.2


def test_the_end_of_jobs_with_several_attempts_is_learnt(runs: dict[str, History]) -> None:
    """Under time-slice no job has a single attempt."""
    history = runs["time-slice"]
    assert np.bincount(history.attempts.job).min() > 1
    jobs = replayable(history)
    at_once = [replace(job, finish_s=0.0) for job in jobs]
    assert abs(error(jobs, "fifo", runs)) < 0.01
    assert error(at_once, "fifo", runs) < -0.04


def test_preemptions_that_were_never_seen_are_not_free(runs: dict[str, History]) -> None:
    jobs = replayable(runs["fifo"])
    assert {(job.restore_s, job.checkpoint_s) for job in jobs} == {(1.0, 0.5)}
    free = [replace(job, restore_s=0.0, checkpoint_s=0.0) for job in jobs]
    assert abs(error(jobs, "las", runs)) < 0.05 < abs(error(free, "las", runs))


def test_a_class_without_measurements_has_those_of_all_and_never_a_free_start() -> None:
    nan = float("nan")
    overall = Costs(2.0, nan, nan, 3.0, nan)
    assert Costs(nan, nan, nan, nan, nan).filled(overall) == Costs(2.0, 2.0, 3.0, 3.0, 0.0)
    assert Costs(5.0, nan, nan, 6.0, nan).filled(overall) == Costs(5.0, 5.0, 6.0, 6.0, 0.0)
    assert Costs(5.0, 7.0, 8.0, 6.0, 1.0).filled(overall) == Costs(5.0, 7.0, 8.0, 6.0, 1.0)


# The simulated world


def stopped_at(notice_s: float | None, finish_s: float = 0.0, checkpoint_s: float = 2.0) -> History:
    """Job `a` of 105 s of work is stopped after 100 s, for `b`."""
    first = job("a", work=105, checkpoint_s=checkpoint_s, restore_s=0.0, notice_s=notice_s, finish_s=finish_s)
    scenario = Scenario(
        [first, job("b", work=50, submit_s=99.0)],
        parse_cluster("1x1"),
        "time-slice",
        {"quantum": "100"},
        restart_cost_s=0.0,
    )
    return simulate(scenario)


def test_a_simulated_job_works_on_until_it_hears_of_the_stop() -> None:
    assert stopped_at(None).end_s.tolist() == [157.0, 152.0], "5 s of work are left"
    assert stopped_at(1.5).end_s.tolist() == [155.5, 152.0], "3.5 s of work are left"
    assert stopped_at(3.0).end_s.tolist() == [155.0, 153.0], "a stop takes no less than the notice"


def test_a_simulated_job_that_is_done_before_it_hears_of_the_stop_finishes() -> None:
    assert stopped_at(5.0).end_s.tolist() == [105.0, 155.0]
    assert stopped_at(7.0, finish_s=1.0).end_s.tolist() == [106.0, 156.0]
