"""What the engine wants done, and the record of a decision. Stored: change by addition."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from horae.core.bidding import Ask
from horae.core.cluster import Span
from horae.core.compared_by import ComparedBy
from horae.core.json_field_types import CodeColumn, IntColumn, MemoryWrite, Moment


class StopWhy(StrEnum):
    """Why an attempt is stopped."""

    PREEMPTED = "preempted"
    MOVED = "moved"
    HELD = "held"
    CANCELLED = "cancelled"
    NODE_LOST = "node lost"
    DRAINED = "drained"
    STRAY = "stray"
    GIVEN_UP = "given up"
    PAUSED = "paused"
    TIMEOUT = "timeout"


#: Stops that a policy decided on.
BY_POLICY = (StopWhy.PREEMPTED, StopWhy.MOVED)


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an attempt of a job on these GPUs; all of them are free now.

    `span` is the span by the placement rule. `work_done` is the work in the job's checkpoint, as far as the
    engine knows. The attempt reports its progress and its loss at each amount of work in `report_at`; at once
    for amounts that are in the checkpoint.
    """

    job: str
    attempt: int
    gpu_ids: tuple[int, ...]
    span: Span
    work_done: float
    report_at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """Save and end an attempt; the answer is a JobStopped once its processes are gone.

    `by` is the job that gets GPUs of this attempt, or the part of its queue's quota, if there is such a job.
    """

    job: str
    attempt: int
    why: StopWhy
    by: str = ""
    #: Code of the reason for which the job waits afterwards, for people.
    reason: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """GPUs are set aside for a job; its Launch follows when the last of them is free."""

    job: str
    gpu_ids: tuple[int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An app scheduler stops a trial for good; `why` is the end of a sentence."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask for a decision at this time, unless there was a decision before. Only the newest WakeAt counts."""

    at_s: float


Command = Launch | Stop | WakeAt


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers behind the reasons of one decision, shared by all jobs that wait after it."""

    at_s: float
    #: Free GPUs of each node after the decision.
    node_free: IntColumn
    #: The job that has a reservation, if any.
    head: str = ""
    #: Number of jobs that hold GPUs of each type after the decision, and the number of these GPUs.
    jobs_by_type: tuple[int, ...] = ()
    gpus_by_type: tuple[int, ...] = ()
    #: What the policy compared jobs by, and its sum over the jobs that hold GPUs of each type.
    measure: ComparedBy = ComparedBy.NOTHING
    measured_by_type: tuple[float, ...] = ()
    #: GPUs of each queue and all queues below it; empty where no queue has a maximum.
    queue_used: tuple[int, ...] = ()
    #: When the next decision is due even without an event, and when the first lease or minimum run time of a job that
    #: blocks a wish ends.
    again_s: Moment = np.inf
    unprotected_s: Moment = np.inf
    #: Seconds of wait after which a job gets a reservation; 0 where no job passes another.
    reserve_after_s: Moment = np.inf
    #: For each GPU type, of the jobs that keep GPUs though others go before them, the one that keeps them least long
    #: (an empty name if there is none), and until when. Empty where no job waits for that.
    kept_by: tuple[str, ...] = ()
    kept_until_s: tuple[Moment, ...] = ()
    #: Free CPUs and MiB of memory of each node, -1 where they are not counted. Empty where they cannot run out.
    node_cpus: tuple[int, ...] = ()
    node_memory_mb: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The record of one decision. It is journalled before it is performed; recovery from it asks no policy."""

    at_s: float
    #: Whether the policy was asked. If not, the decision holds only launches that became possible.
    planned: bool
    #: Trials that apps gave up, and (row, new turn) of trials whose turn changed.
    given_up: tuple[GivenUp, ...] = ()
    turns: tuple[tuple[int, int], ...] = ()
    stops: tuple[Stop, ...] = ()
    withdrawn: tuple[str, ...] = ()
    placed: tuple[Placed, ...] = ()
    launches: tuple[Launch, ...] = ()
    #: Rows whose lease now runs until `lease_until_s`.
    leased: tuple[int, ...] = ()
    lease_until_s: float = 0.0
    #: Rows whose reason changed, and the new codes.
    reason_rows: IntColumn = field(default_factory=lambda: np.empty(0, np.int64))
    reason_codes: CodeColumn = field(default_factory=lambda: np.empty(0, np.uint8))
    evidence: Evidence | None = None
    memory: tuple[MemoryWrite, ...] = ()
    #: Bids that apps' own agents are asked for, including asks of earlier decisions that are still open.
    asks: tuple[Ask, ...] = ()
    #: Apps whose own agents were asked and did not answer before the deadline.
    unanswered: tuple[str, ...] = ()
    wake_s: Moment = np.inf
    #: Whether the policy is asked again as soon as any launched job begins to work.
    heed_starts: bool = False

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands that the driver performs, in this order."""
        wake = (WakeAt(self.wake_s),) if self.wake_s < np.inf else ()
        return (*self.stops, *self.launches, *wake)
