"""What happened to jobs during a walk: marks by row, wiped when the walk is over. Compiled."""

from __future__ import annotations

from horae.core.jit import inlined, lean
from horae.placement.kernel_args import GRANTED, KEEPS, MARK, MARKED, MARKED_ROWS, MOVES, NONE, STATUS, UNMARKED, Floor


@inlined
def seat(row: int, floor: Floor) -> int:
    """The holder whose GPUs a job has, alone or with another job; -1 if it has none."""
    return floor.holder_of[row] if floor.marks[MARK, row] == UNMARKED else NONE


@lean
def is_served(row: int, floor: Floor) -> bool:
    """Whether a job keeps its GPUs, or got others."""
    if floor.marks[MARK, row] == GRANTED:
        return True
    h = seat(row, floor)
    return h >= 0 and (floor.holders[STATUS, h] == KEEPS or floor.holders[STATUS, h] == MOVES)


@inlined
def has_nothing(row: int, floor: Floor) -> bool:
    """Whether a job has no GPUs and got none."""
    return seat(row, floor) < 0 and floor.marks[MARK, row] != GRANTED


@inlined
def will_mark(row: int, floor: Floor) -> None:
    """Remember that the mark, which the job is to get next, has to be wiped in the end."""
    if floor.marks[MARK, row] == UNMARKED:
        floor.marks[MARKED, floor.counters[MARKED_ROWS]] = row
        floor.counters[MARKED_ROWS] += 1


@inlined
def wipe_marks(floor: Floor) -> None:
    """Leave all rows as they were before the floor."""
    for at in range(floor.counters[MARKED_ROWS]):
        floor.marks[MARK, floor.marks[MARKED, at]] = UNMARKED
