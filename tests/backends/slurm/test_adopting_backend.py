"""The adopting backend over a queue in memory: what it offers, does and tells.

Tests backends/slurm/adoption.py, backends/adopting_backend.py and backends/looking_backend.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.backends.found_jobs import FindsJobs
from horae.backends.protocol import Place
from horae.backends.slurm.adoption import SlurmAdoption
from horae.backends.slurm.adoption_steps import AdoptionSettings
from horae.core.events import (
    JobCancelled,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    LaunchFailed,
    NodeObserved,
)
from horae.core.states import State
from tests.backends.adoption_stage import AdoptionStage
from tests.backends.real import until
from tests.backends.slurm.adopted import KEY, SUBMITTED
from tests.backends.slurm.made_up_queue import MadeUpQueue, seconds

JOB = "train.17-1"
QUICK = AdoptionSettings(
    look_every_s=0.02, look_soon_s=0.01, missing_s=0.1, settle_s=0.1, end_again_s=0.05, none_left_s=0.5
)


class Stage(AdoptionStage):
    """A queue, and a job of four GPUs."""

    key, job, place = KEY, JOB, Place("v1", (0, 1, 2, 3))

    def __init__(self, folder: Path) -> None:
        self.queue = MadeUpQueue()
        super().__init__(folder)

    def open(self) -> None:
        self.backend = SlurmAdoption(self.folder, "gpu", self.queue, settings=QUICK)

    def add(self) -> None:
        self.queue.add()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.queue.answering.set()
    made.backend.close()


def test_a_job_goes_through_its_life(stage: Stage) -> None:
    assert isinstance(stage.backend, FindsJobs)
    stage.queue.add()
    stage.follow()
    (found,) = until(stage.backend.found, "for the job")
    assert (found.key, found.user, found.document["name"]) == (KEY, "ann", "train.17")
    until(lambda: stage.queue.jobs["17"].is_postponed and not stage.queue.jobs["17"].is_held, "for Horae's order")
    stage.follow(State.LAUNCHING)
    until(lambda: not stage.backend.found(), "for it to be known")
    stage.start()
    assert stage.until_told(JobStarted) == JobStarted(5.0, JOB, 1, 60.0)
    assert stage.queue.jobs["17"].hosts == ("v1",)
    stage.follow(State.STOPPING)
    stage.backend.stop(JOB, 1)
    stopped = stage.until_told(JobStopped)
    assert (stopped.job, stopped.attempt, stopped.work_done) == (JOB, 1, pytest.approx(100 * 60 / 3600))
    stage.backend.forget(JOB, 1)
    stage.events.clear()
    stage.follow(State.LAUNCHING)
    stage.start(2, Place("v2", (0, 1, 2, 3)))
    assert stage.until_told(JobStarted).attempt == 2
    assert stage.queue.jobs["17"].hosts == ("v2",)
    stage.queue.set("17", state="COMPLETED")
    assert stage.until_told(JobFinished) == JobFinished(5.0, JOB, 2)


def test_nothing_is_done_before_the_service_has_said_what_it_knows(stage: Stage) -> None:
    stage.queue.add()
    stage.reopen()
    stage.turns(3)
    assert stage.queue.changes == []
    assert stage.backend.sight() is None


def test_the_next_process_takes_up_what_runs(stage: Stage) -> None:
    stage.run()
    changes = list(stage.queue.changes)
    stage.reopen()
    stage.follow(State.RUNNING)
    assert stage.until_told(JobStarted).attempt == 1
    stage.until_told(NodeObserved)
    seen = {event.node: event.alive for event in stage.events if isinstance(event, NodeObserved)}
    assert seen == {"v1": ((JOB, 1),), "v2": ()}
    stage.start()
    until(lambda: stage.backend.sight(), "for a look")
    assert stage.queue.changes == changes, "nothing is launched twice"


def test_an_end_that_was_not_forgotten_is_told_again(stage: Stage) -> None:
    stage.run()
    stage.queue.set("17", state="COMPLETED")
    stage.until_told(JobFinished)
    stage.reopen()
    stage.follow(State.RUNNING)
    stage.until_told(JobFinished)
    stage.backend.forget(JOB, 1)
    stage.follow(State.FINISHED)
    until(lambda: not stage.backend._forgotten, "for the note")
    stage.reopen()
    stage.follow(State.FINISHED)
    stage.until_told(NodeObserved)
    assert not [event for event in stage.events if isinstance(event, JobFinished)]


def test_blind_at_the_restart_nobody_is_stopped(stage: Stage) -> None:
    stage.run()
    changes = list(stage.queue.changes)
    stage.queue.dead = True
    stage.reopen()
    stage.follow(State.RUNNING)
    until(lambda: "out of sight" in stage.backend.trouble, "for the trouble")
    assert stage.backend.sight() is None
    assert stage.backend.watch(1.0) == []
    stage.queue.dead = False
    assert stage.until_told(JobStarted).attempt == 1
    assert stage.queue.changes == changes


def test_no_method_waits_while_slurm_hangs(stage: Stage) -> None:
    stage.run()
    stage.queue.answering.clear()
    stage.backend.stop(JOB, 1)
    calls = [
        lambda: stage.start(2),
        lambda: stage.backend.stop(JOB, 2),
        lambda: stage.backend.watch(1.0),
        lambda: stage.backend.forget(JOB, 1),
        stage.backend.sight,
        stage.backend.found,
        stage.follow,
        lambda: stage.backend.refuse(KEY, "no"),
        lambda: stage.backend.trouble,
    ]
    assert max(map(seconds, calls)) < 0.01


def test_an_attempt_that_never_started_is_stopped_and_never_starts(stage: Stage) -> None:
    stage.run()
    stage.queue.set("17", state="COMPLETED")
    stage.until_told(JobFinished)
    stage.backend.stop(JOB, 2)
    assert stage.until_told(JobStopped).attempt == 2
    stage.start(2)
    until(lambda: not stage.backend._notes, "for the note")
    assert stage.backend.watch(1.0) == []


def test_gpus_that_do_not_fit_the_request_are_a_failed_launch(stage: Stage) -> None:
    stage.queue.add()
    stage.follow()
    until(stage.backend.found, "for the job")
    stage.follow(State.LAUNCHING)
    stage.start(1, Place("v1", (0, 1)), Place("v2", (0, 1)))
    assert "4 GPUs on each of 1 nodes only, and it was placed with 2 + 2" in stage.until_told(LaunchFailed).why


def test_a_users_scancel_is_told_until_the_service_has_heard(stage: Stage) -> None:
    stage.run()
    stage.queue.set("17", state="CANCELLED", hosts=())
    assert stage.until_told(JobCancelled) == JobCancelled(5.0, JOB, "slurm: ann")
    stage.follow(State.CANCELLING)
    stage.backend.stop(JOB, 1)
    stage.until_told(JobStopped)


def test_a_job_cancelled_in_horae_while_it_waits_is_cancelled_in_slurm(stage: Stage) -> None:
    stage.queue.add()
    stage.follow()
    until(stage.backend.found, "for the job")
    stage.follow(State.CANCELLED)
    until(lambda: stage.queue.jobs["17"].state == "CANCELLED", "for scancel")


def test_an_id_that_is_given_out_again_is_another_job(stage: Stage) -> None:
    stage.queue.add()
    stage.follow(State.WAITING)
    until(lambda: ("scontrol", "release", "17") in stage.queue.changes, "for the first")
    stage.queue.add(submitted="2026-01-01T11:00:00", user="bob")
    (found,) = until(stage.backend.found, "for the second")
    assert (found.key, found.user) == ("slurm:17@2026-01-01T11:00:00", "bob")
    assert stage.until_told(JobCancelled).job == JOB
    assert SUBMITTED in KEY


def test_a_job_that_waits_for_another_is_not_offered_yet(stage: Stage) -> None:
    stage.queue.add("17", dependency="afterok:16(unfulfilled)")
    stage.queue.add("18")
    stage.follow()
    assert [job.key for job in until(stage.backend.found, "for a job")] == [KEY.replace("17@", "18@")]
    stage.queue.set("17", dependency="")
    until(lambda: len(stage.backend.found()) == 2, "for the other")


def test_a_refusal_is_told_where_the_user_looks(stage: Stage) -> None:
    stage.queue.add()
    stage.follow()
    until(stage.backend.found, "for the job")
    stage.backend.refuse(KEY, "It needs 9 GPUs.")
    comment = "admincomment=horae: not taken in. It needs 9 GPUs."
    until(lambda: ("scontrol", "update", "jobid=17", comment) in stage.queue.changes, "for the comment")
    until(lambda: not stage.backend.found(), "for peace")


def test_a_job_that_is_moved_to_another_partition_is_let_go(stage: Stage) -> None:
    stage.queue.add()
    stage.follow(State.WAITING)
    until(lambda: stage.queue.jobs["17"].is_postponed, "for Horae's order")
    stage.queue.set("17", partition="others")
    assert stage.until_told(JobCancelled).job == JOB
    assert not stage.queue.jobs["17"].is_postponed


def test_an_operator_who_is_sure_ends_the_attempts_of_a_node(stage: Stage) -> None:
    stage.run()
    stage.backend.gone("v1")
    assert stage.until_told(JobStopped).attempt == 1
    assert ("scontrol", "requeuehold", "17") in stage.queue.changes


def test_a_job_that_slurm_will_not_put_back_has_failed_after_some_tries(stage: Stage) -> None:
    stage.run()
    stage.queue.refuses = "requeuehold"
    stage.queue.set("17", state="FAILED", code=75, hosts=())
    assert stage.until_told(JobFailed).exit_code == 75
    assert [change for change in stage.queue.refused if "requeuehold" in change] == [
        ("scontrol", "requeuehold", "17")
    ] * 3


def test_the_log_says_where_the_output_is(stage: Stage) -> None:
    stage.run()
    assert stage.backend.log(JOB, 1).read_text() == "The output of Slurm job 17 is in /home/ann/slurm-17.out.\n"
    with pytest.raises(FileNotFoundError):
        stage.backend.log("nobody-1", 1)
    assert stage.backend.secrets(["TOKEN"]) == {}
    assert stage.backend.discard([JOB], []) == [JOB]


def test_jobs_that_vanish_all_at_once_are_not_believed_to_be_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_see = False
    monkeypatch.setattr("horae.backends.slurm.adoption_checks.is_operator", lambda *_: may_see)
    stage.queue.add("18")
    stage.run()
    stage.queue.hidden = stage.queue.private = True
    until(lambda: "none of the 2 jobs" in stage.backend.trouble, "for the doubt")
    end_s = time.monotonic() + 2 * QUICK.none_left_s
    until(lambda: time.monotonic() > end_s, "for longer than an empty list is doubted")
    assert stage.backend.sight() is None
    stage.queue.hidden = False
    until(stage.backend.sight, "for the jobs to be back")
    stage.events += stage.backend.watch(5.0)
    assert not [event for event in stage.events if isinstance(event, JobStopped | JobFailed | JobCancelled)]
    stage.queue.hidden, may_see = True, True
    until(lambda: not stage.backend.sight(), "for the doubt")
    stage.until_told(JobCancelled)


def test_one_job_that_vanishes_is_gone_as_before(stage: Stage) -> None:
    stage.run()
    stage.queue.jobs.clear()
    stage.until_told(JobCancelled)
