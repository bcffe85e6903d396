"""What happens to a cluster. The engine learns of the world through these alone. Stored: change by addition.

`at_s` is when the driver learned of it, in seconds from the driver's own zero;
the engine's time never runs backwards. Reports about a job carry the attempt
they belong to, so that a late one from an older attempt can be told and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horae.core.bidding import BidAnswer
from horae.core.cluster import Node
from horae.core.job import JobSpec
from horae.core.queues import Queue


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user wants a job run."""

    at_s: float
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A user wants a job gone; `by` says who."""

    at_s: float
    job: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A user wants a job to wait, stopping it if it runs; `by` says who."""

    at_s: float
    job: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A held job may run again; `by` says who."""

    at_s: float
    job: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class JobStarted:
    """An attempt is up (its checkpoint loaded) and does work from now on.

    One that does not say when it began is taken to have worked since its process was there: for `up_s` by now.
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
    """A running attempt reports the work done so far, over all attempts, and the loss it trains to lower."""

    at_s: float
    job: str
    attempt: int
    work_done: float
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class JobStopped:
    """An attempt is gone and its GPUs are free; `work_done` is what its checkpoint holds."""

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
    """An attempt died by its own fault and is gone; `work_done` is what its checkpoint holds."""

    at_s: float
    job: str
    attempt: int
    exit_code: int
    work_done: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is ready for jobs: a new one, or one that was drained or lost."""

    at_s: float
    node: Node


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, with whatever ran there."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class NodeDraining:
    """A node takes no new jobs; with `evict` those it runs are stopped, too."""

    at_s: float
    node: str
    evict: bool = False


@dataclass(frozen=True, slots=True)
class NodeObserved:
    """The attempts, (job, number), that a node really runs."""

    at_s: float
    node: str
    alive: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """An operator changed the policy (with its settings) or some queues."""

    at_s: float
    policy: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[Queue, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentChanged:
    """An app's own agent came (it will be asked for bids), or went."""

    at_s: float
    app: str
    present: bool
    by: str = ""


@dataclass(frozen=True, slots=True)
class BidReceived:
    """An app's own agent answered an offer."""

    at_s: float
    answer: BidAnswer


@dataclass(frozen=True, slots=True)
class JobsRetired:
    """Jobs that ended before a moment leave for good, app by app: those of an app of which any has not stay.

    The newest job stays in any case: the next one is numbered after it.
    """

    at_s: float
    before_s: float


Event = (
    JobSubmitted
    | JobCancelled
    | JobHeld
    | JobReleased
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
)

#: What a backend says of an attempt.
AttemptReport = JobStarted | LaunchFailed | JobProgressed | JobStopped | JobFinished | JobFailed

#: At one instant a driver applies completions first, then node changes, then arrivals.
_ENDINGS = (JobStarted, LaunchFailed, JobProgressed, JobStopped, JobFinished, JobFailed, BidReceived)
_NODES = (NodeJoined, NodeLost, NodeDraining, NodeObserved)
PRECEDENCE: dict[type[Event], int] = {
    **dict.fromkeys(_ENDINGS, 0),
    **dict.fromkeys(_NODES, 1),
    **dict.fromkeys((JobCancelled, JobHeld, JobReleased, SettingsChanged, AgentChanged, JobsRetired), 2),
    JobSubmitted: 3,
}
