"""Fragmentation: the share of idle GPU-time on nodes that are partly in use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats
from horae.core.cluster import Cluster
from horae.report.metrics.gpu_holdings import PART, Holdings, parts


def fragmentation(holdings: Holdings, cluster: Cluster, begin_s: float, end_s: float) -> float:
    """Share of the idle GPU-time that lay on nodes where another GPU was in use.

    A gang that needs whole nodes could not have used these GPUs. 0 if nothing was
    idle, and on nodes of one GPU. A shared GPU counts as in use once.
    """
    length_s = end_s - begin_s
    sizes = np.diff(cluster.first_gpu)
    inside = holdings.inside(begin_s, end_s)
    held = inside.sums_by_gpu(inside.gpu_s, cluster.gpu_node, len(cluster.nodes))
    busy = _busy(inside.by_begin(), cluster, begin_s, length_s)
    idle = float(sizes.sum() * length_s - held.sum())
    broken = float((sizes * busy - held).sum())
    return min(max(broken / idle, 0.0), 1.0) if idle > 1e-9 * max(length_s, 1.0) else 0.0


def _busy(inside: Holdings, cluster: Cluster, begin_s: float, length_s: float) -> Floats:
    """Seconds in which at least one GPU of each node was held. `inside` is in order of begin.

    It is the union of each node's intervals. Nodes follow one another on a common axis, so that a running maximum
    of the ends never reaches into the next node.
    """
    row, node = _visits(inside, cluster)
    order = np.argsort(node, kind="stable")
    busy, reached = np.zeros(len(cluster.nodes)), 0.0
    for start in range(0, len(order), PART):
        at = order[start : start + PART]
        where, rows = node[at].astype(np.int64), row[at]
        offset = where * length_s
        reach = np.maximum.accumulate(np.append(reached, inside.end_s[rows] - begin_s + offset))
        uncovered = np.maximum(inside.begin_s[rows] - begin_s + offset, reach[:-1])
        np.add.at(busy, where, np.maximum(reach[1:] - uncovered, 0.0))
        reached = reach[-1]
    return busy


def _visits(inside: Holdings, cluster: Cluster) -> tuple[NDArray[np.int32], NDArray[np.unsignedinteger]]:
    """Rows and nodes of which they held GPUs: one entry where GPUs of a node follow one another in a row."""
    node_of = cluster.gpu_node.astype(np.min_scalar_type(len(cluster.nodes)))
    found = [(np.empty(0, dtype=np.int32), node_of[:0])]
    for rows, ids in parts(inside.first):
        row = np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), inside.gpus_of(rows))
        node = node_of[inside.gpu[ids]]
        new = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (node != np.append(node[:1], node[:-1])))
        found.append((row[new], node[new]))
    row, node = (np.concatenate(column) for column in zip(*found, strict=True))
    return row, node
