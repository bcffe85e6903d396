"""The columns that compiled placement works on, and what their numbers stand for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

#: The pool of a GPU that takes no jobs.
CLOSED = -1
#: A job with GPUs whose turn has not come; one that keeps them; one that lost them; one that got others instead.
UNDECIDED, KEEPS, DISPLACED, MOVES = 0, 1, 2, 3


class Asked(NamedTuple):
    """The wishes; an empty column takes what the job says."""

    now_s: float
    job: Ints
    key: Floats
    gpu_type: Ints
    gpus_min: Ints
    gpus_max: Ints
    partner: Ints
    preempt: bool
    #: Whether jobs lose GPUs to others as long as nobody has a reservation.
    takes: bool
    blocking: bool
    waiting: int
    #: The row that GPUs are reserved for, -1 if for nobody.
    head: int


class Columns(NamedTuple):
    """The columns of the job table that placement looks at."""

    state: Bytes
    reason: Bytes
    gpus_min: Ints
    gpus_max: Ints
    types: Ints
    rates: Floats
    skew: Floats
    queue: Ints
    protected_until_s: Floats
    waiting_since_s: Floats
    since_s: Floats
    work_left: Floats
    rate: Floats
    best_rate: Floats


class Pools(NamedTuple):
    """GPUs grouped by what the rule counts by: those of pool p are `gpus[first[p]:first[p + 1]]`."""

    rule: int
    #: Skew above which a job is consolidated, where the rule goes by skew.
    pack_limit: float
    flat: bool
    racks: int
    gpu_pool: Ints
    gpu_type: Ints
    gpu_node: Ints
    node_rack: Ints
    first: Ints
    gpus: Ints
    type: Ints
    rack: Ints
    capacity: Ints
    by_capacity: Ints
    type_capacity: Ints
    #: Whether some GPUs take no jobs now.
    shrunk: bool


class Quotas(NamedTuple):
    """Parent, minimum and maximum GPUs of every queue, and the GPUs given so far."""

    parent: Ints
    low: Ints
    top: Ints
    used: Ints
    guaranteed: bool
    limited: bool


class Result(NamedTuple):
    """Room for the answer; `fit` says how much of it was used."""

    stopped: Ints
    taker: Ints
    row: Ints
    first: Ints
    gpu_ids: Ints
    span: Ints
    ready: Bools
    kept: Ints
    changed: Ints
    codes: Bytes
    node_free: Ints
