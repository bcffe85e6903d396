"""The queue tree: weight, sharing rule and quota of each queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Ints
from horae.core.declared import Stored
from horae.core.errors import UserError

#: No maximum, in the column of maxima.
UNLIMITED = 1 << 40


class BadQueue(UserError):
    """A queue with a setting that is not allowed."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One node of the queue tree, named by its path (`org/team/user`).

    `weight` and `rule` count only in policies that use them. `gpus_min`, the guaranteed
    minimum, and `gpus_max`, the quota, hold under every policy and include all queues
    below this queue.
    """

    path: str
    weight: float = 1.0
    rule: str = "fairness"
    gpus_min: int = 0
    gpus_max: int | None = None

    def __post_init__(self) -> None:
        if not self.path or any(not part for part in self.path.split("/")):
            raise BadQueue(f"Queue {self.path!r} is not a path such as org/team/user.")
        if self.rule not in ("fairness", "fifo"):
            raise BadQueue(f"Queue {self.path!r} has the rule {self.rule!r}; use fairness or fifo.")
        if not 0 < self.weight < float("inf"):
            raise BadQueue(f"Queue {self.path!r} has the weight {self.weight}; it must be above 0.")
        if self.gpus_min < 0 or (self.gpus_max is not None and self.gpus_max < self.gpus_min):
            raise BadQueue(f"Queue {self.path!r} needs 0 <= gpus_min <= gpus_max.")


def quota_below(gpus: int, path: str, queues: Iterable[Queue]) -> Queue | None:
    """The first queue on the way down a path whose quota is less than this GPU count; None where all have room."""
    limited = {queue.path: queue for queue in queues if queue.gpus_max is not None and queue.gpus_max < gpus}
    parts = path.split("/")
    on_path = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return next((limited[name] for name in on_path if name in limited), None)


class QueueTree:
    """All queues as columns, parents before children. Queue 0 is the root, above every path.

    A queue that a job names without anybody having configured it has the default settings.
    """

    STORED: ClassVar[dict[str, Stored]] = {
        "queue_paths": Stored(tuple[str, ...]),
        "queues": Stored(tuple[Queue, ...]),
    }

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self._columns: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None
        self._build((), queues)

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values."""
        return {"queue_paths": tuple(self.paths), "queues": self.configured}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave."""
        self._build(contents["queue_paths"], contents["queues"])

    def _build(self, paths: Iterable[str], queues: Iterable[Queue]) -> None:
        """Number the paths in the given order and configure the queues."""
        self.paths: list[str] = [""]
        self._queues: list[Queue | None] = [None]
        self._parents: list[int] = [-1]
        self._numbers: dict[str, int] = {"": 0}
        for path in paths:
            self.number(path)
        self.configure(queues)

    def configure(self, queues: Iterable[Queue]) -> None:
        """Set or replace the settings of some queues."""
        for queue in queues:
            self._queues[self.number(queue.path)] = queue
        self._columns = None
        #: Whether any queue is guaranteed GPUs, and whether any is limited.
        self.has_minimum = any(queue.gpus_min > 0 for queue in self.configured)
        self.has_maximum = any(queue.gpus_max is not None for queue in self.configured)

    def number(self, path: str) -> int:
        """Number of a queue, which is added (with its parents) if it is new."""
        number = self._numbers.get(path)
        if number is not None:
            return number
        parent = self.number(path.rpartition("/")[0])
        self._numbers[path] = len(self.paths)
        self.paths.append(path)
        self._queues.append(None)
        self._parents.append(parent)
        self._columns = None
        return self._numbers[path]

    def __getitem__(self, number: int) -> Queue:
        return self._queues[number] or Queue(self.paths[number] or "root")

    @property
    def configured(self) -> tuple[Queue, ...]:
        """The queues with settings of their own."""
        return tuple(queue for queue in self._queues if queue is not None)

    def share_maximum(self, queue: int, other: int) -> bool:
        """Whether two queues are, or lie below, one that has a maximum."""
        parent, _, maximum = self.columns()
        shared = set(path_up(queue, parent)) & set(path_up(other, parent))
        return any(maximum[above] < UNLIMITED for above in shared)

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Parent, minimum and maximum GPUs of every queue."""
        if self._columns is None:
            minima = [queue.gpus_min if queue else 0 for queue in self._queues]
            maxima = [
                UNLIMITED if queue is None or queue.gpus_max is None else queue.gpus_max for queue in self._queues
            ]
            self._columns = (
                np.array(self._parents, dtype=np.int64),
                np.array(minima, dtype=np.int64),
                np.array(maxima, dtype=np.int64),
            )
        return self._columns


class QueueUse:
    """GPUs in use by every queue, queues below it included, against its minimum and maximum."""

    def __init__(self, queues: QueueTree) -> None:
        self._parent, self._minimum, self._maximum = queues.columns()
        self._used = np.zeros(len(self._maximum), np.int64)

    def allows(self, queue: int, gpus: int) -> bool:
        """Whether `gpus` more GPUs keep the queue and all queues above it within their maxima."""
        return not self.full(queue, gpus)

    def guarantees(self, queue: int, gpus: int) -> bool:
        """Whether `gpus` more GPUs are allowed, and within the minimum of the queue or of a queue above it."""
        within = any(self._used[above] + gpus <= self._minimum[above] for above in self._path(queue))
        return within and self.allows(queue, gpus)

    def full(self, queue: int, gpus: int) -> set[int]:
        """The queue and the queues above it whose maximum `gpus` more GPUs would exceed."""
        return {above for above in self._path(queue) if self._used[above] + gpus > self._maximum[above]}

    @property
    def used(self) -> tuple[int, ...]:
        """GPUs in use, by queue."""
        return tuple(self._used.tolist())

    def within(self, queue: int, others: set[int]) -> bool:
        """Whether a queue is among `others` or below a queue of `others`."""
        return not others.isdisjoint(self._path(queue))

    def add(self, queue: int, gpus: int) -> None:
        """Count GPUs for a queue and all queues above it."""
        for above in self._path(queue):
            self._used[above] += gpus

    def _path(self, queue: int) -> list[int]:
        return path_up(queue, self._parent)


def path_up(queue: int, parent: Ints) -> list[int]:
    """The queue and the queues above it, up to the root; `parent` is the first of `QueueTree.columns`."""
    path = []
    while queue >= 0:
        path.append(queue)
        queue = int(parent[queue])
    return path
