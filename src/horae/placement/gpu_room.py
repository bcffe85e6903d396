"""CPUs and memory beside GPUs: for how many GPUs of a job each node has them. Compiled.

Nothing here is called unless a job asks for more than a GPU's share (`Floor.scarce`); then every pool is a node. For
each column of GPU counts, FREE to TRIAL, `Floor.room` has such columns of CPUs and of memory. They change together.
"""

from __future__ import annotations

from horae.core.jit import inlined, lean
from horae.placement.kernel_args import (
    BY_CAPACITY,
    CAPACITY,
    CLOSED,
    CONTESTED,
    FIRST_GPU,
    FIT,
    FREE,
    GUEST,
    IDLE,
    LATE,
    LEAD,
    NODE_OF,
    NONE,
    OPEN_GPUS,
    POOL_OF,
    POOL_TYPE,
    REACH,
    RESOURCES,
    ROOM_SHARE,
    ROOM_SOURCES,
    ROOM_TOTAL,
    TRIAL,
    Floor,
)


@lean
def room_need(what: int, row: int, partner: int, node: int, floor: Floor) -> int:
    """What a job, alone or with a partner (-1 for none), takes with one GPU of a node: as `core/node_room.py` says."""
    first = floor.asks[what, row]
    second = floor.asks[what, partner] if partner >= 0 else 0
    if first == 0 or (partner >= 0 and second == 0):
        return max(first + second, floor.room[ROOM_SHARE + what, node])
    return first + second


@lean
def change_room(source: int, node: int, gpus: int, row: int, partner: int, floor: Floor) -> None:
    """Add what a job takes with some GPUs of a node to a column of room; a negative number of GPUs takes it away."""
    for what in range(RESOURCES):
        floor.room[what * ROOM_SOURCES + source, node] += gpus * room_need(what, row, partner, node, floor)


@lean
def add_room(h: int, source: int, sign: int, floor: Floor) -> None:
    """Add what a holder takes on its open GPUs to a column of room, or take it away (`sign` -1)."""
    row, guest = floor.held[LEAD, h], floor.held[GUEST, h]
    if floor.counters[CONTESTED]:
        row, guest = floor.holders[LEAD, h], floor.holders[GUEST, h]
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        if floor.by_gpu[POOL_OF, gpu] != CLOSED:
            change_room(source, floor.by_gpu[POOL_OF, gpu], sign, row, guest, floor)
        gpu = floor.next_gpu[gpu]


@lean
def change_partner(h: int, source: int, sign: int, row: int, partner: int, floor: Floor) -> None:
    """Add what a partner takes beside a job on the open GPUs of a holder to a column of room, or take it away."""
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        node = floor.by_gpu[POOL_OF, gpu]
        if node != CLOSED:
            change_room(source, node, sign, row, partner, floor)
            change_room(source, node, -sign, row, NONE, floor)
        gpu = floor.next_gpu[gpu]


@lean
def lacks_room(source: int, node: int, gpus: int, row: int, partner: int, floor: Floor) -> bool:
    """Whether a node has too few CPUs or too little memory for some GPUs of a job."""
    lacks = False
    for what in range(RESOURCES):
        need = gpus * room_need(what, row, partner, node, floor)
        lacks = lacks or (need > 0 and floor.room[what * ROOM_SOURCES + source, node] < need)
    return lacks


@lean
def lacks_for_partner(node: int, row: int, partner: int, floor: Floor) -> bool:
    """Whether a node has too little left for a partner to join a job on one GPU."""
    lacks = False
    for what in range(RESOURCES):
        more = room_need(what, row, partner, node, floor) - room_need(what, row, NONE, node, floor)
        lacks = lacks or (more > 0 and floor.room[what * ROOM_SOURCES + FREE, node] < more)
    return lacks


@lean
def has_room_to_stay(h: int, row: int, partner: int, floor: Floor) -> bool:
    """Whether a job and its partner could have what they need where a holder is, if all in reach gave theirs up."""
    fits, gpu = True, floor.held[FIRST_GPU, h]
    while gpu >= 0:
        node = floor.by_gpu[POOL_OF, gpu]
        if node != CLOSED:
            fits = fits and not lacks_room(REACH, node, 1, row, partner, floor)
            change_room(REACH, node, -1, row, partner, floor)
        elif partner >= 0 and partner != floor.holders[GUEST, h]:
            # What a node has that takes no jobs is not known: nobody may take more there.
            for what in range(RESOURCES):
                alone = room_need(what, row, NONE, floor.by_gpu[NODE_OF, gpu], floor)
                fits = fits and room_need(what, row, partner, floor.by_gpu[NODE_OF, gpu], floor) <= alone
        gpu = floor.next_gpu[gpu]
    gpu = floor.held[FIRST_GPU, h]
    while gpu >= 0:
        if floor.by_gpu[POOL_OF, gpu] != CLOSED:
            change_room(REACH, floor.by_gpu[POOL_OF, gpu], 1, row, partner, floor)
        gpu = floor.next_gpu[gpu]
    return fits


