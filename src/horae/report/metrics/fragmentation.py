"""Fragmentation: the share of idle GPU-time on nodes that are partly in use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.cluster import Cluster
from horae.report.metrics.gpu_holdings import Holdings, parts


def fragmentation(holdings: Holdings, cluster: Cluster, gpus: float, begin_s: float, end_s: float) -> float:
    """Share of the idle GPU-time that lay on nodes where another GPU was in use.

    A gang that needs whole nodes could not have used these GPUs. 0 if nothing was
    idle, and on nodes of one GPU. A shared GPU counts as in use once. `gpus` is the
    number of GPUs that were there, on average.
    """
    length_s = end_s - begin_s
    sizes = np.diff(cluster.first_gpu)
    inside = holdings.inside(begin_s, end_s)
    held = inside.sums_by_gpu(inside.gpu_s, cluster.gpu_node, len(cluster.nodes))
    busy = _busy(inside.by_begin(), cluster, begin_s, length_s)
    idle = float(gpus * length_s - held.sum())
    broken = float((sizes * busy - held).sum())
    return min(max(broken / idle, 0.0), 1.0) if idle > 1e-9 * max(length_s, 1.0) else 0.0


def _busy(inside: Holdings, cluster: Cluster, begin_s: float, length_s: float) -> Floats:
    """Seconds in which at least one GPU of each node was held. `inside` is in order of begin.

    It is the union of each node's intervals. Nodes follow one another on a common axis, so that a running maximum
    of the ends never reaches into the next node.
    """
    visits = list(_visits(inside, cluster))
    busy, reached, none = np.zeros(len(cluster.nodes)), 0.0, np.empty(0, dtype=np.int32)
    for node in range(len(cluster.nodes)):
        rows = np.concatenate([none, *(row[first[node] : first[node + 1]] for row, first in visits)])
        offset = node * length_s
        reach = np.maximum.accumulate(np.append(reached, inside.end_s[rows] - begin_s + offset))
        uncovered = np.maximum(inside.begin_s[rows] - begin_s + offset, reach[:-1])
        np.add.at(busy, np.full(len(rows), node), np.maximum(reach[1:] - uncovered, 0.0))
        reached = reach[-1]
    return busy


def _visits(inside: Holdings, cluster: Cluster) -> Iterator[tuple[NDArray[np.int32], Ints]]:
    """Part by part: the rows that held GPUs of each node, node after node, and where each node's rows begin."""
    node_of = cluster.gpu_node.astype(np.min_scalar_type(len(cluster.nodes)))
    for rows, ids in parts(inside.first):
        row = np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), inside.gpus_of(rows))
        node = node_of[inside.gpu[ids]]
        # One visit where GPUs of a node follow one another in a row.
        new = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (node != np.append(node[:1], node[:-1])))
        order = new[np.argsort(node[new], kind="stable")]
        yield row[order], np.searchsorted(node[order], np.arange(len(cluster.nodes) + 1))
