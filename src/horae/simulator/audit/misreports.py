"""What an app may claim that is not true, and an engine that believes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Span
from horae.core.engine import Engine
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.throughputs import Speeds

#: How much work is over- or understated, and speed.
_WORK, _SPEED = 8.0, 2.0
#: How much slower a gang that is spread claims to be.
_SPREAD = 4.0


@dataclass(frozen=True)
class Misreport:
    """A claim, as factors on the truth; `spread` is on the speed of a gang that is not on one machine.

    `insensitive` claims that it does not matter how far apart GPUs lie.
    """

    name: str
    work: float = 1.0
    #: By GPU type, for types that are not as they are said to be.
    speed: tuple[tuple[str, float], ...] = ()
    spread: float = 1.0
    insensitive: bool = False

    def factor(self, gpu_type: str, span: Span = Span.NODE) -> float:
        """Claimed speed over true speed."""
        far = self.spread if span > Span.NODE else 1.0
        return dict(self.speed).get(gpu_type, 1.0) * far


def lies_of(table: JobTable, rows: list[int], held_types: set[int]) -> Iterator[Misreport]:
    """Every lie that makes sense for the jobs of an app; none denies a type that it is running on."""
    yield Misreport(f"{_WORK:g} times the work left", work=_WORK)
    yield Misreport(f"1/{_WORK:g} of the work left", work=1 / _WORK)
    usable = np.flatnonzero((table.rates[rows] > 0).any(axis=0)).tolist()
    if len(usable) > 1:
        for name in (table.gpu_types[k] for k in usable):
            yield Misreport(f"{_SPEED:g} times the speed on {name}", speed=((name, _SPEED),))
            yield Misreport(f"1/{_SPEED:g} of the speed on {name}", speed=((name, 1 / _SPEED),))
        best = int(table.rates[rows].sum(axis=0).argmax())
        others = tuple(k for k in usable if k != best)
        if not held_types & set(others) and (table.rates[rows, best] > 0).all():
            hidden = tuple((table.gpu_types[k], 0.0) for k in others)
            yield Misreport(f"no other type than {table.gpu_types[best]} would do", speed=hidden)
    if (table.gpus[rows] > 1).any():
        yield Misreport("distance does not matter", insensitive=True)
        yield Misreport(f"{_SPREAD:g} times slower when spread", spread=1 / _SPREAD)


class Claims(Speeds):
    """Speeds as a liar tells them; those of others are true."""

    def __init__(self, true: Speeds, liars: frozenset[str], lie: Misreport) -> None:
        # Kinds must keep their numbers, and what was looked up is true: both are the other's own.
        vars(self).update(vars(true))
        self._liars, self._lie = liars, lie

    def rates(self, spec: JobSpec, gpu_types: tuple[str, ...]) -> NDArray[np.float64]:
        """Claimed work per second on each type."""
        true = super().rates(spec, gpu_types)
        if spec.id not in self._liars:
            return true
        return np.asarray(true * np.array([self._lie.factor(name) for name in gpu_types]), np.float64)

    def rate(self, spec: JobSpec, gpu_type: str, gpus: int, span: Span, neighbour: JobSpec | None = None) -> float:
        """Claimed work per second somewhere."""
        if spec.id not in self._liars:
            return super().rate(spec, gpu_type, gpus, span, neighbour)
        near = min(span, Span.NODE) if self._lie.insensitive else span
        return super().rate(spec, gpu_type, gpus, near, neighbour) * self._lie.factor(gpu_type, span)


def tell(engine: Engine, rows: list[int], lie: Misreport, now_s: float) -> None:
    """Let an engine believe a lie about some jobs."""
    table = engine.jobs
    table.speeds = Claims(table.speeds, frozenset(table.specs[row].id for row in rows), lie)
    for row in rows:
        rate, gpus = float(table.rate[row]), int(table.executing_gpus[row])
        executing = bool(table.executing[row])
        table.settle(row, now_s)
        left = float(table.work_left[row])
        table.work[row] += (lie.work - 1.0) * left
        table.work_left[row] = lie.work * left
        table.set_rates(row)
        if executing:
            here = engine.gpus.occupied[row]
            span = engine.snapshot().machines.span(here)
            gpu_type = int(engine.gpus.cluster.gpu_type[here[0]])
            claimed = table.rate_on(row, gpu_type, gpus, span)
            true = engine.jobs.speeds.throughputs.rate(table.specs[row], table.gpu_types[gpu_type], gpus, span)
            table.execute(row, now_s, rate * claimed / true, gpus)
