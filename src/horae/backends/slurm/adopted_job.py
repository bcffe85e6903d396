"""A Slurm job of a user that Horae orders, and the records of such jobs on disk. Stored: change by addition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from horae.backends.adopted_job import AdoptedJob, JobRecords, known_values
from horae.backends.driver import host_of
from horae.backends.slurm.job_request import JobRequest
from horae.backends.slurm.queue_listing import QueuedJob


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


@dataclass(slots=True, kw_only=True)
class AdoptedSlurmJob(AdoptedJob):
    """All that is known of a Slurm job, with its last attempt. Its key is `key_of` what was first seen of it."""

    slurm_id: str
    node_count: int
    gpus_per_node: int
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
    #: Whether `submitted` is in UTC; earlier versions stored it in the service's time zone, and so is it in their keys.
    utc: bool = False
    #: Restarts when the job was last seen. A controller that was killed may count some of them again.
    seen_restarts: int = 0
    #: Restarts when Slurm showed the job as ended; -1 if it never has.
    ended_restarts: int = -1
    #: Whether the id means another job now: given out again by Slurm, or put back by its user after its end.
    replaced: bool = False
    #: Slurm's restarts at the launch of the last attempt.
    restarts: int = 0
    #: Whether a node was silent or the controller killed during the attempt: then processes may outlive what Slurm
    #: says.
    doubtful: bool = False
    noticed: bool = False
    #: Whether Slurm refused to put the ended job back.
    not_put_back: bool = False
    timers: Timers = field(default_factory=Timers, compare=False)

    @staticmethod
    def of(seen: QueuedJob, request: JobRequest, details: Mapping[str, str], from_plugin: bool) -> AdoptedSlurmJob:
        """A job that was seen for the first time."""
        return AdoptedSlurmJob(
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
            utc=True,
            seen_restarts=seen.restarts,
        )

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
        AdoptedJob.begin(self, attempt, nodes, grace_s, work)
        self.restarts = self.seen_restarts
        self.doubtful = self.noticed = self.not_put_back = False
        self.timers = Timers(refused_s=self.timers.refused_s)

    def note_refused(self, now_s: float) -> None:
        """Note when the service has refused the job."""
        self.timers.refused_s = now_s


def key_of(seen: QueuedJob) -> str:
    """What identifies a job for good, once it was seen."""
    return f"slurm:{seen.id}@{seen.submitted}"


class AdoptionRecords(JobRecords[AdoptedSlurmJob]):
    """The adopted Slurm jobs of a service, by key, in memory and on disk."""

    def __init__(self, state: Path) -> None:
        super().__init__(state, "slurm", _load)
        for job in [job for job in self.jobs.values() if not job.utc]:
            job.submitted, job.utc = _in_utc(job.submitted), True
            del self._written[job.key]


def _load(record: Mapping[str, Any]) -> AdoptedSlurmJob:
    return AdoptedSlurmJob(**known_values(AdoptedSlurmJob, record))


def _in_utc(local: str) -> str:
    """A time of Slurm in the service's time zone, in UTC; what is no time stays as it is."""
    try:
        return datetime.fromisoformat(local).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return local
