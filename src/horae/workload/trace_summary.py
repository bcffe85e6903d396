"""What a trace holds, in numbers: for a first look before anything is simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from horae.core.job import JobSpec
from horae.workload.traces import Trace

PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 100)


def describe(trace: Trace) -> dict[str, Any]:
    """Facts about a trace, ready for JSON.

    Durations and GPU-hours are known only of jobs whose work is in seconds;
    `duration_known` counts them, and without any the numbers are None.
    """
    jobs = trace.jobs
    timed = [job for job in jobs if job.unit == "seconds"]
    first, last = jobs[0].submit_s, jobs[-1].submit_s
    return {
        "format": trace.format,
        "jobs": len(jobs),
        "skipped": len(trace.skipped),
        "first_submit_s": first,
        "last_submit_s": last,
        "span_s": last - first,
        "arrivals_per_hour": 3600 * (len(jobs) - 1) / (last - first) if last > first else None,
        "gpus": {str(size): many for size, many in sorted(Counter(job.gpus for job in jobs).items())},
        "elastic_jobs": sum(job.elastic for job in jobs),
        "duration_known": len(timed),
        "gpu_hours": sum(job.gpus * job.work for job in timed) / 3600 if timed else None,
        "duration_s": _percentiles(timed) if timed else None,
        "queues": _counts(job.queue for job in jobs),
        "apps": len({job.app_id for job in jobs}),
        "largest_app_jobs": max(Counter(job.app_id for job in jobs).values()),
        "job_classes": _counts(job.job_class for job in jobs if job.job_class),
        "weights": {f"{weight:g}": many for weight, many in sorted(Counter(job.weight for job in jobs).items())},
        "deadlines": sum(job.deadline_s is not None for job in jobs),
    }


def _percentiles(jobs: list[JobSpec]) -> dict[str, float]:
    """Duration by percentile of jobs, from p0 (the shortest) to p100, and the mean."""
    durations = np.array([job.work for job in jobs])
    values = np.percentile(durations, PERCENTILES)
    named = {f"p{share}": float(value) for share, value in zip(PERCENTILES, values, strict=True)}
    return named | {"mean": float(durations.mean())}


def _counts(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))
