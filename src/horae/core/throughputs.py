"""How fast jobs run: steps/s by job class, GPU type, GPU count, span and neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Span
from horae.core.job import JobSpec


def closest(gpus: int) -> Span:
    """As close together as so many GPUs can be."""
    return Span.GPU if gpus == 1 else Span.NODE


class Origin(StrEnum):
    """Where a number came from."""

    GIVEN = "given"
    MEASURED = "measured"
    ESTIMATED = "estimated"


class Setting(NamedTuple):
    """What a throughput was measured under. No neighbour means the GPUs are the job's alone."""

    job_class: str
    gpu_type: str
    gpus: int
    span: Span
    neighbour: str = ""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Steps/s of the whole job, and where the number came from."""

    steps_per_s: float
    origin: Origin


class Throughputs:
    """The table of measured speeds, and the rule for what it does not hold.

    A setting that is missing takes the nearest narrower span of the same class,
    type and size, divided by the job's own slow-down; a class the table does not
    know runs at the job's own `throughput`, or at speed 1 if its work is in
    seconds; a size the table does not know scales linearly from the job's own.
    """

    def __init__(self) -> None:
        self._table: dict[Setting, Throughput] = {}
        self._classes: set[str] = set()

    def __len__(self) -> int:
        return len(self._table)

    def copy(self) -> Throughputs:
        """The same numbers in a table of its own."""
        table = Throughputs()
        table._table, table._classes = dict(self._table), set(self._classes)
        return table

    def put(self, setting: Setting, steps_per_s: float, origin: Origin = Origin.GIVEN) -> None:
        """Record one number; a measurement replaces what was given or estimated."""
        self._table[setting] = Throughput(steps_per_s, origin)
        self._classes.add(setting.job_class)

    def get(self, setting: Setting) -> Throughput | None:
        """The number recorded for exactly this setting."""
        return self._table.get(setting)

    def settings(self) -> Iterator[tuple[Setting, Throughput]]:
        """Everything recorded, in the order of the settings, whatever order it was put in."""
        return iter(sorted(self._table.items()))

    def knows(self, job_class: str) -> bool:
        """Whether the table holds anything about a class."""
        return job_class in self._classes

    @property
    def knows_pairs(self) -> bool:
        """Whether the table holds the speed of any job beside another."""
        return any(setting.neighbour for setting in self._table)

    def beside(self, job: JobSpec, gpu_type: str, neighbour: JobSpec, span: Span) -> float:
        """Work per second of `job` on GPUs that it shares with `neighbour`; 0 if they do not fit, or nobody knows."""
        if job.throughput or neighbour.throughput or job.gpus != neighbour.gpus:
            return 0.0
        if job.gpu_types and gpu_type not in job.gpu_types:
            return 0.0
        for narrower in range(span, -1, -1):
            known = self._table.get(
                Setting(job.job_class, gpu_type, job.gpus, Span(narrower), neighbour.job_class or "-")
            )
            if known is not None:
                return known.steps_per_s * job.slowdown[narrower] / job.slowdown[span]
        return 0.0

    def rate(self, job: JobSpec, gpu_type: str, gpus: int, span: Span) -> float:
        """Work per second of `job` on `gpus` GPUs of one type; 0 where it cannot run."""
        if job.gpu_types and gpu_type not in job.gpu_types:
            return 0.0
        for narrower in range(span, -1, -1):
            known = self._table.get(Setting(job.job_class, gpu_type, gpus, Span(narrower)))
            if known is not None:
                return known.steps_per_s * job.slowdown[narrower] / job.slowdown[span]
        if gpus != job.gpus:
            return self.rate(job, gpu_type, job.gpus, span) * gpus / job.gpus
        if job.throughput:
            return job.throughput.get(gpu_type, 0.0) / job.slowdown[span]
        if job.unit == "seconds" and not self.knows(job.job_class):
            return 1.0 / job.slowdown[span]
        return 0.0

    def rates(self, job: JobSpec, gpu_types: tuple[str, ...]) -> NDArray[np.float64]:
        """Work per second on `job.gpus` GPUs of each type, as close together as can be."""
        return np.array([self.rate(job, name, job.gpus, closest(job.gpus)) for name in gpu_types])


#: Speed of a job beside one that nobody ever measured it with: GPUs that are shared blindly are halved.
_BLIND = 0.5


class OnTypes(NamedTuple):
    """How fast a job is on its GPUs of each type."""

    kind: int
    #: Work per second on each type, and the highest of these.
    rates: NDArray[np.float64]
    best_rate: float
    #: Mask of the types that the job can run on.
    types: int


class Speeds:
    """Look-ups in a table of throughputs, remembered by kind of job.

    Jobs that share class, size, types, unit and slow-down are of one kind; a job that brings
    its own throughputs is of none (-1).
    """

    def __init__(self, throughputs: Throughputs) -> None:
        self.throughputs = throughputs
        self._kinds: dict[tuple[object, ...], int] = {}
        self._specs: list[JobSpec] = []
        self._known: dict[tuple[object, ...], float] = {}
        self._on_types: dict[tuple[int, tuple[str, ...]], OnTypes] = {}

    def kind(self, spec: JobSpec) -> int:
        """Number of the kind of a job."""
        if spec.throughput:
            return -1
        alike = (spec.job_class, spec.gpus, spec.gpu_types, spec.unit, spec.slowdown)
        kind = self._kinds.get(alike)
        if kind is None:
            kind = self._kinds[alike] = len(self._specs)
            self._specs.append(spec)
        return kind

    def rates(self, spec: JobSpec, gpu_types: tuple[str, ...]) -> NDArray[np.float64]:
        """Work per second on the job's GPUs of each type, as close together as can be."""
        return self.on_types(spec, gpu_types).rates

    def on_types(self, spec: JobSpec, gpu_types: tuple[str, ...]) -> OnTypes:
        """The job's speed on its GPUs of each type, looked up once for each kind of job."""
        kind = self.kind(spec)
        known = self._on_types.get((kind, gpu_types)) if kind >= 0 else None
        if known is None:
            rates = self.throughputs.rates(spec, gpu_types)
            types = sum(1 << number for number, rate in enumerate(rates.tolist()) if rate > 0)
            known = OnTypes(kind, rates, float(rates.max()), types)
            if kind >= 0:
                self._on_types[kind, gpu_types] = known
        return known

    def rate(self, spec: JobSpec, gpu_type: str, gpus: int, span: Span, neighbour: JobSpec | None = None) -> float:
        """Work per second on so many GPUs of one type, so far apart, shared with a neighbour or not."""
        kind = self.kind(spec)
        other = -1 if neighbour is None else self.kind(neighbour)
        if kind < 0 or (neighbour is not None and other < 0):
            return self._look_up(spec, gpu_type, gpus, span, neighbour)
        asked = (kind, gpu_type, gpus, span, other)
        rate = self._known.get(asked)
        if rate is None:
            rate = self._known[asked] = self._look_up(spec, gpu_type, gpus, span, neighbour)
        return rate

    def _look_up(self, spec: JobSpec, gpu_type: str, gpus: int, span: Span, neighbour: JobSpec | None) -> float:
        alone = self.throughputs.rate(spec, gpu_type, gpus, span)
        if neighbour is None:
            return alone
        return self.throughputs.beside(spec, gpu_type, neighbour, span) or _BLIND * alone

    def beside(self, gpu_types: tuple[str, ...]) -> NDArray[np.float64]:
        """Work per second of a job of one kind (first axis) beside one of another (second) on each type (third).

        0 where they cannot share: together they do not fit, or nobody knows how fast they would be.
        """
        kinds = len(self._specs)
        table = np.zeros((kinds, kinds, len(gpu_types)))
        for one in range(kinds):
            for other in range(one + 1):
                table[one, other], table[other, one] = self._pair(one, other, gpu_types)
        return table

    def _pair(self, one: int, other: int, gpu_types: tuple[str, ...]) -> tuple[list[float], list[float]]:
        a, b = self._specs[one], self._specs[other]
        span = closest(a.gpus)
        own = [self.throughputs.beside(a, name, b, span) for name in gpu_types]
        others = [self.throughputs.beside(b, name, a, span) for name in gpu_types]
        both = [x > 0 and y > 0 for x, y in zip(own, others, strict=True)]
        return [x * fits for x, fits in zip(own, both, strict=True)], [
            y * fits for y, fits in zip(others, both, strict=True)
        ]

    def forget(self) -> None:
        """The table has changed: look everything up anew."""
        self._known.clear()
        self._on_types.clear()
