"""Throughput tables: steps/s by job class, GPU type, GPU count, span and neighbour; the rates of jobs from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Span
from horae.core.job import ANY_TYPE, JobSpec


def closest_span(gpus: int) -> Span:
    """The narrowest span that this number of GPUs can have."""
    return Span.GPU if gpus == 1 else Span.NODE


class Origin(StrEnum):
    """Where a throughput came from."""

    GIVEN = "given"
    MEASURED = "measured"
    ESTIMATED = "estimated"


class Setting(NamedTuple):
    """The conditions of a throughput. An empty `neighbour` (a job class) means that the job has its GPUs alone."""

    job_class: str
    gpu_type: str
    gpus: int
    span: Span
    neighbour: str = ""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Steps/s of the whole gang, and where the number came from."""

    steps_per_s: float
    origin: Origin


class Throughputs:
    """A throughput table, and the rules for settings that it lacks.

    - Missing span: the nearest narrower span of the same class, type and GPU count, divided by the
      job's own slow-down.
    - Missing class: the job's own `throughput`, or speed 1 if its work is in seconds.
    - Missing GPU count: proportional to the job's own GPU count.
    """

    def __init__(self) -> None:
        self._table: dict[Setting, Throughput] = {}
        self._classes: set[str] = set()

    def __len__(self) -> int:
        return len(self._table)

    def copy(self) -> Throughputs:
        """An independent table with the same numbers."""
        table = Throughputs()
        table._table, table._classes = dict(self._table), set(self._classes)
        return table

    def __deepcopy__(self, memo: dict[int, object]) -> Throughputs:
        # Settings and their throughputs never change, and a table has thousands of them.
        return self.copy()

    def put(self, setting: Setting, steps_per_s: float, origin: Origin = Origin.GIVEN) -> None:
        """Set the throughput of a setting."""
        self._table[setting] = Throughput(steps_per_s, origin)
        self._classes.add(setting.job_class)

    def get(self, setting: Setting) -> Throughput | None:
        """The throughput of exactly this setting, if the table has it."""
        return self._table.get(setting)

    def settings(self) -> Iterator[tuple[Setting, Throughput]]:
        """Every setting and its throughput, sorted by setting."""
        return iter(sorted(self._table.items()))

    def knows(self, job_class: str) -> bool:
        """Whether the table has any throughput of a job class."""
        return job_class in self._classes

    @property
    def knows_pairs(self) -> bool:
        """Whether the table has any throughput of two jobs that share GPUs."""
        return any(setting.neighbour for setting in self._table)

    def beside(self, job: JobSpec, gpu_type: str, neighbour: JobSpec, span: Span) -> float:
        """Work per second of `job` on GPUs that it shares with `neighbour`; 0 if they cannot share or it is unknown."""
        if job.throughput or neighbour.throughput or job.gpus != neighbour.gpus:
            return 0.0
        if job.gpu_types and gpu_type not in job.gpu_types:
            return 0.0
        for narrower in range(span, -1, -1):
            entry = self._table.get(
                Setting(job.job_class, gpu_type, job.gpus, Span(narrower), neighbour.job_class or "-")
            )
            if entry is not None:
                return entry.steps_per_s * job.slowdown[narrower] / job.slowdown[span]
        return 0.0

    def rate(self, job: JobSpec, gpu_type: str, gpus: int, span: Span) -> float:
        """Work per second of `job` on `gpus` GPUs of one type; 0 where it cannot run."""
        if job.gpu_types and gpu_type not in job.gpu_types:
            return 0.0
        for narrower in range(span, -1, -1):
            entry = self._table.get(Setting(job.job_class, gpu_type, gpus, Span(narrower)))
            if entry is not None:
                return entry.steps_per_s * job.slowdown[narrower] / job.slowdown[span]
        if gpus != job.gpus:
            return self.rate(job, gpu_type, job.gpus, span) * gpus / job.gpus
        if job.throughput:
            given = job.throughput.get(gpu_type)
            return (job.throughput.get(ANY_TYPE, 0.0) if given is None else given) / job.slowdown[span]
        if job.unit == "seconds" and not self.knows(job.job_class):
            return 1.0 / job.slowdown[span]
        return 0.0

    def rates(self, job: JobSpec, gpu_types: tuple[str, ...]) -> NDArray[np.float64]:
        """Work per second on `job.gpus` GPUs of each type, at the narrowest span."""
        return np.array([self.rate(job, name, job.gpus, closest_span(job.gpus)) for name in gpu_types])


#: Assumed part of its speed alone that a job keeps beside a neighbour with which it was never measured.
_UNMEASURED_SHARE = 0.5


