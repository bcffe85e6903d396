"""Who has which GPU: by plan (the holder) and in fact (the occupant)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Cluster, Node

NOBODY = -1


class GpuLedger:
    """Holder and occupant of every GPU, and which nodes take jobs.

    Usually the two agree. While a job is stopped for another, the old one is still
    the occupant and the new one already the holder. A GPU whose holder is nobody may
    be planned with; a launch waits until its occupant is nobody, too.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.holder: NDArray[np.int64] = np.full(cluster.gpus, NOBODY, np.int64)
        self.occupant: NDArray[np.int64] = np.full(cluster.gpus, NOBODY, np.int64)
        self.node_up = [True] * len(cluster.nodes)
        self.node_draining = [False] * len(cluster.nodes)
        self.node_gpus = [node.gpus for node in cluster.nodes]
        self.held: dict[int, tuple[int, ...]] = {}
        self.occupied: dict[int, tuple[int, ...]] = {}
        self._refresh()

    def hold(self, row: int, gpu_ids: tuple[int, ...]) -> None:
        """Set GPUs aside for a job."""
        assert row not in self.held, f"row {row} holds GPUs already"
        for gpu in gpu_ids:
            assert self.holder[gpu] == NOBODY, f"GPU {gpu} is held by row {self.holder[gpu]}, not free for {row}"
            self.holder[gpu] = row
        self.held[row] = gpu_ids

    def drop(self, row: int) -> None:
        """A job no longer has a claim on its GPUs, though it may still sit on them."""
        for gpu in self.held.pop(row, ()):
            self.holder[gpu] = NOBODY

    def occupy(self, row: int) -> None:
        """A job moves onto the GPUs it holds."""
        gpu_ids = self.held[row]
        assert row not in self.occupied, f"row {row} sits on GPUs already"
        for gpu in gpu_ids:
            assert self.occupant[gpu] == NOBODY, (
                f"GPU {gpu} is occupied by row {self.occupant[gpu]}, not free for {row}"
            )
            self.occupant[gpu] = row
        self.occupied[row] = gpu_ids

    def vacate(self, row: int) -> None:
        """A job's processes are gone; a claim that was only its own goes with them."""
        gpu_ids = self.occupied.pop(row, ())
        for gpu in gpu_ids:
            self.occupant[gpu] = NOBODY
        if gpu_ids and self.held.get(row) is gpu_ids:
            self.drop(row)

    def vacant(self, row: int) -> bool:
        """Whether nobody sits on the GPUs that a job holds."""
        return all(self.occupant[gpu] == NOBODY for gpu in self.held[row])

    def join(self, node: Node) -> bool:
        """A node takes jobs (again); False if it is another machine under a name that is taken.

        A node may come back with fewer GPUs than it had, not with more or of another type.
        """
        number = self.cluster.node_numbers.get(node.name)
        if number is None:
            self.cluster = self.cluster.with_node(node)
            more = np.full(node.gpus, NOBODY, np.int64)
            self.holder = np.concatenate((self.holder, more))
            self.occupant = np.concatenate((self.occupant, more))
            self.node_up.append(True)
            self.node_draining.append(False)
            self.node_gpus.append(node.gpus)
        else:
            known = self.cluster.nodes[number]
            if node.gpus > known.gpus or node.gpu_type != known.gpu_type:
                return False
            self.node_up[number], self.node_draining[number] = True, False
            self.node_gpus[number] = node.gpus
        self._refresh()
        return True

    def close(self, name: str, lost: bool) -> list[int]:
        """A node takes no more jobs; gives the rows that sit on it or hold it."""
        number = self.cluster.node_numbers[name]
        self.node_draining[number] = True
        if lost:
            self.node_up[number] = False
        self._refresh()
        return self.on_node(name)

    def on_node(self, name: str) -> list[int]:
        """Rows that sit on a node or hold GPUs of it, in order."""
        number = self.cluster.node_numbers[name]
        here = slice(int(self.cluster.first_gpu[number]), int(self.cluster.first_gpu[number + 1]))
        rows = np.union1d(self.holder[here], self.occupant[here])
        return [int(row) for row in rows if row != NOBODY]

    def _refresh(self) -> None:
        states = zip(self.node_up, self.node_draining, self.node_gpus, strict=True)
        open_gpus = np.array([gpus if up and not draining else 0 for up, draining, gpus in states])
        on_node = np.arange(self.cluster.gpus) - self.cluster.first_gpu[self.cluster.gpu_node]
        self.gpu_open: NDArray[np.bool_] = on_node < open_gpus[self.cluster.gpu_node]
        types = len(self.cluster.gpu_types)
        self.open_by_type: NDArray[np.int64] = np.bincount(
            self.cluster.gpu_type[self.gpu_open], minlength=types
        ).astype(np.int64)
        #: Changes whenever the set of GPUs that take jobs does.
        self.version = getattr(self, "version", 0) + 1
