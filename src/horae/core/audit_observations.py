"""What somebody saw who looked on while a run went by: the part of an audit that a history does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from horae.core.cluster import Machines, Span
from horae.core.reasons import Reason


@dataclass(frozen=True)
class Idle:
    """A stretch of time in which GPUs were idle though waiting jobs could have used them."""

    begin_s: float
    end_s: float
    #: GPUs that waiting jobs could have used at once, at least.
    gpus: int
    #: One of these jobs (its row), why it waited, and GPUs that it could have had.
    job: int
    reason: Reason
    gpu_ids: tuple[int, ...]

    @property
    def gpu_seconds(self) -> float:
        """What was wasted."""
        return self.gpus * (self.end_s - self.begin_s)


@dataclass(frozen=True)
class Idleness:
    """All such stretches of a run together."""

    stretches: int = 0
    gpu_seconds: float = 0.0
    #: GPU-seconds by the reason of the job that waited.
    by_reason: dict[str, float] = field(default_factory=dict)
    #: The stretch that wasted most.
    worst: Idle | None = None


@dataclass(frozen=True)
class ObservedPlace:
    """A job (its row) and the GPUs that it alone holds."""

    job: int
    gpu_ids: tuple[int, ...]
    span: Span


@dataclass(frozen=True)
class Moment:
    """Who had which GPUs after a decision, and which nobody had."""

    at_s: float
    places: tuple[ObservedPlace, ...]
    idle: tuple[int, ...]
    machines: Machines


@dataclass(frozen=True)
class Got:
    """What a decision gave an app, by the truth."""

    gpus: int
    #: In GPUs of each job's best type.
    speed: float
    #: From the app's first submission to its end, if it kept just this.
    finish_s: float


@dataclass(frozen=True)
class Probe:
    """One decision made twice: with one app that lies, and with all honest."""

    at_s: float
    app: str
    lie: str
    #: GPUs of the app's largest job.
    gang: int
    honest: Got
    lying: Got


@dataclass(frozen=True)
class Observations:
    """Everything an onlooker saw."""

    decisions: int
    idleness: Idleness
    moments: tuple[Moment, ...]
    probes: tuple[Probe, ...]
