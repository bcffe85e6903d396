"""Who has which GPU: by plan (the holder) and in fact (the occupant)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Ints
from horae.core.cluster import Cluster, Node
from horae.core.declared import Rows, Stored
from horae.core.holdings import HolderColumns

NOBODY = -1


#: Jobs that can share a GPU.
SEATS = 2
#: Counts of GPUs: those without a holder, and those without an occupant, either.
FREE, IDLE = 0, 1


class GpuLedger:
    """Holders and occupants of every GPU, and which nodes take jobs.

    Usually the two agree. While a job is stopped for another, the old one is still
    an occupant and the new one already a holder. A GPU that nobody holds may be
    planned with; a launch waits until nobody sits on its GPUs but those that hold them.

    A GPU has two seats, for jobs that share it; whoever is alone has the first. Jobs that
    share one GPU share all of theirs.
    """

    STORED: ClassVar[dict[str, Stored]] = {
        "nodes": Stored(tuple[Node, ...]),
        "open": Stored(tuple[tuple[bool, ...], tuple[bool, ...], tuple[int, ...]]),
        "held": Stored(dict[int, tuple[int, ...]], Rows.KEYS),
        "occupied": Stored(dict[int, tuple[int, ...]], Rows.KEYS),
        "moving": Stored(tuple[int, ...], Rows.VALUES),
        "holders": Stored(None, Rows.VALUES),
        "occupants": Stored(None, Rows.VALUES),
    }

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.holders: NDArray[np.int64] = np.full((SEATS, cluster.gpus), NOBODY, np.int64)
        self.occupants: NDArray[np.int64] = np.full((SEATS, cluster.gpus), NOBODY, np.int64)
        self.node_up = [True] * len(cluster.nodes)
        self.node_draining = [False] * len(cluster.nodes)
        self.node_gpus = [node.gpus for node in cluster.nodes]
        self.held: dict[int, tuple[int, ...]] = {}
        self.occupied: dict[int, tuple[int, ...]] = {}
        #: `held` as columns.
        self.holdings = HolderColumns(cluster.gpus)
        self._refresh()

    def hold(self, row: int, gpu_ids: tuple[int, ...]) -> None:
        """Set GPUs aside for a job."""
        assert row not in self.held, f"row {row} holds GPUs already"
        first_seats = self.holders[0]
        others = {int(first_seats[gpu]) for gpu in gpu_ids} - {NOBODY}
        for other in others:
            assert self.held[other] == gpu_ids, f"row {other} holds {self.held[other]}, not all of {gpu_ids} as {row}"
        if not others:
            self._count_free(gpu_ids, -1)
        _sit(self.holders, row, gpu_ids)
        self.held[row] = gpu_ids
        if others:
            self.holdings.join(row, others.pop())
        else:
            self.holdings.add(row, gpu_ids)

    def drop(self, row: int) -> None:
        """A job no longer has a claim on its GPUs, though it may still sit on them."""
        gpu_ids = self.held.pop(row, ())
        if not gpu_ids:
            return
        _rise(self.holders, row, gpu_ids)
        self.holdings.remove(row)
        if self.holders[0, gpu_ids[0]] == NOBODY:
            self._count_free(gpu_ids, 1)

    def occupy(self, row: int) -> None:
        """A job moves onto the GPUs it holds."""
        assert row not in self.occupied, f"row {row} sits on GPUs already"
        assert self.vacant(row), f"somebody sits on the GPUs {self.held[row]}, which are not free for {row}"
        self.occupied[row] = self.held[row]
        _sit(self.occupants, row, self.held[row])

    def vacate(self, row: int) -> None:
        """A job's processes are gone; a claim that was only its own goes with them."""
        gpu_ids = self.occupied.pop(row, ())
        _rise(self.occupants, row, gpu_ids)
        for gpu in gpu_ids:
            if self.holders[0, gpu] == NOBODY and self.occupants[0, gpu] == NOBODY and self.gpu_open[gpu]:
                self._count(IDLE, gpu, 1)
        if gpu_ids and self.held.get(row) is gpu_ids:
            self.drop(row)

    def vacant(self, row: int) -> bool:
        """Whether nobody sits on the GPUs that a job holds but those that hold them, too."""
        for gpu in self.held[row]:
            if self.occupants[0, gpu] == NOBODY:
                continue
            holders = self.holders[:, gpu].tolist()
            if any(sitting != NOBODY and sitting not in holders for sitting in self.occupants[:, gpu].tolist()):
                return False
        return True

    def companion(self, row: int) -> int:
        """The row that sits on the same GPUs, or nobody."""
        first, second = self.occupants[:, self.occupied[row][0]].tolist()
        return int(second if first == row else first)

    def join(self, node: Node) -> bool:
        """A node takes jobs (again); False if it is another machine under a name that is taken.

        A node may come back with fewer GPUs than it had, not with more or of another type.
        """
        number = self.cluster.node_numbers.get(node.name)
        if number is None:
            self.cluster = self.cluster.with_node(node)
            more = np.full((SEATS, node.gpus), NOBODY, np.int64)
            self.holders = np.concatenate((self.holders, more), axis=1)
            self.occupants = np.concatenate((self.occupants, more), axis=1)
            self.holdings.extend(node.gpus)
            self.node_up.append(True)
            self.node_draining.append(False)
            self.node_gpus.append(node.gpus)
        else:
            before = self.cluster.nodes[number]
            if node.gpus > before.gpus or node.gpu_type != before.gpu_type:
                return False
            self.node_up[number], self.node_draining[number] = True, False
            self.node_gpus[number] = node.gpus
        self._refresh()
        return True

    def nodes(self) -> tuple[Node, ...]:
        """Every node that was ever there, with the GPUs it has now, or had when it was last seen."""
        now = zip(self.cluster.nodes, self.node_gpus, strict=True)
        return tuple(node if node.gpus == gpus else replace(node, gpus=gpus) for node, gpus in now)

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
        rows = np.union1d(self.holders[:, here], self.occupants[:, here])
        return [int(row) for row in rows if row != NOBODY]

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values and columns."""
        return {
            "nodes": self.cluster.nodes,
            "open": (tuple(self.node_up), tuple(self.node_draining), tuple(self.node_gpus)),
            "holders": self.holders,
            "occupants": self.occupants,
            "held": dict(self.held),
            "occupied": dict(self.occupied),
            # A claim that outlives its owner's attempt is another one, even on the same GPUs.
            "moving": tuple(
                row for row, gpu_ids in self.occupied.items() if self.held.get(row, gpu_ids) is not gpu_ids
            ),
        }

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave."""
        self.cluster = Cluster(tuple(contents["nodes"]))
        self.node_up, self.node_draining, self.node_gpus = (list(column) for column in contents["open"])
        self.holders, self.occupants = contents["holders"].copy(), contents["occupants"].copy()
        self.held, self.occupied = dict(contents["held"]), dict(contents["occupied"])
        for row in self.occupied:
            if row in self.held and row not in contents["moving"]:
                self.occupied[row] = self.held[row]
        self.holdings = HolderColumns(self.cluster.gpus)
        for row, gpu_ids in self.held.items():
            if self.holders[0, gpu_ids[0]] == row:
                self.holdings.add(row, gpu_ids)
        for row, gpu_ids in self.held.items():
            if self.holders[1, gpu_ids[0]] == row:
                self.holdings.join(row, int(self.holders[0, gpu_ids[0]]))
        self._refresh()

    def _count_free(self, gpu_ids: tuple[int, ...], by: int) -> None:
        """Some GPUs got or lost their only holder."""
        for gpu in gpu_ids:
            if self.gpu_open[gpu]:
                self._count(FREE, gpu, by)
                if self.occupants[0, gpu] == NOBODY:
                    self._count(IDLE, gpu, by)

    def _count(self, column: int, gpu: int, by: int) -> None:
        self.by_node[column, self.cluster.gpu_node[gpu]] += by
        self.by_type[column, self.cluster.gpu_type[gpu]] += by

    def _refresh(self) -> None:
        states = zip(self.node_up, self.node_draining, self.node_gpus, strict=True)
        open_gpus = np.array([gpus if up and not draining else 0 for up, draining, gpus in states])
        on_node = np.arange(self.cluster.gpus) - self.cluster.first_gpu[self.cluster.gpu_node]
        self.gpu_open: NDArray[np.bool_] = on_node < open_gpus[self.cluster.gpu_node]
        self.open_by_type: Ints = self._by_type(self.gpu_open)
        free = self.gpu_open & (self.holders[0] == NOBODY)
        idle = free & (self.occupants[0] == NOBODY)
        #: FREE and IDLE open GPUs.
        self.by_node: Ints = np.array((self._by_node(free), self._by_node(idle)))
        self.by_type: Ints = np.array((self._by_type(free), self._by_type(idle)))
        #: Changes whenever the set of GPUs that take jobs does.
        self.version = getattr(self, "version", 0) + 1

    def _by_node(self, chosen: NDArray[np.bool_]) -> Ints:
        """How many GPUs of each node are chosen."""
        return np.bincount(self.cluster.gpu_node[chosen], minlength=len(self.cluster.nodes)).astype(np.int64)

    def _by_type(self, chosen: NDArray[np.bool_]) -> Ints:
        """How many GPUs of each type are chosen."""
        return np.bincount(self.cluster.gpu_type[chosen], minlength=len(self.cluster.gpu_types)).astype(np.int64)


def _sit(seats: NDArray[np.int64], row: int, gpu_ids: tuple[int, ...]) -> None:
    """Take the first free seat of each GPU."""
    for gpu in gpu_ids:
        seat = 0 if seats[0, gpu] == NOBODY else 1
        assert seats[seat, gpu] == NOBODY, f"GPU {gpu} has no seat for {row}: rows {seats[:, gpu]} have it"
        seats[seat, gpu] = row


def _rise(seats: NDArray[np.int64], row: int, gpu_ids: tuple[int, ...]) -> None:
    """Leave GPUs; whoever had the second seat moves up."""
    for gpu in gpu_ids:
        if seats[0, gpu] == row:
            seats[0, gpu] = seats[1, gpu]
        seats[1, gpu] = NOBODY
