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
    of a dataclass; `objective`, `unit` and `paper`, where it has them, are shown to people. With `type_aware = False`
    it says that it does not go by the speeds of jobs on GPU types, and users are told where these differ. With
    `preempts = False` it says that it never preempts, and users are not told what that means for jobs that do not save.
    With `chooses_machines = True` it says that it pins jobs to machines and does not look at `nodes`; jobs that ask for
    a number of nodes are refused then.
    """

    memory: MemorySpec = MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Which jobs should run, in which order, on what."""
        ...


@runtime_checkable
class ChecksCluster(Protocol):
    """A policy that does not work with every cluster and workload."""

    def check(self, gpu_types: tuple[str, ...], pairs_known: bool) -> None:
        """Raise a `UserError` if the policy cannot work with these GPU types, or without speeds of pairs of jobs."""
        ...


@runtime_checkable
class RelaxesDeadlines(Protocol):
    """A policy that keeps deadlines and relaxes the deadlines that cannot be met."""

    def relaxed(self, memory: Memory, rows: Ints) -> NDArray[np.bool_]:
        """Whether each row's deadline was relaxed before it passed."""
        ...


@runtime_checkable
class CountsEvents(Protocol):
    """A policy that counts things for reports, such as auctions."""

    def counters(self, memory: Memory) -> dict[str, int]:
        """Counts by name."""
        ...
