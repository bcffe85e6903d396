"""`AdoptingBackend`: orders the jobs that users submit to a Slurm partition with `sbatch`, under their own accounts.

Users' jobs are found in Slurm's list and handed to the service, which submits them in their users' names. Launches and
stops become changes of the same Slurm jobs. One thread looks at Slurm and does what `adoption_steps.see_to` says; the
records of `adopted_job.py` say what was begun, also after a crash. Nothing of Horae runs on the nodes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from horae.backends.driver import OutOfSight
from horae.backends.fence import Fence
from horae.backends.found_jobs import FoundJob, TakenJob
from horae.backends.protocol import Attempt, Backend, Place, Sight, Start
from horae.backends.slurm.adopted_job import (
    FAILED,
    FINISHED,
    LAUNCH_FAILED,
    STOPPED,
    AdoptedJob,
    AdoptionRecords,
    key_of,
)
from horae.backends.slurm.adoption_steps import AdoptionSettings, JobStep, Moment, cancelled, see_to
from horae.backends.slurm.batch_job import host_of
from horae.backends.slurm.command_output import SlurmHost, read_config
from horae.backends.slurm.commands import ChangeRefused, SlurmCommands
from horae.backends.slurm.driver import foreign_by_node, hosts_of, jobs_on, racks_of
from horae.backends.slurm.job_request import HELD_BY_PLUGIN, BadRequest, read_request
from horae.backends.slurm.partition_flag import PartitionFlag
from horae.backends.slurm.partition_sight import sight_of
from horae.backends.slurm.queue_listing import FAR, QUEUE_FORMAT, QueuedJob, read_details, read_queue
from horae.backends.task import Task
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeObserved
from horae.core.states import ENDED

#: New jobs that are read in one round: each costs a command.
_NEW_IN_A_ROUND = 50
#: Seconds before the same request of a user is told again, if the service has not followed it.
_TELL_AGAIN_S = 5.0


#: Refusals in a row after which a job cannot be put back; one may only mean that it is ending just now.
_REFUSALS = 3
#: Seconds to wait at the end for a command that hangs. Nothing is lost: what was begun is on record.
_LEAVE_S = 5.0


class AdoptingBackend(Backend):
    """A backend for jobs of users in one partition."""

    shares_gpus = False
    #: CPUs, memory and images are between the users and Slurm.
    honours = frozenset[str]()

    def __init__(
        self,
        state: Path,
        partition: str,
        commands: SlurmCommands,
        flag: PartitionFlag | None = None,
        settings: AdoptionSettings | None = None,
        fence: str = "",
    ) -> None:
        self._partition, self._commands, self._flag = partition, commands, flag
        self._settings = settings or AdoptionSettings()
        self._records = AdoptionRecords(state)
        self._fence = Fence(fence, self.gone)
        # Shared with other threads, under the lock.
        self._lock = threading.Lock()
        self._notes: deque[Start | Attempt] = deque()
        self._forgotten: deque[Attempt] = deque()
        self._refused: deque[tuple[str, str]] = deque()
        self._gone: deque[str] = deque()
        self._taken: Mapping[str, TakenJob] | None = None
        self._found: list[FoundJob] = []
        self._events: list[Event] = []
        self._sight: Sight | None = None
        self._trouble = "The cluster was not looked at yet."
        self._looked_s = time.monotonic()
        # Of the thread alone.
        self._requests_told: dict[Event, float] = {}
        self._outcomes_told: set[Attempt] = set()
        self._observed: set[str] = set()
        self._left_alone: set[str] = set()
        self._boot, self._controller_s = "", time.monotonic()
        self._answering_s: dict[str, float] = {}
        #: Whether something was changed in the last round: then it is worth looking again soon.
        self._acted = False
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="horae-adoption", daemon=True)
        self._thread.start()

    # --- the protocols: nothing here waits

    @property
    def submit_with(self) -> str:
        """How users submit jobs."""
        return f"sbatch --partition={self._partition}"

    @property
    def trouble(self) -> str:
        """Why the cluster is out of sight, or what is wrong with its nodes."""
        return self._trouble or ("The cluster does not answer." if self._silent else "")

    @property
    def _silent(self) -> bool:
        return time.monotonic() - self._looked_s > self._settings.silence_s

    def sight(self) -> Sight | None:
        """The nodes of the last look; None while the cluster is out of sight."""
        return None if self._silent else self._sight

    def start(self, start: Start) -> None:
        """Note an attempt to start."""
        with self._lock:
            self._notes.append(start)
        self._wake.set()

    def stop(self, job: str, attempt: int) -> None:
        """Note that an attempt must stop."""
        with self._lock:
            self._notes.append((job, attempt))
        self._wake.set()

    def gone(self, node: str) -> None:
        """Note that nothing runs on a node any more."""
        with self._lock:
            self._gone.append(node)
        self._wake.set()

    def watch(self, now_s: float) -> list[Event]:
        """Empty the queue of events."""
        with self._lock:
            events, self._events = self._events, []
        return [replace(event, at_s=now_s) for event in events]

    def forget(self, job: str, attempt: int) -> None:
        """Note that the end of an attempt is in the journal."""
        with self._lock:
            self._forgotten.append((job, attempt))

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete nothing: the files of these jobs are their users' own."""
        return list(jobs)

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """A file that says where the job's output is."""
        record = next((each for each in list(self._records.jobs.values()) if each.job == job), None)
        if not record:
            raise FileNotFoundError(job)
        return self._records.log(record)

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Nothing: users' jobs get no secrets of the service."""
        return {}

    def found(self) -> list[FoundJob]:
        """Jobs to take in."""
        with self._lock:
            return list(self._found)

    def follow(self, jobs: Mapping[str, TakenJob]) -> None:
        """What the service knows of the jobs."""
        self._taken = dict(jobs)

    def refuse(self, key: str, why: str) -> None:
        """Note that the service cannot take in a job; its user finds the reason in the job's admin comment."""
        with self._lock:
            self._refused.append((key, why))

    def close(self) -> None:
        """End the thread. Running jobs go on; jobs that wait stay postponed."""
        self._closing = True
        self._wake.set()
        self._thread.join(_LEAVE_S)

    # --- the thread

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._settings.look_soon_s if self._acted else self._settings.look_every_s)
            self._wake.clear()
            try:
                self._take_notes()
                if self._taken is not None and not self._closing:
                    self._round(self._taken)
            except OutOfSight as why:
                self._lose_sight(f"The cluster is out of sight. {why}")
            except OSError as why:
                self._lose_sight(f"The records cannot be written: {why.strerror or type(why).__name__}.")
            except Exception as why:
                self._lose_sight(f"The cluster is out of sight: reading it failed with {type(why).__name__}.")

    def _lose_sight(self, sentence: str) -> None:
        self._observed.clear()
        self._answering_s.clear()
        self._sight, self._trouble = None, sentence

    def _by_job(self) -> dict[str, AdoptedJob]:
        return {job.job: job for job in self._records.jobs.values() if job.job}

    def _take_notes(self) -> None:
        """Write intentions down before anything follows from them. What cannot be written stays noted."""
        while self._notes:
            note = self._notes[0]
            if isinstance(note, Start):
                self._note_start(note, self._records.jobs.get(note.task.found_as))
            else:
                self._note_stop(note, self._by_job().get(note[0]))
            self._notes.popleft()
        jobs = self._by_job()
        while self._forgotten:
            self._note_forgotten(self._forgotten[0], jobs)
            self._forgotten.popleft()
        while self._gone:
            self._note_gone(host_of(self._gone[0]))
            self._gone.popleft()
        while self._refused:
            self._note_refused(*self._refused[0])
            self._refused.popleft()

    def _note_start(self, start: Start, job: AdoptedJob | None) -> None:
        if not job:
            self._tell(LaunchFailed(0.0, start.job, start.attempt, "Slurm does not have this job any more"))
            return
        if start.attempt <= job.attempt:
            return
        job.job = start.job
        nodes = tuple(place.node for place in start.places)
        job.begin(start.attempt, nodes, start.task.grace_s, start.task.work)
        if why := _misfit(job, start.places):
            job.outcome = f"{LAUNCH_FAILED}{why}"
        self._records.save(job)

    def _note_stop(self, attempt: Attempt, job: AdoptedJob | None) -> None:
        name, number = attempt
        if not job:
            self._tell(JobStopped(0.0, name, number, 0.0))
            return
        if number > job.attempt:
            job.begin(number, (), job.grace_s, job.work)
            job.outcome = STOPPED
        elif number == job.attempt:
            job.stopping = True
        self._records.save(job)

    def _note_forgotten(self, attempt: Attempt, jobs: Mapping[str, AdoptedJob]) -> None:
        job = jobs.get(attempt[0])
        if job and job.attempt == attempt[1] and job.outcome:
            job.forgotten = True
            self._records.save(job)

    def _note_gone(self, host: str) -> None:
        for job in self._records.jobs.values():
            if job.is_active and host in job.doubted_hosts:
                job.gone = (*job.gone, host)
                self._records.save(job)

    def _note_refused(self, key: str, why: str) -> None:
        job = self._records.jobs.get(key)
        if not job:
            return
        job.timers.refused_s = time.monotonic()
        if job.refused != why:
            job.refused = why
            self._records.save(job)
            self._comment(job, f"horae: not taken in. {why}")

    def _comment(self, job: AdoptedJob, text: str) -> None:
        """Tell the user of a job something where `scontrol show job` shows it."""
        self._change(job, "scontrol", "update", f"jobid={job.slurm_id}", f"admincomment={' '.join(text.split())}")

    # --- a round

    def _round(self, taken: Mapping[str, TakenJob]) -> None:
        self._acted = False
        self._commands.check_controller()
        if self._flag and (lost := self._flag.check()):
            raise OutOfSight(lost)
        hosts = hosts_of(self._commands, self._partition)
        at = self._moment(hosts)
        queue = self._queue()
        self._take_up(queue, taken)
        seen = self._match(queue)
        trouble = self._show(hosts)
        for job in list(self._records.jobs.values()):
            if self._closing:
                return
            self._see_to(job, seen.get(job.key), taken.get(job.key), at)
        self._offer(seen, taken, at)
        self._observe()
        self._trouble, self._looked_s = trouble, time.monotonic()

    def _moment(self, hosts: Mapping[str, SlurmHost]) -> Moment:
        """Since when the controller and each host are in sight. A controller that was restarted begins anew."""
        now_s = time.monotonic()
        boot = read_config(self._commands.read("scontrol", "show", "config")).get("BOOT_TIME", "")
        if boot != self._boot or self._sight is None:
            self._boot, self._controller_s = boot, now_s
            self._answering_s.clear()
        self._answering_s = {
            host.name: self._answering_s.get(host.name, now_s) for host in hosts.values() if host.answers
        }
        return Moment(now_s, self._controller_s, dict(self._answering_s), self._settings, boot)

    def _queue(self) -> list[QueuedJob]:
        """Jobs of the partition, ended ones included, and known jobs that were moved elsewhere."""
        ids = {job.slurm_id for job in self._records.jobs.values()}
        queue = read_queue(self._commands.read("squeue", "-h", "-a", "-r", "--states=all", "-O", QUEUE_FORMAT))
        return [job for job in queue if job.partition == self._partition or job.id in ids]

    def _match(self, queue: Iterable[QueuedJob]) -> dict[str, QueuedJob]:
        """What the list shows of each known job, by key."""
        by_id: dict[str, list[AdoptedJob]] = {}
        for job in self._records.jobs.values():
            by_id.setdefault(job.slurm_id, []).append(job)
        return {job.key: seen for seen in queue for job in by_id.get(seen.id, ()) if job.matches(seen)}

    def _take_up(self, queue: Iterable[QueuedJob], taken: Mapping[str, TakenJob]) -> None:
        """Begin to follow waiting jobs that are new."""
        matched = {seen.id for seen in self._match(queue).values()}
        new = [
            seen
            for seen in queue
            if seen.is_waiting
            and seen.id not in matched
            and key_of(seen) not in self._left_alone
            and not (self._flag and self._flag.is_flag(seen.id))
        ]
        for seen in new[:_NEW_IN_A_ROUND]:
            self._adopt(seen, taken)

    def _adopt(self, seen: QueuedJob, taken: Mapping[str, TakenJob]) -> None:
        details = read_details(self._commands.read("scontrol", "show", "job", seen.id, nothing="Invalid job id"))
        from_plugin = HELD_BY_PLUGIN in details.get("AdminComment", "")
        try:
            request = read_request(seen.id, details)
        except BadRequest as why:
            self._let_go(seen, from_plugin, str(why))
            self._left_alone.add(key_of(seen))
            return
        for older in [job for job in self._records.jobs.values() if job.slurm_id == seen.id]:
            older.replaced = True
            self._records.save(older)
        job = AdoptedJob.of(seen, request, details, from_plugin)
        if in_service := taken.get(job.key):
            job.job = in_service.job
        self._records.save(job)

    def _let_go(self, seen: QueuedJob, from_plugin: bool, why: str) -> None:
        """Leave a job that cannot be ordered to Slurm, with a word to its user."""
        try:
            if from_plugin:
                self._commands.change("scontrol", "release", seen.id)
            comment = f"admincomment=horae: left to Slurm. {why}"
            self._commands.change("scontrol", "update", f"jobid={seen.id}", comment)
        except ChangeRefused:
            return

    def _see_to(self, job: AdoptedJob, seen: QueuedJob | None, taken: TakenJob | None, at: Moment) -> None:
        if taken and not job.job:
            job.job = taken.job
            self._comment(job, f"horae: {taken.job}. `horae why {taken.job}` says why it waits.")
        if seen and seen.partition != self._partition and not job.is_active:
            self._let_leave(job, seen, taken)
            return
        todo = see_to(job, seen, taken.state if taken else None, at)
        self._records.save(job)
        if job.doubtful and job.is_active:
            for host in job.doubted_hosts:
                if host not in at.answering_s:
                    self._fence.use_on(host)
        for step in todo.steps:
            if not self._perform(step, job):
                break
        self._tell_requests(todo.events, at.now_s)
        self._tell_outcome(job)
        if _is_over(job, seen, taken, at):
            self._records.drop(job)

    def _let_leave(self, job: AdoptedJob, seen: QueuedJob, taken: TakenJob | None) -> None:
        """A waiting job was moved to another partition: it is no longer Horae's."""
        if seen.is_waiting and seen.is_postponed:
            self._change(job, *_back_to_slurm(job))
        if taken and taken.state not in ENDED:
            self._tell_requests([cancelled(job)], time.monotonic())
        else:
            self._records.drop(job)

    def _perform(self, step: JobStep, job: AdoptedJob) -> bool:
        """Do a step; whether Slurm has done it."""
        number = job.slurm_id
        match step:
            case JobStep.POSTPONE:
                return self._change(job, "scontrol", "update", f"jobid={number}", f"starttime={FAR}")
            case JobStep.RELEASE:
                return self._change(job, "scontrol", "release", number)
            case JobStep.LAUNCH:
                nodes = f"reqnodelist={','.join(job.hosts)}"
                return self._change(job, "scontrol", "update", f"jobid={number}", nodes, "starttime=now")
            case JobStep.NOTICE:
                return self._change(job, "scancel", "--full", "--signal=USR1", number)
            case JobStep.CANCEL:
                return self._change(job, "scancel", number)
            case JobStep.PUT_BACK:
                done = self._change(job, "scontrol", "requeuehold", number)
                job.timers.refusals = 0 if done else job.timers.refusals + 1
                job.not_put_back = job.timers.refusals >= _REFUSALS
                return done

    def _change(self, job: AdoptedJob, *command: str) -> bool:
        """Change a job in Slurm; whether Slurm did it. If not, the next look tells what is the matter."""
        self._acted = True
        try:
            self._commands.change(*command)
        except ChangeRefused:
            return False
        return True

    # --- telling

    def _tell(self, *events: Event) -> None:
        with self._lock:
            self._events += events

    def _tell_requests(self, events: Iterable[Event], now_s: float) -> None:
        """Tell what users did in Slurm, and starts; not again at once while the service follows."""
        for event in events:
            if isinstance(event, JobStarted) or now_s - self._requests_told.get(event, -_TELL_AGAIN_S) >= _TELL_AGAIN_S:
                self._requests_told[event] = now_s
                self._tell(event)
        self._requests_told = {
            event: told_s for event, told_s in self._requests_told.items() if now_s - told_s < _TELL_AGAIN_S
        }

    def _tell_outcome(self, job: AdoptedJob) -> None:
        attempt = (job.job, job.attempt)
        if job.outcome and not job.forgotten and attempt not in self._outcomes_told:
            self._outcomes_told.add(attempt)
            if job.begun and job.outcome == FINISHED:
                self._tell(JobStarted(0.0, *attempt, up_s=job.run_s))
            self._tell(_end_of(job))

    def _show(self, hosts: Mapping[str, SlurmHost]) -> str:
        """Make the look the backend's sight; returns what is wrong with its nodes."""
        own = {job.slurm_id for job in self._records.jobs.values() if job.attempt}
        foreign = [job for job in jobs_on(self._commands, hosts) if job.id not in own]
        sight, trouble = sight_of(hosts, racks_of(self._commands), foreign_by_node(foreign, hosts))
        if sight != self._sight:
            self._sight = sight
        return trouble

    def _offer(self, seen: Mapping[str, QueuedJob], taken: Mapping[str, TakenJob], at: Moment) -> None:
        """Name the jobs to take in: they wait in Slurm, and for no other job."""
        found = [
            FoundJob(job.key, job.user, job.document)
            for job in self._records.jobs.values()
            if job.key not in taken
            and job.key in seen
            and seen[job.key].is_waiting
            and not seen[job.key].dependency
            and at.now_s - job.timers.refused_s >= self._settings.refused_s
        ]
        with self._lock:
            self._found = found

    def _observe(self) -> None:
        """Tell which attempts live, or may live, on each node that was not told of since it is in sight."""
        jobs = [job for job in self._records.jobs.values() if job.is_active]
        for node in self._sight.nodes if self._sight else ():
            if node.name not in self._observed:
                self._observed.add(node.name)
                alive = sorted((job.job, job.attempt) for job in jobs if node.name in job.nodes)
                self._tell(NodeObserved(0.0, node.name, tuple(alive)))


