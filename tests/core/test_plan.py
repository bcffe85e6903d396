"""What a policy sees, wishes and remembers.

Tests core/memory.py, core/policy.py, core/snapshot.py and core/wishes.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from horae.core.events import JobFinished, NodeDraining
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from tests.builders import Cell, job

SPEC = MemorySpec(columns={"had": 0, "rungs": 2}, by_type=("owed",), scalars={"looked": 5.0})


def snapshot(cell: Cell, now_s: float) -> Snapshot:
    engine = cell.engine
    return Snapshot(now_s, engine.jobs.active, engine.jobs, engine.gpus, engine.queues)


def test_a_snapshot_shows_those_that_want_something_in_order_of_submission() -> None:
    cell = Cell("1x2")
    cell.submit(0, job("a"), job("b", gpus=2), job("c"))
    cell.at(10, JobFinished(10, "a", 1))
    seen = snapshot(cell, 10)
    assert (seen.rows.tolist(), seen.gpus.tolist(), seen.has_gpus.tolist()) == ([1, 2], [2, 1], [False, True])


def test_service_and_work_left_are_lines_through_time_without_any_event() -> None:
    cell = Cell("1x4", "srtf")
    cell.submit(0, job("a", gpus=2, work=100), job("b", gpus=4, work=500))
    later = snapshot(cell, 30)
    assert later.work_left.tolist() == [70, 500]
    assert later.gpu_seconds.tolist() == [60, 0]
    assert later.executed_s.tolist() == [30, 0]


def test_remaining_time_goes_by_the_fastest_type() -> None:
    cell = Cell("fast:1x1,slow:1x1")
    cell.submit(0, job("a", work=100, throughput={"fast": 4.0, "slow": 1.0}))
    assert snapshot(cell, 5).remaining_s.tolist() == [20]


def test_only_gpus_that_take_jobs_are_open() -> None:
    cell = Cell("a:2x2,b:1x1")
    cell.at(0, NodeDraining(0, cell.engine.gpus.cluster.nodes[0].name))
    assert snapshot(cell, 0).open_gpus.tolist() == [2, 1]


def test_a_wish_column_of_another_length_is_refused() -> None:
    with pytest.raises(AssertionError, match="a column of 1 for 2 wishes"):
        Wishes(np.array([0, 1]), key=np.array([1.0])).check_lengths()


def test_memory_starts_at_zero_and_keeps_what_it_was_told_when_it_grows() -> None:
    memory = Memory(SPEC, gpu_types=1)
    rows = np.array([0, 2])
    memory.put("had", rows, np.array([1.0, 2.0]))
    memory.put("owed", rows, np.array([[3.0], [4.0]]))
    memory.fit(500, gpu_types=3)
    everybody = np.array([0, 1, 2, 499])
    assert memory.column("had", everybody).tolist() == [1, 0, 2, 0]
    assert memory.column("owed", everybody).tolist() == [[3, 0, 0], [0, 0, 0], [4, 0, 0], [0, 0, 0]]
    assert memory.column("rungs", everybody).shape == (4, 2)
    assert memory.scalar("looked") == 5


def test_only_what_is_new_is_a_write() -> None:
    memory = Memory(SPEC, gpu_types=2)
    rows = np.array([4, 5, 6])
    memory.put("had", rows, np.array([1.0, 0.0, 2.0]))
    memory.put("had", rows, np.array([1.0, 3.0, 2.0]))
    memory.put("had", rows, np.array([1.0, 3.0, 2.0]))
    memory.put("had", rows, np.array([9.0]))
    memory.put("owed", rows, np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    writes = [(name, where.tolist(), what.tolist()) for name, where, what in memory.drain() if where is not None]
    assert writes == [
        ("had", [4, 6], [1, 2]),
        ("had", [5], [3]),
        ("had", [4, 5, 6], [9, 9, 9]),
        ("owed", [5], [[0, 1]]),
    ]
    assert memory.column("had", rows).tolist() == [9, 9, 9]


def test_what_a_policy_writes_can_be_written_again_elsewhere() -> None:
    memory, copy = Memory(SPEC, 2), Memory(SPEC, 2)
    memory.put("had", np.array([3]), np.array([7.0]))
    memory.put_scalar("looked", 9.0)
    for write in memory.drain():
        copy.apply(write)
    assert memory.drain() == ()
    assert copy.scalar("looked") == 9
    assert copy.column("had", np.array([3])).tolist() == [7]