class TypeRates(NamedTuple):
    """Rates of a job on its GPU count of each type."""

    job_kind: int
    #: Work per second on each type, and the highest of these.
    rates: NDArray[np.float64]
    best_rate: float
    #: Mask of the types that the job can run on.
    types: int

    @staticmethod
    def of(job_kind: int, rates: NDArray[np.float64]) -> TypeRates:
        """With the highest rate and the mask of types."""
        types = sum(1 << number for number, rate in enumerate(rates.tolist()) if rate > 0)
        return TypeRates(job_kind, rates, float(rates.max(initial=0.0)), types)


class Speeds:
    """Look-ups in a throughput table, cached by kind of job.

    Jobs with the same class, GPU count, accepted types, unit and slow-down are of the same kind. Kinds are
    numbered from 0; a job with throughputs of its own has no kind (-1).
    """

    def __init__(self, throughputs: Throughputs) -> None:
        self.throughputs = throughputs
        self._kinds: dict[tuple[object, ...], int] = {}
        self._specs: list[JobSpec] = []
        self._rates: dict[tuple[object, ...], float] = {}
        self._type_rates: dict[tuple[int, tuple[str, ...]], TypeRates] = {}

    def job_kind(self, spec: JobSpec) -> int:
        """Number of the job's kind."""
        if spec.throughput:
            return -1
        alike = (spec.job_class, spec.gpus, spec.gpu_types, spec.unit, spec.slowdown)
        job_kind = self._kinds.get(alike)
        if job_kind is None:
            job_kind = self._kinds[alike] = len(self._specs)
            self._specs.append(spec)
        return job_kind

    def rates(self, spec: JobSpec, gpu_types: tuple[str, ...]) -> NDArray[np.float64]:
        """Work per second on the job's GPU count of each type, at the narrowest span."""
        return self.type_rates(spec, gpu_types).rates

    def type_rates(self, spec: JobSpec, gpu_types: tuple[str, ...]) -> TypeRates:
        """The job's rates on its GPU count of each type, looked up once for each kind of job."""
        job_kind = self.job_kind(spec)
        found = self._type_rates.get((job_kind, gpu_types)) if job_kind >= 0 else None
        if found is None:
            found = TypeRates.of(job_kind, self.throughputs.rates(spec, gpu_types))
            if job_kind >= 0:
                self._type_rates[job_kind, gpu_types] = found
        return found

    def rate(self, spec: JobSpec, gpu_type: str, gpus: int, span: Span, neighbour: JobSpec | None = None) -> float:
        """Work per second on `gpus` GPUs of a type at a span, alone or shared with `neighbour`."""
        job_kind = self.job_kind(spec)
        other_kind = -1 if neighbour is None else self.job_kind(neighbour)
        if job_kind < 0 or (neighbour is not None and other_kind < 0):
            return self._look_up(spec, gpu_type, gpus, span, neighbour)
        key = (job_kind, gpu_type, gpus, span, other_kind)
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = self._look_up(spec, gpu_type, gpus, span, neighbour)
        return rate

    def _look_up(self, spec: JobSpec, gpu_type: str, gpus: int, span: Span, neighbour: JobSpec | None) -> float:
        alone = self.throughputs.rate(spec, gpu_type, gpus, span)
        if neighbour is None:
            return alone
        return self.throughputs.beside(spec, gpu_type, neighbour, span) or _UNMEASURED_SHARE * alone

    def beside(self, gpu_types: tuple[str, ...]) -> NDArray[np.float64]:
        """Work per second of two jobs that share GPUs: axes are the job's kind, its partner's kind and GPU type.

        0 where the two cannot share: they do not fit together, or their speeds are unknown.
        """
        kinds = len(self._specs)
        table = np.zeros((kinds, kinds, len(gpu_types)))
        for first in range(kinds):
            for second in range(first + 1):
                table[first, second], table[second, first] = self._pair(first, second, gpu_types)
        return table

    def _pair(self, first: int, second: int, gpu_types: tuple[str, ...]) -> tuple[list[float], list[float]]:
        """Work per second of jobs of two kinds beside each other, on each GPU type."""
        a, b = self._specs[first], self._specs[second]
        span = closest_span(a.gpus)
        own = [self.throughputs.beside(a, name, b, span) for name in gpu_types]
        others = [self.throughputs.beside(b, name, a, span) for name in gpu_types]
        both = [x > 0 and y > 0 for x, y in zip(own, others, strict=True)]
        return [x * fits for x, fits in zip(own, both, strict=True)], [
            y * fits for y, fits in zip(others, both, strict=True)
        ]

    def forget(self) -> None:
        """Drop the cache: the throughput table has changed."""
        self._rates.clear()
        self._type_rates.clear()
