"""What becomes of attempts: late and wrong reports, reports of another attempt, failures, nodes that come and go."""

from __future__ import annotations

import math

import pytest

from horae.core.commands import StopWhy
from horae.core.events import (
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
)
from horae.core.lifecycle import LONGEST_BACKOFF_S, LONGEST_LOAD_S
from horae.core.reasons import Reason
from horae.core.states import State
from tests.builders import Cell, job


def started(cell: Cell, name: str = "a") -> Cell:
    cell.submit(0, job(name, work=1000))
    return cell


@pytest.mark.parametrize(
    ("report", "now_s", "works_since_s"), [(0.0, 30, 30), (10.0, 30, 20), (99.0, 30, 5), (-7.0, 30, 30)]
)
def test_an_attempt_works_since_it_said_so_but_not_before_its_launch(
    report: float, now_s: float, works_since_s: float
) -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(5, job("a", work=1000))
    cell.tell(JobStarted(now_s, "a", 1, up_s=report))
    jobs = cell.engine.jobs
    assert (jobs.first_started_s[0], jobs.since_s[0]) == (works_since_s, works_since_s)
    assert cell.engine.snapshot().work_left.tolist() == [1000 - (now_s - works_since_s)]


def test_a_job_that_loaded_long_is_spared_for_as_long() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a", work=1000, min_runtime_s=5))
    jobs = cell.engine.jobs
    assert (jobs.promised_until_s[0], jobs.protected_until_s[0]) == (5, LONGEST_LOAD_S)
    cell.tell(JobStarted(40, "a", 1))
    assert (jobs.promised_until_s[0], jobs.protected_until_s[0]) == (45, 80)


def test_reports_of_another_attempt_or_a_dead_one_change_nothing() -> None:
    cell = started(Cell("1x1"))
    for stale in (JobFinished(1, "a", 2), JobFailed(1, "a", 0, 1), JobStarted(1, "ghost", 1), JobStarted(1, "a", 1)):
        assert not cell.engine.would_change(stale)
        cell.tell(stale)
    assert (cell.state("a"), cell.engine.dropped_reports) == (State.RUNNING, 4)
    finish = JobFinished(2, "a", 1)
    assert cell.engine.would_change(finish)
    cell.tell(finish)
    assert not cell.engine.would_change(finish)
    cell.tell(finish)
    assert (cell.state("a"), cell.engine.dropped_reports) == (State.FINISHED, 5)


def test_a_second_job_of_the_same_name_is_ignored() -> None:
    cell = started(Cell("1x1"))
    cell.tell(JobSubmitted(1, job("a", gpus=4)))
    assert (len(cell.engine.jobs), cell.engine.dropped_reports) == (1, 1)


@pytest.mark.parametrize(("said", "done"), [(300.0, 300.0), (5000.0, 1000.0), (math.nan, 250.0), (-1.0, 250.0)])
def test_the_work_of_a_stopped_attempt_is_what_it_said_if_that_is_possible(said: float, done: float) -> None:
    """An attempt that says nothing sensible has done what it began with."""
    cell = Cell("1x1", slow_stops=True)
    cell.submit(0, job("a", work=1000))
    cell.at(250, JobHeld(250, "a"))
    cell.at(250, JobStopped(250, "a", 1, 250.0))
    cell.at(260, JobReleased(260, "a"))
    assert cell.attempt("a") == 2
    cell.at(400, JobHeld(400, "a"))
    cell.tell(JobStopped(401, "a", 2, said))
    assert cell.engine.jobs.reported[0] == done
    assert cell.engine.jobs.work_left[0] == 1000 - done


def test_progress_that_is_no_number_is_dropped_and_other_progress_bends_the_line() -> None:
    cell = started(Cell("1x1"))
    cell.tell(JobProgressed(100, "a", 1, math.nan))
    assert cell.engine.dropped_reports == 1
    cell.tell(JobProgressed(100, "a", 1, 40.0))
    assert cell.engine.jobs.work_left[0] == 960
    cell.engine.advance(110)
    assert cell.engine.snapshot().work_left.tolist() == [950.0]


