"""What is done for an adopted job, state by state; no Slurm is needed.

Tests backends/slurm/adopted_job.py and backends/adopted_job.py, too.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from horae.backends.adopted_job import FAILED, FINISHED, LAUNCH_FAILED, STOPPED
from horae.backends.slurm.adopted_job import AdoptionRecords
from horae.backends.slurm.adoption_steps import JobStep, see_to
from horae.core.events import JobCancelled, JobHeld, JobReleased, JobStarted, JobTimedOut
from horae.core.states import State
from tests.backends.slurm.adopted import KEY, SUBMITTED, adopted, attempt, moment, shown

BY = "slurm: ann"


class TestWaiting:
    def test_a_new_job_is_postponed_before_the_plugins_hold_is_lifted(self) -> None:
        seen = shown(reason="JobHeldUser", eligible="N/A")
        assert see_to(adopted(from_plugin=True), seen, None, moment()).steps == [JobStep.POSTPONE, JobStep.RELEASE]

    def test_a_job_that_its_user_submitted_on_hold_stays_held(self) -> None:
        todo = see_to(adopted(), shown(reason="JobHeldUser", eligible="N/A"), State.WAITING, moment())
        assert todo.steps == [JobStep.POSTPONE]
        assert todo.events == [JobHeld(0.0, "a.17-1", BY)]

    def test_a_users_hold_and_release_are_told(self) -> None:
        job = adopted(from_plugin=True)
        see_to(job, shown(), State.WAITING, moment())
        assert see_to(job, shown(reason="JobHeldUser"), State.WAITING, moment()).events == [JobHeld(0.0, "a.17-1", BY)]
        assert see_to(job, shown(reason="JobHeldUser"), State.HELD, moment()).events == []
        assert see_to(job, shown(), State.HELD, moment()).events == [JobReleased(0.0, "a.17-1", BY)]
        assert see_to(job, shown(), State.WAITING, moment()).events == []
        assert not job.user_hold

    def test_slurms_own_hold_after_a_run_is_lifted(self) -> None:
        job = attempt(outcome=STOPPED)
        assert see_to(job, shown("SPECIAL_EXIT", "JobHeldUser", restarts=1), State.WAITING, moment()).steps == [
            JobStep.RELEASE
        ]

    def test_a_job_held_while_it_ran_stays_held(self) -> None:
        job = attempt(outcome=STOPPED, user_hold=True)
        todo = see_to(job, shown("SPECIAL_EXIT", "JobHeldUser", restarts=1), State.HELD, moment())
        assert (todo.steps, todo.events) == ([], [])

    def test_a_job_cancelled_in_slurm_is_cancelled_by_its_user(self) -> None:
        seen = shown("CANCELLED")
        assert see_to(adopted(), seen, State.WAITING, moment()).events == [JobCancelled(0.0, "a.17-1", BY)]
        assert see_to(adopted(), seen, State.CANCELLED, moment()).events == []

    def test_a_job_cancelled_in_horae_is_cancelled_in_slurm_once_in_a_while(self) -> None:
        job = adopted()
        assert see_to(job, shown(), State.CANCELLED, moment(1000)).steps == [JobStep.CANCEL]
        assert see_to(job, shown(), State.CANCELLED, moment(1001)).steps == []
        assert see_to(job, shown(), State.CANCELLED, moment(1006)).steps == [JobStep.CANCEL]

    def test_a_job_that_somebody_let_run_is_stopped(self) -> None:
        assert see_to(adopted(), shown("RUNNING"), State.WAITING, moment()).steps == [JobStep.NOTICE]

    def test_a_job_that_slurm_lists_no_more_is_cancelled_after_a_while(self) -> None:
        job = adopted()
        assert see_to(job, None, State.WAITING, moment(1000)).events == []
        assert see_to(job, None, State.WAITING, moment(1031)).events == [JobCancelled(0.0, "a.17-1", BY)]


class TestLaunch:
    def test_a_postponed_job_gets_its_nodes(self) -> None:
        assert see_to(attempt(), shown(), State.LAUNCHING, moment()).steps == [JobStep.LAUNCH]

    def test_a_job_that_slurm_still_holds_is_launched_and_released(self) -> None:
        job = attempt(restarts=1)
        seen = shown("SPECIAL_EXIT", "JobHeldUser", restarts=1)
        assert see_to(job, seen, State.LAUNCHING, moment()).steps == [JobStep.LAUNCH, JobStep.RELEASE]

    def test_a_users_hold_comes_before_the_launch(self) -> None:
        todo = see_to(attempt(), shown(reason="JobHeldUser"), State.LAUNCHING, moment())
        assert todo.steps == []
        assert todo.events == [JobHeld(0.0, "a.17-1", BY)]

    def test_a_launched_job_is_left_to_slurm_for_a_minute_then_given_up(self) -> None:
        job, waits = attempt(), shown(reason="Resources", eligible="2026-01-01T10:00:00")
        assert see_to(job, shown(), State.LAUNCHING, moment(1000)).steps == [JobStep.LAUNCH]
        assert see_to(job, waits, State.LAUNCHING, moment(1030)).steps == []
        assert see_to(job, waits, State.LAUNCHING, moment(1061)).steps == [JobStep.POSTPONE]
        assert not job.outcome
        see_to(job, shown(), State.LAUNCHING, moment(1062))
        assert job.outcome == f"{LAUNCH_FAILED}Slurm did not start it: Resources"

    def test_a_launch_that_failed_on_the_node_is_tried_again_later(self) -> None:
        job = attempt()
        see_to(job, shown("PENDING", "launch failed requeued held", restarts=1), State.LAUNCHING, moment())
        assert job.outcome == f"{LAUNCH_FAILED}Slurm says: launch failed requeued held"

    def test_a_run_is_told_once(self) -> None:
        job = attempt()
        assert see_to(job, shown("RUNNING"), State.LAUNCHING, moment()).events == [JobStarted(0.0, "a.17-1", 1, 60.0)]
        assert see_to(job, shown("RUNNING"), State.RUNNING, moment()).events == []

    def test_a_stop_before_the_start_is_over_once_slurm_cannot_start_it(self) -> None:
        job = attempt(stopping=True)
        assert see_to(job, shown(eligible="now"), State.STOPPING, moment()).steps == [JobStep.POSTPONE]
        assert not job.outcome
        see_to(job, shown(), State.STOPPING, moment())
        assert job.outcome == STOPPED


class TestStop:
    def test_no_signal_is_sent_in_the_first_seconds(self) -> None:
        job = attempt(stopping=True)
        assert see_to(job, shown("RUNNING", run_s=1.0), State.STOPPING, moment()).steps == []
        assert see_to(job, shown("RUNNING", run_s=2.0), State.STOPPING, moment()).steps == [JobStep.NOTICE]

    def test_one_notice_then_another_then_force(self) -> None:
        job = attempt(stopping=True, grace_s=30.0)
        steps = {
            now_s: see_to(job, shown("RUNNING"), State.STOPPING, moment(now_s)).steps
            for now_s in (1000, 1005, 1010, 1020, 1031, 1032, 1036)
        }
        assert steps == {
            1000: [JobStep.NOTICE],
            1005: [],
            1010: [JobStep.NOTICE],
            1020: [JobStep.NOTICE],
            1031: [JobStep.PUT_BACK],
            1032: [],
            1036: [JobStep.PUT_BACK],
        }

    def test_the_next_process_does_not_repeat_a_notice_at_once(self) -> None:
        job = attempt(stopping=True, noticed=True)
        assert see_to(job, shown("RUNNING"), State.STOPPING, moment(1000)).steps == []
        assert see_to(job, shown("RUNNING"), State.STOPPING, moment(1010)).steps == [JobStep.NOTICE]

    def test_a_job_that_saved_is_put_back_with_what_it_saved(self) -> None:
        job = attempt(stopping=True, run_s=500.0)
        see_to(job, shown("SPECIAL_EXIT", "JobHeldUser", restarts=1, code=75), State.STOPPING, moment())
        assert (job.outcome, job.work_saved) == (STOPPED, 50.0)

    def test_a_job_put_back_by_force_has_saved_nothing(self) -> None:
        job = attempt(stopping=True, run_s=500.0)
        see_to(job, shown("PENDING", "job requeued in held state", restarts=1), State.STOPPING, moment())
        assert (job.outcome, job.work_saved) == (STOPPED, 0.0)

    def test_a_job_that_died_of_the_notice_is_put_back(self) -> None:
        job = attempt(stopping=True, noticed=True)
        assert see_to(job, shown("FAILED", code=138), State.STOPPING, moment(1000)).steps == [JobStep.PUT_BACK]
        assert see_to(job, shown("FAILED", code=138), State.STOPPING, moment(1001)).steps == []
        job.not_put_back = True
        see_to(job, shown("FAILED", code=138), State.STOPPING, moment(1002))
        assert job.outcome == f"{FAILED}138"

    def test_a_job_that_must_run_once_is_left_to_end(self) -> None:
        job = attempt(stopping=True, requeue=False)
        assert see_to(job, shown("RUNNING"), State.STOPPING, moment()).steps == []

    def test_a_cancelled_job_is_cancelled_and_not_put_back(self) -> None:
        job = attempt(stopping=True)
        assert see_to(job, shown("RUNNING"), State.CANCELLING, moment()).steps == [JobStep.CANCEL]
        see_to(job, shown("CANCELLED"), State.CANCELLING, moment())
        assert job.outcome == STOPPED

    def test_a_hold_of_a_running_job_is_told(self) -> None:
        job = attempt()
        todo = see_to(job, shown("RUNNING", "JobHeldUser"), State.RUNNING, moment())
        assert JobHeld(0.0, "a.17-1", BY) in todo.events
        assert job.user_hold


class TestEnds:
    def test_a_job_that_completed_has_finished(self) -> None:
        job = attempt()
        see_to(job, shown("COMPLETED"), State.RUNNING, moment())
        assert job.outcome == FINISHED

    @pytest.mark.parametrize(("code", "outcome"), [(3, "failed 3"), (0, "failed 137")])
    def test_a_job_that_failed_by_itself_is_not_put_back(self, code: int, outcome: str) -> None:
        job = attempt()
        assert see_to(job, shown("FAILED", code=code), State.RUNNING, moment()).steps == []
        assert job.outcome == outcome

    @pytest.mark.parametrize(("state", "code"), [("FAILED", 75), ("NODE_FAIL", 0), ("PREEMPTED", 0)])
    def test_a_job_that_asks_to_run_again_or_lost_its_node_is_put_back(self, state: str, code: int) -> None:
        assert see_to(attempt(), shown(state, code=code), State.RUNNING, moment()).steps == [JobStep.PUT_BACK]

    def test_a_users_scancel_of_a_running_job_is_told_then_over(self) -> None:
        job = attempt()
        assert see_to(job, shown("CANCELLED"), State.RUNNING, moment()).events == [JobCancelled(0.0, "a.17-1", BY)]
        assert not job.outcome
        see_to(job, shown("CANCELLED"), State.CANCELLING, moment())
        assert job.outcome == STOPPED

    def test_slurms_time_limit_is_the_jobs(self) -> None:
        assert see_to(attempt(), shown("TIMEOUT"), State.RUNNING, moment()).events == [JobTimedOut(0.0, "a.17-1")]
        stopping = see_to(attempt(stopping=True), shown("TIMEOUT"), State.STOPPING, moment())
        assert stopping.events == [JobCancelled(0.0, "a.17-1", BY)]

    def test_an_end_is_not_believed_while_its_node_is_silent(self) -> None:
        job, back = attempt(begun=True), shown("PENDING", restarts=1)
        see_to(job, back, State.RUNNING, moment(hosts=("v2",)))
        assert (job.outcome, job.doubtful) == ("", True)
        see_to(job, back, State.RUNNING, moment(in_sight_s=5))
        assert not job.outcome, "what is left there may live for a few seconds"
        see_to(job, back, State.RUNNING, moment(in_sight_s=31))
        assert job.outcome == STOPPED

    def test_a_node_that_an_operator_calls_gone_is_proof(self) -> None:
        job, blind = attempt(begun=True, doubtful=True), moment(hosts=())
        see_to(job, shown("PENDING", restarts=1), State.STOPPING, blind)
        assert not job.outcome
        job.gone = ("v1",)
        assert see_to(job, shown("RUNNING"), State.STOPPING, blind).steps == [JobStep.PUT_BACK]
        see_to(job, shown("PENDING", restarts=1), State.STOPPING, blind)
        assert job.outcome == STOPPED


class TestForgottenByAKilledController:
    def test_a_run_that_slurm_forgot_begins_again_when_its_rest_is_gone(self) -> None:
        job = attempt(begun=True)
        assert see_to(job, shown(), State.RUNNING, moment(in_sight_s=5)).steps == []
        assert see_to(job, shown(eligible="now"), State.RUNNING, moment(in_sight_s=5)).steps == [JobStep.POSTPONE]
        assert see_to(job, shown(), State.RUNNING, moment(in_sight_s=31)).steps == [JobStep.LAUNCH]
        assert (job.attempt, job.outcome) == (1, ""), "the same attempt, since Slurm counts no restart"

    def test_the_plugins_hold_is_not_taken_for_a_users(self) -> None:
        job = attempt(from_plugin=True)
        seen = shown(reason="JobHeldUser", eligible="N/A")
        assert see_to(job, seen, State.LAUNCHING, moment()).steps == [JobStep.LAUNCH, JobStep.RELEASE]

    def test_the_plugins_hold_comes_back_with_a_controller_that_forgot_its_release(self) -> None:
        job = adopted(from_plugin=True, unheld_boot="before")
        assert see_to(job, shown(reason="JobHeldUser"), State.WAITING, moment()).steps == [JobStep.RELEASE]
        held = adopted(from_plugin=True, unheld_boot="before", user_hold=True)
        assert see_to(held, shown(reason="JobHeldUser"), State.HELD, moment()).steps == []

    def test_a_run_that_the_controller_believes_in_after_its_end_is_stopped(self) -> None:
        job = attempt(outcome=STOPPED, seen_restarts=1)
        assert see_to(job, shown("RUNNING"), State.WAITING, moment()).steps == [JobStep.NOTICE]

    def test_a_job_that_finished_never_runs_again(self) -> None:
        assert see_to(attempt(outcome=FINISHED), shown(), State.FINISHED, moment()).steps == [JobStep.CANCEL]

    def test_a_job_that_its_user_puts_back_after_its_end_is_another_job(self) -> None:
        job = attempt(outcome=FINISHED)
        see_to(job, shown("COMPLETED"), State.FINISHED, moment())
        again = shown("PENDING", "job requeued in held state", restarts=1, eligible="N/A")
        assert see_to(job, again, State.FINISHED, moment()).steps == []
        assert not job.matches(again)

    def test_an_attempt_of_a_forgotten_job_ends_after_the_fence(self) -> None:
        job = attempt(begun=True)
        see_to(job, None, State.RUNNING, moment(1000, 5))
        assert see_to(job, None, State.RUNNING, moment(1040, 20)).events == []
        assert see_to(job, None, State.RUNNING, moment(1040, 31)).events == [JobCancelled(0.0, "a.17-1", BY)]
        see_to(job, None, State.CANCELLING, moment(1041, 32))
        assert job.outcome == STOPPED


class TestIdentity:
    def test_an_id_that_is_given_out_again_is_another_job(self) -> None:
        assert adopted().matches(shown())
        assert not adopted().matches(shown(submitted="2026-01-01T10:05:00"))

    def test_a_job_that_was_put_back_is_the_same_though_its_time_is_new(self) -> None:
        job = adopted()
        job.see(shown(restarts=1, submitted="2026-01-01T11:00:00"))
        assert job.matches(shown(restarts=1, submitted="2026-01-01T11:00:00"))
        assert job.matches(shown()), "a killed controller may show what was"
        assert job.matches(shown(restarts=1, submitted="2026-01-01T12:00:00")), "and count a restart again"
        assert not job.matches(shown(restarts=1, submitted="2026-01-01T09:00:00"))
        job.replaced = True
        assert not job.matches(shown(restarts=1, submitted="2026-01-01T12:00:00"))

    def test_restarts_that_a_killed_controller_forgot_do_not_hide_an_end(self) -> None:
        job = attempt(restarts=2, begun=True)
        see_to(job, shown("RUNNING", restarts=1), State.RUNNING, moment())
        assert (job.restarts, job.doubtful) == (1, True)
        back = shown("SPECIAL_EXIT", "JobHeldUser", restarts=2, code=75)
        see_to(job, back, State.RUNNING, moment(in_sight_s=5))
        assert not job.outcome
        see_to(job, back, State.RUNNING, moment(in_sight_s=31))
        assert job.outcome == STOPPED
        job.see(shown(restarts=2))
        job.begin(4, ("v1",), 30.0, 100.0)
        assert job.restarts == 2

    def test_work_saved_grows_and_never_reaches_the_end(self) -> None:
        job = adopted()
        shares = []
        for saved_s in (100.0, 900.0, 1000.0, 1500.0):
            job.saved_s = saved_s
            shares.append(job.work_saved)
        assert shares == sorted(shares)
        assert shares[0] == pytest.approx(10)
        assert shares[-1] < 100

    def test_records_outlive_the_process(self, tmp_path: Path) -> None:
        records = AdoptionRecords(tmp_path)
        job = attempt(stopping=True)
        records.save(job)
        (found,) = AdoptionRecords(tmp_path).jobs.values()
        assert found == job
        assert found.nodes == ("v1",)
        written = next((tmp_path / "adopted").iterdir()).stat().st_mtime_ns
        job.run_s += 1
        records.save(job)
        assert next((tmp_path / "adopted").iterdir()).stat().st_mtime_ns == written, "not at each look"
        records.drop(job)
        assert AdoptionRecords(tmp_path).jobs == {}


def test_records_in_another_time_zone_are_still_of_the_same_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        AdoptionRecords(tmp_path).save(adopted(submitted="2026-01-01T19:00:00", utc=False))
        for _ in range(2):
            (job,) = AdoptionRecords(tmp_path).jobs.values()
            assert (job.key, job.submitted, job.matches(shown())) == (KEY, SUBMITTED, True)
            AdoptionRecords(tmp_path).save(job)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_files_that_say_where_output_is_go_with_their_job(tmp_path: Path) -> None:
    records = AdoptionRecords(tmp_path)
    stays = adopted()
    records.save(stays)
    log = records.write_log(stays, "It is elsewhere.")
    left = log.with_name("slurm-9@then.json.txt")
    left.touch()
    assert AdoptionRecords(tmp_path).jobs
    assert (log.exists(), left.exists()) == (True, False)
    records.drop(stays)
    assert not log.exists()
