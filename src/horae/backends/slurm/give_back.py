"""Gives the jobs of an adopted partition back to Slurm, as if Horae had never been there."""

from __future__ import annotations

from collections.abc import Mapping

from horae.backends.slurm.adopted_job import AdoptedSlurmJob
from horae.backends.slurm.commands import ChangeRefused, SlurmCommands
from horae.backends.slurm.job_request import HELD_BY_PLUGIN
from horae.backends.slurm.queue_listing import QUEUE_FORMAT, QueuedJob, read_details, read_queue


def give_back(
    commands: SlurmCommands, partition: str, records: Mapping[str, AdoptedSlurmJob], requeue: bool
) -> tuple[int, list[str]]:
    """Let Slurm start the waiting jobs of a partition; returns their number, and the ids of jobs that it refused.

    `records` are the adopted jobs by key; jobs without a record lose only what the plugin has set. `requeue` is what
    Slurm takes for jobs that do not say whether they may be run again. Holds of users stay, running jobs run on.
    """
    queue = read_queue(commands.read("squeue", "-h", "-a", "-r", "-p", partition, "-O", QUEUE_FORMAT))
    given, refused = 0, []
    for seen in queue:
        if seen.is_ended:
            continue
        record = next((job for job in records.values() if job.slurm_id == seen.id and job.matches(seen)), None)
        changes = _changes(seen, record, _is_held_by_plugin(commands, seen), requeue)
        try:
            for change in changes:
                commands.change(*change)
        except ChangeRefused:
            refused.append(seen.id)
            continue
        given += bool(changes) and seen.is_waiting
    return given, refused


def _is_held_by_plugin(commands: SlurmCommands, seen: QueuedJob) -> bool:
    if not seen.is_held or seen.is_postponed or seen.was_put_back:
        return False
    details = read_details(commands.read("scontrol", "show", "job", seen.id, nothing="Invalid job id"))
    return HELD_BY_PLUGIN in details.get("AdminComment", "")


def _changes(seen: QueuedJob, record: AdoptedSlurmJob | None, by_plugin: bool, requeue: bool) -> list[tuple[str, ...]]:
    """Commands for one job."""
    if not (record or by_plugin):
        return []
    words = []
    if record and seen.is_waiting:
        words += [f"reqnodelist={record.asked_nodes}", "starttime=now"]
    if not requeue and (record is None or record.requeue):
        words.append("requeue=0")
    changes: list[tuple[str, ...]] = []
    if words:
        changes.append(("scontrol", "update", f"jobid={seen.id}", *words))
    is_own_hold = by_plugin or (seen.was_put_back and not (record and record.user_hold))
    if seen.is_waiting and is_own_hold:
        changes.append(("scontrol", "release", seen.id))
    return changes
