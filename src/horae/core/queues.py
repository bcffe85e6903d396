"""The queue tree: weight, sharing rule and quota of each queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from horae.core.arrays import Ints
from horae.core.declared import Stored
from horae.core.errors import UserError
from horae.core.limits import Limits, check_limits
from horae.core.quotas import UNLIMITED, QuotaTree, counters_up


class UnknownQueues(StrEnum):
    """What becomes of a job for a queue that nobody configured. Stored: the values stay."""

    #: The queue is there from then on.
    OPEN = "open"
    #: The job is refused.
    REFUSE = "refuse"
    #: The queue is there below `users/NAME`, with the other queues of that user.
    USERS = "users"


class BadQueue(UserError):
    """A queue with a setting that is not allowed."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One node of the queue tree, named by its path (`org/team/user`).

    `weight` and `rule` count only in policies that use them. `gpus_min`, the guaranteed
    minimum, and `gpus_max`, the quota, hold under every policy and include all queues
    below this queue. `members` may submit to it, `admins` may also act on its jobs; both hold for the queues
    below it, and a service looks at them.
    """

    path: str
    weight: float = 1.0
    rule: str = "fairness"
    gpus_min: int = 0
    gpus_max: int | None = None
    #: Users, or groups of the service's machine (`@NAME`). Without members above or here, everybody may submit.
    members: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()

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
        "limits": Stored(dict[str, Limits]),
    }

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self._parent_column: Ints | None = None
        self._build((), queues, {})

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values."""
        return {"queue_paths": tuple(self.paths), "queues": self.configured, "limits": dict(self.limits)}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave."""
        self._build(contents["queue_paths"], contents["queues"], contents.get("limits", {}))

    def _build(self, paths: Iterable[str], queues: Iterable[Queue], limits: Mapping[str, Limits]) -> None:
        """Number the paths in the given order and configure the queues."""
        self.paths: list[str] = [""]
        self._queues: list[Queue | None] = [None]
        self._parents: list[int] = [-1]
        self._numbers: dict[str, int] = {"": 0}
        #: Limits of users and queues, by whom they are for.
        self.limits: dict[str, Limits] = {}
        self.quotas = QuotaTree(self, {})
        for path in paths:
            self.number(path)
        self.configure(queues, limits)

    def configure(self, queues: Iterable[Queue] = (), limits: Mapping[str, Limits] | None = None) -> None:
        """Set or replace the settings of some queues, and some limits; limits without any value are dropped.

        New limits give jobs new quota nodes: `JobTable.find_quotas` follows.
        """
        for queue in queues:
            self._queues[self.number(queue.path)] = queue
        for whom, found in (limits or {}).items():
            check_limits(whom, found)
            self.limits[whom] = found
        self.limits = {whom: found for whom, found in self.limits.items() if found.any}
        if limits:
            self.quotas = QuotaTree(self, self.limits)
        self.quotas.forget_columns()
        #: Whether any queue is guaranteed GPUs, and whether any queue or user is limited.
        self.has_minimum = any(queue.gpus_min > 0 for queue in self.configured)
        limited = any(queue.gpus_max is not None for queue in self.configured)
        self.has_maximum = limited or self.quotas.limits_users

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
        self._parent_column = None
        return self._numbers[path]

    def __getitem__(self, number: int) -> Queue:
        return self._queues[number] or Queue(self.paths[number] or "root")

    def parent(self, number: int) -> int:
        """Number of the queue above; -1 above the root."""
        return self._parents[number]

    @property
    def configured(self) -> tuple[Queue, ...]:
        """The queues with settings of their own."""
        return tuple(queue for queue in self._queues if queue is not None)

    def share_maximum(self, node: int, other: int) -> bool:
        """Whether two quota nodes have a counter in common that has a maximum."""
        parent, counter, _, maximum = self.quotas.columns()
        shared = set(counters_up(node, parent, counter)) & set(counters_up(other, parent, counter))
        return any(maximum[number] < UNLIMITED for number in shared)

    def parents(self) -> Ints:
        """The number of the queue above each queue; -1 above the root."""
        if self._parent_column is None:
            self._parent_column = np.array(self._parents, dtype=np.int64)
        return self._parent_column
