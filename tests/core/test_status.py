"""The status is of one moment: the engine goes on, and the status does not."""

from __future__ import annotations

from horae.core.events import JobFinished, JobsRetired, NodeJoined, NodeLost
from horae.core.states import State
from tests.builders import Cell, job


def test_what_happens_later_does_not_change_a_status() -> None:
    cell = Cell("1x2")
    cell.submit(0, job("a"), job("b", gpus=2))
    before = cell.engine.status()
    held = dict(before.held)
    cell.at(50, JobFinished(50, "a", 1))
    cell.submit(60, job("c"))
    assert (before.now_s, len(before), before.held) == (0, 2, held)
    assert (before.state(0), before.row("c")) == (State.RUNNING, None)
    after = cell.engine.status()
    assert (after.state(0), after.row("c"), after.spec(2).id) == (State.FINISHED, 2, "c")


def test_a_job_nobody_submitted_has_no_row() -> None:
    assert Cell().engine.status().row("ghost") is None


def test_gpus_of_a_lost_node_are_not_there_and_of_one_that_came_back_smaller_only_some() -> None:
    cell = Cell("2x3")
    first = cell.engine.gpus.cluster.nodes[0]
    assert cell.engine.status().gpu_there.tolist() == [True] * 6
    cell.at(1, NodeLost(1, first.name))
    assert cell.engine.status().gpu_there.tolist() == [False] * 3 + [True] * 3
    cell.at(2, NodeJoined(2, type(first)(first.name, first.gpu_type, 2, first.rack)))
    assert cell.engine.status().gpu_there.tolist() == [True, True, False, True, True, True]


def test_rows_of_two_statuses_mean_the_same_jobs_unless_some_have_left_between_them() -> None:
    cell = Cell("1x2")
    cell.submit(0, job("a", work=1), job("b"))
    before = cell.engine.status()
    cell.at(1, JobFinished(1, "a", 1))
    assert cell.engine.status().jobs is before.jobs
    cell.tell(JobsRetired(10, 5))
    assert cell.engine.status().jobs is not before.jobs
    assert before.spec(0).id == "a"
