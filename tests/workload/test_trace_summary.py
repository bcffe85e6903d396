"""A description of a trace adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from horae.core.job import JobSpec
from horae.workload.trace_summary import describe
from horae.workload.traces import BadRow, Trace, load_trace


def test_the_facts_of_a_small_trace() -> None:
    jobs = (
        JobSpec("a", 100.0, 1, 3600.0, queue="x", app="sweep", job_class="vgg"),
        JobSpec("b", 100.0, 4, 7200.0, queue="x", app="sweep", weight=5.0),
        JobSpec("c", 7300.0, 4, 10.0, "steps", queue="y", gpus_max=8, deadline_s=5.0),
    )
    facts = describe(Trace(jobs, "horae", (BadRow("f", 2, "bad"),)))
    assert json.loads(json.dumps(facts)) == facts
    durations = facts.pop("duration_s")
    assert (durations["p0"], durations["p50"], durations["p100"], durations["mean"]) == (3600, 5400, 7200, 5400)
    assert facts == {
        "format": "horae",
        "jobs": 3,
        "skipped": 1,
        "first_submit_s": 100.0,
        "last_submit_s": 7300.0,
        "span_s": 7200.0,
        "arrivals_per_hour": 1.0,
        "gpus": {"1": 1, "4": 2},
        "elastic_jobs": 1,
        "duration_known": 2,
        "gpu_hours": 9.0,
        "queues": {"x": 2, "y": 1},
        "apps": 2,
        "largest_app_jobs": 2,
        "job_classes": {"vgg": 1},
        "weights": {"1": 2, "5": 1},
        "deadlines": 1,
    }


def test_what_is_not_known_is_none() -> None:
    facts = describe(Trace((JobSpec("a", 0.0, 1, 10.0, "steps"),), "horae"))
    assert (facts["gpu_hours"], facts["duration_s"], facts["arrivals_per_hour"]) == (None, None, None)


def test_the_philly_trace_loads_448_gpus_to_084(shared_data: Path) -> None:
    facts = describe(load_trace(shared_data / "philly" / "philly_pollux.csv"))
    assert facts["gpu_hours"] / (448 * facts["span_s"] / 3600) == pytest.approx(0.84, abs=0.01)
    assert len(facts["queues"]) == 15
