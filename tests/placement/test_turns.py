"""What becomes of a job with GPUs when the policy wishes for another size, type or place for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from horae.core.cluster import Span
from horae.core.engine import Engine
from horae.core.events import JobFinished, JobHeld, JobStarted, JobStopped, JobSubmitted, NodeDraining
from horae.core.invariants import check
from horae.core.job import JobSpec
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.throughputs import Setting, Throughputs
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
    """An engine whose policy wishes what it is told; stops and starts are answered at once unless stops are slow."""

    def __init__(self, spec: str, placement: str = "anywhere", speeds: Throughputs | None = None) -> None:
        self.told, self.slow_stops = Told(), False
        rule = make_placement(placement)
        self.engine = Engine(cluster(spec), lambda *_: self.told, "told", {}, rule, speeds or Throughputs())

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
            for stop in () if self.slow_stops else record.stops:
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


def test_an_elastic_job_on_two_nodes_grows_to_its_most_gpus_and_no_further() -> None:
    room = Room("2x3", "best-effort")
    room.submit(*(job(name, work=1000.0) for name in ("stays", "goes", "ends", "leaves")))
    room.wish("stays", "goes", "ends", "leaves")
    room.engine.apply(JobFinished(1.0, "ends", 1))
    # Both nodes have GPUs that are free and not yet idle: room to grow on each.
    room.slow_stops = True
    for name in ("goes", "leaves"):
        room.engine.apply(JobHeld(1.0, name))
    room.submit(elastic("a", 3, 3, 4))
    assert room.wish("stays", "a") == {"stays": 1, "a": 4}


def test_a_gang_like_one_that_found_no_place_has_the_same_reason() -> None:
    room = Room("2x2", "consolidated")
    room.submit(*(job(name, work=1000.0) for name in ("one", "ends", "two")))
    room.wish("one", "ends", "two")
    room.engine.apply(JobFinished(1.0, "ends", 1))
    room.submit(*(job(name, gpus=2, work=1000.0) for name in ("wide", "alike")))
    assert room.wish("one", "two", "wide", "alike", preempt=False) == {"one": 1, "two": 1}
    assert (room.reason("wide"), room.reason("alike")) == (Reason.FRAGMENTED, Reason.FRAGMENTED)


def test_gpus_that_two_jobs_share_come_back_when_the_later_of_them_ends() -> None:
    speeds = Throughputs()
    for partner in ("", "m"):
        speeds.put(Setting("m", "gpu", 1, Span.GPU, partner), 1.0)
    speeds.put(Setting("m", "gpu", 2, Span.NODE), 1.0)
    room = Room("1x2", speeds=speeds)
    long, short = (job(name, work=work, job_class="m") for name, work in (("long", 100.0), ("short", 50.0)))
    room.submit(long, short)
    assert room.wish("long", partner=[1]) == {"long": 1, "short": 1}
    room.submit(job("wide", gpus=2, work=100.0, job_class="m"), job("fits", work=80.0, job_class="m"))
    sizes = room.wish("long", "wide", "fits", partner=[1, -1, -1], preempt=False, reserve_after_s=0.0)
    assert sizes == {"long": 1, "short": 1, "fits": 1}
