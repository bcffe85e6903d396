"""Slots: how the GPUs of each type are cut for gangs. Compiled.

A slot is as many GPUs of one type as a gang has. AlloX (EuroSys '20) has jobs of one GPU only, for which every GPU is a
slot. Where gang sizes mix, two rules of ours decide how many slots of each size there are:

1. Every job has a slot to queue for: from the largest gang down, a job whose size has no slot on any type that it can
   use gets one, on the type with the most GPUs left. If too few GPUs are left, it queues for the smallest larger slots.
2. The GPUs that are left are cut as jobs would take them in order of their GPU time, least first: each job a slot of
   its size on its fastest type that has room, in turns until no slot is of use.

Least GPU time first gives the least average completion time of gangs (Smith's rule). With one GPU for
each job the cut is every GPU, as far as there are jobs.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import INT, INTS, TABLE, compiled, inner

_COUNTS = "int64[:, ::1]"


@inner(INT, INT, INT, TABLE, _COUNTS)
def _smallest_slot(m: int, gpus: int, time_s: Floats, slots: Ints) -> int:
    """The smallest slot size of at least `gpus` on a type that the job can use; 0 if there is none."""
    for size in range(gpus, len(slots)):
        for gpu_type in range(time_s.shape[1]):
            if slots[size, gpu_type] > 0 and time_s[m, gpu_type] < np.inf:
                return size
    return 0


@inner(INT, INT, TABLE, INTS)
def _emptiest_type(m: int, time_s: Floats, left: Ints) -> int:
    """The type with the most GPUs left among those that the job can use."""
    best = -1
    for gpu_type in range(len(left)):
        if time_s[m, gpu_type] < np.inf and (best < 0 or left[gpu_type] > left[best]):
            best = gpu_type
    return best


@inner(INT, INT, INT, TABLE, INTS, _COUNTS, _COUNTS)
def _fastest_type_with_room(m: int, size: int, time_s: Floats, left: Ints, slots: Ints, users: Ints) -> int:
    """The fastest type for the job on which one more slot of a size fits and is of use; or -1."""
    best = -1
    for gpu_type in range(len(left)):
        fits = left[gpu_type] >= size and slots[size, gpu_type] < users[size, gpu_type]
        if fits and time_s[m, gpu_type] < np.inf and (best < 0 or time_s[m, gpu_type] < time_s[m, best]):
            best = gpu_type
    return best


@compiled("void", TABLE, INTS, INTS, INTS, INTS, _COUNTS, INTS)
def _cut(
    time_s: Floats, gpus: Ints, largest_first: Ints, least_service_first: Ints, left: Ints, slots: Ints, size: Ints
) -> None:
    """Cut the GPUs `left` of each type into `slots`; write to `size` the slot size for which each job queues."""
    users = np.zeros_like(slots)
    for m in largest_first:
        size[m] = _smallest_slot(m, gpus[m], time_s, slots)
        if size[m] != gpus[m]:
            gpu_type = _emptiest_type(m, time_s, left)
            if left[gpu_type] >= gpus[m]:
                size[m] = gpus[m]
                slots[gpus[m], gpu_type] += 1
                left[gpu_type] -= gpus[m]
        for gpu_type in range(len(left)):
            users[size[m], gpu_type] += time_s[m, gpu_type] < np.inf
    cutting = True
    while cutting:
        cutting = False
        for m in least_service_first:
            gpu_type = _fastest_type_with_room(m, size[m], time_s, left, slots, users)
            if gpu_type >= 0:
                slots[size[m], gpu_type] += 1
                left[gpu_type] -= size[m]
                cutting = True


def cut_slots(time_s: Floats, gpus: Ints, capacity: Ints) -> tuple[Ints, Ints]:
    """Slots by size (rows, 0 to the largest gang) and GPU type, and the slot size for which each job queues.

    `time_s`: seconds of each job (rows) on each type (columns); infinite where it cannot run. Every job must be able
    to run on some type.
    """
    slots = np.zeros((int(gpus.max()) + 1, len(capacity)), np.int64)
    size = np.zeros(len(gpus), np.int64)
    service = gpus * time_s.min(axis=1)
    left = capacity.astype(np.int64)
    _cut(time_s, gpus, np.argsort(-gpus, kind="stable"), np.argsort(service, kind="stable"), left, slots, size)
    return slots, size
