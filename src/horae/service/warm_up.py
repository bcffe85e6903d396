"""Warm-up: test decisions that compile and load everything a policy needs before the service starts.

Compiling a policy takes seconds, once per installation. In the daemon's loop all requests would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from horae.core.cluster import Node
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import JobFinished, JobStarted, JobStopped, JobSubmitted
from horae.core.job import JobSpec
from horae.service.initial_settings import InitialSettings

#: Number of test jobs, their GPU counts (which do not fit together, so that the policy must choose), jobs per app.
_JOBS, _SIZES, _TRIALS = 60, (1, 2, 3, 5, 8), 3
#: Times of the decisions, far enough apart that leases and rounds have ended.
_DECISIONS_AT_S = (1.0, 20_001.0, 40_001.0)


def warm_up(initial: InitialSettings) -> None:
    """Run a few decisions of a separate engine on invented jobs, with GPUs of the same types."""
    types = tuple(dict.fromkeys(node.gpu_type for node in initial.nodes)) or ("gpu",)
    nodes = tuple(Node(f"{name}-{number}", name, 8) for name in types for number in range(2))
    engine = replace(initial, nodes=nodes, queues=()).engine()
    for spec in _jobs(types):
        engine.apply(JobSubmitted(0.0, spec))
    for now_s in _DECISIONS_AT_S:
        _confirm(engine, engine.decide(now_s))
        # A second decision uses the GPUs that the stops freed.
        _confirm(engine, engine.decide(now_s))
        _finish_one(engine, now_s)


def _jobs(types: tuple[str, ...]) -> Iterator[JobSpec]:
    """The test jobs. Every other job accepts only the first GPU type, so that jobs compete for it."""
    for number in range(_JOBS):
        usable = types[: 1 + number % 2]
        yield JobSpec(
            f"nobody-{number}",
            0.0,
            _SIZES[number % len(_SIZES)],
            1e6 * (1 + number * 37 % 17),
            unit="steps",
            app=f"nobody-{number // _TRIALS}",
            throughput={name: 1.0 + (number * 7 + k * 3) % 11 for k, name in enumerate(usable)},
        )


def _confirm(engine: Engine, record: Decided) -> None:
    """Confirm all stops and launches of a decision at once, as a backend would."""
    jobs = engine.jobs
    for stop in record.stops:
        row = jobs.rows[stop.job]
        # A job that saved nothing would keep its GPUs longer the next time.
        done = float(jobs.work[row] - jobs.work_left[row])
        engine.apply(JobStopped(record.at_s, stop.job, stop.attempt, work_done=done))
    for launch in record.launches:
        engine.apply(JobStarted(record.at_s, launch.job, launch.attempt))


def _finish_one(engine: Engine, now_s: float) -> None:
    row = next(iter(engine.gpus.occupied), None)
    if row is not None:
        engine.apply(JobFinished(now_s, engine.jobs.specs[row].id, int(engine.jobs.attempt[row])))
