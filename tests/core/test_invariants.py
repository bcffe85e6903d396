"""The invariants notice what they are for: each is broken by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from horae.core.invariants import BrokenInvariant, check
from horae.core.queues import Queue
from horae.core.states import State
from tests.builders import Cell, job


def healthy() -> Cell:
    """Row 0 runs on GPUs 0 and 1, row 1 on GPU 2, row 2 waits for four."""
    cell = Cell("1x4", queues=[Queue("team", gpus_max=3)])
    cell.submit(0, job("a", gpus=2, queue="team"), job("b"), job("c", gpus=4))
    check(cell.engine)
    return cell


def seat_twice(cell: Cell) -> None:
    cell.engine.gpus.holders[0, 3] = 1


def lose_a_gpu(cell: Cell) -> None:
    cell.engine.gpus.held[0] = (0,)


def sit_elsewhere(cell: Cell) -> None:
    gpus = cell.engine.gpus
    gpus.drop(1)
    gpus.hold(1, (3,))


def work_without_running(cell: Cell) -> None:
    cell.engine.jobs.executing[2] = 1.0


def more_left_than_there_is(cell: Cell) -> None:
    cell.engine.jobs.work_left[1] = 1e9


def run_without_an_attempt(cell: Cell) -> None:
    cell.engine.jobs.attempt[0] = 0


def forget_that_it_is_active(cell: Cell) -> None:
    cell.engine.jobs.deactivate(2)


def end_with_gpus(cell: Cell) -> None:
    cell.engine.jobs.state[0] = int(State.FINISHED)


def use_a_type_it_cannot(cell: Cell) -> None:
    cell.engine.jobs.types[0] = 0


def over_quota(cell: Cell) -> None:
    cell.engine.queues.configure([Queue("team", gpus_max=1)])


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (seat_twice, "not accounted for"),
        (lose_a_gpu, "row 0 has 1 GPUs, not 2 to 2"),
        (sit_elsewhere, "sits where it should not"),
        (work_without_running, "does work"),
        (more_left_than_there_is, "left"),
        (run_without_an_attempt, "without an attempt"),
        (forget_that_it_is_active, "is wrongly"),
        (end_with_gpus, r"row 0 \(FINISHED\)"),
        (use_a_type_it_cannot, "which it cannot use"),
        (over_quota, "more GPUs than they may: {'queue team'"),
    ],
)
def test_an_invariant_that_does_not_hold_is_told_with_its_values(break_it: Callable, complaint: str) -> None:
    cell = healthy()
    break_it(cell)
    with pytest.raises(BrokenInvariant, match=complaint):
        check(cell.engine)


def test_a_lowered_quota_is_no_breach_where_quotas_change() -> None:
    cell = healthy()
    over_quota(cell)
    check(cell.engine, quotas_fixed=False)
