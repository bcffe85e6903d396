"""Exchanges against plain enumeration: every way to give two jobs, or one and nobody, the same GPUs otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.audit_observations import ObservedMoment, ObservedPlace
from horae.core.cluster import Cluster, Node, Span
from horae.core.job import JobSpec
from horae.core.throughputs import Speeds, Throughputs
from horae.report.audit.pareto_exchanges import better_places
from tests.builders import job

#: Two racks; the second type has but one node.
CLUSTER = Cluster(
    (
        Node("a0", "a", 2, "r0"),
        Node("a1", "a", 2, "r0"),
        Node("a2", "a", 2, "r1"),
        Node("b0", "b", 2, "r1"),
    )
)


def moment_of(holds: list[tuple[int, ...]], cluster: Cluster = CLUSTER, flat: bool = False) -> ObservedMoment:
    """A moment in which job k holds the GPUs `holds[k]`."""
    machines = cluster.types_as_machines if flat else cluster.nodes_as_machines
    places = tuple(ObservedPlace(k, ids, machines.span(ids)) for k, ids in enumerate(holds))
    taken = {gpu for ids in holds for gpu in ids}
    return ObservedMoment(0.0, places, tuple(gpu for gpu in range(cluster.gpus) if gpu not in taken), machines)


def rate(spec: JobSpec, moment: ObservedMoment, gpu_ids: tuple[int, ...]) -> float:
    """Speed on some GPUs; 0 where they are no place for the job."""
    types = {int(CLUSTER.gpu_type[gpu]) for gpu in gpu_ids}
    if len(types) > 1 or len(gpu_ids) != spec.gpus:
        return 0.0
    return Throughputs().rate(spec, CLUSTER.gpu_types[types.pop()], len(gpu_ids), moment.machines.span(gpu_ids))


def ways(
    moment: ObservedMoment, one: ObservedPlace, other: ObservedPlace | None
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """GPUs for a job, and those that are then left for the other."""
    pool = sorted({*one.gpu_ids, *(other.gpu_ids if other else moment.idle)})
    for takes in combinations(pool, len(one.gpu_ids)):
        yield takes, tuple(gpu for gpu in pool if gpu not in takes)


def brute_force(moment: ObservedMoment, jobs: list[JobSpec]) -> dict[int, float]:
    """The largest gain of every job that has one."""
    best: dict[int, float] = {}
    for one, other in product(moment.places, [None, *moment.places]):
        if other is one:
            continue
        own = rate(jobs[one.job], moment, one.gpu_ids)
        for takes, leaves in ways(moment, one, other):
            gain = rate(jobs[one.job], moment, takes) / own - 1
            if other is not None:
                unharmed = rate(jobs[other.job], moment, leaves) >= rate(jobs[other.job], moment, other.gpu_ids) - 1e-12
                gain = gain if unharmed else 0.0
            if gain > 1e-9:
                best[one.job] = max(gain, best.get(one.job, 0.0))
    return best


@st.composite
def moments(draw: st.DrawFn) -> tuple[list[JobSpec], ObservedMoment]:
    free = draw(st.permutations(range(CLUSTER.gpus)))
    jobs: list[JobSpec] = []
    holds: list[tuple[int, ...]] = []
    for k in range(draw(st.integers(1, 4))):
        gpu_type = draw(st.integers(0, 1))
        mine = [gpu for gpu in free if CLUSTER.gpu_type[gpu] == gpu_type]
        gang = draw(st.integers(1, 3))
        if len(mine) < gang:
            continue
        holds.append(tuple(sorted(mine[:gang])))
        free = [gpu for gpu in free if gpu not in holds[-1]]
        speeds = {"a": draw(st.sampled_from([1.0, 2.0])), "b": draw(st.sampled_from([1.0, 2.0]))}
        slowdown = draw(st.sampled_from([(1.0,) * 4, (1.0, 1.0, 1.5, 2.0), (1.0, 1.0, 1.0, 3.0)]))
        jobs.append(job(f"job-{k}", gang, throughput=speeds, slowdown=slowdown))
    return jobs, moment_of(holds)


@settings(max_examples=150, deadline=None)
@given(moments())
def test_the_best_exchange_of_every_job_is_found(drawn: tuple[list[JobSpec], ObservedMoment]) -> None:
    jobs, moment = drawn
    found = better_places(moment, jobs, CLUSTER, Speeds(Throughputs()))
    assert {one.job: one.gain for one in found} == pytest.approx(brute_force(moment, jobs))
    for one in found:
        own = rate(jobs[one.job], moment, one.has)
        assert rate(jobs[one.job], moment, one.takes) / own - 1 == pytest.approx(one.gain)


def test_two_spread_gangs_exchange_one_gpu_and_both_are_together() -> None:
    apart = (1.0, 1.0, 2.0, 2.0)
    jobs = [job("x", 2, slowdown=apart, gpu_types=("a",)), job("y", 2, slowdown=apart, gpu_types=("a",))]
    moment = moment_of([(0, 2), (1, 3)])
    found = better_places(ObservedMoment(0.0, moment.places, (), moment.machines), jobs, CLUSTER, Speeds(Throughputs()))
    assert [(one.job, one.gain, one.gain_of_other, one.takes) for one in found] == [
        (0, 1.0, 1.0, (0, 1)),
        (1, 1.0, 1.0, (0, 1)),
    ]


def test_where_only_the_count_matters_nobody_is_spread() -> None:
    jobs = [job("x", 2, slowdown=(1.0, 1.0, 2.0, 2.0), gpu_types=("a",))]
    moment = moment_of([(0, 4)], flat=True)
    assert moment.places[0].span is Span.NODE
    assert better_places(moment, jobs, CLUSTER, Speeds(Throughputs())) == []


def test_elastic_jobs_may_change_places_of_different_size() -> None:
    # x is served as well by one GPU of b as by two of a; y is faster on two of a.
    jobs = [
        job("x", 2, gpus_min=1, gpus_max=2, throughput={"a": 1.0, "b": 2.0}),
        job("y", 2, gpus_min=1, gpus_max=2, throughput={"a": 3.0, "b": 2.0}),
    ]
    moment = moment_of([(0, 1), (6,)])
    crowded = ObservedMoment(0.0, moment.places, (), moment.machines)
    found = better_places(crowded, jobs, CLUSTER, Speeds(Throughputs()))
    assert [(one.job, one.gain, one.other, one.gain_of_other) for one in found] == [(1, 2.0, 0, 0.0)]
    assert np.isclose(Throughputs().rate(jobs[1], "b", 1, Span.GPU), 1.0)


def test_a_job_that_asks_for_nodes_stays_where_it_is() -> None:
    spread = {"throughput": {"a": 1.0}, "slowdown": (1.0, 1.0, 2.0, 3.0)}
    speeds, moment = Speeds(Throughputs()), moment_of([(0, 2), (1, 3)])
    free = [job("first", 2, **spread), job("second", 2, **spread)]
    assert [found.job for found in better_places(moment, free, CLUSTER, speeds)] == [0, 1]
    alike = [job("first", 2, nodes=2, **spread), job("second", 2, **spread)]
    found = better_places(moment, alike, CLUSTER, speeds)
    assert [(one.job, one.other) for one in found] == [(1, None)], "on idle GPUs, not on those of the first"
    both = [job("first", 2, nodes=2, **spread), job("second", 2, nodes=2, **spread)]
    assert better_places(moment, both, CLUSTER, speeds) == []
