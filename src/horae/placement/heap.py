"""A heap of positions by their keys: it gives them in order one at a time, and most decisions need only a few."""

from __future__ import annotations

from horae.core.arrays import Floats, Ints
from horae.core.jit import FLOATS, INT, INTS, inner


@inner("void", FLOATS, INTS, INT, INT)
def _sink(key: Floats, position: Ints, start: int, size: int) -> None:
    """Let an entry sink to where it belongs."""
    its_key, its_position = key[start], position[start]
    at = start
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            key[other] < key[child] or (key[other] == key[child] and position[other] < position[child])
        ):
            child = other
        if key[child] > its_key or (key[child] == its_key and position[child] > its_position):
            break
        key[at], position[at] = key[child], position[child]
        at = child
    key[at], position[at] = its_key, its_position


@inner("void", FLOATS, INTS)
def heapify(key: Floats, position: Ints) -> None:
    """Make a binary heap of keys and their positions, in place: the lowest key, then position, is on top."""
    for start in range(len(key) // 2 - 1, -1, -1):
        _sink(key, position, start, len(key))


@inner(INT, FLOATS, INTS, INT)
def pop(key: Floats, position: Ints, size: int) -> int:
    """Take the position on top of a heap that holds `size` of them."""
    top: int = position[0]
    key[0], position[0] = key[size - 1], position[size - 1]
    _sink(key, position, 0, size - 1)
    return top
