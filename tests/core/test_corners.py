"""Corners of the engine that are easy to get wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from horae.core.cluster import Node
from horae.core.commands import StopWhy
from horae.core.errors import UserError
from horae.core.events import (
    JobCancelled,
    JobFailed,
    JobHeld,
    JobProgressed,
    JobReleased,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.states import State
from horae.simulator import driver
from horae.simulator.faults import Faults
from tests.builders import Cell, Script, cluster, job, run, times


@pytest.mark.parametrize("policy", ["smallest-first", "srsf"])
def test_a_big_gang_with_a_reservation_does_not_starve_under_any_ordering_policy(policy: str) -> None:
    small = [job(f"s{n}", work=100, submit_s=10 * n) for n in range(200)]
    history = run([*small, job("big", gpus=4, work=50, submit_s=15)], "1x4", policy, settings={"reserve": "100"})
    assert times(history)["big"][0] <= 400


def test_three_jobs_on_two_gpus_each_get_two_thirds() -> None:
    history = run([job(name, work=6000) for name in "abc"], "1x2", "time-slice")
    assert history.end_s.max() - history.end_s.min() <= 1200


def test_a_slice_shorter_than_the_restart_cost_does_not_stop_all_progress() -> None:
    jobs = [job("a"), job("b")]
    Script(jobs, "1x1", "time-slice", {"quantum": "10"}, restart_cost_s=30, most_decisions=2000)


def test_a_lease_protects_a_job_that_still_loads() -> None:
    jobs = [job("a", work=1000), job("b", work=1000), job("c", work=10, submit_s=1210)]
    history = run(jobs, "1x1", "time-slice", restart_cost_s=30)
    second = history.attempts.begin_s.tolist().index(1200.0)
    # It loads for 30 s and then does the 400 s it lacks, in peace.
    assert history.attempts.end_s[second] == 1630


def test_isolated_jobs_change_types_even_if_nobody_waits() -> None:
    machines = cluster("fast:1x1,slow:1x1")
    history = run([job("a", work=14_400), job("b", work=14_400)], machines, "isolated")
    attempts = history.attempts
    on_fast = sum(
        e - b
        for j, b, e, g in zip(attempts.job, attempts.begin_s, attempts.end_s, attempts.gpu_ids, strict=True)
        if j == 0 and g == 0
    )
    assert on_fast == pytest.approx(7200, abs=400)


def test_a_job_with_several_wishes_has_one_reason_and_a_true_one() -> None:
    cell = Cell("small:1x2,big:1x4", "isolated")
    cell.submit(0, job("runs", gpus=4, work=10_000))
    cell.submit(1, job("w", gpus=4, work=10_000))
    seen = [cell.reason("w")]
    for now_s in range(2, 8):
        cell.submit(now_s, job(f"x{now_s}", gpus=2, work=10_000))
        seen.append(cell.reason("w"))
    # It is owed more than the one that runs, whose round is not over; then smaller ones are owed more than it is.
    assert seen == [Reason.LEASED] * 3 + [Reason.BEHIND_SHARE] * 4


def test_a_policy_that_does_not_exist_leaves_the_old_one_in_charge() -> None:
    cell = Cell("1x1", "srtf")
    with pytest.raises(UserError):
        cell.tell(SettingsChanged(0, policy="nope"))
    assert cell.engine.policy_name == "srtf"


def test_a_job_that_would_run_longer_on_the_slow_type_does_not_pass_the_reservation() -> None:
    jobs = [
        job("r", work=100, throughput={"slow": 1.0}),
        job("f", work=1000, throughput={"fast": 1.0}),
        job("head", gpus=2, work=50, throughput={"slow": 1.0}, submit_s=1),
        job("x", work=60, throughput={"fast": 1.0, "slow": 0.5}, submit_s=2),
    ]
    history = run(jobs, "fast:1x1,slow:1x2", settings={"reserve": "0"})
    assert times(history)["head"][0] == 100


def test_an_attempt_that_should_run_on_a_node_and_does_not_is_ended_and_run_again() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a"))
    record = cell.at(1, NodeObserved(1, cell.engine.gpus.cluster.nodes[0].name, ()))
    assert [stop.why for stop in record.stops] == [StopWhy.NODE_LOST]
    assert (cell.state("a"), cell.attempt("a")) == (State.RUNNING, 2)


def test_a_hold_is_no_waiting_time() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a", work=1000))
    cell.at(100, JobHeld(100, "a"))
    cell.at(500, JobReleased(500, "a"))
    assert cell.engine.jobs.waiting_since_s[0] >= 100


def test_a_job_that_has_finished_has_started_even_if_that_report_was_late() -> None:
    jobs = [job(f"j{n}", work=20, submit_s=n) for n in range(40)]
    history = run(jobs, "1x4", "fifo", faults=Faults(late_reports=0.9, late_s=200), seed=1)
    assert not np.isnan(history.start_s[history.finished]).any()


def test_a_node_that_returns_with_fewer_gpus_has_fewer_gpus() -> None:
    cell = Cell("1x4")
    node = cell.engine.gpus.cluster.nodes[0]
    cell.at(0, NodeLost(0, node.name))
    try:
        cell.at(1, NodeJoined(1, Node(node.name, node.gpu_type, 2, node.rack)))
    except UserError:
        return
    cell.submit(2, job("a", gpus=4))
    assert cell.running == []


def test_settings_without_a_policy_change_the_policy_in_charge_or_are_refused() -> None:
    cell = Cell("1x1", "las")
    try:
        cell.at(0, SettingsChanged(0, settings={"quantum": "5"}))
    except UserError:
        return
    assert cell.engine.policy.quantum == 5.0


def test_two_jobs_of_one_name_are_refused_before_the_run() -> None:
    with pytest.raises(UserError):
        run([job("a"), job("a", work=5)])


def test_isolated_charges_a_job_that_crashed_for_the_time_it_had() -> None:
    cell = Cell("1x1", "isolated")
    cell.submit(0, job("a", work=1000, max_restarts=5), job("b", work=1000))
    cell.at(100, JobFailed(100, "a", 1, 1, 50.0))
    assert cell.running == ["b"]


def test_a_restarted_driver_repeats_exactly_what_was_commanded() -> None:
    cell = Cell("2x2", "fifo", slow_stops=True)
    cell.submit(0, job("a", gpus=3))
    assert cell.engine.outstanding() == cell.decisions[-1].launches
    cell.at(1, JobCancelled(1, "a"))
    assert cell.engine.outstanding()[0].why is StopWhy.CANCELLED


def test_a_restarted_driver_does_not_launch_again_what_has_to_go() -> None:
    cell = Cell("1x1", "fifo", slow_stops=True)
    cell.submit(0, job("a"))
    cell.tell(NodeLost(1, cell.engine.gpus.cluster.nodes[0].name))
    assert cell.engine.outstanding() == ()


def test_nobody_is_stopped_for_nobody_while_a_reservation_stands() -> None:
    cell = Cell("1x4", "srtf", {"reserve": "0"})
    cell.submit(0, job("A", work=1000), job("B", gpus=3, work=500))
    record = cell.submit(1, job("T", gpus=2, work=10), job("H", gpus=4, work=20))
    assert record.stops == ()
    assert cell.engine.evidence.head == "H"


@pytest.mark.parametrize("nonsense", [-5.0, math.nan])
def test_a_report_that_makes_no_sense_is_dropped(nonsense: float) -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a", work=100))
    cell.at(50, JobProgressed(50, "a", 1, nonsense))
    assert cell.done("a", 50) == 50


def test_a_node_observed_before_a_launch_got_there_does_not_end_it() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"))
    assert cell.at(1, NodeObserved(1, cell.engine.gpus.cluster.nodes[0].name, ())).stops == ()


def test_a_node_that_an_operators_script_loses_takes_the_work_since_the_checkpoint_with_it() -> None:
    machines = cluster("1x1")
    events = [NodeLost(50, machines.nodes[0].name), NodeJoined(60, machines.nodes[0])]
    script = Script([job("a", work=100, checkpoint_every_s=20)], machines, events=events)
    assert times(script.history)["a"][1] == 120


def test_an_idle_gpu_goes_before_one_that_is_still_being_vacated() -> None:
    cell = Cell("2x1", slow_stops=True)
    cell.submit(0, job("old"))
    cell.at(1, JobCancelled(1, "old"))
    cell.submit(2, job("new"))
    assert cell.running == ["new"]


@pytest.mark.parametrize("policy", ["fifo-backfill", "las", "time-slice", "isolated", "max-min"])
def test_a_gang_that_its_queue_can_never_hold_is_refused_before_the_run(policy: str) -> None:
    with pytest.raises(UserError, match="queue org may have 2"):
        run([job("a", gpus=4, queue="org/x")], "1x8", policy, queues=[Queue("org", gpus_max=2)])


@pytest.mark.parametrize("policy", ["las", "time-slice", "isolated", "max-min"])
def test_a_run_ends_when_those_who_wait_can_never_run(policy: str) -> None:
    script = Script(
        [job("a"), job("b", gpus=2)], "2x2", policy, events=[NodeDraining(0, "gpu-0"), NodeDraining(0, "gpu-1")]
    )
    assert script.engine.now_s < 10_000
    assert len(script.engine.jobs.active) == 2


def test_a_world_that_loses_work_as_fast_as_it_is_done_is_given_up_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_LOOKS_WITHOUT_GAIN", 5)
    jobs = [job("a", work=1e6, checkpoint_every_s=500_000)]
    with pytest.raises(UserError, match="no job gains anything"):
        run(jobs, "1x1", "fifo", faults=Faults(node_losses_per_day=500, node_repair_s=1))
