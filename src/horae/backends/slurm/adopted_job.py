"""A Slurm job of a user that Horae orders, and the records of such jobs on disk. Stored: change by addition.

<state>/adopted/<key>.json
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json
from horae.backends.slurm.batch_job import host_of
from horae.backends.slurm.job_request import JobRequest
from horae.backends.slurm.queue_listing import QueuedJob

#: How an attempt ended. LAUNCH_FAILED is followed by the reason, FAILED by the exit code.
FINISHED, STOPPED, FAILED, LAUNCH_FAILED = "finished", "stopped", "failed ", "launch failed "


@dataclass(slots=True)
class Timers:
    """What one process remembers of a job; monotonic seconds."""

    announced: bool = False
    launched_s: float | None = None
    first_notice_s: float | None = None
    last_notice_s: float = -math.inf
    last_end_s: float = -math.inf
    #: How often in a row Slurm has refused to put the job back.
    refusals: int = 0
    missing_s: float | None = None
    refused_s: float = -math.inf


@dataclass(slots=True)
class AdoptedJob:
    """All that is known of a Slurm job, with its last attempt."""

    #: Slurm's id and the time of the first submission: a killed controller gives ids out again.
    key: str
    slurm_id: str
    user: str
    document: dict[str, Any]
    node_count: int
    gpus_per_node: int
    duration_s: float
    #: Whether Slurm may put the job back.
    requeue: bool = True
    #: Whether the plugin held the job when it was submitted.
    from_plugin: bool = False
    #: Boot time of the controller that last showed the job without a hold; another one may have forgotten the release.
    unheld_boot: str = ""
    #: Nodes that the user asked for by name, for the day on which Horae leaves.
    asked_nodes: str = ""
    output: str = ""
    #: Restarts and submission time when the job was first seen: Slurm changes both each time that it puts a job back.
    first_restarts: int = 0
    submitted: str = ""
    #: Restarts when the job was last seen. A controller that was killed may count some of them again.
    seen_restarts: int = 0
    #: Restarts when Slurm showed the job as ended; -1 if it never has.
    ended_restarts: int = -1
    #: Whether the id means another job now: given out again by Slurm, or put back by its user after its end.
    replaced: bool = False
    #: Horae's id of the job; empty until the service has taken it in.
    job: str = ""
    refused: str = ""
    #: Whether a user holds the job in Slurm.
    user_hold: bool = False
    #: Seconds of run time that the job has saved, by its own word (exit code 75).
    saved_s: float = 0.0
    #: The last attempt: its number, Slurm's restarts at its launch, its nodes, its task's grace period and work.
    attempt: int = 0
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    grace_s: float = 30.0
    work: float = 1.0
    stopping: bool = False
    #: Whether Slurm was seen to run the attempt, for how long, and whether a node was silent or the controller killed
    #: meanwhile: then processes may outlive what Slurm says.
    begun: bool = False
    run_s: float = 0.0
    doubtful: bool = False
    noticed: bool = False
    #: Hosts on which nothing runs any more: an operator or the site's fence is sure.
    gone: tuple[str, ...] = ()
    #: Why the launch is given up; empty if it is not.
    gave_up: str = ""
    #: How the attempt ended; empty while it has not.
    outcome: str = ""
    forgotten: bool = False
    #: Whether Slurm refused to put the ended job back.
    not_put_back: bool = False
    timers: Timers = field(default_factory=Timers, compare=False)

    @staticmethod
    def of(seen: QueuedJob, request: JobRequest, details: Mapping[str, str], from_plugin: bool) -> AdoptedJob:
        """A job that was seen for the first time."""
        return AdoptedJob(
            key=key_of(seen),
            slurm_id=seen.id,
            user=seen.user,
            document=dict(request.document),
            node_count=request.nodes,
            gpus_per_node=request.gpus_per_node,
            duration_s=request.duration_s,
            requeue=details.get("Requeue", "1") != "0",
            from_plugin=from_plugin,
            asked_nodes=details.get("ReqNodeList", ""),
            output=details.get("StdOut", ""),
            first_restarts=seen.restarts,
            submitted=seen.submitted,
            seen_restarts=seen.restarts,
        )

    @property
    def is_active(self) -> bool:
        """Whether an attempt is to run, runs or may run."""
        return self.attempt > 0 and not self.outcome

    @property
    def doubted_hosts(self) -> tuple[str, ...]:
        """Hosts of the attempt on which something may run, as far as nobody is sure."""
        return tuple(host for host in self.hosts if host not in self.gone)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Slurm's names of the attempt's nodes."""
        return tuple(dict.fromkeys(map(host_of, self.nodes)))

    def matches(self, seen: QueuedJob) -> bool:
        """Whether this is the job that the list shows under the same id."""
        if self.replaced or seen.restarts < self.first_restarts:
            return False
        if seen.restarts == self.first_restarts:
            return seen.submitted == self.submitted
        return seen.submitted >= self.submitted

    def see(self, seen: QueuedJob) -> None:
        """Note the restarts. If there are fewer than at the launch, a killed controller has forgotten some."""
        self.seen_restarts = seen.restarts
        if seen.is_ended:
            self.ended_restarts = seen.restarts
        if self.is_active and seen.restarts < self.restarts:
            self.restarts, self.doubtful = seen.restarts, True

    def begin(self, attempt: int, nodes: tuple[str, ...], grace_s: float, work: float) -> None:
        """A new attempt is to run."""
        self.attempt, self.nodes, self.grace_s, self.work = attempt, nodes, grace_s, work
        self.restarts, self.run_s, self.outcome, self.gave_up, self.gone = self.seen_restarts, 0.0, "", "", ()
        self.stopping = self.begun = self.doubtful = self.noticed = self.forgotten = self.not_put_back = False
        self.timers = Timers(refused_s=self.timers.refused_s)

    @property
    def work_saved(self) -> float:
        """Work saved, in the service's unit. Beyond nine tenths of its estimated time a job comes ever closer to 1."""
        share = self.saved_s / self.duration_s
        return self.work * (share if share < 0.9 else 1 - 0.1 * math.exp(9 - 10 * share))

    def stored(self) -> dict[str, Any]:
        """The record on disk."""
        record = asdict(self)
        del record["timers"]
        return record