def _misfit(job: AdoptedJob, places: tuple[Place, ...]) -> str:
    """Why the GPUs of an attempt do not fit what the job asked of Slurm; empty if they do."""
    counts = sorted(len(place.gpus) for place in places)
    if counts == [job.gpus_per_node] * job.node_count:
        return ""
    asked = f"{job.gpus_per_node} GPUs on each of {job.node_count} nodes"
    return f"Slurm starts the job with {asked} only, and it was placed with {' + '.join(map(str, counts))}"


def _end_of(job: AdoptedJob) -> Event:
    attempt = (job.job, job.attempt)
    if job.outcome == FINISHED:
        return JobFinished(0.0, *attempt)
    if job.outcome.startswith(LAUNCH_FAILED):
        return LaunchFailed(0.0, *attempt, job.outcome.removeprefix(LAUNCH_FAILED))
    if job.outcome.startswith(FAILED):
        return JobFailed(0.0, *attempt, int(job.outcome.removeprefix(FAILED)), job.work_saved)
    return JobStopped(0.0, *attempt, job.work_saved)


def _is_over(job: AdoptedJob, seen: QueuedJob | None, taken: TakenJob | None, at: Moment) -> bool:
    """Whether nothing will ever be told of a job again: Slurm does not list it, and the service has ended it."""
    if seen or job.timers.missing_s is None or at.now_s - job.timers.missing_s < at.settings.missing_s:
        return False
    return taken is None or (taken.state in ENDED and not job.is_active)


def _back_to_slurm(job: AdoptedJob) -> tuple[str, ...]:
    """The command by which a waiting job is plain Slurm's again."""
    nodes = f"reqnodelist={job.asked_nodes}"
    return "scontrol", "update", f"jobid={job.slurm_id}", nodes, "starttime=now"
