"""Reads the jobs of all users from Slurm: the list of all, and the details of one. Pure functions.

The list has no field that a user can fill at will: a name or comment with a line break could pass for another user's
job. Such fields are read from the details of one job, where they can harm that job alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from horae.backends.driver import PieceEnded, PieceRunning, PieceWaiting
from horae.backends.slurm.command_output import read_job_state, read_node_list

#: `squeue -O`.
_FIELDS = (
    "JobArrayID",
    "Partition",
    "UserName",
    "State",
    "Reason",
    "PriorityLong",
    "NodeList",
    "SubmitTime",
    "RestartCnt",
    "exit_code",
    "EligibleTime",
    "TimeUsed",
    "Dependency",
)
QUEUE_FORMAT = ",".join(f"{field}:|" for field in _FIELDS)
#: The start time of jobs that Horae keeps waiting. A hold would look like a hold of the job's user.
FAR = "2099-01-01T00:00:00"
_FAR_YEAR = 2098
#: States of jobs that Slurm has put back and holds; reasons of others have this word, "launch failed requeued held".
_PUT_BACK, _PUT_BACK_WORD = ("SPECIAL_EXIT", "REQUEUE_HOLD"), "requeued"


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as the list shows it."""

    #: Such as 17, or 17_3 for a task of an array.
    id: str
    partition: str
    user: str
    state: str
    reason: str
    #: 0 if the job is held.
    priority: int
    hosts: tuple[str, ...]
    submitted: str
    restarts: int
    #: Exit code of the last run, 128 + signal if it was killed.
    code: int
    eligible: str
    run_s: float
    dependency: str

    @property
    def is_waiting(self) -> bool:
        """Whether Slurm says that the job has not begun, or is to begin again."""
        return isinstance(read_job_state(self.state, self.reason), PieceWaiting)

    @property
    def is_ended(self) -> bool:
        """Whether Slurm says that the job is over."""
        return isinstance(read_job_state(self.state, self.reason), PieceEnded)

    @property
    def may_run(self) -> bool:
        """Whether the job may have processes."""
        return isinstance(read_job_state(self.state, self.reason), PieceRunning)

    @property
    def is_postponed(self) -> bool:
        """Whether its start time is so far away that Slurm does not start it."""
        year = re.match(r"(\d{4})-", self.eligible)
        return bool(year) and int(self.eligible[:4]) >= _FAR_YEAR

    @property
    def was_put_back(self) -> bool:
        """Whether Slurm holds the job because it was put back after a run."""
        return self.state in _PUT_BACK or _PUT_BACK_WORD in self.reason

    @property
    def is_held(self) -> bool:
        """Whether Slurm holds the job, or will hold it after its run."""
        return self.priority == 0


def read_queue(text: str) -> list[QueuedJob]:
    """Jobs from `squeue -r -O`, the oldest first; lines that do not fit are left out."""
    rows = (line.split("|") for line in text.splitlines())
    jobs = [_read_row(row) for row in rows if len(row) == len(_FIELDS) + 1]
    return sorted(jobs, key=lambda job: (job.submitted, [int(number) for number in re.findall(r"\d+", job.id)]))


def _read_row(row: list[str]) -> QueuedJob:
    job, partition, user, state, reason, priority, hosts, submitted, restarts, code, eligible, used, dependency, _ = row
    return QueuedJob(
        id=job,
        partition=partition,
        user=user,
        state=state,
        reason=reason,
        priority=int(priority or 0),
        hosts=tuple(read_node_list(hosts)),
        submitted=submitted,
        restarts=int(restarts or 0),
        code=_exit_code(int(code or 0)),
        eligible=eligible,
        run_s=read_duration(used) or 0.0,
        dependency="" if dependency == "(null)" else dependency,
    )


def _exit_code(status: int) -> int:
    """The exit code from a wait status."""
    return status >> 8 or (128 + (status & 0x7F) if status & 0x7F else 0)


def read_duration(text: str) -> float | None:
    """Seconds from `1-02:03:04`, `02:03:04`, `3:04` or a number of minutes; None if there is no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        numbers += [0] * (3 - len(numbers))
    elif len(numbers) == 1:
        return numbers[0] * 60.0
    return int(days or 0) * 86400.0 + sum(value * 60.0**power for power, value in enumerate(reversed(numbers)))


def read_details(text: str) -> dict[str, str]:
    """Fields of one job from `scontrol show job`; missing values are left out.

    A name, comment or path is all that follows on its line.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        alone = re.match(r"\s*(?:JobId=.*?\b)?(JobName|Comment|AdminComment|StdOut|Command|WorkDir)=(.*)", line)
        pairs = [alone.groups()] if alone else re.findall(r"(\S+?)=(\S*)", line)
        fields.update((key, value.strip()) for key, value in pairs if value.strip() not in ("", "(null)", "N/A"))
    return fields
