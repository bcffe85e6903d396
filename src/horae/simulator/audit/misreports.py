"""Misreports: the false claims that an app may make, and an engine that believes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from horae.core.cluster import Span
from horae.core.engine import Engine
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.throughputs import Speeds, TypeRates

#: Factors by which work and speed are overstated or understated.
_WORK, _SPEED = 8.0, 2.0
#: Claimed slow-down of a gang that is spread.
_SPREAD = 4.0


@dataclass(frozen=True)
class Misreport:
    """A false claim, as factors on the truth."""

    name: str
    #: Factor on the work left.
    work: float = 1.0
    #: GPU type and factor on the speed there, for types with a false speed.
    speed: tuple[tuple[str, float], ...] = ()
    #: Factor on the speed of a gang on several machines.
    spread: float = 1.0
    #: Whether the app claims that the span of its GPUs does not matter.
    insensitive: bool = False

    def factor(self, gpu_type: str, span: Span = Span.NODE) -> float:
        """Claimed speed over true speed."""
        when_spread = self.spread if span > Span.NODE else 1.0
        return dict(self.speed).get(gpu_type, 1.0) * when_spread


def misreports_of(table: JobTable, rows: list[int], held_types: set[int]) -> Iterator[Misreport]:
    """Every misreport that makes sense for the jobs of an app. No misreport denies a GPU type that the app runs on."""
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
    """Speeds with a misreport about the jobs `liars`; the speeds of other jobs are true."""

    def __init__(self, true: Speeds, liars: frozenset[str], misreport: Misreport) -> None:
        # Shares the numbers of kinds and the cache of true rates with `true`.
        vars(self).update(vars(true))
        self._liars, self._misreport = liars, misreport

    def type_rates(self, spec: JobSpec, gpu_types: tuple[str, ...]) -> TypeRates:
        """Claimed work per second on each type."""
        true = super().type_rates(spec, gpu_types)
        if spec.id not in self._liars:
            return true
        factors = np.array([self._misreport.factor(name) for name in gpu_types])
        return TypeRates.of(true.job_kind, true.rates * factors)

    def rate(self, spec: JobSpec, gpu_type: str, gpus: int, span: Span, neighbour: JobSpec | None = None) -> float:
        """Claimed work per second on `gpus` GPUs of a type at a span, alone or shared with `neighbour`."""
        if spec.id not in self._liars:
            return super().rate(spec, gpu_type, gpus, span, neighbour)
        claimed_span = min(span, Span.NODE) if self._misreport.insensitive else span
        return super().rate(spec, gpu_type, gpus, claimed_span, neighbour) * self._misreport.factor(gpu_type, span)


def apply_misreport(engine: Engine, rows: list[int], misreport: Misreport, now_s: float) -> None:
    """Make an engine believe a misreport about the jobs in these rows."""
    table = engine.jobs
    table.speeds = Claims(table.speeds, frozenset(table.specs[row].id for row in rows), misreport)
    for row in rows:
        rate, gpus = float(table.rate[row]), int(table.executing_gpus[row])
        executing = bool(table.executing[row])
        table.settle(row, now_s)
        left = float(table.work_left[row])
        table.work[row] += (misreport.work - 1.0) * left
        table.work_left[row] = misreport.work * left
        table.set_rates(row)
        if executing:
            gpu_ids = engine.gpus.occupied[row]
            span = engine.snapshot().machines.span(gpu_ids)
            gpu_type = int(engine.gpus.cluster.gpu_type[gpu_ids[0]])
            claimed = table.rate_on(row, gpu_type, gpus, span)
            true = engine.jobs.speeds.throughputs.rate(table.specs[row], table.gpu_types[gpu_type], gpus, span)
            table.execute(row, now_s, rate * claimed / true, gpus)
