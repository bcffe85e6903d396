"""A job that its user gave to the cluster manager itself and that Horae orders, and records of such jobs on disk.

<state>/adopted/<key>.json      stored: change by addition
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json
from horae.core.events import Event, JobFailed, JobFinished, JobStopped, LaunchFailed

#: How an attempt ended. LAUNCH_FAILED is followed by the reason, FAILED by the exit code.
FINISHED, STOPPED, FAILED, LAUNCH_FAILED = "finished", "stopped", "failed ", "launch failed "


@dataclass(slots=True, kw_only=True)
class AdoptedJob:
    """What is known of a job, with its last attempt, whatever the cluster manager."""

    #: Identifies the job for good.
    key: str
    user: str
    #: The job as a job file.
    document: dict[str, Any]
    duration_s: float
    #: Horae's id of the job; empty until the service has taken it in.
    job: str = ""
    #: Why the service cannot take it in; empty if it can.
    refused: str = ""
    #: Whether the job is held in the cluster manager, by its user, or since something of it is missing there.
    user_hold: bool = False
    #: Seconds of run time that the job has saved, by its own word (exit code 75).
    saved_s: float = 0.0
    #: The last attempt: its number, its nodes, its task's grace period and work.
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    grace_s: float = 30.0
    work: float = 1.0
    stopping: bool = False
    #: Whether the attempt was seen to run, and for how long.
    begun: bool = False
    run_s: float = 0.0
    #: Hosts on which nothing runs any more: an operator or the site's fence is sure.
    gone: tuple[str, ...] = ()
    #: Why the launch is given up; empty if it is not.
    gave_up: str = ""
    #: How the attempt ended; empty while it has not.
    outcome: str = ""
    forgotten: bool = False

    @property
    def is_active(self) -> bool:
        """Whether an attempt is to run, runs or may run."""
        return self.attempt > 0 and not self.outcome

    @property
    def hosts(self) -> tuple[str, ...]:
        """The cluster manager's names of the attempt's nodes."""
        return self.nodes

    @property
    def doubted_hosts(self) -> tuple[str, ...]:
        """Hosts of the attempt on which something may run, as far as nobody is sure."""
        return tuple(host for host in self.hosts if host not in self.gone)

    def begin(self, attempt: int, nodes: tuple[str, ...], grace_s: float, work: float) -> None:
        """A new attempt is to run."""
        self.attempt, self.nodes, self.grace_s, self.work = attempt, nodes, grace_s, work
        self.run_s, self.outcome, self.gave_up, self.gone = 0.0, "", "", ()
        self.stopping = self.begun = self.forgotten = False

    def note_refused(self, now_s: float) -> None:
        """Note when the service has refused the job; it is offered again after a while."""

    @property
    def work_saved(self) -> float:
        """Work saved, in the service's unit. Beyond nine tenths of its estimated time a job comes ever closer to 1."""
        share = self.saved_s / self.duration_s
        return self.work * (share if share < 0.9 else 1 - 0.1 * math.exp(9 - 10 * share))

    def stored(self) -> dict[str, Any]:
        """The record on disk."""
        record = asdict(self)
        record.pop("timers", None)
        return record


def end_of(job: AdoptedJob) -> Event:
    """The event of an attempt that is over."""
    attempt = (job.job, job.attempt)
    if job.outcome == FINISHED:
        return JobFinished(0.0, *attempt)
    if job.outcome.startswith(LAUNCH_FAILED):
        return LaunchFailed(0.0, *attempt, job.outcome.removeprefix(LAUNCH_FAILED))
    if job.outcome.startswith(FAILED):
        return JobFailed(0.0, *attempt, int(job.outcome.removeprefix(FAILED)), job.work_saved)
    return JobStopped(0.0, *attempt, job.work_saved)


Job = TypeVar("Job", bound=AdoptedJob)


class JobRecords(Generic[Job]):
    """The adopted jobs of a service, by key, in memory and on disk."""

    def __init__(self, state: Path, prefix: str, load: Callable[[Mapping[str, Any]], Job]) -> None:
        """`prefix` is how the keys of this cluster manager begin, and so its files; `load` makes a job of a record."""
        self._folder = state / "adopted"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = [read_json(path, runner.LARGEST_ORDER) for path in sorted(self._folder.glob(f"{prefix}*.json"))]
        self.jobs: dict[str, Job] = {record["key"]: load(record) for record in found if record}
        self._written = {key: job.stored() for key, job in self.jobs.items()}
        for log in set(self._folder.glob(f"{prefix}*.json.txt")).difference(map(self._log, self.jobs)):
            log.unlink(missing_ok=True)

    def save(self, job: Job) -> None:
        """Write a record, if it has changed. The run time alone, which grows with each look, is no change."""
        record = job.stored()
        if self._written.get(job.key, {}) | {"run_s": job.run_s} != record:
            runner.write_atomically(str(self._folder), file_name(job.key), record)
            self._written[job.key] = record
        self.jobs[job.key] = job

    def drop(self, job: Job) -> None:
        """Forget a job."""
        for path in (self._folder / file_name(job.key), self._log(job.key)):
            path.unlink(missing_ok=True)
        del self.jobs[job.key]
        self._written.pop(job.key, None)

    def _log(self, key: str) -> Path:
        return self._folder / f"{file_name(key)}.txt"

    def write_log(self, job: Job, sentence: str) -> Path:
        """A file that says where the output of a job is."""
        path = self._log(job.key)
        path.write_text(f"{sentence}\n", encoding="utf-8")
        path.chmod(0o600)
        return path


def known_values(record_type: type[AdoptedJob], record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record is known to this release, with lists as tuples."""
    names = {each.name for each in fields(record_type)} - {"timers"}
    values = {name: value for name, value in record.items() if name in names}
    return {**values, **{name: tuple(values.get(name, ())) for name in ("nodes", "gone")}}


def file_name(key: str) -> str:
    """The name of a job's record, another one for each key: namespaces of Kubernetes have no underscore."""
    return f"{key.replace(':', '-').replace('/', '_')}.json"
