"""The forms of what the API takes and answers; its description is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from horae.core.job import MAX_SECONDS, MAX_STEPS
from horae.core.queues import Queue
from horae.service.job_file import LEAST_WEIGHT, QueuePath, plain_text, seconds

#: A moment in UTC, ISO 8601; null where it never came.
Moment = str | None

#: A length of time such as 30m or 7d, in seconds.
Span = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=MAX_SECONDS)]


class _Asked(BaseModel):
    """What is asked has exactly these keys."""

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
    #: At the speed it had so far, if it keeps its GPUs; null unless it runs and reports.
    left_s: float | None
    gpu_seconds: float


class JobRecord(_JobFields, total=False):
    """A job as lists show it; with `fields`, only what was asked for."""

    #: The sentence behind the reason, while the job waits.
    why: str


class JobList(TypedDict):
    """Jobs, the newest last, and how many there are in all."""

    jobs: list[JobRecord]
    total: int


class Why(TypedDict):
    """Why a job waits: the one reason that the last decision gave, and the numbers behind it."""

    job: str
    state: str
    reason: str
    sentence: str
    numbers: dict[str, int | float | str]
    decided: Moment


class AttemptRecord(TypedDict):
    """One launch of a job and how it ended."""

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
    """What a job runs. Values of variables, and secrets, are never shown."""

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


class JobDetail(_JobFields):
    """Everything about one job."""

    why: Why
    attempts: list[AttemptRecord]
    task: TaskRecord


class Ids(BaseModel):
    """The jobs that were taken, or would be."""

    ids: list[str]


class JobIds(_Asked):
    """Some jobs."""

    ids: list[Annotated[str, Field(max_length=100)]] = Field(min_length=1, max_length=10_000)


class Done(BaseModel):
    """What became of a request, job by job: "done", or why there was nothing to do."""

    jobs: dict[str, str]


class Told(TypedDict):
    """Something that happened, in a sentence."""

    seq: int
    at: Moment
    kind: str
    job: str
    what: str


class EventList(TypedDict):
    """What happened to a job, in order."""

    events: list[Told]


class ProgressReport(_Asked):
    """What a running attempt says of itself. Any report means that it works; `ready` may be sent and adds nothing."""

    step: float = Field(ge=0, le=MAX_STEPS)
    total: float | None = Field(None, gt=0, le=MAX_STEPS)
    loss: float | None = None
    ready: bool = False


class Orders(BaseModel):
    """Whether an attempt is to save and go."""

    stop: bool


# -------------------------------------------------------------------- operators


class NodeRecord(TypedDict):
    """A node; of its jobs those that may be seen, with the GPUs they have there."""

    node: str
    gpu_type: str
    gpus: int
    used: int
    state: Literal["up", "draining", "down"]
    jobs: dict[str, int]


class NodeList(TypedDict):
    """Every node."""

    nodes: list[NodeRecord]


class Drain(_Asked):
    """How to drain a node."""

    evict: bool = False


class ShareRecord(TypedDict):
    """A queue: what it is entitled to and what it uses."""

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


class QueueForm(_Asked):
    """Settings of a queue."""

    path: QueuePath
    weight: float = Field(1.0, ge=LEAST_WEIGHT, le=1e6)
    rule: Literal["fairness", "fifo"] = "fairness"
    gpus_min: int = Field(0, ge=0, le=1_000_000)
    gpus_max: int | None = Field(None, ge=0, le=1_000_000)

    def queue(self) -> Queue:
        """The queue as the engine knows it."""
        return Queue(self.path, self.weight, self.rule, self.gpus_min, self.gpus_max)


_Word = Annotated[str, Field(max_length=1000), AfterValidator(plain_text)]


class SettingsForm(_Asked):
    """What to change: the policy, some of its settings, some queues. What is not named stays."""

    policy: _Word | None = None
    settings: dict[_Word, _Word] = Field(default_factory=dict, max_length=100)
    queues: list[QueueForm] = Field(default_factory=list, max_length=10_000)


class SettingsRecord(BaseModel):
    """The policy, its settings that are not at their defaults, and the queues that somebody set."""

    policy: str
    settings: dict[str, str]
    queues: list[QueueForm]


class TokenAsked(_Asked):
    """For whom a token is, what it allows, and for how long it is good; without a length, until revoked."""

    user: str = Field(max_length=63)
    role: Literal["admin", "user", "viewer"] = "user"
    expires: Span | None = Field(None, examples=["30d"])


class TokenMade(BaseModel):
    """A new token. It is shown this once."""

    token: str
    id: str


class TokenShown(TypedDict):
    """A token as lists show it: never the token itself."""

    id: str
    user: str
    role: str
    created: Moment
    expires: Moment
    revoked: bool


class TokenList(TypedDict):
    """Every token, the oldest first."""

    tokens: list[TokenShown]


class ActRecord(TypedDict):
    """Who did what to whom."""

    at: Moment
    actor: str
    action: str
    target: str
    detail: str


class Audit(TypedDict):
    """What people did, the newest last."""

    acts: list[ActRecord]


class Journal(TypedDict):
    """Records as they are, and the number to ask after next."""

    records: list[dict[str, Any]]
    next: int


class Health(BaseModel):
    """Whether the service is well, and what is wrong if it is not."""

    ok: bool
    error: str = ""
