"""Minimum and maximum GPUs of queues, up the tree. Compiled."""

from __future__ import annotations

from horae.core.jit import BOOL, INT, INTS, inner
from horae.placement.kernel_args import Ints


@inner(BOOL, INT, INT, INTS, INTS, INTS)
def within_top(queue: int, gpus: int, parent: Ints, top: Ints, used: Ints) -> bool:
    """Whether a queue and all above it may have so many GPUs more."""
    while queue >= 0:
        if used[queue] + gpus > top[queue]:
            return False
        queue = parent[queue]
    return True


@inner(BOOL, INT, INT, INTS, INTS, INTS)
def below_low(queue: int, gpus: int, parent: Ints, low: Ints, used: Ints) -> bool:
    """Whether a queue or one above it would still be within what it is guaranteed."""
    while queue >= 0:
        if used[queue] + gpus <= low[queue]:
            return True
        queue = parent[queue]
    return False


@inner("void", INT, INT, INTS, INTS)
def use(queue: int, gpus: int, parent: Ints, used: Ints) -> None:
    """Count GPUs given to a queue, and so to all above it."""
    while queue >= 0:
        used[queue] += gpus
        queue = parent[queue]


@inner("void", INT, INT, INT, INTS, INTS, INTS)
def charge(row: int, partner: int, gpus: int, queue: Ints, parent: Ints, used: Ints) -> None:
    """Count GPUs given to a job, and to the one it shares them with, if any."""
    use(queue[row], gpus, parent, used)
    if partner >= 0:
        use(queue[partner], gpus, parent, used)


@inner(BOOL, INT, INT, INT, INT, INTS, INTS, INTS, INTS)
def affordable(row: int, partner: int, gpus: int, back: int, queue: Ints, parent: Ints, top: Ints, used: Ints) -> bool:
    """Whether the queues of a job, and of the one it is to share with, may have so many GPUs more.

    `back` is what the partner has now, and gives back.
    """
    if partner < 0:
        return within_top(queue[row], gpus, parent, top, used)
    use(queue[partner], -back, parent, used)
    fits = within_top(queue[row], gpus, parent, top, used)
    use(queue[row], gpus, parent, used)
    fits = fits and within_top(queue[partner], gpus, parent, top, used)
    use(queue[row], -gpus, parent, used)
    use(queue[partner], back, parent, used)
    return fits
