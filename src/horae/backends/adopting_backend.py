"""`AdoptingBackend`: what is common to backends that order jobs which users gave to the cluster manager itself.

Users' jobs are found there and handed to the service, which submits them in their users' names. Launches and stops
become changes of the same jobs. The records of `adopted_job.py` say what was begun, also after a crash.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Generic

from horae.backends.adopted_job import FINISHED, LAUNCH_FAILED, STOPPED, Job, JobRecords, end_of
from horae.backends.driver import OutOfSight
from horae.backends.fence import Fence
from horae.backends.found_jobs import FoundJob, TakenJob
from horae.backends.looking_backend import LookingBackend
from horae.backends.protocol import Attempt, Place, Start
from horae.backends.task import Task
from horae.core.events import Event, JobStarted, JobStopped, LaunchFailed

#: Seconds before the same request of a user is told again, if the service has not followed it.
_TELL_AGAIN_S = 5.0
#: Seconds to wait at the end for a call that hangs. Nothing is lost: what was begun is on record.
_LEAVE_S = 5.0


class AdoptingBackend(LookingBackend, Generic[Job]):
    """A backend for jobs of users. One thread looks and does what is to be done."""

    shares_gpus = False
    #: CPUs, memory and images are between the users and the cluster manager.
    honours = frozenset[str]()
    #: The cluster manager's name, for sentences.
    manager: str

    def __init__(self, records: JobRecords[Job], silence_s: float, fence: str) -> None:
        super().__init__("horae-adoption", silence_s)
        self._records = records
        self._fence = Fence(fence, self.gone)
        # Shared with other threads, under the lock.
        self._notes: deque[Start | Attempt] = deque()
        self._forgotten: deque[Attempt] = deque()
        self._refused: deque[tuple[str, str]] = deque()
        self._gone: deque[str] = deque()
        self._taken: Mapping[str, TakenJob] | None = None
        self._found: list[FoundJob] = []
        # Of the thread alone.
        self._requests_told: dict[Event, float] = {}
        self._outcomes_told: set[Attempt] = set()

    # --- the protocols: nothing here waits

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
        return self._records.write_log(record, self._where_is_output(record))

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
        """Note that the service cannot take in a job; its user is told the reason in the cluster manager."""
        with self._lock:
            self._refused.append((key, why))

    def close(self) -> None:
        """End the thread. Running jobs go on; jobs that wait go on waiting."""
        self._end_thread(_LEAVE_S)

    # --- what each cluster manager does in its own way

    @abstractmethod
    def _round(self, taken: Mapping[str, TakenJob]) -> None:
        """Look, and do and tell for each job what is to be done."""

    @abstractmethod
    def _comment(self, job: Job, text: str) -> None:
        """Tell the user of a job something where the cluster manager shows it."""

    @abstractmethod
    def _where_is_output(self, job: Job) -> str:
        """A sentence that says where a job's output is."""

    @abstractmethod
    def _prepare(self, job: Job, places: tuple[Place, ...]) -> str:
        """Note what a new attempt needs; returns why the job cannot be started in these places, empty if it can."""

    def _host_of(self, node: str) -> str:
        """The cluster manager's name of a node."""
        return node

    # --- the thread

    def _turn(self) -> None:
        self._take_notes()
        if self._taken is not None and not self._closing:
            self._round(self._taken)

    def _why_blind(self, why: Exception) -> str:
        if isinstance(why, OutOfSight):
            return f"The cluster is out of sight. {why}"
        if isinstance(why, OSError):
            return f"The records cannot be written: {why.strerror or type(why).__name__}."
        return f"The cluster is out of sight: reading it failed with {type(why).__name__}."

    def _by_job(self) -> dict[str, Job]:
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
            self._note_gone(self._host_of(self._gone[0]))
            self._gone.popleft()
        while self._refused:
            self._note_refused(*self._refused[0])
            self._refused.popleft()

    def _note_start(self, start: Start, job: Job | None) -> None:
        if not job:
            why = f"{self.manager} does not have this job any more"
            self.tell(LaunchFailed(0.0, start.job, start.attempt, why))
            return
        if start.attempt <= job.attempt:
            return
        job.job = start.job
        nodes = tuple(place.node for place in start.places)
        job.begin(start.attempt, nodes, start.task.grace_s, start.task.work)
        if why := self._prepare(job, start.places):
            job.outcome = f"{LAUNCH_FAILED}{why}"
        self._records.save(job)

    def _note_stop(self, attempt: Attempt, job: Job | None) -> None:
        name, number = attempt
        if not job:
            self.tell(JobStopped(0.0, name, number, 0.0))
            return
        if number > job.attempt:
            job.begin(number, (), job.grace_s, job.work)
            job.outcome = STOPPED
        elif number == job.attempt:
            job.stopping = True
        self._records.save(job)

    def _note_forgotten(self, attempt: Attempt, jobs: Mapping[str, Job]) -> None:
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
        job.note_refused(time.monotonic())
        if job.refused != why:
            job.refused = why
            self._records.save(job)
            self._comment(job, f"horae: not taken in. {why}")

    # --- telling

    def _tell_requests(self, events: Iterable[Event], now_s: float) -> None:
        """Tell what users did in the cluster manager, and starts; not again at once while the service follows."""
        for event in events:
            if isinstance(event, JobStarted) or now_s - self._requests_told.get(event, -_TELL_AGAIN_S) >= _TELL_AGAIN_S:
                self._requests_told[event] = now_s
                self.tell(event)
        self._requests_told = {
            event: told_s for event, told_s in self._requests_told.items() if now_s - told_s < _TELL_AGAIN_S
        }

    def _tell_outcome(self, job: Job) -> None:
        attempt = (job.job, job.attempt)
        if job.outcome and not job.forgotten and attempt not in self._outcomes_told:
            self._outcomes_told.add(attempt)
            if job.begun and job.outcome == FINISHED:
                self.tell(JobStarted(0.0, *attempt, up_s=job.run_s))
            self.tell(end_of(job))

    def _observe_jobs(self) -> None:
        """Tell which attempts live, or may live, on nodes that have come into sight."""
        active = [job for job in self._records.jobs.values() if job.is_active]
        self._observe(((job.job, job.attempt), job.nodes) for job in active)
