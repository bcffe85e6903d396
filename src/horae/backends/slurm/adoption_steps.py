"""What is to be done for an adopted job: decided from its record, Slurm's list and the service's state. No I/O.

`see_to` compares once. Whatever was missed, lost or done twice, the next comparison settles it:

1. A job that waits in Horae is postponed in Slurm: its start time is far away. Only then a hold is lifted that the
   plugin or Slurm itself has put on it. A hold that remains is its user's.
2. A job that is to run gets its nodes and the start time "now".
3. A job that is to stop gets a notice; it saves and exits with 75, and Slurm puts it back. If it does not, it is put
   back by force after its grace period.
4. An attempt is over when Slurm shows more restarts than at its launch, or a final state, and its nodes answer.

A controller that was killed shows older states. So a job that ran, and now seems to wait as if it never had, is only
started again after the controller and the nodes have been in sight long enough to end what is left of it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from horae.backends.adopted_job import FAILED, FINISHED, LAUNCH_FAILED, STOPPED
from horae.backends.protocol import KILLED, RUN_AGAIN
from horae.backends.slurm.adopted_job import AdoptedSlurmJob, Timers
from horae.backends.slurm.queue_listing import QueuedJob
from horae.core.events import Event, JobCancelled, JobHeld, JobReleased, JobStarted, JobTimedOut
from horae.core.states import ENDED, ENDING, HELD, HOLDING, LAUNCHING, RUNNING, State


class JobStep(enum.Enum):
    """What to do with a job in Slurm. Each can be done again without harm."""

    POSTPONE = "postpone"
    RELEASE = "release"
    LAUNCH = "launch"
    NOTICE = "notice"
    PUT_BACK = "put back"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class AdoptionSettings:
    """How patient an adopting backend is, in seconds."""

    #: From one look to the next, and after a change.
    look_every_s: float = 1.0
    look_soon_s: float = 0.3
    #: After which a started job surely gets a signal: Slurm loses those of the first second.
    deaf_s: float = 2.0
    #: Between two notices of one stop, if the job runs on: a notice may be lost.
    notice_again_s: float = 10.0
    #: Between two orders to end a job.
    end_again_s: float = 5.0
    #: For which Slurm may let a launched job wait.
    launch_s: float = 60.0
    #: In sight for as long, controller and nodes have ended what they do not know.
    settle_s: float = 30.0
    #: After which a job that Slurm does not list is gone.
    missing_s: float = 30.0
    #: After which a list without any of the known jobs is believed.
    none_left_s: float = 120.0
    #: Without an answer, the cluster is out of sight.
    silence_s: float = 30.0
    #: Between two tries to take in a job that the service refused.
    refused_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When a comparison is made, and since when controller and nodes are in sight; monotonic seconds."""

    now_s: float
    controller_s: float
    #: Hosts that answer, and since when.
    answering_s: Mapping[str, float]
    settings: AdoptionSettings = field(default_factory=AdoptionSettings)
    #: When the controller was started, in its own words.
    boot: str = "first"

    def answers(self, hosts: tuple[str, ...]) -> bool:
        """Whether all hosts answer now."""
        return all(host in self.answering_s for host in hosts)

    def is_settled(self, hosts: tuple[str, ...]) -> bool:
        """Whether the controller and all hosts have been in sight for long enough."""
        latest_s = max([self.controller_s, *(self.answering_s.get(host, self.now_s) for host in hosts)])
        return self.now_s - latest_s >= self.settings.settle_s


@dataclass(slots=True)
class Todo:
    """What a comparison has found."""

    steps: list[JobStep] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def see_to(job: AdoptedSlurmJob, seen: QueuedJob | None, state: State | None, at: Moment) -> Todo:
    """What to do and tell now. `state` is the job's state in the service, None if it was not taken in yet."""
    todo = Todo()
    if seen is None:
        _see_missing(job, state, at, todo)
        return todo
    job.timers.missing_s = None
    job.see(seen)
    if not seen.is_held:
        job.unheld_boot = at.boot
    if not job.is_active:
        _see_idle(job, seen, state, at, todo)
        return todo
    _see_attempt(job, seen, state, at, todo)
    if job.outcome:
        job.noticed, job.timers = False, Timers()
    return todo


def _see_missing(job: AdoptedSlurmJob, state: State | None, at: Moment, todo: Todo) -> None:
    """Slurm does not list the job: it ended long ago, or a killed controller has forgotten it."""
    timers = job.timers
    timers.missing_s = at.now_s if timers.missing_s is None else timers.missing_s
    if state is None or at.now_s - timers.missing_s < at.settings.missing_s:
        return
    if job.is_active and not at.is_settled(job.doubted_hosts):
        return
    if state not in (*ENDED, *ENDING):
        todo.events.append(cancelled(job))
    elif job.is_active:
        job.outcome = STOPPED


