"""What an observer notes during a run: the part of an audit that a history does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from horae.core.cluster import Machines, Span
from horae.core.reasons import Reason


@dataclass(frozen=True)
class IdleStretch:
    """A stretch of time in which GPUs were idle though waiting jobs could have used them."""

    begin_s: float
    end_s: float
    #: GPU count that waiting jobs could have used at once: a lower bound.
    gpus: int
    #: The first of these jobs (its row), why it waited, and GPUs that it could have had.
    job: int
    reason: Reason
    gpu_ids: tuple[int, ...]

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that were wasted."""
        return self.gpus * (self.end_s - self.begin_s)


@dataclass(frozen=True)
class Idleness:
    """All idle stretches of a run: their number and their sums."""

    stretches: int = 0
    gpu_seconds: float = 0.0
    #: GPU-seconds by the reason of the job that waited.
    by_reason: dict[str, float] = field(default_factory=dict)
    #: The stretch that wasted most GPU-seconds.
    worst: IdleStretch | None = None


@dataclass(frozen=True)
class ObservedPlace:
    """A job (its row) and the GPUs that it holds and shares with no other job."""

    job: int
    gpu_ids: tuple[int, ...]
    span: Span


@dataclass(frozen=True)
class ObservedMoment:
    """Which job held which GPUs after a decision, and which GPUs were idle."""

    at_s: float
    places: tuple[ObservedPlace, ...]
    #: GPU numbers.
    idle: tuple[int, ...]
    machines: Machines


@dataclass(frozen=True)
class ProbeResult:
    """What a decision gave an app, valued by true speeds and true work."""

    gpus: int
    #: The speed of those GPUs as a count of GPUs of each job's fastest type.
    speed: float
    #: Seconds from the app's first submission to its end if it kept exactly these GPUs.
    finish_s: float


@dataclass(frozen=True)
class Probe:
    """One decision made twice: with all apps honest, and with a misreport of one app."""

    at_s: float
    app: str
    #: Name of the misreport.
    lie: str
    #: GPU count of the app's largest job.
    gang: int
    honest: ProbeResult
    lying: ProbeResult


@dataclass(frozen=True)
class Observations:
    """Everything that was observed in a run."""

    decisions: int
    idleness: Idleness
    moments: tuple[ObservedMoment, ...]
    probes: tuple[Probe, ...]
