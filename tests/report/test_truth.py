"""Where the scheduler believes wrong speeds, reports judge by the true ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from horae.core.cluster import Span
from horae.core.engine import Engine
from horae.core.events import JobSubmitted
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.placement.rules import make_placement
from horae.policies import make_policy
from horae.report.metrics.measure import measure
from horae.simulator.world import World
from tests.builders import cluster, job, run

JOBS = [job("a", work=100.0, unit="steps", job_class="m"), job("b", work=100.0, unit="steps", job_class="m")]


def speeds(origin: Origin, **steps_per_s: float) -> Throughputs:
    table = Throughputs()
    for gpu_type, value in steps_per_s.items():
        table.put(Setting("m", gpu_type, 1, Span.GPU), value, origin)
    return table


TRUE = speeds(Origin.GIVEN, fast=2.0, slow=1.0)
BELIEVED = speeds(Origin.ESTIMATED, fast=8.0, slow=0.5)


def test_slowdowns_are_judged_by_true_speeds():
    history = run(JOBS[:1], "fast:1x1,slow:1x1", throughputs=BELIEVED, truth=TRUE)
    assert history.end_s.tolist() == [50.0]
    assert history.rates.tolist() == [[2.0, 1.0]]
    report = measure(history)
    assert report.rho.max == 1.0, "alone on the fast GPU, as it could have had it"
    # Alone, it has half of its time on each type: 100 / (2 / 2 + 1 / 2).
    assert report.isolated_rho.max == pytest.approx(50 / (100 / 1.5))


def test_by_what_the_scheduler_believed_the_verdict_would_be_another():
    hidden = run(JOBS[:1], "fast:1x1,slow:1x1", throughputs=BELIEVED, truth=TRUE)
    believed = replace(hidden, rates=np.array([[8.0, 0.5]]))
    assert (measure(hidden).rho.max, measure(believed).rho.max) == (1.0, 4.0)


def test_what_was_learnt_on_the_way_does_not_change_the_yardstick():
    knew = run(JOBS, "fast:1x1,slow:1x1", "max-min", throughputs=TRUE)
    learnt = run(JOBS, "fast:1x1,slow:1x1", "max-min", throughputs=BELIEVED, truth=TRUE)
    assert learnt.rates.tolist() == knew.rates.tolist() == [[2.0, 1.0]] * 2


def test_the_world_gives_a_row_for_every_job_and_none_for_none():
    engine = Engine(cluster("fast:1x1,slow:1x1"), make_policy, "fifo", {}, make_placement("best-effort"), BELIEVED)
    world = World(engine.jobs, engine.gpus.cluster, 0.0, None, 0, TRUE)
    assert world.rates().shape == (0, 2)
    for one in JOBS:
        engine.apply(JobSubmitted(0.0, one))
    assert world.rates().tolist() == [[2.0, 1.0]] * 2
    honest = World(engine.jobs, engine.gpus.cluster, 0.0, None, 0)
    assert honest.rates().tolist() == engine.jobs.rates[:2].tolist() == [[8.0, 0.5]] * 2
    assert not np.shares_memory(honest.rates(), engine.jobs.rates)
