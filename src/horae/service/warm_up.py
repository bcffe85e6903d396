"""Decisions made for nobody, so that whatever a policy needs is compiled or loaded before anybody waits for it.

To compile a policy's loops takes seconds, once for each installation; in the daemon's loop everybody would wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from horae.core.cluster import Node
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import JobFinished, JobStarted, JobStopped, JobSubmitted
from horae.core.job import JobSpec
from horae.service.recovery import InitialSettings

#: Enough jobs, of sizes that do not fit together, that a policy has to choose; in apps of three.
_JOBS, _SIZES, _TRIALS = 60, (1, 2, 3, 5, 8), 3
#: So far apart that leases and rounds are over each time.
_MOMENTS_S = (1.0, 20_001.0, 40_001.0)


def warm_up(beginning: InitialSettings) -> None:
    """Let an engine of its own decide a few times about jobs that nobody has, on GPUs of the same types."""
    types = tuple(dict.fromkeys(node.gpu_type for node in beginning.nodes))
    nodes = tuple(Node(f"{name}-{number}", name, 8) for name in types for number in range(2))
    engine = replace(beginning, nodes=nodes, queues=()).engine()
    for spec in _jobs(types):
        engine.apply(JobSubmitted(0.0, spec))
    for now_s in _MOMENTS_S:
        _answer(engine, engine.decide(now_s))
        # What became free by stops is given out at once.
        _answer(engine, engine.decide(now_s))
        _finish_one(engine, now_s)


def _jobs(types: tuple[str, ...]) -> Iterator[JobSpec]:
    """Every other job can use the first type alone, so that there is something to quarrel about."""
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


def _answer(engine: Engine, record: Decided) -> None:
    """As a backend without delay would."""
    for stop in record.stops:
        engine.apply(JobStopped(record.at_s, stop.job, stop.attempt, work_done=0.0))
    for launch in record.launches:
        engine.apply(JobStarted(record.at_s, launch.job, launch.attempt))


def _finish_one(engine: Engine, now_s: float) -> None:
    row = next(iter(engine.gpus.occupied), None)
    if row is not None:
        engine.apply(JobFinished(now_s, engine.jobs.specs[row].id, int(engine.jobs.attempt[row])))
