"""The machines: nodes, GPU types and the levels of topology."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from horae.core.errors import UserError

#: Type masks are 64-bit integers.
MAX_GPU_TYPES = 62

#: CPUs, or MiB of memory, of a node on which they are not counted: more than all jobs together can ask for.
UNCOUNTED = 1 << 50
#: Most CPUs and MiB that a node is taken to have: sums of jobs stay far below `UNCOUNTED`.
MAX_ROOM = 1 << 40


class BadCluster(UserError):
    """A cluster that cannot exist, such as one without nodes."""


def host_of(node: str) -> str:
    """Name of a node's machine. A machine that came back as another node is `v1~2`, and still called `v1`."""
    return node.partition("~")[0]


class Span(IntEnum):
    """How far apart the GPUs of one gang lie: the smallest unit that holds them all."""

    GPU = 0
    NODE = 1
    RACK = 2
    CLUSTER = 3


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with GPUs of one type. Stored: change by addition."""

    name: str
    gpu_type: str
    gpus: int
    rack: str = "rack-0"
    #: CPUs and MiB of memory for the jobs on these GPUs; 0 means that they are not counted.
    cpus: int = 0
    memory_mb: int = 0

    @property
    def host(self) -> str:
        """Name of the machine."""
        return host_of(self.name)

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise BadCluster(f"Node {self.name!r} has {self.gpus} GPUs; it needs at least 1.")
        if not self.name or not self.gpu_type:
            raise BadCluster("Every node needs a name and a GPU type.")
        for what, count in (("CPUs", self.cpus), ("MiB of memory", self.memory_mb)):
            if not 0 <= count <= MAX_ROOM:
                raise BadCluster(f"Node {self.name!r} has {count} {what}; write 0 up to {MAX_ROOM}, 0 for not counted.")


@dataclass(frozen=True)
class Machines:
    """Groups of GPUs of one type; a gang inside one group counts as together on one node.

    Columns by machine: name, GPU type, rack. `of_gpu` is the machine of each GPU.
    """

    names: tuple[str, ...]
    gpu_type: NDArray[np.int64]
    rack: NDArray[np.int64]
    of_gpu: NDArray[np.int64]

    def span(self, gpu_ids: Sequence[int]) -> Span:
        """Span of these GPUs."""
        machines = np.unique(self.of_gpu[list(gpu_ids)])
        if len(gpu_ids) == 1:
            return Span.GPU
        if len(machines) == 1:
            return Span.NODE
        return Span.RACK if len(np.unique(self.rack[machines])) == 1 else Span.CLUSTER


@dataclass(frozen=True)
class Cluster:
    """All nodes, maybe none yet. GPUs are numbered node by node, so a node is a range of GPU numbers."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
        if twice:
            raise BadCluster(f"Node names must differ; {min(twice)!r} is used twice.")
        if len(self.gpu_types) > MAX_GPU_TYPES:
            raise BadCluster(f"A cluster may have up to {MAX_GPU_TYPES} GPU types, not {len(self.gpu_types)}.")

    @staticmethod
    def of(groups: Sequence[tuple[str, int, int]], nodes_per_rack: int = 0) -> Cluster:
        """Build a cluster from (GPU type, node count, GPUs of a node). `nodes_per_rack` 0 means a single rack."""
        nodes: list[Node] = []
        for gpu_type, count, gpus in groups:
            for number in range(count):
                rack = len(nodes) // nodes_per_rack if nodes_per_rack else 0
                nodes.append(Node(f"{gpu_type}-{number}", gpu_type, gpus, f"rack-{rack}"))
        return Cluster(tuple(nodes))

    def with_node(self, node: Node) -> Cluster:
        """The same cluster with one more node at the end."""
        return Cluster((*self.nodes, node))

    def with_room(self, number: int, cpus: int, memory_mb: int) -> Cluster:
        """The same cluster with other CPUs and memory on one node."""
        node = replace(self.nodes[number], cpus=cpus, memory_mb=memory_mb)
        return Cluster((*self.nodes[:number], node, *self.nodes[number + 1 :]))

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types, in order of first appearance."""
        return tuple(dict.fromkeys(node.gpu_type for node in self.nodes))

    @cached_property
    def racks(self) -> tuple[str, ...]:
        """Names of the racks, in order of first appearance."""
        return tuple(dict.fromkeys(node.rack for node in self.nodes))

    @cached_property
    def node_numbers(self) -> dict[str, int]:
        """Number of each node by name."""
        return {node.name: number for number, node in enumerate(self.nodes)}

    @cached_property
    def first_gpu(self) -> NDArray[np.int64]:
        """GPU numbers of node k are first_gpu[k] up to first_gpu[k + 1]."""
        return np.concatenate(([0], np.cumsum([node.gpus for node in self.nodes]))).astype(np.int64)

    @cached_property
    def node_type(self) -> NDArray[np.int64]:
        """Number of each node's GPU type."""
        number = {name: k for k, name in enumerate(self.gpu_types)}
        return np.array([number[node.gpu_type] for node in self.nodes], dtype=np.int64)

    @cached_property
    def node_rack(self) -> NDArray[np.int64]:
        """Number of each node's rack."""
        number = {name: k for k, name in enumerate(self.racks)}
        return np.array([number[node.rack] for node in self.nodes], dtype=np.int64)

    @cached_property
    def gpu_node(self) -> NDArray[np.int64]:
        """Number of each GPU's node."""
        return np.repeat(np.arange(len(self.nodes), dtype=np.int64), np.diff(self.first_gpu))

    @cached_property
    def gpu_type(self) -> NDArray[np.int64]:
        """Number of each GPU's type."""
        return self.node_type[self.gpu_node]

    @cached_property
    def room(self) -> NDArray[np.int64]:
        """CPUs (row 0) and MiB of memory (row 1) of each node; `UNCOUNTED` where a node does not count them."""
        has = np.array([(node.cpus, node.memory_mb) for node in self.nodes], np.int64).reshape(-1, 2).T
        return np.ascontiguousarray(np.where(has > 0, has, UNCOUNTED))

    @cached_property
    def room_share(self) -> NDArray[np.int64]:
        """The part of `room` that goes with one GPU, rounded down; 0 where it is not counted."""
        gpus = np.array([node.gpus for node in self.nodes], np.int64)
        return np.where(self.room < UNCOUNTED, self.room // np.maximum(gpus, 1), 0)

    @cached_property
    def least_share(self) -> tuple[int, int]:
        """The smallest share of a GPU in CPUs and in MiB on any node that counts them; `UNCOUNTED` if none does."""
        shares = np.where(self.room < UNCOUNTED, self.room_share, UNCOUNTED).min(axis=1, initial=UNCOUNTED)
        return int(shares[0]), int(shares[1])

    @property
    def gpus(self) -> int:
        """GPU count of the cluster."""
        return int(self.first_gpu[-1])

    @cached_property
    def gpus_by_type(self) -> NDArray[np.int64]:
        """GPU count of each type."""
        return np.bincount(self.gpu_type, minlength=len(self.gpu_types)).astype(np.int64)

    @cached_property
    def nodes_as_machines(self) -> Machines:
        """Each node as a machine."""
        return Machines(tuple(node.name for node in self.nodes), self.node_type, self.node_rack, self.gpu_node)

    @cached_property
    def types_as_machines(self) -> Machines:
        """All GPUs of a type as one machine, for placement rules by which only the GPU count matters."""
        types = np.arange(len(self.gpu_types), dtype=np.int64)
        return Machines(self.gpu_types, types, np.zeros_like(types), self.gpu_type)

    def machines(self, flat: bool) -> Machines:
        """Machines by a placement rule: nodes, or whole GPU types where only the GPU count matters (`flat`)."""
        return self.types_as_machines if flat else self.nodes_as_machines

    def gpus_by_node(self, gpu_ids: Iterable[int]) -> dict[int, list[int]]:
        """Node number to the GPUs' positions on that node, from 0."""
        by_node: dict[int, list[int]] = {}
        for gpu in gpu_ids:
            node = int(self.gpu_node[gpu])
            by_node.setdefault(node, []).append(gpu - int(self.first_gpu[node]))
        return by_node

    def gpu_labels(self, gpu_ids: Iterable[int]) -> list[str]:
        """GPUs as people read them, one text for each node, such as `v100-0[0,2]`."""
        by_node = self.gpus_by_node(gpu_ids)
        return [f"{self.nodes[node].host}[{','.join(map(str, gpus))}]" for node, gpus in by_node.items()]
