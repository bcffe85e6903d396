"""Jobs that never save: they end, whatever preempts them, and gain nothing by it. Tests core/lifecycle.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horae.backends.fake import FakeJob
from horae.core.events import JobStopped
from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.states import State
from horae.solve.allocation.problem import AllocationProblem, Solution
from tests.builders import Cell, ends, job, run
from tests.policies.short_turns import TURNS
from tests.service.stepped_service import ADMIN, SteppedService

every_policy = pytest.mark.parametrize("policy", TURNS)


def plain(name: str, work: float, **more: float) -> JobSpec:
    return job(name, work=work, resumable=False, **more)


def held_s(history: History) -> list[float]:
    """Seconds that each job held GPUs, over all attempts."""
    attempts = history.attempts
    return [float((attempts.end_s - attempts.begin_s)[attempts.job == row].sum()) for row in range(len(history.jobs))]


@every_policy
@pytest.mark.parametrize("count", [2, 5])
def test_jobs_that_never_save_end_and_run_at_most_three_times_their_length(policy: str, count: int) -> None:
    history = run([plain(f"plain-{k}", 25.0) for k in range(count)], "1x1", policy, settings=TURNS[policy])
    assert not np.isnan(history.end_s).any()
    assert max(held_s(history)) <= 3 * 25


@every_policy
@pytest.mark.parametrize("work", [15.0, 25.0, 95.0])
def test_not_saving_gains_nothing(policy: str, work: float) -> None:
    """One job of six does not save."""
    jobs = [job(f"job-{k}", work=work) for k in range(6)]
    for who in (0, 3, 5):
        unsaved = [replace(one, resumable=k != who) for k, one in enumerate(jobs)]
        honest = ends(run(jobs, "1x1", policy, settings=TURNS[policy]))
        other = ends(run(unsaved, "1x1", policy, settings=TURNS[policy]))
        assert other[who] >= honest[who], who


@every_policy
def test_live_jobs_that_never_save_end_too_and_are_told_why_they_begin_anew(policy: str, tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, policy, gpus=1, **TURNS[policy])
    cell.world.default = FakeJob(lasts_s=25.0, saves=False)
    ids = [cell.submit(estimate={"duration": "25s"}) for _ in range(2)]
    told: set[str] = set()
    while cell.now_s < 400 and any(cell.state(name) != "finished" for name in ids):
        cell.to(cell.now_s + 1)
        views = cell.views()
        told |= {views.why(ADMIN, views.visible_row(ADMIN, name))["sentence"] for name in ids}
    assert [cell.state(name) for name in ids] == ["finished", "finished"]
    views = cell.views()
    ran_s = [float(views.job(views.visible_row(ADMIN, name))["ran_s"]) for name in ids]
    assert max(ran_s) <= 3 * 25
    assert max(ran_s) > 25, "a job is preempted at least once"
    assert any("It saved nothing before it was preempted and begins anew, for at least " in one for one in told)
    cell.crash()


def test_a_job_that_saves_is_preempted_as_soon_as_before() -> None:
    history = run([job("a", work=100), job("b", work=100)], "1x1", "las", settings={"quantum": "10"})
    assert max((history.attempts.end_s - history.attempts.begin_s).tolist()) <= 20


@pytest.mark.parametrize(("policy", "left"), [("finish-time", [70.0, 100.0]), ("makespan", [100.0, 100.0])])
def test_finish_time_goes_by_the_work_left_had_the_job_saved_and_makespan_by_all_of_it(
    policy: str, left: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("1x1", policy, slow_starts=True)
    cell.submit(0, job("lost", work=100), job("fresh", work=100))
    cell.engine.jobs.lost_work[0] = 30.0
    solved: list[list[float]] = []
    allocate = type(cell.engine.policy).allocate

    def noted(self: Any, problem: AllocationProblem) -> Solution:
        solved.append(problem.steps_left.tolist())
        return allocate(self, problem)

    monkeypatch.setattr(type(cell.engine.policy), "allocate", noted)
    cell.engine.policy.plan(cell.engine.snapshot(), cell.engine.memory)
    assert solved[-1] == left


def test_work_lost_has_taken_its_isolated_time_once() -> None:
    """Alone, 25 s of work take 50 s beside another job; 10 s that were lost add nothing when they are done again."""
    cell = Cell("1x1", "finish-time", {"round": "10", "stay": "0"}, slow_stops=True)
    cell.submit(0, job("a", work=25), job("b", work=25))
    first = "a" if cell.state("a") is State.RUNNING else "b"
    row = cell.engine.jobs.rows[first]
    cell.at(10)
    assert cell.state(first) is State.STOPPING
    cell.at(10, JobStopped(10, first, 1, 0.0))
    assert cell.engine.jobs.lost_work[row] == 10
    cell.at(20)
    assert cell.engine.memory.column("isolated_s", np.array([row])).tolist() == [20.0]
    assert cell.engine.memory.column("left", np.array([row])).tolist() == [15.0]
