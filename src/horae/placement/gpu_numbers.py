"""From counts to GPU numbers. Compiled."""

from __future__ import annotations

from horae.core.cluster import Span
from horae.core.jit import BOOL, INT, INTS, inner
from horae.placement.kernel_args import Ints

_GPU, _NODE, _RACK, _CLUSTER = int(Span.GPU), int(Span.NODE), int(Span.RACK), int(Span.CLUSTER)


@inner("void", INTS, INT, INT)
def sort(values: Ints, start: int, stop: int) -> None:
    """Sort a few numbers in place."""
    for i in range(start + 1, stop):
        value, at = values[i], i
        while at > start and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value


@inner(INT, INT, INT, INT, INT, INTS, INTS, INTS, INTS, INTS)
def number(
    row: int, pool: int, take: int, at: int, first: Ints, gpus: Ints, owner: Ints, occupant: Ints, ids: Ints
) -> int:
    """Give a job GPU numbers of one pool: those that nobody sits on first, then the lowest."""
    left = take
    for sat_on in range(2):
        for i in range(first[pool], first[pool + 1]):
            gpu = gpus[i]
            if left > 0 and owner[gpu] < 0 and (occupant[gpu] >= 0) == (sat_on == 1):
                owner[gpu] = row
                ids[at] = gpu
                at += 1
                left -= 1
    return at


@inner(INT, INTS, INT, INT, BOOL, INTS, INTS)
def span_of(ids: Ints, start: int, stop: int, flat: bool, gpu_node: Ints, node_rack: Ints) -> int:
    """How far apart GPUs lie; where only the count matters they lie together."""
    if stop - start == 1:
        return _GPU
    if flat:
        return _NODE
    node, span = gpu_node[ids[start]], _NODE
    for at in range(start + 1, stop):
        if node_rack[gpu_node[ids[at]]] != node_rack[node]:
            return _CLUSTER
        if gpu_node[ids[at]] != node:
            span = _RACK
    return span