# --- jobs without an attempt


def _see_idle(job: AdoptedSlurmJob, seen: QueuedJob, state: State | None, at: Moment, todo: Todo) -> None:
    if seen.is_ended:
        if state is not None and state not in ENDED:
            todo.events.append(cancelled(job))
    elif state in ENDED and 0 <= job.ended_restarts < seen.restarts:
        job.replaced = True  # its user runs it once more: that is another job
    elif state in ENDED:
        _cancel(job, at, todo)
    elif seen.is_waiting:
        _keep_waiting(job, seen, state, at, todo)
    elif seen.state != "COMPLETING":
        # It runs though Horae did not let it: released by hand, or by Slurm after a failure.
        _stop_run(job, seen, state, at, todo)


def _keep_waiting(job: AdoptedSlurmJob, seen: QueuedJob, state: State | None, at: Moment, todo: Todo) -> None:
    """Postpone a job, and tell whether its user holds it."""
    if not seen.is_postponed:
        todo.steps.append(JobStep.POSTPONE)
    if seen.is_held and not job.user_hold and _is_own_hold(job, seen, at):
        todo.steps.append(JobStep.RELEASE)
    elif seen.is_held:
        _tell_hold(job, state, todo)
    elif job.user_hold:
        _tell_release(job, state, todo)


def _is_own_hold(job: AdoptedSlurmJob, seen: QueuedJob, at: Moment) -> bool:
    """Whether a hold is of the plugin or of Slurm itself, not of the user.

    The plugin's hold is there until the job is first seen without it; a killed controller may bring it back.
    """
    return seen.was_put_back or (job.from_plugin and job.unheld_boot != at.boot)


def _tell_hold(job: AdoptedSlurmJob, state: State | None, todo: Todo) -> None:
    job.user_hold = True
    if state is not None and state not in (HELD, HOLDING, *ENDED, *ENDING):
        todo.events.append(JobHeld(0.0, job.job, _by(job)))


def _tell_release(job: AdoptedSlurmJob, state: State | None, todo: Todo) -> None:
    if state in (HELD, HOLDING):
        todo.events.append(JobReleased(0.0, job.job, _by(job)))
    else:
        job.user_hold = False


# --- attempts


def _see_attempt(job: AdoptedSlurmJob, seen: QueuedJob, state: State | None, at: Moment, todo: Todo) -> None:
    if not at.answers(job.doubted_hosts):
        job.doubtful = job.doubtful or job.begun
    if seen.restarts > job.restarts:
        _see_put_back(job, seen, at, todo)
    elif seen.is_ended:
        _see_end(job, seen, state, at, todo)
    elif seen.is_waiting:
        _see_unbegun(job, seen, state, at, todo)
    else:
        _see_run(job, seen, state, at, todo)


def _is_proven(job: AdoptedSlurmJob, at: Moment) -> bool:
    """Whether an end can be believed. What Slurm has lost sight of may live until shortly after its return."""
    return at.is_settled(job.doubted_hosts) if job.doubtful else at.answers(job.doubted_hosts)


def _see_put_back(job: AdoptedSlurmJob, seen: QueuedJob, at: Moment, todo: Todo) -> None:
    """Slurm has put the job back: the attempt is over. Exit code 75 says that the job has saved its work."""
    if seen.is_waiting and not seen.is_postponed:
        todo.steps.append(JobStep.POSTPONE)
    if not _is_proven(job, at):
        return
    if seen.code == RUN_AGAIN:
        job.saved_s += job.run_s
    failed = "launch failed" in seen.reason and not job.stopping
    job.outcome = f"{LAUNCH_FAILED}Slurm says: {seen.reason}" if failed else STOPPED


def _see_end(job: AdoptedSlurmJob, seen: QueuedJob, state: State | None, at: Moment, todo: Todo) -> None:
    """Slurm says that the job is over."""
    is_ending = state in (*ENDING, *ENDED)
    if not _is_proven(job, at):
        return
    if seen.state == "COMPLETED":
        job.outcome = FINISHED
    elif is_ending:
        job.outcome = STOPPED
    elif seen.state == "CANCELLED":
        todo.events.append(cancelled(job))
    elif seen.state in ("TIMEOUT", "DEADLINE"):
        # A time limit ends jobs that run; one that is being stopped is cancelled by it.
        todo.events.append(JobTimedOut(0.0, job.job) if state in (LAUNCHING, RUNNING) else cancelled(job))
    elif _runs_again(job, seen):
        if job.not_put_back:
            job.outcome = f"{FAILED}{seen.code or KILLED}"
        else:
            _put_back(job, at, todo)
    else:
        job.outcome = f"{FAILED}{seen.code or KILLED}"


