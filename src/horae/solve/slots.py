"""How the GPUs of each type are cut into slots for gangs. Compiled.

A slot is as many GPUs of one type as a gang has. AlloX (EuroSys '20) knows jobs of one GPU
only, for which every GPU is a slot; where sizes mix, somebody has to say how many slots of
each size there are. Two rules do:

1. Every job has a slot to queue for: from the largest gang down, one whose size has no slot
   on any type that it can use has one cut, on the type with the most GPUs left. If those of
   larger gangs left too little, it queues for the smallest of theirs.
2. The rest is cut as jobs would take it in order of their GPU time, the least first: each a
   slot of its size on its fastest type that has room, in turns until nothing more is of use.

The least GPU time first is how gangs end soonest on average (Smith's rule). With one GPU for
each job the cut is every GPU, as far as there are jobs.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import INT, INTS, TABLE, compiled, inner

_COUNTS = "int64[:, ::1]"


@inner(INT, INT, INT, TABLE, _COUNTS)
def _own_or_larger(m: int, gpus: int, time_s: Floats, slots: Ints) -> int:
    """The smallest size of at least `gpus` that has a slot on a type that the job can use; 0 if there is none."""
    for size in range(gpus, len(slots)):
        for gpu_type in range(time_s.shape[1]):
            if slots[size, gpu_type] > 0 and time_s[m, gpu_type] < np.inf:
                return size
    return 0


@inner(INT, INT, TABLE, INTS)
def _roomiest(m: int, time_s: Floats, left: Ints) -> int:
    """The type with the most GPUs left among those that the job can use."""
    best = -1
    for gpu_type in range(len(left)):
        if time_s[m, gpu_type] < np.inf and (best < 0 or left[gpu_type] > left[best]):
            best = gpu_type
    return best


@inner(INT, INT, INT, TABLE, INTS, _COUNTS, _COUNTS)
def _fastest_with_room(m: int, size: int, time_s: Floats, left: Ints, slots: Ints, users: Ints) -> int:
    """The type on which the job is fastest, of those where one more slot of a size fits and is of use; or -1."""
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
    """Cut what is `left` of each type into `slots`, and say in `size` which ones each job queues for."""
    users = np.zeros_like(slots)
    for m in largest_first:
        size[m] = _own_or_larger(m, gpus[m], time_s, slots)
        if size[m] != gpus[m]:
            gpu_type = _roomiest(m, time_s, left)
            if left[gpu_type] >= gpus[m]:
                size[m] = gpus[m]
                slots[gpus[m], gpu_type] += 1
                left[gpu_type] -= gpus[m]
        for gpu_type in range(len(left)):
            users[size[m], gpu_type] += time_s[m, gpu_type] < np.inf
    anything = True
    while anything:
        anything = False
        for m in least_service_first:
            gpu_type = _fastest_with_room(m, size[m], time_s, left, slots, users)
            if gpu_type >= 0:
                slots[size[m], gpu_type] += 1
                left[gpu_type] -= size[m]
                anything = True


def cut_slots(time_s: Floats, gpus: Ints, capacity: Ints) -> tuple[Ints, Ints]:
    """Slots by size (rows 0 up to the largest gang) and GPU type, and the size of those each job queues for.

    `time_s` is how long each job (rows) takes on each type (columns), infinite where it
    cannot run; everybody must be able to run somewhere.
    """
    slots = np.zeros((int(gpus.max()) + 1, len(capacity)), np.int64)
    size = np.zeros(len(gpus), np.int64)
    service = gpus * time_s.min(axis=1)
    left = capacity.astype(np.int64)
    _cut(time_s, gpus, np.argsort(-gpus, kind="stable"), np.argsort(service, kind="stable"), left, slots, size)
    return slots, size
