"""The life of a job as the engine sees it: events in, commands out.

Tests core/commands.py and core/events.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from horae.core.cluster import Node
from horae.core.commands import Launch, Stop, StopWhy
from horae.core.events import (
    Event,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobTimedOut,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.states import State
from tests.builders import Cell, Script, job


def in_state(state: State) -> Cell:
    """A cell whose job `a` stands where wanted, brought there by events alone."""
    cell = Cell("1x1", "srtf", slow_stops=True, slow_starts=True)
    if state is State.PLACED:
        cell.submit(0, job("b", work=500))
        cell.tell(JobStarted(0, "b", 1))
        cell.submit(1, job("a"))
    elif state is State.WAITING:
        cell.submit(0, job("b", work=10))
        cell.submit(0, job("a"))
    else:
        cell.submit(0, job("a"))
        _lead(cell, state)
    assert cell.state("a") is state
    return cell


def _lead(cell: Cell, state: State) -> None:
    if state is not State.LAUNCHING:
        cell.at(1, JobStarted(1, "a", 1))
    if state is State.STOPPING:
        cell.submit(2, job("b", work=10))
    elif state in (State.HOLDING, State.HELD):
        cell.at(2, JobHeld(2, "a"))
    elif state in (State.CANCELLING, State.CANCELLED):
        cell.at(2, JobCancelled(2, "a"))
    elif state in (State.TIMING_OUT, State.TIMEOUT):
        cell.at(2, JobTimedOut(2, "a"))
    elif state is State.FINISHED:
        cell.at(2, JobFinished(2, "a", 1))
    elif state is State.FAILED:
        cell.at(2, JobFailed(2, "a", 1, exit_code=1))
    if state in (State.HELD, State.CANCELLED, State.TIMEOUT):
        cell.at(3, JobStopped(3, "a", 1, 2.0))


def moved(state: State, event: Event) -> tuple[State, int]:
    """Where an event takes the job, and how many reports were dropped."""
    cell = in_state(state)
    dropped = cell.engine.dropped_reports
    cell.tell(event)
    return cell.state("a"), cell.engine.dropped_reports - dropped


S = State
Request = JobHeld | JobReleased | JobCancelled | JobTimedOut
REQUESTS: dict[type[Request], dict[State, State]] = {
    JobHeld: {
        S.WAITING: S.HELD, S.PLACED: S.HELD, S.LAUNCHING: S.HOLDING, S.RUNNING: S.HOLDING, S.STOPPING: S.HOLDING,
    },
    JobReleased: {S.HELD: S.WAITING, S.HOLDING: S.STOPPING},
    JobCancelled: {
        S.WAITING: S.CANCELLED, S.HELD: S.CANCELLED, S.PLACED: S.CANCELLED, S.LAUNCHING: S.CANCELLING,
        S.RUNNING: S.CANCELLING, S.STOPPING: S.CANCELLING, S.HOLDING: S.CANCELLING,
    },
    JobTimedOut: {S.LAUNCHING: S.TIMING_OUT, S.RUNNING: S.TIMING_OUT},
}  # fmt: skip


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("request_type", REQUESTS)
def test_a_request_moves_a_job_or_is_dropped(state: State, request_type: type[Request]) -> None:
    expected = REQUESTS[request_type].get(state)
    outcome = (state, 1) if expected is None else (expected, 0)
    assert moved(state, request_type(10, "a")) == outcome


REPORTS: dict[str, tuple[Event, dict[State, State]]] = {
    "started": (JobStarted(10, "a", 1), {S.LAUNCHING: S.RUNNING}),
    "finished": (JobFinished(10, "a", 1), dict.fromkeys(
        (S.LAUNCHING, S.RUNNING, S.STOPPING, S.HOLDING, S.CANCELLING, S.TIMING_OUT), S.FINISHED)),
    "stopped": (JobStopped(10, "a", 1, 5.0), {
        S.LAUNCHING: S.WAITING, S.RUNNING: S.WAITING, S.STOPPING: S.WAITING, S.HOLDING: S.HELD,
        S.CANCELLING: S.CANCELLED, S.TIMING_OUT: S.TIMEOUT}),
    "failed": (JobFailed(10, "a", 1, exit_code=1), {
        S.LAUNCHING: S.FAILED, S.RUNNING: S.FAILED, S.STOPPING: S.FAILED, S.HOLDING: S.FAILED,
        S.CANCELLING: S.CANCELLED, S.TIMING_OUT: S.TIMEOUT}),
    "launch failed": (LaunchFailed(10, "a", 1), {
        S.LAUNCHING: S.WAITING, S.RUNNING: S.WAITING, S.STOPPING: S.WAITING, S.HOLDING: S.HELD,
        S.CANCELLING: S.CANCELLED, S.TIMING_OUT: S.TIMEOUT}),
}  # fmt: skip


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("report", REPORTS)
def test_a_report_moves_a_job_or_is_dropped(state: State, report: str) -> None:
    event, table = REPORTS[report]
    outcome = (state, 1) if state not in table else (table[state], 0)
    assert moved(state, event) == outcome


@pytest.mark.parametrize("state", [S.LAUNCHING, S.RUNNING, S.STOPPING, S.HOLDING, S.CANCELLING])
@pytest.mark.parametrize("attempt", [0, 2, 17])
@pytest.mark.parametrize("kind", [JobStarted, JobFinished, LaunchFailed])
def test_a_report_of_another_attempt_is_dropped_wherever_the_job_stands(
    state: State, attempt: int, kind: type[JobFinished]
) -> None:
    assert moved(state, kind(10, "a", attempt)) == (state, 1)


def test_a_report_sent_twice_counts_once() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a"))
    for _ in range(3):
        cell.at(50, JobStopped(50, "a", 1, 40.0))
    assert (cell.attempt("a"), cell.state("a"), cell.engine.dropped_reports) == (2, State.RUNNING, 2)
    assert cell.engine.jobs.work_left[0] == 60


def test_the_first_attempt_cannot_finish_the_job_once_the_second_runs() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a"))
    cell.at(50, JobStopped(50, "a", 1, 50.0))
    cell.at(60, JobFinished(60, "a", 1))
    assert cell.state("a") is State.RUNNING
    cell.at(70, JobFinished(70, "a", 2))
    assert cell.state("a") is State.FINISHED


@pytest.mark.parametrize(
    "event",
    [JobFinished(5, "x", 1), JobCancelled(5, "x"), JobHeld(5, "x"), JobReleased(5, "x"), NodeLost(5, "x"),
     NodeDraining(5, "x"), NodeObserved(5, "x", ())],
)  # fmt: skip
def test_news_of_what_nobody_knows_is_dropped(event: Event) -> None:
    cell = Cell("1x1")
    cell.tell(event)
    assert cell.engine.dropped_reports == 1


def test_a_job_submitted_twice_is_one_job() -> None:
    cell = Cell("1x4")
    cell.submit(0, job("a", work=100))
    cell.submit(1, job("a", work=7))
    assert (len(cell.engine.jobs), cell.engine.jobs.work[0]) == (1, 100)


def test_time_never_runs_backwards() -> None:
    cell = Cell("1x1")
    cell.submit(100, job("a"))
    cell.tell(JobProgressed(40, "a", 1, 10.0))
    assert cell.engine.now_s == 100
    assert cell.engine.decide(70).at_s == 100


# ------------------------------------------------------------ hold and release


def test_a_held_job_stops_frees_its_gpus_for_others_and_goes_on_where_it_was() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a"), job("b"))
    record = cell.at(30, JobHeld(30, "a"))
    assert record.stops == (Stop("a", 1, StopWhy.HELD),)
    assert (cell.running, cell.reason("a")) == (["b"], Reason.HELD)
    cell.at(40, JobReleased(40, "a"))
    cell.at(50, JobFinished(50, "b", 1))
    assert cell.decisions[-1].launches == (Launch("a", 2, (0,), cell.decisions[0].launches[0].span, 30.0),)


def test_gpus_of_a_job_that_is_told_to_stop_stay_taken_until_its_processes_are_gone() -> None:
    cell = Cell("1x1", slow_stops=True)
    cell.submit(0, job("a"), job("b"))
    cell.at(30, JobCancelled(30, "a"))
    assert (cell.alive, cell.state("b"), cell.reason("b")) == (["a"], State.PLACED, Reason.VACATING)
    cell.at(45, JobStopped(45, "a", 1, 30.0))
    assert cell.running == ["b"]


def test_a_job_released_while_it_still_stops_runs_again_once_it_has_stopped() -> None:
    cell = Cell("1x1", slow_stops=True)
    cell.submit(0, job("a"))
    cell.at(10, JobHeld(10, "a"))
    cell.at(11, JobReleased(11, "a"))
    assert cell.state("a") is State.STOPPING
    cell.at(20, JobStopped(20, "a", 1, 10.0))
    assert (cell.state("a"), cell.attempt("a")) == (State.RUNNING, 2)


def test_hold_and_release_in_one_instant_still_stop_the_attempt_once() -> None:
    cell = Cell("1x1", slow_stops=True)
    cell.submit(0, job("a"))
    record = cell.at(10, JobHeld(10, "a"), JobReleased(10, "a"))
    assert [stop.job for stop in record.stops] == ["a"]
    cell.at(12, JobStopped(12, "a", 1, 10.0))
    assert cell.running == ["a"]


def test_a_placed_job_that_is_cancelled_leaves_its_gpus_to_the_next() -> None:
    cell = Cell("1x1", "srtf", slow_stops=True)
    cell.submit(0, job("a", work=500))
    cell.submit(1, job("b", work=50))
    cell.submit(2, job("c", work=60))
    cell.at(3, JobCancelled(3, "b"))
    cell.at(9, JobStopped(9, "a", 1, 1.0))
    assert (cell.running, cell.state("b")) == (["c"], State.CANCELLED)


def test_a_job_that_finishes_while_it_is_told_to_stop_has_finished() -> None:
    cell = Cell("1x1", "srtf", slow_stops=True)
    cell.submit(0, job("a", work=500))
    cell.submit(1, job("b", work=50))
    cell.at(2, JobFinished(2, "a", 1))
    assert (cell.state("a"), cell.running) == (State.FINISHED, ["b"])


# ------------------------------------------------------------------- failures


def test_a_job_that_fails_is_tried_again_as_often_as_it_may_from_its_checkpoint() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a", max_restarts=2))
    for attempt, saved in ((1, 10.0), (2, 20.0)):
        cell.at(attempt * 50, JobFailed(attempt * 50, "a", attempt, exit_code=1, work_done=saved))
        cell.at(cell.engine.wake_s)
        assert cell.decisions[-1].launches[0].work_done == saved
    cell.at(150, JobFailed(150, "a", 3, exit_code=1, work_done=30.0))
    assert (cell.state("a"), cell.attempt("a")) == (State.FAILED, 3)


@pytest.mark.parametrize(("exit_code", "state"), [(75, State.RUNNING), (1, State.FAILED)])
def test_only_exit_codes_worth_it_are_tried_again(exit_code: int, state: State) -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a", max_restarts=9, retry_exit_codes=(75,)))
    cell.at(5, JobFailed(5, "a", 1, exit_code=exit_code))
    cell.at(6)
    assert cell.state("a") is state


def test_a_job_that_fails_is_tried_again_later_and_later() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a", max_restarts=20))
    now_s, waits = 0.0, []
    for attempt in range(1, 12):
        cell.at(now_s, JobFailed(now_s, "a", attempt, exit_code=75))
        assert (cell.state("a"), cell.reason("a")) == (State.WAITING, Reason.BACKING_OFF)
        waits.append(cell.engine.wake_s - now_s)
        now_s = cell.engine.wake_s
        cell.at(now_s)
        assert cell.attempt("a") == attempt + 1
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_failing_launch_is_tried_again_later_and_later_up_to_five_minutes() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"))
    now_s, waits = 0.0, []
    for attempt in range(1, 12):
        cell.at(now_s, LaunchFailed(now_s, "a", attempt))
        assert (cell.state("a"), cell.reason("a")) == (State.WAITING, Reason.BACKING_OFF)
        waits.append(cell.engine.wake_s - now_s)
        now_s = cell.engine.wake_s
        cell.at(now_s)
        assert cell.attempt("a") == attempt + 1
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_others_may_use_the_gpus_of_a_job_whose_launch_failed_and_a_start_forgives_it() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"), job("b"))
    cell.at(1, LaunchFailed(1, "a", 1))
    assert cell.running == ["b"]
    cell.at(2, JobStarted(2, "b", 1))
    cell.at(50, JobFinished(50, "b", 1))
    cell.at(51, JobStarted(51, "a", 2))
    assert cell.engine.jobs.launch_failures[0] == 0


def test_a_failing_launch_loses_no_work() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"))
    cell.at(0, JobStarted(0, "a", 1))
    cell.at(40, JobStopped(40, "a", 1, 40.0))
    cell.at(41, LaunchFailed(41, "a", 2))
    cell.at(42)
    assert cell.decisions[-1].launches[0].work_done == 40


def test_a_job_held_and_released_need_not_sit_out_the_wait_after_a_failed_launch() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"))
    for attempt in (1, 2, 3, 4, 5):
        cell.at(cell.engine.now_s, LaunchFailed(cell.engine.now_s, "a", attempt))
        cell.at(cell.engine.now_s if attempt == 5 else cell.engine.wake_s)
    now_s = cell.engine.now_s
    cell.at(now_s, JobHeld(now_s, "a"))
    cell.at(now_s, JobReleased(now_s, "a"))
    assert cell.running == ["a"]


# ---------------------------------------------------------------------- nodes


def test_jobs_on_a_lost_node_are_stopped_and_run_elsewhere_at_once() -> None:
    cell = Cell("2x2")
    cell.submit(0, job("a", gpus=2), job("b", gpus=1))
    record = cell.at(10, NodeLost(10, cell.engine.gpus.cluster.nodes[0].name))
    assert [stop.why for stop in record.stops] == [StopWhy.NODE_LOST]
    assert cell.reason("a") is Reason.NO_FREE_GPUS
    cell.at(20, JobFinished(20, "b", 1))
    assert cell.gpus("a") == (2, 3)


def test_a_gang_that_outgrows_what_is_left_of_the_cluster_is_told_so_and_runs_when_the_node_returns() -> None:
    cell = Cell("2x2")
    node = cell.engine.gpus.cluster.nodes[0]
    cell.at(0, NodeLost(0, node.name))
    cell.submit(1, job("a", gpus=3))
    assert cell.reason("a") is Reason.CLUSTER_TOO_SMALL
    cell.at(2, NodeJoined(2, node))
    assert cell.running == ["a"]


def test_a_draining_node_keeps_its_jobs_and_takes_no_new_ones() -> None:
    cell = Cell("1x2")
    cell.submit(0, job("a"))
    record = cell.at(1, NodeDraining(1, cell.engine.gpus.cluster.nodes[0].name))
    assert record.stops == ()
    cell.submit(2, job("b"))
    assert cell.running == ["a"]


def test_a_draining_node_that_evicts_stops_its_jobs_too() -> None:
    cell = Cell("2x1")
    cell.submit(0, job("a"))
    record = cell.at(1, NodeDraining(1, cell.engine.gpus.cluster.nodes[0].name, evict=True))
    assert record.stops == (Stop("a", 1, StopWhy.DRAINED),)
    assert cell.gpus("a") == (1,)


def test_gpus_set_aside_on_a_lost_node_are_set_aside_no_more() -> None:
    cell = Cell("1x1", "srtf", slow_stops=True)
    cell.submit(0, job("a", work=500))
    cell.submit(1, job("b", work=50))
    cell.at(2, NodeLost(2, cell.engine.gpus.cluster.nodes[0].name))
    assert (cell.state("b"), cell.reason("b")) == (State.WAITING, Reason.CLUSTER_TOO_SMALL)
    cell.at(3, JobStopped(3, "a", 1, 0.0))
    assert cell.running == []


def test_a_new_node_with_a_new_gpu_type_is_used() -> None:
    cell = Cell("k80:1x1")
    cell.submit(0, job("a", gpu_types=("h100",)), job("b", gpus=1))
    assert cell.reason("a") is Reason.CLUSTER_TOO_SMALL
    cell.at(1, NodeJoined(1, Node("new", "h100", 2)))
    assert (cell.running, cell.gpus("a")) == (["a", "b"], (1,))


def test_attempts_that_should_not_be_alive_on_a_node_are_stopped_once() -> None:
    cell = Cell("1x2")
    node = cell.engine.gpus.cluster.nodes[0].name
    cell.submit(0, job("a"))
    record = cell.at(1, NodeObserved(1, node, (("a", 1), ("a", 0), ("ghost", 3))))
    assert record.stops == (Stop("a", 0, StopWhy.STRAY), Stop("ghost", 3, StopWhy.STRAY))
    assert (cell.running, cell.at(2).stops) == (["a"], ())


# ------------------------------------------------------------------- progress


def test_reported_progress_replaces_what_was_believed() -> None:
    cell = Cell("1x1", "srtf")
    cell.submit(0, job("a", work=100))
    cell.at(50, JobProgressed(50, "a", 1, 10.0))
    cell.submit(50, job("b", work=80))
    assert cell.running == ["b"], "a has 90 left, not the 50 its speed promised"


def test_progress_does_not_make_a_waiting_line_move() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a", work=100))
    cell.tell(JobProgressed(5, "a", 1, 30.0))
    assert cell.done("a", 50) == 30


# ------------------------------------------------------------------- settings


def test_another_policy_takes_over_in_mid_run() -> None:
    cell = Cell("1x1", "fifo")
    cell.submit(0, job("long", work=1000), job("short", work=10))
    assert (cell.running, cell.reason("short")) == (["long"], Reason.NO_FREE_GPUS)
    record = cell.at(5, SettingsChanged(5, policy="srtf"))
    assert (cell.running, [stop.by for stop in record.stops]) == (["short"], ["short"])
    assert cell.reason("long") is Reason.BEHIND_SHORTER


def test_a_policy_takes_over_in_a_simulation_and_every_job_ends() -> None:
    jobs = [job("long", work=100), job("short", work=10, submit_s=1)]
    script = Script(jobs, "1x1", "fifo", events=[SettingsChanged(20, policy="srtf")])
    assert script.history.end_s.tolist() == [110, 30]


def test_a_raised_quota_lets_waiting_jobs_in() -> None:
    cell = Cell("1x4", queues=[Queue("team", gpus_max=1)])
    cell.submit(0, job("a", queue="team"), job("b", queue="team"))
    assert (cell.running, cell.reason("b")) == (["a"], Reason.OVER_QUOTA)
    cell.at(1, SettingsChanged(1, queues=(Queue("team", gpus_max=2),)))
    assert cell.running == ["a", "b"]


def test_a_lowered_quota_holds_for_what_starts_from_then_on() -> None:
    cell = Cell("1x4", quotas_fixed=False)
    cell.submit(0, job("a", queue="team"), job("b", queue="team"))
    cell.at(1, SettingsChanged(1, queues=(Queue("team", gpus_max=1),)))
    cell.at(2, JobFinished(2, "a", 1))
    cell.submit(3, job("c", queue="team"))
    assert (cell.running, cell.reason("c")) == (["b"], Reason.OVER_QUOTA)


def test_an_engine_asked_twice_at_one_time_decides_nothing_new() -> None:
    cell = Cell("1x2", "srtf")
    cell.submit(0, job("a"), job("b", gpus=2))
    again = cell.engine.decide(0)
    assert (again.stops, again.launches, again.placed) == ((), (), ())


def test_events_of_one_instant_are_decided_together() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a"))
    cell.at(10, JobFinished(10, "a", 1), JobSubmitted(10, job("b")), JobSubmitted(10, job("c")))
    assert (cell.running, len(cell.decisions)) == (["b"], 2)


# ------------------------------------------------- GPUs that come free sooner


def vacating_cell(spec: str = "1x2", **more: Any) -> Cell:
    """The job `short` waits for the GPU of `long`, which is being stopped for it."""
    cell = Cell(spec, "srtf", slow_stops=True, **more)
    cell.submit(0, job("middle", work=500), job("long", work=1000))
    cell.submit(10, job("short", work=50))
    assert (cell.state("long"), cell.state("short")) == (State.STOPPING, State.PLACED)
    return cell


def test_a_job_whose_gpus_are_yet_to_be_vacated_starts_on_others_that_come_free_sooner() -> None:
    cell = vacating_cell()
    wanted, other = cell.gpus("short"), cell.gpus("middle")
    record = cell.at(12, JobFinished(12, "middle", 1))
    assert [(launch.job, launch.gpu_ids) for launch in record.launches] == [("short", other)]
    assert cell.gpus("long") == wanted, "nobody else wants what it is leaving"
    cell.at(14, JobStopped(14, "long", 1, 10.0))
    assert cell.running == ["long", "short"]


def test_others_that_come_free_sooner_go_to_it_and_not_to_jobs_behind_it() -> None:
    cell = vacating_cell()
    cell.submit(11, job("later", work=800))
    record = cell.at(12, JobFinished(12, "middle", 1))
    assert [launch.job for launch in record.launches] == ["short"]
    cell.at(14, JobStopped(14, "long", 1, 10.0))
    assert cell.running == ["short", "later"]


def test_a_lease_goes_along_to_gpus_that_come_free_sooner() -> None:
    cell = Cell("1x2", "time-slice", {"quantum": "100"}, slow_stops=True)
    cell.submit(0, job("a", work=500), job("b", work=120))
    cell.submit(10, job("c", work=500))
    cell.at(100)
    (placed,) = [name for name in "abc" if cell.state(name) is State.PLACED]
    until_s = float(cell.engine.jobs.lease_until_s[cell.row(placed)])
    record = cell.at(102, *[JobFinished(102, name, 1) for name in cell.running])
    assert placed in [launch.job for launch in record.launches]
    assert float(cell.engine.jobs.protected_until_s[cell.row(placed)]) == until_s > 102


def test_others_that_are_farther_apart_are_not_as_good() -> None:
    cell = Cell("2x2", "srtf", slow_stops=True, placement="consolidated")
    cell.submit(0, job("a", work=500), job("b", work=1000, gpus=2), job("c", work=600))
    cell.submit(10, job("short", work=50, gpus=2))
    before = cell.gpus("short")
    assert cell.state("short") is State.PLACED
    assert len(before) == 2
    cell.at(12, JobFinished(12, "a", 1))
    assert (cell.state("short"), cell.gpus("short")) == (State.PLACED, before), "one GPU is not two"
    record = cell.at(13, JobFinished(13, "c", 1))
    assert [launch.job for launch in record.launches] == ["short"]


# ------------------------------------------------------------ quotas preempt


def test_a_job_that_loses_its_part_of_a_quota_is_told_to_whom() -> None:
    cell = Cell("1x4", "srtf", queues=[Queue("team", gpus_max=1)])
    cell.submit(0, job("long", work=1000, queue="team/a"), job("other", work=10))
    record = cell.submit(5, job("elsewhere", work=5), job("short", work=50, queue="team/b"))
    (stop,) = record.stops
    assert (stop.job, stop.by, Reason(stop.reason)) == ("long", "short", Reason.OVER_QUOTA)


def test_a_job_that_loses_its_part_of_a_quota_to_nobody_is_told_so() -> None:
    cell = Cell("1x4", "srtf", queues=[Queue("team", gpus_max=2)], quotas_fixed=False)
    cell.submit(0, job("a", work=100, queue="team"), job("b", work=1000, queue="team"))
    (stop,) = cell.at(5, SettingsChanged(5, queues=(Queue("team", gpus_max=1),))).stops
    assert (stop.job, stop.by, Reason(stop.reason)) == ("b", "", Reason.OVER_QUOTA)
