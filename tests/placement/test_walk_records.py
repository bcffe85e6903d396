"""Room for walks: kept from walk to walk, and left as the next walk wants to find it."""

from __future__ import annotations

import numpy as np

from horae.core.engine import Engine
from horae.core.events import JobSubmitted, NodeDraining, NodeJoined
from horae.core.wishes import Wishes
from horae.placement.choose import CONSOLIDATED
from horae.placement.kernel_args import CLOSED, MARK, OWNER, POOL_OF, UNMARKED
from horae.placement.rules import make_placement
from horae.placement.walk_records import WalkRecords
from horae.policies import make_policy
from tests.builders import cluster, job
from tests.placement.random_wishes import RandomWalks


def engine_with(jobs: int, spec: str = "2x2") -> Engine:
    engine = Engine(cluster(spec), make_policy, "fifo", {}, make_placement("anywhere"))
    for k in range(jobs):
        engine.apply(JobSubmitted(0.0, job(str(k))))
    return engine


def room_for(engine: Engine, records: WalkRecords) -> None:
    snapshot = engine.snapshot()
    records.make_room(snapshot, len(snapshot))


def test_records_are_kept_until_the_cluster_or_the_table_outgrows_them() -> None:
    engine, records = engine_with(3), WalkRecords(CONSOLIDATED, False, 0.5)
    room_for(engine, records)
    answer, jobs, pools = records.answer, records.jobs, records.pools
    engine.apply(JobSubmitted(0.0, job("more")))
    room_for(engine, records)
    assert (records.answer is answer, records.jobs is jobs, records.pools is pools) == (True, True, True)
    for k in range(200):
        engine.apply(JobSubmitted(0.0, job(f"and {k}")))
    room_for(engine, records)
    assert records.jobs.state is engine.jobs.state
    assert records.jobs is not jobs
    assert len(records.answer.reason_rows) >= 204
    assert records.pools is pools


def test_gpus_of_a_node_that_drains_are_in_no_pool() -> None:
    engine, records = engine_with(1), WalkRecords(CONSOLIDATED, False, 0.5)
    room_for(engine, records)
    assert (records.pools.shrunk, records.by_gpu[POOL_OF].tolist()) == (False, [0, 0, 1, 1])
    name = engine.gpus.cluster.nodes[0].name
    engine.apply(NodeDraining(0.0, name, evict=False))
    room_for(engine, records)
    assert (records.pools.shrunk, records.by_gpu[POOL_OF].tolist()) == (True, [CLOSED, CLOSED, 1, 1])
    engine.apply(NodeJoined(1.0, engine.gpus.cluster.nodes[0]))
    room_for(engine, records)
    assert (records.pools.shrunk, records.by_gpu[POOL_OF].tolist()) == (False, [0, 0, 1, 1])


def test_what_wishes_leave_to_their_jobs_is_not_asked() -> None:
    engine, records = engine_with(3), WalkRecords(CONSOLIDATED, False, 0.5)
    room_for(engine, records)
    now = engine.snapshot()
    plain = records.walk(now, Wishes(job=now.rows), True, -1)
    assert (plain.asked.shape, plain.as_jobs_say, plain.several, plain.complete) == ((4, 0), True, False, True)
    sized = records.walk(now, Wishes(job=now.rows[:2], gpus_min=np.array([2, 1])), True, -1)
    assert sized.asked.tolist() == [[-1, -1], [2, 1], [-1, -1], [-1, -1]]
    assert (sized.as_jobs_say, sized.several, sized.complete) == (False, False, False)
    paired = records.walk(now, Wishes(job=now.rows[:1], partner=np.array([2])), True, -1)
    assert (paired.asked[:, 0].tolist(), paired.as_jobs_say) == ([-1, -1, -1, 2], True)


def test_random_walks_leave_no_marks_and_no_owners() -> None:
    for seed in range(8):
        walks = RandomWalks(seed)
        walks.run(25)
        records = walks.rule._records
        assert (records.marks[MARK] == UNMARKED).all()
        assert (records.by_gpu[OWNER] == -1).all()


def test_a_fork_places_jobs_as_the_engine_itself_does() -> None:
    """Room for a walk is laid out in blocks; a copied engine needs blocks of its own."""
    engine = engine_with(2)
    engine.decide(0.0)
    for name, gpus in (("short", 1), ("wide", 2)):
        engine.apply(JobSubmitted(10.0, job(name, gpus=gpus)))
    fork = engine.fork()
    placed, own = fork.decide(10.0), engine.decide(10.0)
    assert [len(launch.gpu_ids) for launch in own.launches] == [1]
    assert placed.launches == own.launches
