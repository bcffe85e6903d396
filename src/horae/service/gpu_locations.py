"""GPU ids of the cluster as nodes and GPU numbers on the node."""

from __future__ import annotations

from collections.abc import Iterable

from horae.core.cluster import Cluster


def numbers_by_node(cluster: Cluster, gpu_ids: Iterable[int]) -> dict[int, list[int]]:
    """GPU numbers on their node, from 0, by node number."""
    by_node: dict[int, list[int]] = {}
    for gpu in gpu_ids:
        node = int(cluster.gpu_node[gpu])
        by_node.setdefault(node, []).append(gpu - int(cluster.first_gpu[node]))
    return by_node


def gpu_labels(cluster: Cluster, gpu_ids: Iterable[int]) -> list[str]:
    """GPUs as people read them, one text per node, such as v100[0,2]."""
    by_node = numbers_by_node(cluster, gpu_ids)
    return [f"{cluster.nodes[node].name}[{','.join(map(str, gpus))}]" for node, gpus in by_node.items()]
