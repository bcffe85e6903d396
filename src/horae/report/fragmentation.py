"""How much of the idle capacity lies in pieces."""

from __future__ import annotations

import numpy as np

from horae.core.cluster import Cluster
from horae.core.history import Attempts
from horae.report.series import Floats, sums


def fragmentation(attempts: Attempts, cluster: Cluster, begin_s: float, end_s: float) -> float:
    """Share of the idle GPU-time that lay on nodes where another GPU was in use.

    Those are the GPUs that a gang in need of whole nodes could not have had. 0
    when nothing was idle, and on nodes of one GPU.
    """
    length_s = end_s - begin_s
    sizes = np.diff(cluster.first_gpu)
    held, busy = _held_and_busy(attempts, cluster, begin_s, end_s)
    idle = float(sizes.sum() * length_s - held.sum())
    broken = float((sizes * busy - held).sum())
    return min(max(broken / idle, 0.0), 1.0) if idle > 1e-9 * max(length_s, 1.0) else 0.0


def _held_and_busy(attempts: Attempts, cluster: Cluster, begin_s: float, end_s: float) -> tuple[Floats, Floats]:
    """GPU-seconds held on each node, and seconds in which at least one of its GPUs was."""
    # 1. One row for each attempt and stretch of its GPUs on the same node.
    node = cluster.gpu_node[attempts.gpu_ids]
    attempt = np.repeat(np.arange(len(attempts.job)), attempts.gpus)
    new = np.ones(len(node), dtype=bool)
    new[1:] = (node[1:] != node[:-1]) | (attempt[1:] != attempt[:-1])
    row = np.flatnonzero(new)
    gpus = np.diff(np.append(row, len(node)))
    # 2. Cut to the interval, sorted by node and then by begin.
    begin = np.clip(attempts.begin_s, begin_s, end_s)[attempt[row]] - begin_s
    end = np.clip(attempts.end_s, begin_s, end_s)[attempt[row]] - begin_s
    held = sums(gpus * (end - begin), node[row], len(cluster.nodes))
    order = np.argsort(begin, kind="stable")
    order = order[np.argsort(node[row][order].astype(np.int32), kind="stable")]
    # 3. The union of each node's intervals. Nodes follow one another on a common
    # axis, so that a running maximum of the ends never reaches into the next node.
    nodes = node[row][order]
    offset = nodes * (end_s - begin_s)
    reach = np.maximum.accumulate(end[order] + offset)
    covered = np.concatenate((np.zeros(min(len(reach), 1)), reach[:-1]))
    added = np.maximum(reach - np.maximum(begin[order] + offset, covered), 0.0)
    return held, sums(added, nodes, len(cluster.nodes))
