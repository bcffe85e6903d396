"""Schemas of the API's requests and responses, from which its description is made.

Public: class names are component names of /openapi.json; classes and fields change by addition.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from horae.core.job import MAX_SECONDS, MAX_STEPS
from horae.core.queues import Queue, UnknownQueues
from horae.service.job_file import MIN_WEIGHT, QueuePath, plain_text, seconds

#: A time in UTC, ISO 8601; null if it has not come.
Moment = str | None

#: A duration such as 30m or 7d, in seconds.
Span = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=MAX_SECONDS)]


class _RequestBody(BaseModel):
    """Body of a request; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# ------------------------------------------------------------------------- jobs


class _JobFields(TypedDict, total=False):
    id: str
    name: str
    user: str
    queue: str
    app: str
    state: str
    reason: str
    gpus: int
    #: Nodes that the job asks for, with the same number of GPUs on each; null if it asks for none.
    nodes: int | None
    gpu_types: list[str]
    on: list[str]
    ahead: int
    submitted: Moment
    started: Moment
    ended: Moment
    attempt: int
    preemptions: int
    failures: int
    progress: float
    loss: float | None
    ran_s: float
    #: Seconds left at the average speed so far, if the job keeps its GPUs; null unless it runs and reports.
    left_s: float | None
    gpu_seconds: float


class JobRecord(_JobFields, total=False):
    """A job in a list; with `fields`, only these fields."""

    #: The reason as a sentence, while the job waits.
    why: str


class JobList(TypedDict):
    """Jobs, newest last, the total number of matches, and how many are in each state."""

    jobs: list[JobRecord]
    total: int
    states: dict[str, int]


class Why(TypedDict):
    """Why a job waits: reason and numbers of the last decision, and a sentence."""

    job: str
    state: str
    reason: str
    sentence: str
    numbers: dict[str, int | float | str]
    decided: Moment


class AttemptRecord(TypedDict):
    """One attempt of a job and how it ended."""

    attempt: int
    on: list[str]
    launched: Moment
    started: Moment
    stopping: Moment
    stopped_because: str
    ended: Moment
    end: str
    exit_code: int | None


class TaskRecord(TypedDict):
    """The task of a job. Values of variables and secrets are never shown."""

    run: list[str]
    setup: str
    workdir: str
    envs: list[str]
    secrets: list[str]
    processes: str
    signal: str
    grace_s: float
    checkpoint_dir: str
    max_duration_s: float | None
    cpus_per_gpu: int | None
    memory_mb_per_gpu: int | None
    image: str


class JobDetail(_JobFields):
    """Everything about one job."""

    why: Why
    attempts: list[AttemptRecord]
    #: Null for a member who is neither the job's user nor an admin of its queue.
    task: TaskRecord | None


class Ids(BaseModel):
    """Ids of the jobs that were accepted, or would be, and sentences for their submitter."""

    ids: list[str]
    notes: list[str] = []


class JobIds(_RequestBody):
    """Ids of jobs."""

    ids: list[Annotated[str, Field(max_length=100)]] = Field(min_length=1, max_length=10_000)


class Done(BaseModel):
    """Result of a request by job: "done", or why nothing changed."""

    jobs: dict[str, str]


class Told(TypedDict):
    """An event as a sentence."""

    seq: int
    at: Moment
    kind: str
    job: str
    what: str


class EventList(TypedDict):
    """What happened to a job, in order."""

    events: list[Told]


class ProgressReport(_RequestBody):
    """Progress of a running attempt. Any report means that the attempt has started; `ready` has no further effect."""

    step: float = Field(ge=0, le=MAX_STEPS)
    total: float | None = Field(None, gt=0, le=MAX_STEPS)
    loss: float | None = None
    ready: bool = False


class Orders(BaseModel):
    """Whether an attempt must save and exit."""

    stop: bool


# -------------------------------------------------------------------- operators


class NodeRecord(TypedDict):
    """A node, and its jobs that the caller may see, with their GPU counts there.

    `why` says why the cluster itself keeps the node closed; empty if it does not, or does not say so.
    """

    node: str
    gpu_type: str
    gpus: int
    rack: str
    #: For the jobs on these GPUs; 0 if they are not counted.
    cpus: int
    memory_mb: int
    used: int
    used_cpus: int
    used_memory_mb: int
    state: Literal["up", "draining", "down"]
    why: str
    jobs: dict[str, int]


class NodeList(TypedDict):
    """Every node, and what is wrong with the backend; empty if nothing is."""

    nodes: list[NodeRecord]
    trouble: str


class Drain(_RequestBody):
    """How to drain a node."""

    evict: bool = False


class Lose(_RequestBody):
    """That the caller is sure: nothing runs on the node any more. Else a job could run twice."""

    sure: Literal[True]


class ShareRecord(TypedDict):
    """Entitlement and usage of a queue."""

    queue: str
    weight: float
    gpus_min: int
    gpus_max: int | None
    running: int
    waiting: int
    entitled_gpus: float
    used_gpus: float
    entitled_share: float
    used_share: float
    used_share_normalised: float


