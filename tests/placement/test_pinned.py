"""Wishes that name their machines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Span
from horae.core.plan import Plan
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from tests.builders import Cell, cluster, job


def pinned(cell: Cell, wishes: Mapping[str, Mapping[int, int]], lease_until_s: float = -np.inf) -> Plan:
    """The plan that wishes by job, each GPUs by machine, come to."""
    engine = cell.engine
    now = Snapshot(engine.now_s, engine.jobs.active, engine.jobs, engine.gpus, engine.queues)
    rows = np.array([cell.row(name) for name in wishes], np.int64)
    rule = engine._placement
    return rule.fit(now, Wishes(rows, pins=tuple(wishes.values()), lease_until_s=lease_until_s))


def waiting_cell(spec: str = "3x4", **more: object) -> Cell:
    """A cluster on which two jobs of 4 GPUs run and three more wait."""
    cell = Cell(cluster(spec, nodes_per_rack=2), **more)  # type: ignore[arg-type]
    cell.submit(0, job("a", gpus=4, work=1e6), job("b", gpus=4, work=1e6), job("c", gpus=3, work=1e6))
    return cell


def test_a_wish_gets_free_gpus_of_the_machines_it_names() -> None:
    cell = Cell("2x4", "fifo")
    cell.submit(0, job("a", work=1e6), job("blocker", gpus=8), job("b", gpus=2))
    for node in (0, 1):
        plan = pinned(cell, {"b": {node: 2}})
        (placed,) = plan.placed
        assert placed.ready
        assert plan.stopped == ()
        assert {gpu // 4 for gpu in placed.gpu_ids} == {node}


def test_jobs_that_nobody_wished_for_make_room_and_others_keep_what_they_have() -> None:
    cell = waiting_cell()
    cell.submit(10, job("d", gpus=2, work=1e6))
    node_of_a = int(cell.engine.gpus.cluster.gpu_node[cell.gpus("a")[0]])
    plan = pinned(cell, {"d": {node_of_a: 2}, "b": {1 - node_of_a: 4}})
    assert plan.stopped == ((cell.row("a"), cell.row("d")),)
    (placed,) = plan.placed
    assert placed.row == cell.row("d")
    assert set(placed.gpu_ids) <= set(cell.gpus("a"))
    assert not placed.ready
    assert placed.span is Span.NODE


def test_a_gang_over_machines_has_the_span_of_its_racks() -> None:
    cell = Cell(cluster("4x2", nodes_per_rack=2), "fifo")
    cell.submit(0, job("blocker", gpus=8, work=1e6), job("a", gpus=4))
    for places, span in (({0: 2, 1: 2}, Span.RACK), ({1: 2, 2: 2}, Span.CLUSTER)):
        (placed,) = pinned(cell, {"a": places}).placed
        assert placed.span is span


def test_a_protected_job_is_not_moved_for_others() -> None:
    cell = Cell("1x4")
    cell.submit(0, job("a", gpus=4, work=1e6, min_runtime_s=100.0), job("b", gpus=4, work=1e6))
    cell.at(50)
    with pytest.raises(AssertionError, match="are wished, 0 free"):
        pinned(cell, {"b": {0: 4}})


def test_who_keeps_its_gpus_has_its_lease_renewed_once_it_is_over() -> None:
    cell = Cell("1x4")
    cell.submit(0, job("a", gpus=4, work=1e6))
    plan = pinned(cell, {"a": {0: 4}}, lease_until_s=500.0)
    assert plan.renewed == (cell.row("a"),)
    assert plan.placed == plan.stopped == ()
    cell.engine.jobs.lease_until_s[cell.row("a")] = 100.0
    assert pinned(cell, {"a": {0: 4}}, lease_until_s=500.0).renewed == ()


def test_a_full_queue_gets_no_more() -> None:
    cell = Cell("1x4", "fifo", queues=[Queue("org/a", gpus_max=2)])
    cell.submit(0, job("a", gpus=2, queue="org/a", work=1e6), job("b", gpus=1, queue="org/a", work=1e6))
    plan = pinned(cell, {"a": {0: 2}, "b": {0: 1}})
    assert plan.placed == ()
    assert cell.reason("b") is Reason.OVER_QUOTA


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_plans_give_every_gpu_once_and_stop_only_whom_somebody_needs(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 4))
    cell = Cell(f"{nodes}x4", "fifo-backfill")
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=10))
    cell.submit(0, *(job(f"j{k}", gpus=size, work=1e6) for k, size in enumerate(sizes)))
    room = [4] * nodes
    wishes = {}
    for k, size in enumerate(sizes):
        node = data.draw(st.integers(0, nodes - 1))
        if data.draw(st.booleans()) and room[node] >= size:
            wishes[f"j{k}"] = {node: size}
            room[node] -= size
    held = {row: set(ids) for row, ids in cell.engine.gpus.held.items()}
    plan = pinned(cell, wishes)
    for row, _ in plan.stopped:
        held.pop(row)
    for placed in plan.placed:
        assert placed.row not in held
        held[placed.row] = set(placed.gpu_ids)
    for name, places in wishes.items():
        nodes_got = [gpu // 4 for gpu in held[cell.row(name)]]
        assert {node: nodes_got.count(node) for node in set(nodes_got)} == places
    assert sum(map(len, held.values())) == len(set().union(*held.values())) if held else True
    for row, taker in plan.stopped:
        assert taker >= 0 or row in {cell.row(name) for name in wishes}
