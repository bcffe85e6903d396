"""Gangs that ask for a number of nodes, with the same number of GPUs on each: outside the compiled walk."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from horae.core.arrays import Ints
from horae.core.cluster import Machines, Node
from horae.core.counted import counted
from horae.core.job import JobSpec


def lack_of_nodes(job: JobSpec, nodes: Collection[Node]) -> str:
    """Why a job that asks for nodes could never run on these, and what would fit: the end of a sentence, or empty."""
    each, types = job.gpus_per_node, {node.gpu_type for node in nodes}
    enough = [[node for node in nodes if node.gpu_type == name and node.gpus >= each] for name in types]
    most = max(map(len, enough), default=0)
    if not job.nodes or most >= job.nodes:
        return ""
    asked = f"asks for {counted(job.nodes, 'node')} of one type with {counted(each, 'GPU')} each"
    largest = max((node.gpus for node in nodes), default=0)
    if not most:
        return f"{asked}, and the largest node it could use has {counted(largest, 'GPU')}"
    return f"{asked}, and there {'is' if most == 1 else 'are'} only {most} with so many"


def choose_alike(ids: Ints, machines: Machines, nodes: int, gpus: int) -> tuple[int, ...]:
    """`gpus` of some GPUs of one type, the same number on each of exactly `nodes` machines; empty if there are none.

    They are in one rack if one has them, and leave as few of these GPUs as possible on the machines chosen: what
    `placement/choose.py` does by all rules but least-fragmentation, which does not look at racks.
    """
    each, machine_of = gpus // nodes, machines.of_gpu[ids]
    free = np.bincount(machine_of)
    # The machines with enough GPUs, those with the fewest first.
    enough = sorted(np.flatnonzero(free >= each).tolist(), key=lambda machine: (free[machine], machine))
    by_rack: dict[int, list[int]] = {}
    for machine in enough:
        by_rack.setdefault(int(machines.rack[machine]), []).append(machine)
    in_one_rack = [by_rack[rack][:nodes] for rack in sorted(by_rack) if len(by_rack[rack]) >= nodes]
    chosen = min(in_one_rack, key=lambda group: int(free[group].sum()), default=enough[:nodes])
    if len(chosen) < nodes:
        return ()
    return tuple(sorted(gpu for machine in chosen for gpu in ids[machine_of == machine][:each].tolist()))


def is_alike(gpu_ids: tuple[int, ...], nodes: int, node_of: Ints) -> bool:
    """Whether GPUs lie on exactly `nodes` nodes, the same number on each."""
    _, counts = np.unique(node_of[list(gpu_ids)], return_counts=True)
    return len(counts) == nodes and bool((counts == counts[0]).all())
