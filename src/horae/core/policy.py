"""What a policy is: a snapshot and its memory in, wishes out."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Ints
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes


class Policy(Protocol):
    """Which jobs should run. Pure: a policy may cache, but remembers only in the memory it declares.

    A policy from outside need not inherit from this class, and may leave `memory` out. Its settings are the fields
    of a dataclass; `objective`, `unit` and `paper`, where it has them, are shown to people.
    """

    memory: MemorySpec = MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Turn what is into what should be."""
        ...


@runtime_checkable
class Particular(Protocol):
    """A policy whose settings do not go with every cluster and workload."""

    def check(self, gpu_types: tuple[str, ...], pairs_known: bool) -> None:
        """Refuse these GPU types, or that nobody knows how fast two jobs on the same GPUs are, with a `UserError`."""
        ...


@runtime_checkable
class Relaxing(Protocol):
    """A policy that keeps deadlines, and gives up those that cannot be met."""

    def relaxed(self, memory: Memory, rows: Ints) -> NDArray[np.bool_]:
        """Which jobs' deadlines were given up while they still lay ahead."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A policy that counts things on the way that people want to know."""

    def counters(self, memory: Memory) -> dict[str, int]:
        """What was counted, by name."""
        ...
