"""Events: everything that the engine learns about the cluster. Stored: change by addition.

`at_s` is when the driver learned of the event, in seconds from the driver's own zero;
the engine's time never runs backwards. Reports about a job carry the number of the
attempt, so that a late report of an older attempt is recognised and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horae.core.bidding import BidAnswer
from horae.core.cluster import Node
from horae.core.job import JobSpec
from horae.core.limits import Limits
from horae.core.queues import Queue, UnknownQueues


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user submitted a job."""

    at_s: float
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A user cancelled a job; `by` is the user."""

    at_s: float
    job: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class JobTimedOut:
    """A job has run for as long as it may."""

    at_s: float
    job: str


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A user put a job on hold; a running attempt is stopped. `by` is the user."""

    at_s: float
    job: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A held job may run again; `by` is the user."""

    at_s: float
    job: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class JobStarted:
    """An attempt is up (its checkpoint loaded) and does work from now on.

    `up_s` is for an attempt that does not report its start: it is assumed to have worked for the last `up_s`
    seconds, since its process began. If it ended or was stopped before that was known, this comes before its end.
    """

    at_s: float
    job: str
    attempt: int
    up_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """An attempt never came up; its GPUs are free."""

    at_s: float
    job: str
    attempt: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """A running attempt reports the job's work done, over all attempts, and its loss."""

    at_s: float
    job: str
    attempt: int
    work_done: float
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class JobStopped:
    """An attempt is gone and its GPUs are free; `work_done` is the work in the job's checkpoint."""

    at_s: float
    job: str
    attempt: int
    work_done: float


@dataclass(frozen=True, slots=True)
class JobFinished:
    """An attempt did all its work and is gone."""

    at_s: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """An attempt failed by itself and is gone; `work_done` is the work in the job's checkpoint."""

    at_s: float
    job: str
    attempt: int
    exit_code: int
    work_done: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is ready for jobs: a new node, or a node that was drained or lost."""

    at_s: float
    node: Node


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, with the attempts on it."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class NodeDraining:
    """A node takes no new jobs; with `evict` the attempts on it are stopped, too. `by` is who closed it."""

    at_s: float
    node: str
    evict: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class NodeObserved:
    """The attempts, (job, attempt number), that run on a node in fact."""

    at_s: float
    node: str
    alive: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """An operator changed the policy (with its settings), queues, limits, or what becomes of unknown queues.

    None, () and {} leave them as they are.
    """

    at_s: float
    policy: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[Queue, ...] = ()
    #: New limits by whom they are for; limits without any value are dropped.
    limits: Mapping[str, Limits] = field(default_factory=dict)
    unknown_queues: UnknownQueues | None = None


@dataclass(frozen=True, slots=True)
class AgentChanged:
    """An app's own agent registered (from now on it is asked for bids) or left."""

    at_s: float
    app: str
    present: bool
    by: str = ""


@dataclass(frozen=True, slots=True)
class BidReceived:
    """An app's own agent answered an offer of an auction."""

    at_s: float
    answer: BidAnswer


@dataclass(frozen=True, slots=True)
class JobsRetired:
    """Apps whose jobs all ended before `before_s` are retired with their jobs.

    The newest job stays in any case: the next job is numbered after it.
    """

    at_s: float
    before_s: float


#: Who closes nodes and holds jobs because of attempts that the journal has lost. No user can have this name.
BY_ORPHANS = "attempts that the journal does not know"


@dataclass(frozen=True, slots=True)
class NumbersRaised:
    """The journal lost records, or was restored: numbers up to these may have been used.

    The next job gets a number above `job_number`, and the next attempt of each job that has not ended a number above
    `attempt`. Nodes are closed until it is known which attempts run there. `why` is a sentence.
    """

    at_s: float
    job_number: int
    attempt: int
    why: str = ""


Event = (
    JobSubmitted
    | JobCancelled
    | JobHeld
    | JobReleased
    | JobTimedOut
    | JobStarted
    | LaunchFailed
    | JobProgressed
    | JobStopped
    | JobFinished
    | JobFailed
    | NodeJoined
    | NodeLost
    | NodeDraining
    | NodeObserved
    | SettingsChanged
    | AgentChanged
    | BidReceived
    | JobsRetired
    | NumbersRaised
)

#: What happens to nodes, as operators and backends see it.
NodeChange = NodeJoined | NodeLost | NodeDraining

#: What a backend reports about an attempt.
AttemptReport = JobStarted | LaunchFailed | JobProgressed | JobStopped | JobFinished | JobFailed

#: Events of the same time are applied in this order: reports and bids, nodes, requests, submissions.
_REPORTS = (JobStarted, LaunchFailed, JobProgressed, JobStopped, JobFinished, JobFailed, BidReceived)
_NODES = (NodeJoined, NodeLost, NodeDraining, NodeObserved)
PRECEDENCE: dict[type[Event], int] = {
    **dict.fromkeys(_REPORTS, 0),
    **dict.fromkeys(_NODES, 1),
    **dict.fromkeys((JobCancelled, JobHeld, JobReleased, JobTimedOut, SettingsChanged, AgentChanged, JobsRetired), 2),
    NumbersRaised: 2,
    JobSubmitted: 3,
}
