"""What becomes of a job with GPUs when the policy wishes for another size, type or place for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from horae.core.engine import Engine
from horae.core.events import JobStarted, JobStopped, JobSubmitted, NodeDraining
from horae.core.invariants import check
from horae.core.job import JobSpec
from horae.core.memory import Memory, MemorySpec
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.placement.rules import make_placement
from tests.builders import cluster, job


@dataclass
class Told:
    """A policy that wishes what a test tells it: columns of `Wishes`, with names of jobs for rows."""

    memory: ClassVar = MemorySpec()
    columns: dict[str, Any] = field(default_factory=dict)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        told = dict(self.columns)
        rows = [now.table.rows[name] for name in told.pop("job", ())]
        flags = {name: value for name, value in told.items() if not isinstance(value, list)}
        columns = {name: np.array(value) for name, value in told.items() if isinstance(value, list)}
        return Wishes(job=np.array(rows, np.int64), **columns, **flags)


class Room:
    """An engine whose policy wishes what it is told; stops and starts are answered at once."""

    def __init__(self, spec: str, placement: str = "anywhere", queues: tuple[Queue, ...] = ()) -> None:
        self.told = Told()
        self.engine = Engine(cluster(spec), lambda *_: self.told, "told", {}, make_placement(placement), queues=queues)

    def submit(self, *specs: JobSpec) -> None:
        for spec in specs:
            self.engine.apply(JobSubmitted(self.engine.now_s, spec))

    def wish(self, *names: str, **columns: Any) -> dict[str, int]:
        """GPU counts of all jobs that have GPUs after these wishes."""
        self.told.columns = {"job": names, **columns}
        self.engine._state.must_plan = True
        while self.engine.due(self.engine.now_s):
            record = self.engine.decide(self.engine.now_s)
            check(self.engine)
            for stop in record.stops:
                self.engine.apply(JobStopped(self.engine.now_s, stop.job, stop.attempt, 0.0))
            for launch in record.launches:
                self.engine.apply(JobStarted(self.engine.now_s, launch.job, launch.attempt))
        return self.sizes()

    def sizes(self) -> dict[str, int]:
        specs = self.engine.jobs.specs
        return {specs[row].id: len(gpus) for row, gpus in sorted(self.engine.gpus.held.items())}

    def reason(self, name: str) -> Reason:
        jobs = self.engine.jobs
        return Reason(int(jobs.reason[jobs.rows[name]]))


def elastic(name: str, low: int, gpus: int, top: int) -> JobSpec:
    return job(name, gpus=gpus, gpus_min=low, gpus_max=top, work=1000.0)


@pytest.mark.parametrize("placement", ["anywhere", "consolidated", "best-effort"])
def test_a_job_that_has_more_gpus_than_its_wish_allows_gets_fewer(placement: str) -> None:
    room = Room("1x4", placement)
    room.submit(elastic("a", 1, 2, 4))
    assert room.wish("a") == {"a": 4}
    assert room.wish("a", gpus_max=[3]) == {"a": 3}
    assert room.wish("a", gpus_max=[3]) == {"a": 3}


def test_a_job_that_has_fewer_gpus_than_its_wish_needs_gets_more() -> None:
    room = Room("1x4")
    room.submit(elastic("a", 1, 2, 4))
    assert room.wish("a", gpus_max=[2]) == {"a": 2}
    assert room.wish("a", gpus_min=[3], gpus_max=[3]) == {"a": 3}


def test_of_several_wishes_the_first_that_can_be_placed_counts_or_the_first_says_why_the_job_waits() -> None:
    room = Room("x:1x2,y:1x2")
    room.submit(*(job(name, gpus=2, work=1000.0) for name in "abc"))
    assert room.wish("a", "b", "b", gpu_type=[0, 0, 1], preempt=False) == {"a": 2, "b": 2}
    assert room.engine.gpus.held[1] == (2, 3)
    assert room.wish("a", "b", "c", "c", gpu_type=[0, 1, 1, 0], preempt=False) == {"a": 2, "b": 2}
    assert room.reason("c") is Reason.NO_FREE_GPUS


def test_a_job_whose_turn_never_comes_is_told_when_the_cluster_has_become_too_small_for_it() -> None:
    room = Room("2x1")
    room.submit(job("a", work=1000.0), job("b", work=1000.0), job("wide", gpus=2, work=1000.0))
    room.wish("a", "b", "wide", waiting=Reason.BEHIND_EARLIER)
    assert room.reason("wide") is Reason.BEHIND_EARLIER
    room.engine.apply(NodeDraining(0.0, room.engine.gpus.cluster.nodes[1].name, evict=False))
    assert room.wish("a", "b", "wide", waiting=Reason.BEHIND_EARLIER) == {"a": 1, "b": 1}
    assert room.reason("wide") is Reason.CLUSTER_TOO_SMALL
