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
    """A cluster of exactly `gpus` GPUs, with nearly the same share of them in each sort of node.

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


def _repeated(nodes: list[Node], count: int, one_rack: bool) -> Iterator[Node]:
    """The first `count` of the nodes, repeated with new names if there are not enough."""
    for number in range(count):
        copy, position = divmod(number, len(nodes))
        node = nodes[position]
        if copy:
            rack = node.rack if one_rack else f"{node.rack}+{copy}"
            node = replace(node, name=f"{node.name}+{copy}", rack=rack)
        yield node


def _nodes_by_sort(nodes: dict[Sort, int], present_gpus: int, gpus: int) -> dict[Sort, int]:
    """Whole nodes of each sort, at least one, that have `gpus` GPUs in all and stray least from the mix.

    Dynamic programming over the sorts: for every sum of GPUs the choice that strays least is kept, measured by the
    sum of squares in nodes. A sort need not stray by more nodes than the largest node has GPUs: beyond that, nodes
    of one sort can be exchanged for nodes of another.
    """
    most_astray = max(size for _, size in nodes)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for (_, size), present in nodes.items():
        ideal = present * gpus / present_gpus
        counts = range(max(1, math.floor(ideal) - most_astray), math.ceil(ideal) + most_astray + 1)
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for total, (strays, before) in best.items():
            for count in counts:
                choice = (strays + (count - ideal) ** 2, (*before, count))
                gpus_in_all = total + count * size
                if gpus_in_all <= gpus and (gpus_in_all not in found or choice < found[gpus_in_all]):
                    found[gpus_in_all] = choice
        best = found
    if gpus not in best:
        raise BadCluster(_no_such_size(nodes, gpus))
    return dict(zip(nodes, best[gpus][1], strict=True))


def _no_such_size(nodes: dict[Sort, int], gpus: int) -> str:
    """Why no cluster of this size exists, with the nearest sizes that do."""
    sizes = [size for _, size in nodes]
    mix = ", ".join(f"{size} x {gpu_type}" for gpu_type, size in nodes)
    # Beyond the square of the largest every multiple of the common divisor can be had.
    sums = _sums(sizes, max(gpus, sum(sizes) + max(sizes) ** 2) + max(sizes))
    below, above = [n for n in sums if n < gpus][-1:], [n for n in sums if n > gpus][:1]
    return (
        f"{gpus:,} GPUs cannot be made of whole nodes of every sort ({mix}); "
        f"choose {' or '.join(f'{n:,}' for n in below + above)}."
    )


def _sums(sizes: Sequence[int], most: int) -> list[int]:
    """The numbers of GPUs up to `most` that whole nodes can have, with at least one node of every size."""
    is_sum = [False] * (most + 1)
    is_sum[sum(sizes)] = True
    for size in sizes:
        for total in range(size, most + 1):
            is_sum[total] = is_sum[total] or is_sum[total - size]
    return [total for total, possible in enumerate(is_sum) if possible]
