"""What becomes of each job when Horae leaves; test_adoption.py does it on a real Slurm."""

from __future__ import annotations

from horae.backends.slurm.adopted_job import AdoptedSlurmJob
from horae.backends.slurm.commands import ChangeRefused, SlurmCommands
from horae.backends.slurm.give_back import GivenBack, give_back
from horae.backends.slurm.job_request import HELD_BY_PLUGIN
from horae.backends.slurm.partition_flag import FLAG_PREFIX
from tests.backends.slurm.adopted import SUBMITTED, adopted

FAR = "2099-01-01T00:00:00"


class Queue(SlurmCommands):
    """A queue with one job, and what is done with it."""

    def __init__(
        self, state: str, reason: str, eligible: str, comment: str = "", refuses: bool = False, name: str = "train"
    ) -> None:
        self.line = f"17|gpu|ann|{state}|{reason}|{int('Held' not in reason)}||{SUBMITTED}|0|0|{eligible}|0:00|(null)|"
        self.details, self.refuses = f"JobId=17 JobName={name}\n   AdminComment={comment}", refuses
        self.changes: list[tuple[str, ...]] = []

    def read(self, *command: str, nothing: str = "") -> str:
        return self.line if command[0] == "squeue" else self.details

    def change(self, *command: str) -> None:
        if self.refuses:
            raise ChangeRefused("no")
        self.changes.append(command)


def left(queue: Queue, job: AdoptedSlurmJob | None = None, requeue: bool = True) -> list[tuple[str, ...]]:
    give_back(queue, "gpu", {job.key: job} if job else {}, requeue)
    return queue.changes


UPDATE = ("scontrol", "update", "jobid=17", "reqnodelist=p2", "starttime=now")
RELEASE = ("scontrol", "release", "17")


def test_a_postponed_job_may_start_where_its_user_wants() -> None:
    assert left(Queue("PENDING", "BeginTime", FAR), adopted(asked_nodes="p2")) == [UPDATE]


def test_a_job_that_slurm_holds_after_a_run_is_released() -> None:
    assert left(Queue("SPECIAL_EXIT", "JobHeldUser", FAR), adopted(asked_nodes="p2")) == [UPDATE, RELEASE]


def test_a_users_hold_stays() -> None:
    assert left(Queue("PENDING", "JobHeldUser", FAR), adopted(asked_nodes="p2")) == [UPDATE]
    held = adopted(asked_nodes="p2", user_hold=True)
    assert left(Queue("SPECIAL_EXIT", "JobHeldUser", FAR), held) == [UPDATE]


def test_a_job_that_horae_has_not_seen_is_released_if_the_plugin_holds_it() -> None:
    assert left(Queue("PENDING", "JobHeldUser", "N/A", HELD_BY_PLUGIN)) == [RELEASE]
    assert left(Queue("PENDING", "JobHeldUser", "N/A", "for me")) == []


def test_jobs_may_be_run_again_only_where_slurm_does_that_by_itself() -> None:
    words = ("scontrol", "update", "jobid=17", "requeue=0")
    assert left(Queue("RUNNING", "None", SUBMITTED), adopted(), requeue=False) == [words]
    assert left(Queue("RUNNING", "None", SUBMITTED), adopted(requeue=False), requeue=False) == []
    assert left(Queue("RUNNING", "None", SUBMITTED), adopted()) == []


def test_ended_jobs_and_refusals() -> None:
    assert left(Queue("COMPLETED", "None", SUBMITTED), adopted()) == []
    refusing = Queue("PENDING", "BeginTime", FAR, refuses=True)
    job = adopted()
    assert give_back(refusing, "gpu", {job.key: job}, True) == GivenBack(refused=["17"])


START = ("scontrol", "update", "jobid=17", "starttime=now")


def test_a_job_without_a_record_is_told_by_its_start_time_in_2099() -> None:
    assert left(Queue("PENDING", "BeginTime", FAR)) == [START]
    assert left(Queue("PENDING", "BeginTime", "2030-01-01T00:00:00")) == [], "the user's own --begin"
    assert left(Queue("PENDING", "BeginTime", FAR), requeue=False) == [(*START, "requeue=0")]
    assert give_back(Queue("PENDING", "BeginTime", FAR), "gpu", {}, True) == GivenBack(["17"], ["17"])


def test_without_a_record_slurms_hold_goes_and_the_users_stays() -> None:
    assert left(Queue("SPECIAL_EXIT", "JobHeldUser", FAR)) == [START, RELEASE]
    assert left(Queue("PENDING", "JobHeldUser", FAR)) == [START]


def test_the_flag_of_a_service_is_no_job_to_give_back() -> None:
    assert left(Queue("PENDING", "JobHeldUser", FAR, name=f"{FLAG_PREFIX}ab12@head")) == []
