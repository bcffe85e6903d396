"""Quotas: which counters a job's GPUs count for, and how many GPUs each counter may have.

A job counts for its queue and every queue above it. Where its user is limited, it counts for the user, too, and where
jobs that are never preempted are limited, for those of its user or queue. All of that is one chain: a node has a
counter and the next node. Nodes of a user in several queues share a counter, so that a limit of a user holds over all
queues, and whoever walks a chain need not know what its counters stand for. Without limits of users, the nodes are the
queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horae.core.arrays import Ints
from horae.core.limits import ALL_TOGETHER, LimitTable, of_queue, users_limits

if TYPE_CHECKING:
    from horae.core.queues import QueueTree

#: No maximum, in the column of maxima.
UNLIMITED = 1 << 40


class QuotaColumns(NamedTuple):
    """The next node and the counter of each node (-1 ends a chain); minimum and maximum GPUs of each counter."""

    parent: Ints
    counter: Ints
    minimum: Ints
    maximum: Ints


class QuotaTree:
    """The nodes of a queue tree with limits. Numbers stay as long as the limits do."""

    def __init__(self, queues: QueueTree, limits: LimitTable) -> None:
        self._queues, self._limits = queues, limits
        self._nodes: dict[tuple[int, str, bool], int] = {}
        self._parent: list[int] = []
        self._counter: list[int] = []
        #: Number and maximum of each counter by what it counts: a queue's number, or a text.
        self._numbers: dict[int | str, int] = {}
        self._maximum: list[int | None] = []
        self._columns: QuotaColumns | None = None
        #: Whether the GPUs of some user, or of jobs that are never preempted, are limited.
        self.limits_users = any(
            found.gpus is not None or found.non_preemptible_gpus is not None for found in limits.values()
        )
        self._limits_kept = any(
            found.non_preemptible_gpus is not None
            for whom, found in limits.items()
            if whom == ALL_TOGETHER or whom.startswith("queue:")
        )

    def node(self, queue: int, user: str, keeps: bool) -> int:
        """The node of the jobs of a user ("" for nobody) in a queue; `keeps`: of those that are never preempted."""
        if not self.limits_users:
            user = ""
        if not user:
            keeps = keeps and self._limits_kept
        key = (queue, user, keeps)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = self._with_user(queue, user, keeps) if user else self._of_queue(queue, keeps)
        return found

    def forget_columns(self) -> None:
        """Queues have other settings now."""
        self._columns = None

    def columns(self) -> QuotaColumns:
        """All nodes and counters as columns."""
        if self._columns is None:
            queues = {number: key for key, number in self._numbers.items() if isinstance(key, int)}
            settings = [
                self._queues[queues[number]] if number in queues else None for number in range(len(self._maximum))
            ]
            minima = [queue.gpus_min if queue else 0 for queue in settings]
            own = [queue.gpus_max if queue else most for queue, most in zip(settings, self._maximum, strict=True)]
            maxima = [UNLIMITED if most is None else most for most in own]
            self._columns = QuotaColumns(
                *(np.array(c, np.int64) for c in (self._parent, self._counter, minima, maxima))
            )
        return self._columns

    def counter_of(self, queue: int) -> int:
        """The counter of a queue; -1 if none of its jobs has a node yet."""
        return self._numbers.get(queue, -1)

    def name(self, counter: int) -> str:
        """What a counter counts, in words."""
        what = next(what for what, number in self._numbers.items() if number == counter)
        return f"queue {self._queues.paths[what]}" if isinstance(what, int) else what

    def _with_user(self, queue: int, user: str, keeps: bool) -> int:
        limits, node = users_limits(self._limits, user), self.node(queue, "", keeps)
        if limits.gpus is not None:
            node = self._add(node, self._count(f"user {user}", limits.gpus))
        if keeps and limits.non_preemptible_gpus is not None:
            node = self._add(node, self._count(f"kept by user {user}", limits.non_preemptible_gpus))
        return node

    def _of_queue(self, queue: int, keeps: bool) -> int:
        above = self._queues.parent(queue)
        node = self._add(-1 if above < 0 else self.node(above, "", keeps), self._count(queue, None))
        path = self._queues.paths[queue]
        limits = self._limits.get(of_queue(path)) if keeps else None
        if limits is None or limits.non_preemptible_gpus is None:
            return node
        return self._add(node, self._count(f"kept in queue {path}", limits.non_preemptible_gpus))

    def _add(self, parent: int, counter: int) -> int:
        self._parent.append(parent)
        self._counter.append(counter)
        self._columns = None
        return len(self._parent) - 1

    def _count(self, what: int | str, most: int | None) -> int:
        if what not in self._numbers:
            self._numbers[what] = len(self._maximum)
            self._maximum.append(most)
        return self._numbers[what]


class QuotaUse:
    """GPUs in use by every counter, against its minimum and maximum."""

    def __init__(self, queues: QueueTree) -> None:
        self._quotas = queues.quotas
        self._parent, self._counter, self._minimum, self._maximum = queues.quotas.columns()
        self._used = np.zeros(len(self._maximum), np.int64)

    def allows(self, node: int, gpus: int) -> bool:
        """Whether `gpus` more GPUs keep all counters of a node within their maxima."""
        return not self.full(node, gpus)

    def guarantees(self, node: int, gpus: int) -> bool:
        """Whether `gpus` more GPUs are allowed, and within the minimum of a counter of the node."""
        within = any(self._used[counter] + gpus <= self._minimum[counter] for counter in self._path(node))
        return within and self.allows(node, gpus)

    def full(self, node: int, gpus: int) -> set[int]:
        """The counters of a node whose maximum `gpus` more GPUs would exceed."""
        return {counter for counter in self._path(node) if self._used[counter] + gpus > self._maximum[counter]}

    def room(self, node: int) -> int:
        """GPUs that jobs of a node may still get, by all its counters."""
        return int(min(self._maximum[counter] - self._used[counter] for counter in self._path(node)))

    def used_by_queue(self, queues: QueueTree) -> tuple[int, ...]:
        """GPUs in use, by queue."""
        numbers = [self._quotas.counter_of(queue) for queue in range(len(queues.paths))]
        return tuple(int(self._used[number]) if number >= 0 else 0 for number in numbers)

    def over(self) -> dict[str, int]:
        """GPUs of the counters that have more than their maximum, by name."""
        over = np.flatnonzero(self._used > self._maximum).tolist()
        return {self._quotas.name(counter): int(self._used[counter]) for counter in over}

    def within(self, node: int, counters: set[int]) -> bool:
        """Whether a node counts for one of these counters."""
        return not counters.isdisjoint(self._path(node))

    def add(self, node: int, gpus: int) -> None:
        """Count GPUs for all counters of a node."""
        for counter in self._path(node):
            self._used[counter] += gpus

    def _path(self, node: int) -> list[int]:
        return counters_up(node, self._parent, self._counter)


def counters_up(node: int, parent: Ints, counter: Ints) -> list[int]:
    """The counters of a node's chain."""
    path = []
    while node >= 0:
        path.append(int(counter[node]))
        node = int(parent[node])
    return path