def test_the_end_of_an_attempt_leaves_nothing_behind() -> None:
    cell = started(Cell("1x1"))
    cell.tell(NodeObserved(1, cell.engine.gpus.cluster.nodes[0].name, ()))
    assert cell.engine.evicted == {0: StopWhy.NODE_LOST}
    cell.tell(JobFinished(2, "a", 1))
    state = cell.engine._state
    assert (state.launched, state.stopped, state.evicted, state.learner.measured_from) == ({}, {}, {}, {})
    assert cell.engine.outstanding() == ()


def test_a_launch_that_fails_is_tried_again_later_and_later_and_success_begins_anew() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a", work=1e6))
    now_s, waits = 0.0, []
    for attempt in range(1, 12):
        cell.tell(LaunchFailed(now_s, "a", attempt))
        until_s = cell.engine._state.backoff[0]
        waits.append(until_s - now_s)
        assert cell.reason("a") is Reason.BACKING_OFF
        cell.at(until_s - 0.5)
        assert cell.attempt("a") == attempt, "it is not tried before its time"
        now_s = until_s
        cell.at(now_s)
        assert cell.attempt("a") == attempt + 1
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_BACKOFF_S, LONGEST_BACKOFF_S]
    cell.tell(JobStarted(now_s, "a", 12))
    assert cell.engine.jobs.launch_failures[0] == 0


@pytest.mark.parametrize(
    ("spec", "exit_code", "tries"),
    [
        ({"max_restarts": 0}, 1, 1),
        ({"max_restarts": 2}, 1, 3),
        ({"max_restarts": 2, "retry_exit_codes": (75,)}, 75, 3),
        ({"max_restarts": 2, "retry_exit_codes": (75,)}, 1, 1),
    ],
)
def test_a_job_is_restarted_as_often_as_it_may_be(spec: dict[str, object], exit_code: int, tries: int) -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a", work=1000, **spec))
    now_s = 0.0
    for attempt in range(1, tries + 1):
        assert cell.attempt("a") == attempt
        now_s += 1000.0
        cell.at(now_s, JobFailed(now_s, "a", attempt, exit_code))
        cell.at(now_s + 400)
    assert cell.state("a") is State.FAILED
    assert cell.engine.jobs.failures[0] == tries
    assert not cell.engine.retries


def test_a_job_that_is_held_while_it_backs_off_is_tried_no_more() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"))
    cell.tell(LaunchFailed(0, "a", 1))
    cell.at(0, JobHeld(0, "a"))
    assert not cell.engine.retries
    cell.at(500)
    assert (cell.state("a"), cell.attempt("a")) == (State.HELD, 1)


def test_what_runs_on_a_node_and_should_not_is_stopped_and_what_should_and_does_not_starts_again() -> None:
    cell = Cell("1x2", slow_stops=True)
    cell.submit(0, job("a", work=1000), job("b", work=1000))
    node = cell.engine.gpus.cluster.nodes[0].name
    decided = cell.at(5, NodeObserved(5, node, (("a", 1), ("b", 7), ("ghost", 3))))
    assert {(stop.job, stop.attempt, stop.why) for stop in decided.stops} == {
        ("b", 7, StopWhy.STRAY),
        ("ghost", 3, StopWhy.STRAY),
        ("b", 1, StopWhy.NODE_LOST),
    }
    assert (cell.state("a"), cell.state("b")) == (State.RUNNING, State.STOPPING)
    assert cell.at(6).stops == (), "strays are stopped once"


def test_an_attempt_that_still_starts_need_not_be_seen() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"))
    node = cell.engine.gpus.cluster.nodes[0].name
    assert cell.at(1, NodeObserved(1, node, ())).stops == ()


@pytest.mark.parametrize(
    ("event", "why"),
    [(NodeLost, StopWhy.NODE_LOST), (lambda now_s, node: NodeDraining(now_s, node, evict=True), StopWhy.DRAINED)],
)
def test_jobs_of_a_node_that_goes_are_stopped(event, why: StopWhy) -> None:
    cell = Cell("2x1", slow_stops=True)
    cell.submit(0, job("a"), job("b"))
    node = cell.engine.gpus.cluster.nodes[0].name
    assert [(stop.job, stop.why) for stop in cell.at(1, event(1, node)).stops] == [("a", why)]


