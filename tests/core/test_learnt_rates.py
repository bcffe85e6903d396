"""A speed that was learnt reaches every job that it concerns, whoever waits, runs, rests or has ended."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from horae.core.cluster import Cluster, Node, Span
from horae.core.engine import Engine
from horae.core.events import JobProgressed, JobStarted, JobSubmitted
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.queues import QueueTree
from horae.core.throughputs import Origin, Setting, Speeds, Throughputs
from horae.placement.rules import make_placement
from horae.policies import make_policy

TYPES = ("v100", "k80")

specs = st.builds(
    lambda number, gpus, kind, only, told, slowdown: JobSpec(
        f"job-{number}",
        0.0,
        gpus,
        100.0,
        unit="steps" if told else "seconds",
        job_class=kind,
        gpu_types=only,
        throughput=dict.fromkeys(only or TYPES, told) if told else {},
        slowdown=slowdown,
    ),
    st.integers(0, 10**9),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["resnet", "bert"]),
    st.sampled_from([(), ("v100",), ("k80",)]),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.sampled_from([(1.0, 1.0, 1.0, 1.0), (1.0, 1.1, 1.5, 2.0)]),
)
settings = st.builds(
    Setting,
    st.sampled_from(["resnet", "bert"]),
    st.sampled_from(TYPES),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(list(Span)),
    st.sampled_from(["", "", "bert"]),
)


@given(
    st.lists(specs, min_size=1, max_size=12, unique_by=lambda spec: spec.id),
    st.lists(st.tuples(settings, st.floats(0.1, 10.0), st.integers(0, 11)), max_size=8),
)
def test_rates_are_those_that_looking_everything_up_would_give(
    jobs: list[JobSpec], learnt: list[tuple[Setting, float, int]]
) -> None:
    table = JobTable(TYPES, Speeds(Throughputs()), QueueTree())
    for spec in jobs:
        table.add(spec, 0.0)
    for setting, steps_per_s, ends in learnt:
        if ends in table.active:
            table.ended_s[ends] = 1.0
            table.deactivate(ends)
        first = not table.speeds.throughputs.knows(setting.job_class)
        table.speeds.throughputs.put(setting, steps_per_s, Origin.MEASURED)
        table.look_up_again(setting, first)
        for row in table.active.tolist():
            rates = table.speeds.throughputs.rates(table.specs[row], TYPES)
            assert table.rates[row].tolist() == rates.tolist(), table.specs[row]
            assert table.best_rate[row] == rates.max()
            assert int(table.types[row]) == sum(1 << k for k in np.flatnonzero(rates).tolist())


def test_what_a_job_takes_to_load_says_nothing_of_its_speed() -> None:
    """It is taken to be up long before it is ready, as jobs are that load for a while before they report."""
    cluster = Cluster((Node("n0", "v100", 1),))
    engine = Engine(cluster, make_policy, "fifo", {}, make_placement("best-effort"), learn=True, least_measured_s=5.0)
    engine.apply(JobSubmitted(0.0, JobSpec("a", 0.0, 1, 1000.0, "steps", job_class="net", throughput={"v100": 1.0})))
    engine.decide(0.0)
    engine.apply(JobStarted(5.0, "a", 1, up_s=4.0))
    assert engine.jobs.first_started_s[0] == 1.0
    for at_s, done in ((20.0, 0.0), (26.0, 60.0)):
        engine.apply(JobProgressed(at_s, "a", 1, done))
    assert list(engine.learnt.values()) == [10.0]
