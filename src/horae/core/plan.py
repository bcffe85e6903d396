"""What a placement rule makes of the wishes: which jobs get, keep and lose which GPUs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.cluster import Span
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes


class Placement(NamedTuple):
    """GPUs for a job. `ready` says that all of them are free now."""

    row: int
    gpu_ids: tuple[int, ...]
    span: Span
    ready: bool


class Kept(NamedTuple):
    """Jobs that keep their GPUs though others go before them, as columns: row, and until when."""

    rows: Ints
    until_s: Floats


class Plan(NamedTuple):
    """What a placement rule made of the wishes. Jobs are rows of the job table."""

    #: (row that loses its GPUs, row that gets them or -1).
    stopped: tuple[tuple[int, int], ...]
    placed: tuple[Placement, ...]
    #: Rows whose lease has expired and that keep their GPUs.
    renewed: tuple[int, ...]
    reason_rows: Ints
    reason_codes: NDArray[np.uint8]
    #: Row of the job that has a reservation, or -1.
    head: int
    #: When the first lease or minimum run time of a job that blocks a wish ends.
    unprotected_s: float
    #: Jobs that keep others from GPUs for now; None where no job waits for that.
    kept: Kept | None = None


class PlacementRule(Protocol):
    """Chooses GPUs for wishes. Pure: snapshot and wishes in, plan out."""

    @property
    def flat(self) -> bool:
        """Whether only the GPU count matters: all GPUs of a type count as one machine."""
        ...

    def fit(self, now: Snapshot, wishes: Wishes) -> Plan:
        """Choose the GPUs of jobs, and the jobs that lose GPUs."""
        ...
