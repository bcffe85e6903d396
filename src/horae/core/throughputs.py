"""How fast jobs run: steps/s by job class, GPU type, GPU count, span and neighbour."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Span
from horae.core.job import JobSpec


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

    def put(self, setting: Setting, steps_per_s: float, origin: Origin = Origin.GIVEN) -> None:
        """Record one number; a measurement replaces what was given or estimated."""
        self._table[setting] = Throughput(steps_per_s, origin)
        self._classes.add(setting.job_class)

    def get(self, setting: Setting) -> Throughput | None:
        """The number recorded for exactly this setting."""
        return self._table.get(setting)

    def knows(self, job_class: str) -> bool:
        """Whether the table holds anything about a class."""
        return job_class in self._classes

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
        span = Span.GPU if job.gpus == 1 else Span.NODE
        return np.array([self.rate(job, name, job.gpus, span) for name in gpu_types])
