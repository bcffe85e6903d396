"""How fast a job runs where, by the table and by the rule for what it does not hold."""

from __future__ import annotations

import pytest

from horae.core.cluster import Span
from horae.core.throughputs import Origin, Setting, Throughput, Throughputs
from tests.builders import job

SLOW = (1.0, 1.0, 2.0, 4.0)


def table(**rows: float) -> Throughputs:
    """A table for class `net` on 4 GPUs of a v100 by the name of the span."""
    known = Throughputs()
    for span, steps in rows.items():
        known.put(Setting("net", "v100", 4, Span[span.upper()]), steps)
    return known


def test_an_exact_entry_is_taken_as_it_is() -> None:
    known = table(node=10.0, rack=7.0)
    net = job(gpus=4, job_class="net", slowdown=SLOW)
    assert [known.rate(net, "v100", 4, span) for span in (Span.NODE, Span.RACK)] == [10, 7]


def test_a_wider_span_takes_the_nearest_narrower_one_by_the_jobs_slow_down() -> None:
    assert table(node=10.0, rack=7.0).rate(job(gpus=4, job_class="net", slowdown=SLOW), "v100", 4, Span.CLUSTER) == 3.5


def test_a_narrower_span_is_never_guessed_from_a_wider_one() -> None:
    assert table(rack=7.0).rate(job(gpus=4, job_class="net"), "v100", 4, Span.NODE) == 0


def test_another_size_scales_from_the_jobs_own() -> None:
    assert table(node=10.0).rate(job(gpus=4, gpus_max=8, job_class="net"), "v100", 8, Span.NODE) == 20


def test_a_class_the_table_does_not_know_runs_by_its_own_numbers_or_the_clock() -> None:
    known = table(node=10.0)
    assert known.rate(job(throughput={"v100": 3.0}), "v100", 1, Span.GPU) == 3
    assert known.rate(job(throughput={"v100": 3.0}), "k80", 1, Span.GPU) == 0
    assert known.rate(job(), "k80", 1, Span.GPU) == 1
    assert known.rate(job(unit="steps"), "k80", 1, Span.GPU) == 0


def test_a_type_the_job_does_not_accept_has_no_speed() -> None:
    assert Throughputs().rate(job(gpu_types=("v100",)), "k80", 1, Span.GPU) == 0


def test_every_number_says_where_it_came_from() -> None:
    known, setting = Throughputs(), Setting("net", "v100", 1, Span.GPU)
    known.put(setting, 5.0, Origin.ESTIMATED)
    known.put(setting, 6.0, Origin.MEASURED)
    assert known.get(setting) == Throughput(6.0, Origin.MEASURED)


@pytest.mark.parametrize("gpus", [1, 4])
def test_the_rates_of_a_job_are_those_of_its_gpus_side_by_side(gpus: int) -> None:
    side_by_side = job(gpus=gpus, slowdown=(1.0, 1.25, 2.0, 2.0))
    assert Throughputs().rates(side_by_side, ("a", "b")).tolist() == [1.0 if gpus == 1 else 0.8] * 2
