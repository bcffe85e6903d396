"""Gives the jobs of an adopted partition back to Slurm, as if Horae had never been there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horae.backends.slurm.adopted_job import AdoptedSlurmJob
from horae.backends.slurm.commands import ChangeRefused, SlurmCommands
from horae.backends.slurm.job_request import HELD_BY_PLUGIN
from horae.backends.slurm.partition_flag import FLAG_PREFIX
from horae.backends.slurm.queue_listing import QUEUE_FORMAT, QueuedJob, read_details, read_queue


@dataclass(slots=True)
class GivenBack:
    """What became of the waiting jobs of a partition, by their ids."""

    given: list[str] = field(default_factory=list)
    #: Given back without a record: which nodes their users asked for is not known.
    unrecorded: list[str] = field(default_factory=list)
    #: Those that Slurm did not change.
    refused: list[str] = field(default_factory=list)


def give_back(
    commands: SlurmCommands, partition: str, records: Mapping[str, AdoptedSlurmJob], requeue: bool
) -> GivenBack:
    """Let Slurm start the waiting jobs of a partition.

    `records` are the adopted jobs by key. A job without a record loses what the plugin has set, and Horae's start
    time, by which it is told. `requeue` is what Slurm takes for jobs that do not say whether they may be run again.
    Holds of users stay, running jobs run on.
    """
    queue = read_queue(commands.read("squeue", "-h", "-a", "-r", "-p", partition, "-O", QUEUE_FORMAT))
    found = GivenBack()
    for seen in queue:
        if seen.is_ended:
            continue
        record = next((job for job in records.values() if job.slurm_id == seen.id and job.matches(seen)), None)
        if not record and _is_flag(commands, seen):
            continue
        changes = _changes(seen, record, _is_held_by_plugin(commands, seen), requeue)
        try:
            for change in changes:
                commands.change(*change)
        except ChangeRefused:
            found.refused.append(seen.id)
            continue
        if changes and seen.is_waiting:
            found.given.append(seen.id)
            if not record and seen.is_postponed:
                found.unrecorded.append(seen.id)
    return found


def _is_held_by_plugin(commands: SlurmCommands, seen: QueuedJob) -> bool:
    if not seen.is_held or seen.is_postponed or seen.was_put_back:
        return False
    return HELD_BY_PLUGIN in _details(commands, seen).get("AdminComment", "")


def _is_flag(commands: SlurmCommands, seen: QueuedJob) -> bool:
    """Whether a job is a service's flag, which is held and postponed, too."""
    return seen.is_held and seen.is_postponed and _details(commands, seen).get("JobName", "").startswith(FLAG_PREFIX)


def _details(commands: SlurmCommands, seen: QueuedJob) -> dict[str, str]:
    return read_details(commands.read("scontrol", "show", "job", seen.id, nothing="Invalid job id"))


def _changes(seen: QueuedJob, record: AdoptedSlurmJob | None, by_plugin: bool, requeue: bool) -> list[tuple[str, ...]]:
    """Commands for one job."""
    is_postponed = seen.is_waiting and seen.is_postponed
    if not (record or by_plugin or is_postponed):
        return []
    words = []
    if record and seen.is_waiting:
        words += [f"reqnodelist={record.asked_nodes}", "starttime=now"]
    elif is_postponed:
        words.append("starttime=now")
    if not requeue and (record is None or record.requeue):
        words.append("requeue=0")
    changes: list[tuple[str, ...]] = []
    if words:
        changes.append(("scontrol", "update", f"jobid={seen.id}", *words))
    is_own_hold = by_plugin or (seen.was_put_back and not (record and record.user_hold))
    if seen.is_waiting and is_own_hold:
        changes.append(("scontrol", "release", seen.id))
    return changes