@lean
def _gpus_within(first_column: int, step: int, gpus: int, node: int, row: int, partner: int, floor: Floor) -> int:
    """How many of some GPUs of a node the CPUs (in the first column) and the memory (`step` columns on) suffice for."""
    for what in range(RESOURCES):
        need = room_need(what, row, partner, node, floor)
        if need > 0:
            gpus = min(gpus, floor.room[first_column + what * step, node] // need)
    return max(gpus, 0)


@lean
def fit_counts(source: int, row: int, partner: int, floor: Floor) -> None:
    """Write the GPUs of a column that a job could use into the column FIT of room."""
    for node in range(floor.by_pool.shape[1]):
        gpus = floor.by_pool[source, node]
        floor.room[FIT, node] = _gpus_within(source, ROOM_SOURCES, gpus, node, row, partner, floor)


@lean
def gpus_within(source: int, gpus: int, node: int, row: int, floor: Floor) -> int:
    """How many of some GPUs of a node a job that is alone could use."""
    return _gpus_within(source, ROOM_SOURCES, gpus, node, row, NONE, floor)


@lean
def fit_capacity(row: int, partner: int, floor: Floor) -> None:
    """Let CAPACITY be the GPUs that a job could use if all nodes were empty, and BY_CAPACITY the order by that.

    Without a job (-1) they are all open GPUs.
    """
    most, count = 0, floor.by_pool.shape[1]
    for node in range(count):
        gpus = floor.room[OPEN_GPUS, node]
        if row >= 0:
            gpus = _gpus_within(ROOM_TOTAL, 1, gpus, node, row, partner, floor)
        floor.by_pool[CAPACITY, node] = gpus
        most = max(most, gpus)
    at = 0
    for gpus in range(most, -1, -1):
        for node in range(count):
            if floor.by_pool[CAPACITY, node] == gpus:
                floor.by_pool[BY_CAPACITY, at] = node
                at += 1


@lean
def could_have_room(gpus: int, nodes: int, types: int, row: int, floor: Floor) -> bool:
    """Whether a gang, with its CPUs and memory, would fit onto open GPUs of one type if all were free.

    CAPACITY is left as `fit_capacity` makes it for the job.
    """
    fit_capacity(row, NONE, floor)
    for gpu_type in range(floor.by_type.shape[1] if nodes == 0 or gpus % nodes == 0 else 0):
        held, enough = 0, 0
        for node in range(floor.by_pool.shape[1]):
            if types >> gpu_type & 1 and floor.by_pool[POOL_TYPE, node] == gpu_type:
                held += floor.by_pool[CAPACITY, node]
                enough += 1 if nodes > 0 and floor.by_pool[CAPACITY, node] * nodes >= gpus else 0
        if (nodes == 0 and held >= gpus) or (nodes > 0 and enough >= nodes):
            return True
    return False


@lean
def grant_room(node: int, gpus: int, late: bool, row: int, partner: int, floor: Floor) -> None:
    """A job gets GPUs of a node, and what it takes with them; `late` if it runs into a reservation."""
    for what in range(RESOURCES):
        need, first = gpus * room_need(what, row, partner, node, floor), what * ROOM_SOURCES
        floor.room[first + FREE, node] -= need
        floor.room[first + REACH, node] -= need
        floor.room[first + IDLE, node] -= need
        left = floor.room[first + LATE, node] - (need if late else 0)
        floor.room[first + LATE, node] = min(left, floor.room[first + FREE, node])


@inlined
def copy_room(source: int, target: int, floor: Floor) -> None:
    """Copy one column of room to another."""
    for what in range(RESOURCES):
        for node in range(floor.room.shape[1]):
            floor.room[what * ROOM_SOURCES + target, node] = floor.room[what * ROOM_SOURCES + source, node]


@lean
def keep_late_room(floor: Floor) -> None:
    """What may be used beyond a reservation: what is free, as far as it is left in TRIAL beside the reservation."""
    for what in range(RESOURCES):
        first = what * ROOM_SOURCES
        for node in range(floor.room.shape[1]):
            left = min(floor.room[first + FREE, node], floor.room[first + TRIAL, node])
            floor.room[first + LATE, node] = max(0, left)