def test_a_node_that_drains_keeps_its_jobs_and_gets_no_new_ones() -> None:
    cell = Cell("1x2")
    cell.submit(0, job("a"))
    node = cell.engine.gpus.cluster.nodes[0]
    assert cell.at(1, NodeDraining(1, node.name)).stops == ()
    cell.submit(2, job("b"))
    assert (cell.state("a"), cell.state("b")) == (State.RUNNING, State.WAITING)
    cell.at(3, NodeJoined(3, node))
    assert cell.state("b") is State.RUNNING


def test_gpus_that_were_set_aside_on_a_node_that_goes_are_so_no_more() -> None:
    cell = Cell("2x1", "srtf", slow_stops=True)
    cell.submit(0, job("long", work=1000), job("longer", work=2000))
    cell.submit(10, job("short", work=5))
    [chosen] = cell.gpus("short")
    assert cell.state("short") is State.PLACED
    node = cell.engine.gpus.cluster.nodes[int(cell.engine.gpus.cluster.gpu_node[chosen])]
    cell.tell(NodeLost(11, node.name))
    assert (cell.state("short"), cell.gpus("short")) == (State.WAITING, ())
    assert cell.engine.due(11)


@pytest.mark.parametrize("event", [JobCancelled, JobHeld])
def test_a_job_that_is_withdrawn_leaves_the_line_at_once_and_its_gpus_when_it_has_stopped(event) -> None:
    cell = Cell("1x1", slow_stops=True)
    cell.submit(0, job("a", work=1000), job("b"))
    cell.at(10, event(10, "a"))
    assert cell.engine.jobs.active.tolist() == [1]
    assert cell.state("b") is not State.RUNNING
    cell.at(12, JobStopped(12, "a", 1, 10.0))
    assert cell.state("b") is State.RUNNING
    assert cell.engine.jobs.ended_s[0] == (12 if event is JobCancelled else math.inf)


def test_a_released_job_waits_since_its_release() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a", work=1000), job("b"))
    cell.at(1, JobHeld(1, "b"))
    cell.at(50, JobReleased(50, "b"))
    assert cell.engine.jobs.waiting_since_s[1] == 50
    assert cell.engine.jobs.active.tolist() == [0, 1]


def test_a_finish_without_a_start_counts_work_since_the_launch() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(10, job("a", gpus=1, work=100))
    cell.tell(JobFinished(60, "a", 1))
    jobs = cell.engine.jobs
    assert (jobs.first_started_s[0], jobs.gpu_seconds[0], jobs.work_left[0]) == (10, 50, 0)


def test_only_stops_that_the_policy_wants_are_preemptions() -> None:
    cell = Cell("1x1", "srtf")
    [node] = cell.engine.gpus.cluster.nodes
    cell.submit(0, job("a", work=1000))
    cell.at(10, NodeDraining(10, node.name, evict=True))
    cell.at(20, NodeJoined(20, node))
    assert (cell.attempt("a"), cell.engine.jobs.preemptions[0]) == (2, 0)
    cell.submit(30, job("short", work=5))
    assert (cell.running, cell.engine.jobs.preemptions[0]) == (["short"], 1)


def test_a_decision_takes_note_that_gpus_came_free_once() -> None:
    cell = Cell("1x2", "srtf", slow_stops=True)
    cell.submit(0, job("a", work=1000), job("b", work=1000))
    cell.submit(10, job("wide", gpus=2, work=5))
    assert not cell.engine.due(10)
    cell.tell(JobStopped(11, "a", 1, 10.0))
    assert cell.engine.due(11), "the last GPU may have come free"
    cell.engine.decide(11)
    assert not cell.engine.due(11), "the other job still sits on its GPU, and nothing else has happened"


def test_an_attempt_that_stops_of_its_own_accord_is_looked_at_anew() -> None:
    cell = Cell("1x1", slow_stops=True)
    cell.submit(0, job("a", work=1000))
    cell.tell(JobStopped(10, "a", 1, 5.0))
    assert (cell.state("a"), cell.reason("a")) == (State.WAITING, Reason.NOT_YET_CONSIDERED)
    assert cell.engine.due(10)


