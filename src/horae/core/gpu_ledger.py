"""Who has which GPU: by plan (the holder) and in fact (the occupant)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core import gpu_moves
from horae.core.alike_nodes import choose_alike
from horae.core.arrays import Ints
from horae.core.cluster import Cluster, Machines, Node, Span
from horae.core.declared import Rows, Stored
from horae.core.gpu_moves import NOBODY, REFUSED, GpuColumns
from horae.core.holdings import HolderColumns

#: Row of `GpuLedger.by_node` and `by_type` with the open GPUs that nobody has or sits on.
_IDLE = 1
#: Jobs that can share a GPU.
SEATS = 2


class GpuLedger:
    """Holders and occupants of every GPU, and which nodes take jobs.

    Usually the two agree. While a job is stopped for another, the old one is still
    an occupant and the new one already a holder. A GPU that nobody holds may be
    planned with; a launch waits until nobody sits on its GPUs but those that hold them.

    A GPU has two seats, for jobs that share it; a job that is alone has the first. Jobs that
    share one GPU share all of theirs.
    """

    STORED: ClassVar[dict[str, Stored]] = {
        "nodes": Stored(tuple[Node, ...]),
        "open": Stored(tuple[tuple[bool, ...], tuple[bool, ...], tuple[int, ...]]),
        "held": Stored(dict[int, tuple[int, ...]], Rows.KEYS),
        "occupied": Stored(dict[int, tuple[int, ...]], Rows.KEYS),
        "closed_by": Stored(dict[str, str]),
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
        #: Who drained each node that is drained, by name; kept while the node is lost, until it joins.
        self.closed_by: dict[str, str] = {}
        self.held: dict[int, tuple[int, ...]] = {}
        self.occupied: dict[int, tuple[int, ...]] = {}
        #: `held` as columns.
        self.holdings = HolderColumns(cluster.gpus)
        self._refresh()

    def hold(self, row: int, gpu_ids: tuple[int, ...]) -> None:
        """Set GPUs aside for a job."""
        assert row not in self.held, f"row {row} holds GPUs already"
        assert gpu_ids, f"row {row} is given no GPUs"
        self.cover(row + 1)
        in_order = gpu_ids if len(gpu_ids) == 1 else sorted(gpu_ids)
        host = gpu_moves.hold(row, np.array(in_order, np.int64), self.holdings.count, self._columns)
        assert host != REFUSED, self._refusal(row, gpu_ids)
        self.held[row] = gpu_ids
        self.holdings.count += host == NOBODY

    def _refusal(self, row: int, gpu_ids: tuple[int, ...]) -> str:
        """Why a job cannot have GPUs."""
        for gpu in gpu_ids:
            other = int(self.holders[0, gpu])
            if other != NOBODY and sorted(self.held[other]) != sorted(gpu_ids):
                return f"row {other} holds {self.held[other]}, not all of {gpu_ids} as {row}"
        return f"GPUs {gpu_ids} have no seat for {row}: rows {self.holders[:, gpu_ids[0]]} have them"

    def drop(self, row: int) -> None:
        """A job no longer has a claim on its GPUs, though it may still sit on them."""
        gpu_ids = self.held.pop(row, None)
        if gpu_ids is not None:
            self.holdings.count = gpu_moves.drop(row, np.array(gpu_ids, np.int64), self.holdings.count, self._columns)

    def occupy(self, row: int) -> None:
        """A job moves onto the GPUs it holds."""
        assert row not in self.occupied, f"row {row} sits on GPUs already"
        gpu_ids = self.held[row]
        sits = gpu_moves.occupy(row, np.array(gpu_ids, np.int64), self._columns)
        assert sits, f"somebody sits on the GPUs {gpu_ids}, which are not free for {row}"
        self.occupied[row] = gpu_ids

    def vacate(self, row: int) -> None:
        """A job's processes are gone; a claim that was only its own goes with them."""
        gpu_ids = self.occupied.pop(row, None)
        if gpu_ids is None:
            return
        gpu_moves.vacate(row, np.array(gpu_ids, np.int64), self._columns)
        if self.held.get(row) is gpu_ids:
            self.drop(row)

    def vacant(self, row: int) -> bool:
        """Whether only jobs that hold the GPUs of a job sit on them, and on no others."""
        gpu_ids = self.held[row]
        if not gpu_moves.is_vacant(np.array(gpu_ids, np.int64), self._columns):
            return False
        first, second = self.holders[:, gpu_ids[0]].tolist()
        if second == NOBODY:
            return True
        # A job that is stopped, to come back to some of its GPUs, still sits on all of its old ones.
        sits_on = self.occupied.get(first if second == row else second, ())
        return sorted(sits_on) == sorted(gpu_ids) or set(sits_on).isdisjoint(gpu_ids)

    def idle_like(
        self,
        row: int,
        span: Span,
        machines: Machines,
        taken: Collection[int] = (),
        nodes: int = 0,
        limit: Ints | None = None,
    ) -> tuple[int, ...]:
        """Idle GPUs that nobody has, like those set aside for a job and no farther apart; empty if there are none.

        `span` is the span of those set aside; `taken` are not to be used; `nodes` is what the job asks for, or 0;
        `limit` is how many GPUs of each node the job could have at most.
        """
        gpu_ids, count = self.held[row], len(self.held[row])
        gpu_type = int(self.cluster.gpu_type[gpu_ids[0]])
        if self.by_type[_IDLE, gpu_type] < count or self.holders[1, gpu_ids[0]] != NOBODY:
            return ()
        idle = self.gpu_open & (self.holders[0] == NOBODY) & (self.occupants[0] == NOBODY)
        idle &= self.cluster.gpu_type == gpu_type
        idle[list(taken)] = False
        ids = np.flatnonzero(idle)
        if limit is not None:
            ids = first_of_each(ids, self.cluster.gpu_node[ids], limit)
        if nodes:
            found = choose_alike(ids, machines, nodes, count)
            return found if found and machines.span(found) <= span else ()
        for group in (machines.of_gpu[ids], machines.rack[machines.of_gpu[ids]], np.zeros_like(ids)):
            found = _tightest(ids, group, machines.of_gpu[ids], count)
            if found:
                return found if machines.span(found) <= span else ()
        return ()

    def has_occupant(self, row: int, among: tuple[int, ...]) -> bool:
        """Whether one of some jobs sits on the GPUs that a job holds."""
        return not set(among).isdisjoint(self.occupants[:, list(self.held[row])].ravel().tolist())

    def cover(self, rows: int) -> None:
        """Have room for every row below `rows`."""
        if self.holdings.cover(rows):
            self._gather()

    def companion(self, row: int) -> int:
        """The row that sits on the same GPUs, or nobody."""
        gpu = self.occupied[row][0]
        second = int(self.occupants[1, gpu])
        return int(self.occupants[0, gpu]) if second == row else second

    def join(self, node: Node) -> bool:
        """A node takes jobs (again); False if it is another machine under a name that is taken.

        A node may come back with fewer GPUs than it had, not with more or of another type; its CPUs and memory may
        be others.
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
            self.closed_by.pop(node.name, None)
            self.node_gpus[number] = node.gpus
            if (node.cpus, node.memory_mb) != (before.cpus, before.memory_mb):
                self.cluster = self.cluster.with_room(number, node.cpus, node.memory_mb)
        self._refresh()
        return True

    def nodes(self) -> tuple[Node, ...]:
        """Every node that was ever there, with the GPUs it has now, or had when it was last seen."""
        now = zip(self.cluster.nodes, self.node_gpus, strict=True)
        return tuple(node if node.gpus == gpus else replace(node, gpus=gpus) for node, gpus in now)

    def close(self, name: str, lost: bool, by: str = "") -> list[int]:
        """A node is lost, or drained by somebody; gives the rows that sit on it or hold it."""
        number = self.cluster.node_numbers[name]
        self.node_draining[number] = True
        if lost:
            self.node_up[number] = False
        else:
            self.closed_by[name] = by
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
            "closed_by": dict(self.closed_by),
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
        states = zip(self.cluster.nodes, self.node_up, self.node_draining, strict=True)
        # A checkpoint of before `closed_by` was written: operators closed what is closed.
        drained = {node.name: "" for node, up, draining in states if up and draining}
        self.closed_by = dict(contents.get("closed_by", drained))
        self.holders, self.occupants = contents["holders"].copy(), contents["occupants"].copy()
        self.held, self.occupied = dict(contents["held"]), dict(contents["occupied"])
        for row in self.occupied:
            if row in self.held and row not in contents["moving"]:
                self.occupied[row] = self.held[row]
        self.holdings = HolderColumns(self.cluster.gpus)
        # Jobs take their GPUs anew, those on first seats first; the counts are made from the result.
        holders, held = self.holders.copy(), self.held
        self.holders[:], self.held = NOBODY, {}
        self._refresh()
        for seat in range(SEATS):
            for row, gpu_ids in held.items():
                if holders[seat, gpu_ids[0]] == row:
                    self.hold(row, gpu_ids)
        self.held = held

    def _refresh(self) -> None:
        states = zip(self.node_up, self.node_draining, self.node_gpus, strict=True)
        open_gpus = np.array([gpus if up and not draining else 0 for up, draining, gpus in states])
        on_node = np.arange(self.cluster.gpus) - self.cluster.first_gpu[self.cluster.gpu_node]
        self.gpu_open: NDArray[np.bool_] = on_node < open_gpus[self.cluster.gpu_node]
        self.open_by_type: Ints = self._by_type(self.gpu_open)
        #: By k, from 0 to the GPUs of the largest node, and by GPU type: nodes with at least k open GPUs.
        self.open_by_node: Ints = self._by_node(self.gpu_open)
        self.nodes_with: Ints = self._nodes_with(self.open_by_node)
        free = self.gpu_open & (self.holders[0] == NOBODY)
        idle = free & (self.occupants[0] == NOBODY)
        #: FREE and IDLE open GPUs.
        self.by_node: Ints = np.array((self._by_node(free), self._by_node(idle)))
        self.by_type: Ints = np.array((self._by_type(free), self._by_type(idle)))
        self._gather()
        #: Changes whenever the set of GPUs that take jobs does.
        self.version = getattr(self, "version", 0) + 1

    def _gather(self) -> None:
        """The columns for compiled code; some of them were replaced."""
        cluster, holdings = self.cluster, self.holdings
        self._columns = GpuColumns(
            self.holders,
            self.occupants,
            self.gpu_open,
            cluster.gpu_node,
            cluster.gpu_type,
            self.by_node,
            self.by_type,
            holdings.columns,
            holdings.next_gpu,
            holdings.of_row,
        )

    def _by_node(self, chosen: NDArray[np.bool_]) -> Ints:
        """How many GPUs of each node are chosen."""
        return np.bincount(self.cluster.gpu_node[chosen], minlength=len(self.cluster.nodes)).astype(np.int64)

    def _nodes_with(self, gpus_by_node: Ints) -> Ints:
        """How many nodes of each type (columns) have at least 0, 1, 2 and so on (rows) of some GPUs."""
        just = np.zeros((int(gpus_by_node.max(initial=0)) + 1, len(self.cluster.gpu_types)), np.int64)
        np.add.at(just, (gpus_by_node, self.cluster.node_type), 1)
        return np.ascontiguousarray(just[::-1].cumsum(axis=0)[::-1])

    def _by_type(self, chosen: NDArray[np.bool_]) -> Ints:
        """How many GPUs of each type are chosen."""
        return np.bincount(self.cluster.gpu_type[chosen], minlength=len(self.cluster.gpu_types)).astype(np.int64)


def first_of_each(ids: Ints, node: Ints, limit: Ints) -> Ints:
    """The first so many GPUs of each node, in order; `ids` are in order."""
    before = np.arange(len(ids)) - np.searchsorted(node, node)
    first: Ints = ids[before < limit[node]]
    return first


def _tightest(ids: Ints, group: Ints, machine: Ints, count: int) -> tuple[int, ...]:
    """So many GPUs of the smallest group that has them, from its emptiest machines; none if no group has them."""
    sizes = np.bincount(group)
    enough = np.flatnonzero(sizes >= count)
    if not len(enough):
        return ()
    chosen = group == enough[np.argmin(sizes[enough])]
    ids, machine = ids[chosen], machine[chosen]
    order = np.lexsort((ids, machine, -np.bincount(machine)[machine]))
    return tuple(sorted(ids[order[:count]].tolist()))
