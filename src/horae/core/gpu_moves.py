"""GPUs change hands: seats, holders' columns and counts of free GPUs are changed together. Compiled."""

from __future__ import annotations

from typing import NamedTuple

from horae.core.arrays import Bools, Ints
from horae.core.jit import inlined, lean_when_called

NOBODY = -1
#: What `hold` gives when the GPUs cannot be had.
REFUSED = -2
#: Counts of GPUs: those without a holder, and those without an occupant, either.
FREE, IDLE = 0, 1
#: Columns by holder: its job, the job that shares the GPUs or -1, GPU count, lowest GPU.
LEAD, GUEST, SIZE, FIRST_GPU = 0, 1, 2, 3


class GpuColumns(NamedTuple):
    """All that changes when GPUs change hands, and where GPUs are."""

    #: By seat and GPU: rows.
    holders: Ints
    occupants: Ints
    #: By GPU.
    gpu_open: Bools
    gpu_node: Ints
    gpu_type: Ints
    #: FREE and IDLE open GPUs.
    by_node: Ints
    by_type: Ints
    #: The holders (see `Holdings`).
    columns: Ints
    next_gpu: Ints
    of_row: Ints


@inlined
def _count(what: int, gpu: int, by: int, gpus: GpuColumns) -> None:
    gpus.by_node[what, gpus.gpu_node[gpu]] += by
    gpus.by_type[what, gpus.gpu_type[gpu]] += by


@inlined
def _count_free(gpu_ids: Ints, by: int, gpus: GpuColumns) -> None:
    """Some GPUs got or lost their only holder."""
    for gpu in gpu_ids:
        if gpus.gpu_open[gpu]:
            _count(FREE, gpu, by, gpus)
            if gpus.occupants[0, gpu] == NOBODY:
                _count(IDLE, gpu, by, gpus)


@inlined
def _rise(row: int, gpu_ids: Ints, seats: Ints) -> None:
    """Leave GPUs; a job on the second seat moves up."""
    for gpu in gpu_ids:
        if seats[0, gpu] == row:
            seats[0, gpu] = seats[1, gpu]
        seats[1, gpu] = NOBODY


@lean_when_called
def hold(row: int, gpu_ids: Ints, count: int, gpus: GpuColumns) -> int:
    """Give a job GPUs, in rising order, as holder number `count`, or as the guest of the job that holds all of them.

    Gives that job, or NOBODY, or REFUSED: then nothing has changed.
    """
    host, h = gpus.holders[0, gpu_ids[0]], count
    if host != NOBODY:
        h = gpus.of_row[host]
        if gpus.columns[SIZE, h] != len(gpu_ids) or gpus.columns[GUEST, h] != NOBODY:
            return REFUSED
    for gpu in gpu_ids:
        if gpus.holders[0, gpu] != host:
            return REFUSED
    for at in range(len(gpu_ids)):
        gpus.holders[0 if host == NOBODY else 1, gpu_ids[at]] = row
        if host == NOBODY:
            gpus.next_gpu[gpu_ids[at]] = gpu_ids[at + 1] if at + 1 < len(gpu_ids) else NOBODY
    gpus.of_row[row] = h
    if host == NOBODY:
        gpus.columns[LEAD, h], gpus.columns[GUEST, h] = row, NOBODY
        gpus.columns[SIZE, h], gpus.columns[FIRST_GPU, h] = len(gpu_ids), gpu_ids[0]
        _count_free(gpu_ids, -1, gpus)
    else:
        gpus.columns[GUEST, h] = row
    return host


@lean_when_called
def drop(row: int, gpu_ids: Ints, count: int, gpus: GpuColumns) -> int:
    """A job has its GPUs no more; the job that shared them keeps them. Gives the number of holders that are left."""
    h = gpus.of_row[row]
    guest = gpus.columns[GUEST, h]
    gpus.of_row[row] = NOBODY
    _rise(row, gpu_ids, gpus.holders)
    if guest != NOBODY:
        if gpus.columns[LEAD, h] == row:
            gpus.columns[LEAD, h] = guest
        gpus.columns[GUEST, h] = NOBODY
        return count
    _count_free(gpu_ids, 1, gpus)
    last = count - 1
    if h != last:
        # The last holder takes the number of the one that left.
        for column in range(len(gpus.columns)):
            gpus.columns[column, h] = gpus.columns[column, last]
        gpus.of_row[gpus.columns[LEAD, h]] = h
        if gpus.columns[GUEST, h] != NOBODY:
            gpus.of_row[gpus.columns[GUEST, h]] = h
    return last


@lean_when_called
def is_vacant(gpu_ids: Ints, gpus: GpuColumns) -> bool:
    """Whether only jobs that hold these GPUs sit on them."""
    for gpu in gpu_ids:
        for seat in range(2):
            sitting = gpus.occupants[seat, gpu]
            if sitting != NOBODY and sitting != gpus.holders[0, gpu] and sitting != gpus.holders[1, gpu]:
                return False
    return True


@lean_when_called
def occupy(row: int, gpu_ids: Ints, gpus: GpuColumns) -> bool:
    """A job moves onto the GPUs it holds; False if it cannot: then nothing has changed."""
    if not is_vacant(gpu_ids, gpus):
        return False
    for gpu in gpu_ids:
        gpus.occupants[0 if gpus.occupants[0, gpu] == NOBODY else 1, gpu] = row
    return True


@lean_when_called
def vacate(row: int, gpu_ids: Ints, gpus: GpuColumns) -> None:
    """A job's processes have left these GPUs."""
    _rise(row, gpu_ids, gpus.occupants)
    for gpu in gpu_ids:
        if gpus.holders[0, gpu] == NOBODY and gpus.occupants[0, gpu] == NOBODY and gpus.gpu_open[gpu]:
            _count(IDLE, gpu, 1, gpus)