class ShareList(TypedDict):
    """The queue tree, parents before children."""

    queues: list[ShareRecord]


#: A user, or a group of the service's machine with an @ before it.
UserOrGroup = Annotated[str, Field(pattern=r"^@?[A-Za-z0-9_][A-Za-z0-9._@-]{0,62}$")]


class QueueForm(_RequestBody):
    """Settings of a queue."""

    path: QueuePath
    weight: float = Field(1.0, ge=MIN_WEIGHT, le=1e6)
    rule: Literal["fairness", "fifo"] = "fairness"
    gpus_min: int = Field(0, ge=0, le=1_000_000)
    gpus_max: int | None = Field(None, ge=0, le=1_000_000)
    #: Users, and groups of the service's machine as @GROUP. Members may submit, admins may act on jobs, here and below.
    members: list[UserOrGroup] = Field(default_factory=list, max_length=10_000)
    admins: list[UserOrGroup] = Field(default_factory=list, max_length=10_000)

    def queue(self) -> Queue:
        """The queue for the engine."""
        names = tuple(self.members), tuple(self.admins)
        return Queue(self.path, self.weight, self.rule, self.gpus_min, self.gpus_max, *names)


_Word = Annotated[str, Field(max_length=1000), AfterValidator(plain_text)]


class SettingsForm(_RequestBody):
    """Changes of the policy, its settings and queues. What is not named stays."""

    policy: _Word | None = None
    settings: dict[_Word, _Word] = Field(default_factory=dict, max_length=100)
    queues: list[QueueForm] = Field(default_factory=list, max_length=10_000)
    unknown_queues: UnknownQueues | None = None


class SettingsRecord(BaseModel):
    """The policy, its settings that differ from the defaults, the configured queues, and what becomes of others."""

    policy: str
    settings: dict[str, str]
    queues: list[QueueForm]
    unknown_queues: UnknownQueues


class NewSettings(SettingsRecord):
    """The settings after a change, and a sentence if the policy ignores speeds that differ by GPU type."""

    note: str = ""


_Count = Annotated[int | None, Field(ge=0, le=1_000_000)]


class _LimitFields(_RequestBody):
    queued_jobs: _Count = None
    gpus: _Count = None
    non_preemptible_gpus: _Count = None
    min_runtime_s: Span | None = None
    grace_s: Span | None = None
    max_duration_s: Span | None = None
    default_duration_s: Span | None = None
    requests_per_s: float | None = Field(None, ge=0, le=1e6)
    streams: _Count = None
    log_reads: _Count = None


#: Whom limits are for: `each-user`, `user:NAME`, `queue:PATH` or `all`.
Whom = Annotated[str, Field(max_length=210), AfterValidator(plain_text)]


class LimitsForm(_LimitFields):
    """New limits, for each user without their own, a user, a queue with those below it, or all users together.

    A limit that is null is dropped, one that is not named stays.
    """

    whom: Whom

    def change(self) -> dict[str, Any]:
        """The limits that were named."""
        return self.model_dump(include=self.model_fields_set - {"whom"})


class LimitsRecord(_LimitFields):
    """Limits, and whom they are for; null is no limit."""

    whom: Whom


class LimitList(BaseModel):
    """All limits that the caller may see, and those that hold for the caller."""

    limits: list[LimitsRecord]
    yours: LimitsRecord


class TokenAsked(_RequestBody):
    """User, role, scope and lifetime of a new token; without `expires` it is valid until revoked."""

    user: str = Field(max_length=63)
    role: Literal["admin", "member", "user", "viewer"] = "member"
    expires: Span | None = Field(None, examples=["30d"])
    #: What the token is narrowed to, such as `queue=org/a`, `app=NAME` or `submit-only`; empty for nothing.
    scope: str = Field("", max_length=300)


class TokenMade(BaseModel):
    """A new token. It is shown only now."""

    token: str
    id: str


class TokenShown(TypedDict):
    """A token in a list, without the token itself."""

    id: str
    user: str
    role: str
    scope: str
    created: Moment
    expires: Moment
    revoked: bool


class TokenList(TypedDict):
    """Every token, oldest first."""

    tokens: list[TokenShown]


class ActRecord(TypedDict):
    """Who did what to what."""

    at: Moment
    actor: str
    action: str
    target: str
    detail: str


class Orphan(BaseModel):
    """An attempt that runs and that the journal does not know."""

    job: str
    attempt: int
    nodes: list[str]


class OrphanList(BaseModel):
    """All of them."""

    orphans: list[Orphan]


class EndedOrphans(BaseModel):
    """Attempts that were told to stop, as JOB@NUMBER."""

    ended: list[str]


class Audit(TypedDict):
    """Acts of users and admins, newest last."""

    acts: list[ActRecord]


class Journal(TypedDict):
    """Records of the journal, and the number to ask for next as `after`."""

    records: list[dict[str, Any]]
    next: int


class Health(BaseModel):
    """Whether the service works, and what is wrong if it does not."""

    ok: bool
    error: str = ""
    #: Whether this service is a standby, and another one is active.
    standby: bool = False


class Proof(BaseModel):
    """Proof that the service knows a token."""

    proof: str
