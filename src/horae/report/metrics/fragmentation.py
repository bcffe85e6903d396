"""Fragmentation: the share of idle GPU-time on nodes that are partly in use."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats
from horae.core.cluster import Cluster
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.step_functions import sums


def fragmentation(holdings: Holdings, cluster: Cluster, begin_s: float, end_s: float) -> float:
    """Share of the idle GPU-time that lay on nodes where another GPU was in use.

    A gang that needs whole nodes could not have used these GPUs. 0 if nothing was
    idle, and on nodes of one GPU. A shared GPU counts as in use once.
    """
    length_s = end_s - begin_s
    sizes = np.diff(cluster.first_gpu)
    inside = holdings.inside(begin_s, end_s)
    held = sums(inside.gpu_s, cluster.gpu_node[inside.gpu], len(cluster.nodes))
    busy = _busy(inside, cluster, begin_s, length_s)
    idle = float(sizes.sum() * length_s - held.sum())
    broken = float((sizes * busy - held).sum())
    return min(max(broken / idle, 0.0), 1.0) if idle > 1e-9 * max(length_s, 1.0) else 0.0


def _busy(inside: Holdings, cluster: Cluster, begin_s: float, length_s: float) -> Floats:
    """Seconds in which at least one GPU of each node was held."""
    # 1. One row where an attempt held several GPUs of a node throughout.
    node, begin, end = cluster.gpu_node[inside.gpu], inside.begin_s - begin_s, inside.end_s - begin_s
    new = np.ones(len(node), dtype=bool)
    new[1:] = (np.diff(node) != 0) | (np.diff(begin) != 0) | (np.diff(end) != 0)
    node, begin, end = node[new], begin[new], end[new]
    # 2. Sorted by node and then by begin.
    order = np.argsort(begin, kind="stable")
    order = order[np.argsort(node[order].astype(np.int32), kind="stable")]
    # 3. The union of each node's intervals. Nodes follow one another on a common
    # axis, so that a running maximum of the ends never reaches into the next node.
    offset = node[order] * length_s
    reach = np.maximum.accumulate(end[order] + offset)
    covered = np.concatenate((np.zeros(min(len(reach), 1)), reach[:-1]))
    added = np.maximum(reach - np.maximum(begin[order] + offset, covered), 0.0)
    return sums(added, node[order], len(cluster.nodes))
