"""Checkpoints that are encoded beside the loop are those of the moment at which they were begun."""

from __future__ import annotations

from horae.core import checkpoint
from horae.core.cluster import Node
from horae.core.engine import Engine
from horae.core.events import JobFinished, JobStarted, JobSubmitted
from horae.core.job import JobSpec
from horae.service.checkpoint_encoder import CheckpointEncoder
from horae.service.initial_settings import InitialSettings
from tests.backends.real import until

_SETTINGS = InitialSettings((Node("v1", "v100", 600), Node("v2", "v100", 600)), "fifo-backfill", {})


def _engine_with_jobs(jobs: int) -> Engine:
    engine = _SETTINGS.engine(live=True)
    for number in range(jobs):
        engine.apply(JobSubmitted(0.0, JobSpec(f"a-{number}", 0.0, 1, 100.0, throughput={"v100": 1.0})))
    for launch in engine.decide(1.0).launches:
        engine.apply(JobStarted(1.0, launch.job, launch.attempt))
    return engine


def test_what_happens_after_the_beginning_is_not_in_the_checkpoint() -> None:
    engine, encoder = _engine_with_jobs(1500), CheckpointEncoder()
    then = checkpoint.save(engine)
    encoder.begin(engine, 7)
    for number in range(700):
        engine.apply(JobFinished(5.0, f"a-{number}", 1))
    seq, body = until(encoder.take, "for the checkpoint")
    assert (seq, body) == (7, then), "more than a slice of specs and launches, byte for byte"
    restored = _SETTINGS.engine(live=True)
    checkpoint.load(restored, body)
    assert checkpoint.save(restored) == then
    assert (encoder.busy, encoder.take()) == (False, None)


def test_a_checkpoint_that_is_overtaken_is_dropped() -> None:
    engine, encoder = _engine_with_jobs(3), CheckpointEncoder()
    encoder.begin(engine, 7)
    encoder.drop()
    assert (encoder.busy, encoder.take()) == (False, None)