def key_of(seen: QueuedJob) -> str:
    """What identifies a job for good, once it was seen."""
    return f"slurm:{seen.id}@{seen.submitted}"


class AdoptionRecords:
    """The adopted jobs of a service, by key, in memory and on disk."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "adopted"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = (read_json(path) for path in sorted(self._folder.glob("slurm*.json")))
        self.jobs: dict[str, AdoptedJob] = {record["key"]: _load(record) for record in found if record}
        self._written = {key: job.stored() for key, job in self.jobs.items()}

    def save(self, job: AdoptedJob) -> None:
        """Write a record, if it has changed. The run time alone, which grows with each look, is no change."""
        record = job.stored()
        if self._written.get(job.key, {}) | {"run_s": job.run_s} != record:
            runner.write_atomically(str(self._folder), _file_name(job.key), record)
            self._written[job.key] = record
        self.jobs[job.key] = job

    def drop(self, job: AdoptedJob) -> None:
        """Forget a job."""
        (self._folder / _file_name(job.key)).unlink(missing_ok=True)
        del self.jobs[job.key]
        self._written.pop(job.key, None)

    def log(self, job: AdoptedJob) -> Path:
        """A file that says where the output of a job is. It is the user's own file: the service does not open it."""
        path = self._folder / f"{_file_name(job.key)}.txt"
        text = f"The output of Slurm job {job.slurm_id} is in {job.output or 'a file of its user'}.\n"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path


def _load(record: Mapping[str, Any]) -> AdoptedJob:
    names = {each.name for each in fields(AdoptedJob)} - {"timers"}
    values = {name: value for name, value in record.items() if name in names}
    lists = {name: tuple(values.get(name, ())) for name in ("nodes", "gone")}
    return AdoptedJob(**{**values, **lists})


def _file_name(key: str) -> str:
    return f"{key.replace(':', '-').replace('/', '-')}.json"
