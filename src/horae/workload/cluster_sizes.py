"""The same cluster, larger or smaller: whole nodes, in the same mix as far as whole nodes allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from horae.core.cluster import BadCluster, Cluster, Node
from horae.workload.clusters import MAX_GPUS

#: A sort of node: its GPU type and how many it has.
Sort = tuple[str, int]


def resized(cluster: Cluster, gpus: int) -> Cluster:
    """A cluster of exactly so many GPUs, with as nearly as can be the same share of them in each sort of node.

    The first nodes of each sort are kept; where there are not enough, all of them come again, in racks of
    their own, so that racks keep their size. A cluster of one rack stays in it.
    """
    if gpus > MAX_GPUS:
        raise BadCluster(f"{gpus:,} GPUs are too many; choose at most {MAX_GPUS:,}.")
    nodes: dict[Sort, list[Node]] = {}
    for node in cluster.nodes:
        nodes.setdefault((node.gpu_type, node.gpus), []).append(node)
    wanted = _nodes_by_sort({sort: len(same) for sort, same in nodes.items()}, cluster.gpus, gpus)
    one_rack = len(cluster.racks) == 1
    return Cluster(tuple(node for sort, same in nodes.items() for node in _repeated(same, wanted[sort], one_rack)))


def _repeated(nodes: list[Node], many: int, one_rack: bool) -> Iterator[Node]:
    """The first so many of the nodes repeated for ever, with names that differ."""
    for number in range(many):
        again, at = divmod(number, len(nodes))
        node = nodes[at]
        if again:
            rack = node.rack if one_rack else f"{node.rack}+{again}"
            node = replace(node, name=f"{node.name}+{again}", rack=rack)
        yield node


def _nodes_by_sort(nodes: dict[Sort, int], now: int, gpus: int) -> dict[Sort, int]:
    """Whole nodes of each sort, at least one, that have `gpus` GPUs in all and stray least from the mix.

    Sorts are added one by one; for every sum that can be had so far the way that strays least is kept. How far
    it strays is the sum of squares, in nodes. A sort need not stray by more nodes than the largest has GPUs:
    so many of one can be exchanged for some of another.
    """
    reach = max(size for _, size in nodes)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for (_, size), many in nodes.items():
        ideal = many * gpus / now
        counts = range(max(1, math.floor(ideal) - reach), math.ceil(ideal) + reach + 1)
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for total, (strays, before) in best.items():
            for count in counts:
                way = (strays + (count - ideal) ** 2, (*before, count))
                at = total + count * size
                if at <= gpus and (at not in found or way < found[at]):
                    found[at] = way
        best = found
    if gpus not in best:
        raise BadCluster(_no_way(nodes, gpus))
    return dict(zip(nodes, best[gpus][1], strict=True))


def _no_way(nodes: dict[Sort, int], gpus: int) -> str:
    """Why there is no cluster of this size, and which are the nearest that there are."""
    sizes = [size for _, size in nodes]
    mix = ", ".join(f"{size} x {kind}" for kind, size in nodes)
    # Beyond the square of the largest every multiple of the common divisor can be had.
    sums = _sums(sizes, max(gpus, sum(sizes) + max(sizes) ** 2) + max(sizes))
    below, above = [n for n in sums if n < gpus][-1:], [n for n in sums if n > gpus][:1]
    return (
        f"{gpus:,} GPUs cannot be made of whole nodes of every sort ({mix}); "
        f"choose {' or '.join(f'{n:,}' for n in below + above)}."
    )


def _sums(sizes: Sequence[int], most: int) -> list[int]:
    """How many GPUs whole nodes can have, at least one of every size."""
    can = [False] * (most + 1)
    can[sum(sizes)] = True
    for size in sizes:
        for at in range(size, most + 1):
            can[at] = can[at] or can[at - size]
    return [at for at, can_be in enumerate(can) if can_be]
