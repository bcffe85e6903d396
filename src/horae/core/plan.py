"""What a placement rule makes of the wishes: which jobs get, keep and lose which GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Ints
from horae.core.cluster import Span
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs for one job. `ready` says that all of them are free now."""

    row: int
    gpu_ids: tuple[int, ...]
    span: Span
    ready: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What a placement rule made of the wishes, in rows of the job table."""

    #: (row that loses its GPUs, row that gets them or -1).
    stopped: tuple[tuple[int, int], ...]
    placed: tuple[Placement, ...]
    #: Rows that keep the GPUs they have, with lease expired.
    renewed: tuple[int, ...]
    reason_rows: Ints
    reason_codes: NDArray[np.uint8]
    node_free: Ints
    #: Row that GPUs are held back for, or -1.
    head: int
    #: When the first protected job that stands in somebody's way loses its protection.
    unprotected_s: float


class PlacementRule(Protocol):
    """Where they run. Pure: wishes and GPUs in, plan out."""

    @property
    def flat(self) -> bool:
        """Whether only the count matters: all GPUs of a type are one big machine."""
        ...

    def fit(self, now: Snapshot, wishes: Wishes) -> Plan:
        """Turn wishes into GPUs."""
        ...
