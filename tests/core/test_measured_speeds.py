"""What the engine learns of a job's speed, and from which of the things that are told of it.

Tests core/speed_learning.py.
"""

from __future__ import annotations

import pytest

from horae.core.cluster import Cluster, Node, Span
from horae.core.engine import Engine
from horae.core.events import Event, JobFailed, JobFinished, JobProgressed, JobStarted, JobStopped, JobSubmitted
from horae.core.job import JobSpec
from horae.core.throughputs import Setting
from horae.placement.rules import make_placement
from horae.policies import make_policy

WORK = 1000.0
HERE = Setting("resnet", "v100", 1, Span.GPU, "")


def learnt(*reports: Event) -> float | None:
    """Steps/s that are believed of a job that said 5, after an attempt that began at 0 and reported these."""
    cluster = Cluster((Node("v100", "v100", 1),))
    engine = Engine(cluster, make_policy, "fifo", {}, make_placement("best-effort"), learn=True, least_measured_s=5.0)
    spec = JobSpec("a", 0.0, 1, WORK, unit="steps", job_class="resnet", throughput={"v100": 5.0})
    engine.apply(JobSubmitted(0.0, spec))
    engine.decide(0.0)
    for report in (JobStarted(0.0, "a", 1), *reports):
        engine.apply(report)
    return engine.learnt.get(HERE)


ON_ITS_WAY = JobProgressed(10.0, "a", 1, 100.0)


def test_a_job_that_tells_nothing_on_its_way_was_as_fast_as_it_finished() -> None:
    assert learnt(JobFinished(50.0, "a", 1)) == WORK / 50


@pytest.mark.parametrize("end", [JobFailed(20.0, "a", 1, 1, work_done=90.0), JobStopped(20.0, "a", 1, 90.0)])
def test_what_a_checkpoint_holds_says_nothing_of_the_speed(end: Event) -> None:
    assert learnt(ON_ITS_WAY) == learnt(ON_ITS_WAY, end) == 10.0


@pytest.mark.parametrize("took_s", [0.1, 60.0])
def test_the_time_to_leave_after_all_is_done_is_not_worked(took_s: float) -> None:
    done = JobProgressed(100.0, "a", 1, WORK)
    assert learnt(ON_ITS_WAY, done, JobFinished(100.0 + took_s, "a", 1)) == 10.0


def test_a_report_of_next_to_nothing_is_no_speed() -> None:
    assert learnt(JobProgressed(10.0, "a", 1, 1e-300)) is None


@pytest.mark.parametrize(("after_s", "speed"), [(4.9, None), (5.0, 20.0)])
def test_a_speed_is_measured_over_the_least_time_or_longer(after_s: float, speed: float | None) -> None:
    assert learnt(JobProgressed(after_s, "a", 1, 100.0)) == speed