def _runs_again(job: AdoptedSlurmJob, seen: QueuedJob) -> bool:
    """Whether an ended job is no fault of its own, or asks to run again."""
    return seen.code == RUN_AGAIN or job.noticed or seen.state in ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED")


def _see_unbegun(job: AdoptedSlurmJob, seen: QueuedJob, state: State | None, at: Moment, todo: Todo) -> None:
    """Slurm says that the attempt has not begun."""
    if job.begun:
        # A killed controller has forgotten the run; what is left of it must be gone first.
        if not seen.is_postponed:
            todo.steps.append(JobStep.POSTPONE)
        if not at.is_settled(job.doubted_hosts):
            return
        job.begun, job.noticed, job.timers.launched_s = False, False, None
    if job.stopping or job.gave_up or state in (*ENDING, *ENDED):
        if seen.is_postponed:
            job.outcome = f"{LAUNCH_FAILED}{job.gave_up}" if job.gave_up and not job.stopping else STOPPED
        else:
            todo.steps.append(JobStep.POSTPONE)
    elif seen.is_held and (job.user_hold or not _is_own_hold(job, seen, at)):
        _tell_hold(job, state, todo)
    elif seen.is_postponed or seen.is_held or job.timers.launched_s is None:
        job.timers.launched_s = job.timers.launched_s or at.now_s
        todo.steps += [JobStep.LAUNCH, JobStep.RELEASE] if seen.is_held else [JobStep.LAUNCH]
    elif at.now_s - job.timers.launched_s > at.settings.launch_s:
        job.gave_up = f"Slurm did not start it: {seen.reason}"
        todo.steps.append(JobStep.POSTPONE)


def _see_run(job: AdoptedSlurmJob, seen: QueuedJob, state: State | None, at: Moment, todo: Todo) -> None:
    """The attempt runs, or is about to end."""
    job.begun, job.run_s = True, max(job.run_s, seen.run_s)
    if job.gone:
        _put_back(job, at, todo)  # Slurm does not know yet; what runs on other nodes ends with it
        return
    if seen.state == "COMPLETING":
        return
    if not job.timers.announced:
        job.timers.announced = True
        todo.events.append(JobStarted(0.0, job.job, job.attempt, up_s=seen.run_s))
    if seen.is_held:
        _tell_hold(job, state, todo)
    elif job.user_hold:
        _tell_release(job, state, todo)
    if job.stopping or state in (*ENDING, *ENDED) or not set(seen.hosts) <= set(job.hosts):
        _stop_run(job, seen, state, at, todo)


def _stop_run(job: AdoptedSlurmJob, seen: QueuedJob, state: State | None, at: Moment, todo: Todo) -> None:
    """End a run: by a notice, after the grace period by force. Jobs that end for good are cancelled."""
    timers, settings = job.timers, at.settings
    if state in (*ENDING, *ENDED):
        _cancel(job, at, todo)
        return
    if not job.requeue:
        return  # its user wants it to run once: it is left to end by itself
    if seen.run_s < settings.deaf_s:
        return
    if timers.first_notice_s is None:
        timers.first_notice_s = at.now_s
        if job.noticed:
            timers.last_notice_s = at.now_s  # by the process before this one
    if at.now_s - timers.first_notice_s > job.grace_s:
        _put_back(job, at, todo)
    elif at.now_s - timers.last_notice_s >= settings.notice_again_s:
        job.noticed, timers.last_notice_s = True, at.now_s
        todo.steps.append(JobStep.NOTICE)


def _put_back(job: AdoptedSlurmJob, at: Moment, todo: Todo) -> None:
    if at.now_s - job.timers.last_end_s >= at.settings.end_again_s:
        job.timers.last_end_s = at.now_s
        todo.steps.append(JobStep.PUT_BACK)


def _cancel(job: AdoptedSlurmJob, at: Moment, todo: Todo) -> None:
    if at.now_s - job.timers.last_end_s >= at.settings.end_again_s:
        job.timers.last_end_s = at.now_s
        todo.steps.append(JobStep.CANCEL)


def cancelled(job: AdoptedSlurmJob) -> JobCancelled:
    """The event of a job that ended in Slurm without Horae."""
    return JobCancelled(0.0, job.job, _by(job))


def _by(job: AdoptedSlurmJob) -> str:
    return f"slurm: {job.user}"
