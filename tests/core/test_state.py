"""What is declared once is followed everywhere: checkpoint, fork, retirement and status.

Tests core/state.py and core/declared.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import pytest

from horae.core import checkpoint, engine, job_table, state
from horae.core.checkpoint import load, save
from horae.core.commands import Stop, StopWhy
from horae.core.declared import Column, Rows, codes, floats, ints
from horae.core.engine import Engine
from horae.core.events import JobFinished, JobHeld, JobsRetired, NodeJoined, NodeObserved
from horae.core.queues import UnknownQueues
from horae.core.state import EngineState, part
from tests.builders import Cell, job

#: How an engine gets another one in the same state.
Copy = Callable[[Engine], Engine]


@dataclass(slots=True)
class WiderState(EngineState):
    """The engine's state with parts that are declared here and mentioned nowhere else."""

    marks: dict[int, float] = part(dict, Rows.KEYS)
    rows_seen: tuple[int, ...] = part((), Rows.VALUES)
    renamed: int = part(3, stored="old_name")


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines have the wider state for a while."""
    caches = (state._plain, state.declared, checkpoint._adapter)
    monkeypatch.setattr(state, "EngineState", WiderState)
    monkeypatch.setattr(engine, "EngineState", WiderState)
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def fresh(like: Engine) -> Engine:
    return Engine(like.gpus.cluster, like._make_policy, "fifo-backfill", {}, like._placement)


def reloaded(original: Engine) -> Engine:
    copy = fresh(original)
    load(copy, save(original))
    return copy


def three_jobs() -> Cell:
    """Of three jobs the first has ended, so that it leaves when jobs retire."""
    cell = Cell("1x2")
    cell.submit(0, job("gone", work=10), job("runs"), job("waits", gpus=2))
    cell.at(10, JobFinished(10, "gone", 1))
    return cell


@pytest.mark.parametrize("copied", [reloaded, Engine.fork], ids=["checkpoint", "fork"])
@pytest.mark.usefixtures("wider")
def test_a_new_field_comes_along_in_a_copy_which_keeps_it_for_itself(copied: Copy) -> None:
    original = three_jobs().engine
    original._state.marks = {0: 1.5, 2: 2.5}
    original._state.rows_seen, original._state.renamed = (2, 1), 8
    copy = copied(original)._state
    assert (copy.marks, copy.rows_seen, copy.renamed) == ({0: 1.5, 2: 2.5}, (2, 1), 8)
    copy.marks[1] = 9.0
    assert 1 not in original._state.marks


@pytest.mark.usefixtures("wider")
def test_a_new_field_is_stored_by_its_stored_name() -> None:
    contents = three_jobs().engine.contents()
    assert contents["old_name"] == 3
    assert "renamed" not in contents


@pytest.mark.usefixtures("wider")
def test_a_new_field_is_renumbered_when_jobs_leave() -> None:
    cell = three_jobs()
    cell.engine._state.marks = {0: 1.5, 2: 2.5}
    cell.engine._state.rows_seen = (2, 1)
    cell.tell(JobsRetired(20, 15))
    left = cell.engine._state
    assert (left.marks, left.rows_seen, left.renamed) == ({1: 2.5}, (1, 0), 3)


@pytest.mark.usefixtures("wider")
def test_a_checkpoint_of_an_older_release_leaves_a_new_field_at_its_first_value() -> None:
    original = three_jobs().engine
    older = {name: value for name, value in original.contents().items() if name not in ("marks", "old_name")}
    copy = fresh(original)
    copy.restore(older)
    assert (copy._state.marks, copy._state.renamed) == ({}, 3)


def test_a_new_column_follows_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(job_table.COLUMNS, "friend", Column(np.int64, -1, True, Rows.VALUES))
    cell = three_jobs()
    jobs = cell.engine.jobs
    assert jobs.friend[:3].tolist() == [-1, -1, -1]
    jobs.friend[:3] = [2, 0, 1]
    for copy in (reloaded(cell.engine), cell.engine.fork()):
        assert copy.jobs.friend[:3].tolist() == [2, 0, 1]
        copy.jobs.friend[0] = 1
    assert cell.engine.status().columns["friend"].tolist() == [2, 0, 1]
    cell.tell(JobsRetired(20, 15))
    assert cell.engine.jobs.friend[:2].tolist() == [-1, 0], "the friend of the second job has left"


def test_a_column_that_an_older_checkpoint_lacks_is_as_for_fresh_jobs() -> None:
    original = three_jobs().engine
    contents = original.contents()
    del contents["jobs"]["launch_failures"]
    copy = fresh(original)
    copy.restore(contents)
    assert copy.jobs.launch_failures[:3].tolist() == [0, 0, 0]
    assert copy.jobs.attempt[:3].tolist() == original.jobs.attempt[:3].tolist()


@pytest.mark.parametrize("copied", [reloaded, Engine.fork], ids=["checkpoint", "fork"])
def test_every_plain_field_comes_back_as_it_was(copied: Copy) -> None:
    """Every field has another value than a fresh engine's, so that none is equal by chance."""
    cell = Cell("1x2", slow_stops=True)
    cell.submit(0, job("a"), job("b"), job("c"))
    original = cell.engine
    original.apply(JobHeld(1, "a"))
    original.apply(NodeObserved(1, original.gpus.cluster.nodes[0].name, (("ghost", 4),)))
    held = original._state
    held.wake_s, held.must_plan, held.wake_on_start, held.vacated = 77.0, True, True, True
    held.dropped_reports, held.backoff[2] = 5, 99.0
    held.job_number_floor, held.attempt_floors[2] = 8, 3
    held.stopped[1] = Stop("b", 1, StopWhy.MOVED)
    held.pending[2] = held.launched[0].span
    held.policy, held.unknown_queues = (held.policy[0], {"reserve": "off"}), UnknownQueues.REFUSE
    start, copy = fresh(original)._state, copied(original)._state
    for field in fields(EngineState):
        if field.metadata:
            was = getattr(held, field.name)
            assert was != getattr(start, field.name), f"{field.name} is as in a fresh engine: this tests nothing"
            assert getattr(copy, field.name) == was, field.name


def test_every_stored_part_is_declared_and_every_declared_part_is_stored() -> None:
    """Evidence apart: it has no columns of rows, and is None before a decision."""
    contents = three_jobs().engine.contents()
    paths = {path for path, _ in checkpoint._leaves(contents)}
    arrays = {path for path in paths if path[0] == "jobs" or path[:2] == ("memory", "columns") or path[0] == "past"}
    undeclared = paths - arrays - {*state.declared()} - {("evidence", "node_free")}
    assert undeclared == set()
    assert {path for path in state.declared() if path not in paths} == set()


def test_columns_are_declared_with_their_type_and_first_value() -> None:
    columns = {np.int64: ints(4, shown=True), np.float64: floats(0.5), np.uint8: codes(2)}
    for dtype, column in columns.items():
        assert isinstance(column, Column)
        assert column.fresh(3).dtype == dtype
        assert column.fresh(3).tolist() == [column.start] * 3
    assert [column.shown for column in columns.values()] == [True, False, False]


def test_a_restored_engine_speaks_of_the_other_engines_last_decision() -> None:
    """Also if it had decided something itself, for a cluster without jobs."""
    original = three_jobs().engine
    copy = fresh(original)
    copy.apply(NodeJoined(0, copy.gpus.cluster.nodes[0]))
    assert copy.decide(0).planned
    copy.restore(original.contents())
    assert copy.evidence is not None
    assert copy.evidence.at_s == 10
