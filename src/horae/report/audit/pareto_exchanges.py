"""Exchanges of GPUs that make a job faster and none slower, found exhaustively among pairs of jobs.

A job may move to idle GPUs, change places with another, or divide the GPUs of both anew. What a gang's
speed depends on is type, number and span; so of all ways to divide GPUs of one type only those count that put
each gang into a region: a machine, a rack, or anywhere. A gang of n fits into S and one of m into T at once
just when |S| >= n, |T| >= m and |S or T| >= n + m (Hall), so nothing has to be enumerated GPU by GPU. All this
presumes that a gang is no slower the closer together it is; where a table of speeds says otherwise, some exchanges
are missed, but none is found that is none. Jobs that ask for a number of nodes, or for
CPUs or memory, stay where they are.

What a move itself would cost is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from horae.core.audit_observations import ObservedMoment, ObservedPlace
from horae.core.cluster import Cluster, Machines, Span
from horae.core.job import JobSpec
from horae.core.throughputs import Speeds

#: Smaller differences of speed are rounding.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Exchange:
    """An exchange that makes a job (its row) faster: by which part, from which GPUs to which, and whose they are.

    `other` is the row of the job that has the GPUs now; None if they are idle.
    """

    job: int
    gain: float
    has: tuple[int, ...]
    takes: tuple[int, ...]
    other: int | None = None
    gain_of_other: float = 0.0


def better_places(moment: ObservedMoment, jobs: Sequence[JobSpec], cluster: Cluster, speeds: Speeds) -> list[Exchange]:
    """The best exchange of every job that has one."""
    exchanger = _Exchanger(moment, jobs, cluster, speeds)
    found: list[Exchange] = []
    for position, place in enumerate(moment.places):
        if _stays(jobs[place.job]):
            continue
        exchanges = [*exchanger.moves(position), *exchanger.swaps(position), *exchanger.divisions(position)]
        if exchanges:
            found.append(max(exchanges, key=lambda exchange: exchange.gain))
    return found


@dataclass(frozen=True)
class _Exchanger:
    """Finds the exchanges of one moment. `i` and `j` are positions in `moment.places`."""

    moment: ObservedMoment
    jobs: Sequence[JobSpec]
    cluster: Cluster
    speeds: Speeds

    @cached_property
    def gpu_type(self) -> list[int]:
        return [int(self.cluster.gpu_type[place.gpu_ids[0]]) for place in self.moment.places]

    @cached_property
    def rates(self) -> NDArray[np.float64]:
        """Work per second of each job (rows) in each place (columns); 0 where it cannot be."""
        shapes = [(t, len(p.gpu_ids), p.span) for t, p in zip(self.gpu_type, self.moment.places, strict=True)]
        numbers = {shape: n for n, shape in enumerate(dict.fromkeys(shapes))}
        by_shape = [[self._rate(place.job, *shape) for shape in numbers] for place in self.moment.places]
        rates = np.array(by_shape).reshape(len(shapes), len(numbers))[:, [numbers[shape] for shape in shapes]]
        stays = np.array([_stays(self.jobs[place.job]) for place in self.moment.places], np.bool_)
        rates[stays[:, None] & ~np.eye(len(shapes), dtype=np.bool_)] = 0.0
        return rates

    def _rate(self, job: int, gpu_type: int, gpus: int, span: Span) -> float:
        spec = self.jobs[job]
        if not spec.gpus_min <= gpus <= spec.gpus_max:
            return 0.0
        return self.speeds.rate(spec, self.cluster.gpu_types[gpu_type], gpus, Span.GPU if gpus == 1 else span)

    def _gain(self, i: int, gpu_ids: Sequence[int]) -> float:
        """By which part the job at position i would be faster on these GPUs; below 0 if slower."""
        gpu_type = int(self.cluster.gpu_type[gpu_ids[0]])
        rate = self._rate(self.moment.places[i].job, gpu_type, len(gpu_ids), self.moment.machines.span(gpu_ids))
        return rate / float(self.rates[i, i]) - 1

    def moves(self, i: int) -> Iterator[Exchange]:
        """Moves to idle GPUs of one type, together with the GPUs that the job has or instead of them."""
        place = self.moment.places[i]
        for gpu_type in range(len(self.cluster.gpu_types)):
            pool = [gpu for gpu in self.moment.idle if self.cluster.gpu_type[gpu] == gpu_type]
            if gpu_type == self.gpu_type[i] and pool:
                pool += place.gpu_ids
            for region in _regions(pool, self.moment.machines):
                if len(region) >= len(place.gpu_ids):
                    # GPUs that the job has come first, so that fewer change hands.
                    ordered = sorted(region, key=lambda gpu: (gpu not in place.gpu_ids, gpu))
                    takes = tuple(sorted(ordered[: len(place.gpu_ids)]))
                    if (gain := self._gain(i, takes)) > _TOLERANCE:
                        yield Exchange(place.job, gain, place.gpu_ids, takes)

    def swaps(self, i: int) -> Iterator[Exchange]:
        """Two jobs take each other's GPUs."""
        own = self.rates.diagonal()
        gain = self.rates[i] / own[i] - 1
        others = self.rates[:, i] / own - 1
        for j in np.flatnonzero((gain > _TOLERANCE) & (others > -_TOLERANCE)).tolist():
            place, other = self.moment.places[i], self.moment.places[j]
            yield Exchange(place.job, float(gain[j]), place.gpu_ids, other.gpu_ids, other.job, float(others[j]))

    def divisions(self, i: int) -> Iterator[Exchange]:
        """The GPUs of two jobs, all of one type, divided in another way."""
        place, own = self.moment.places[i], float(self.rates[i, i])
        closest = self._rate(place.job, self.gpu_type[i], len(place.gpu_ids), Span.NODE)
        if place.span <= Span.NODE or closest <= own * (1 + _TOLERANCE):
            return
        for j, other in enumerate(self.moment.places):
            if j != i and self.gpu_type[j] == self.gpu_type[i] and not _stays(self.jobs[other.job]):
                yield from self._divisions_with(i, place, j, other)

    def _divisions_with(self, i: int, place: ObservedPlace, j: int, other: ObservedPlace) -> Iterator[Exchange]:
        pool = {*place.gpu_ids, *other.gpu_ids}
        regions = list(_regions(sorted(pool), self.moment.machines))
        for region in regions:
            if len(region) < len(place.gpu_ids):
                continue
            for other_region in regions:
                if len(other_region) < len(other.gpu_ids) or len(region | other_region) < len(pool):
                    continue
                # First the GPUs outside the other job's region, so that enough are left for it.
                ordered = sorted(region, key=lambda gpu: (gpu in other_region, gpu))
                takes = tuple(sorted(ordered[: len(place.gpu_ids)]))
                gain, others = self._gain(i, takes), self._gain(j, sorted(pool - set(takes)))
                if gain > _TOLERANCE and others > -_TOLERANCE:
                    yield Exchange(place.job, gain, place.gpu_ids, takes, other.job, others)


def _stays(job: JobSpec) -> bool:
    """Whether a job takes no part in exchanges: other GPUs may not be on nodes that it could use."""
    return bool(job.nodes or job.cpus_per_gpu or job.memory_mb_per_gpu)


def _regions(pool: list[int], machines: Machines) -> Iterator[frozenset[int]]:
    """Machines, racks and all, cut to the GPUs of a pool."""
    if not pool:
        return
    machine = machines.of_gpu[pool]
    rack = machines.rack[machine]
    for group in (machine, rack, np.zeros_like(rack)):
        for number in np.unique(group).tolist():
            yield frozenset(pool[k] for k in np.flatnonzero(group == number).tolist())