def test_a_job_that_was_stopped_for_another_keeps_the_reason_that_it_was_told() -> None:
    cell = Cell("1x1", "srtf", slow_stops=True)
    cell.submit(0, job("long", work=1000))
    cell.submit(10, job("short", work=5))
    assert cell.reason("long") is Reason.BEHIND_SHORTER
    cell.tell(JobStopped(12, "long", 1, 10.0))
    assert cell.reason("long") is Reason.BEHIND_SHORTER
    assert not cell.engine._state.must_plan, "the launch of the other job needs no plan"


# --------------------------------------------- attempts whose start is known only at their end


@pytest.mark.parametrize("request_type", [JobCancelled, JobHeld])
def test_an_attempt_known_to_have_worked_after_its_stop_has_had_its_gpus_until_the_stop(
    request_type: type[JobCancelled | JobHeld],
) -> None:
    cell = Cell("1x2", slow_starts=True, slow_stops=True)
    cell.submit(0, job("a", gpus=2, work=1000))
    cell.at(3, request_type(3, "a"))
    # Its process came up half a second after the launch, and took a second to end.
    late = JobStarted(4, "a", 1, up_s=3.5)
    assert cell.engine.would_change(late)
    cell.tell(late)
    assert not cell.engine.would_change(late), "told twice, it counts once"
    cell.at(4, JobStopped(4, "a", 1, 0.0))
    jobs = cell.engine.jobs
    assert (jobs.gpu_seconds[0], jobs.executed_s[0], jobs.first_started_s[0]) == (5.0, 2.5, 0.5)


def test_an_attempt_that_was_stopped_while_loading_has_had_no_gpu_time() -> None:
    cell = Cell("1x1", slow_starts=True, slow_stops=True)
    cell.submit(0, job("a", work=1000))
    cell.at(3, JobHeld(3, "a"))
    for late in (JobStarted(4, "a", 1), JobStarted(4, "a", 1, up_s=1.0)):
        assert not cell.engine.would_change(late)
        cell.tell(late)
    cell.at(4, JobStopped(4, "a", 1, 0.0))
    assert (cell.engine.jobs.gpu_seconds[0], cell.engine.dropped_reports) == (0.0, 2)


def test_a_start_told_again_after_the_stop_counts_once() -> None:
    cell = Cell("1x1", slow_starts=True, slow_stops=True)
    cell.submit(0, job("a", work=1000))
    cell.at(5, JobStarted(5, "a", 1, up_s=5.0))
    cell.at(8, JobHeld(8, "a"))
    assert not cell.engine.would_change(JobStarted(9, "a", 1, up_s=9.0))
    cell.at(9, JobStarted(9, "a", 1, up_s=9.0), JobStopped(9, "a", 1, 0.0))
    assert cell.engine.jobs.gpu_seconds[0] == 8.0


def test_an_attempt_preempted_before_its_start_was_known_has_lost_its_work_and_gets_a_longer_slice() -> None:
    cell = Cell("1x1", "srtf", slow_starts=True, slow_stops=True)
    cell.submit(0, job("long", work=1000))
    cell.submit(4, job("short", work=10))
    at_s = LONGEST_LOAD_S
    cell.at(at_s)
    assert cell.state("long") is State.STOPPING
    cell.at(at_s + 1, JobStarted(at_s + 1, "long", 1, up_s=at_s + 1), JobStopped(at_s + 1, "long", 1, 0.0))
    jobs = cell.engine.jobs
    assert (jobs.gpu_seconds[0], jobs.lost_work[0], jobs.slice_s[0]) == (at_s, at_s, 2 * at_s)


def test_a_report_after_the_stop_does_not_move_it() -> None:
    cell = Cell("1x1", slow_starts=True, slow_stops=True)
    cell.submit(0, job("a", work=1000))
    cell.at(2, JobCancelled(2, "a"))
    cell.at(3, JobProgressed(3, "a", 1, 7.0), JobStarted(3, "a", 1, up_s=3.0), JobStopped(3, "a", 1, 7.0))
    assert (cell.engine.jobs.gpu_seconds[0], cell.engine.jobs.reported[0]) == (2.0, 7.0)
