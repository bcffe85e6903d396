"""What the engine wants done, and the record of a decision. Stored: change by addition."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from horae.core.bidding import Ask
from horae.core.cluster import Span
from horae.core.compared_by import ComparedBy
from horae.core.stored_types import CodeColumn, IntColumn, MemoryWrite, Moment


class StopWhy(StrEnum):
    """Why an attempt has to go."""

    PREEMPTED = "preempted"
    MOVED = "moved"
    HELD = "held"
    CANCELLED = "cancelled"
    NODE_LOST = "node lost"
    DRAINED = "drained"
    STRAY = "stray"
    GIVEN_UP = "given up"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an attempt of a job on these GPUs; all of them are free now.

    `span` is the distance the placement counts with, `work_done` what the job's
    checkpoint holds, by what the engine knows. At each amount of work in `report_at` the
    attempt is to report its progress, with its loss; at once for amounts done before.
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

    `by` is the job that gets (some of) the GPUs, if the stop serves one.
    """

    job: str
    attempt: int
    why: StopWhy
    by: str = ""
    #: By which order the job waits then, for people: the code of its reason.
    reason: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """GPUs are set aside for a job; its Launch follows when the last of them is free."""

    job: str
    gpu_ids: tuple[int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An app's scheduler wants no more of a trial; `why` is the end of a sentence."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask for a decision at this time, if none was needed before. The newest one counts."""

    at_s: float


Command = Launch | Stop | WakeAt


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a decision saw, shared by the reasons of all jobs that wait after it."""

    at_s: float
    #: Free GPUs by node when the decision was done.
    node_free: IntColumn
    #: The job for which GPUs are held back, if any.
    head: str = ""
    #: Jobs that have GPUs of each type when the decision is done, and their GPU counts.
    jobs_by_type: tuple[int, ...] = ()
    gpus_by_type: tuple[int, ...] = ()
    #: What the policy compared jobs by, and its sum over the jobs that have GPUs of each type.
    measure: ComparedBy = ComparedBy.NOTHING
    measured_by_type: tuple[float, ...] = ()
    #: GPUs that each queue has, with the queues below it; empty where no queue has a maximum.
    queue_used: tuple[int, ...] = ()
    #: When the next decision is due even if nothing happens, and when the first guarantee that is in the way ends.
    again_s: Moment = np.inf
    unprotected_s: Moment = np.inf


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision, whole: journalled before it is performed, enough to recover without a policy."""

    at_s: float
    #: Whether the policy was asked, or only launches that were due went out.
    planned: bool
    #: Trials that apps gave up, and rows whose turn within their app changed.
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
    #: Bids that apps' own agents are asked for, those asked before and still open among them.
    asks: tuple[Ask, ...] = ()
    #: Apps whose own agents were asked and did not answer before the deadline.
    unanswered: tuple[str, ...] = ()
    wake_s: Moment = np.inf
    #: Whether the next job that begins to work is a reason to plan.
    heed_starts: bool = False

    @property
    def commands(self) -> tuple[Command, ...]:
        """What the driver has to perform, in this order."""
        wake = (WakeAt(self.wake_s),) if self.wake_s < np.inf else ()
        return (*self.stops, *self.launches, *wake)
