"""Minimum and maximum GPUs of queues, up the tree. Compiled."""

from __future__ import annotations

from horae.core.arrays import Ints
from horae.core.jit import inlined, lean
from horae.placement.kernel_args import MAXIMUM, MINIMUM, PARENT, USED


@lean
def within_maximum(queue: int, gpus: int, quotas: Ints) -> bool:
    """Whether a queue and all above it may have this many GPUs more."""
    while queue >= 0:
        if quotas[USED, queue] + gpus > quotas[MAXIMUM, queue]:
            return False
        queue = quotas[PARENT, queue]
    return True


@inlined
def within_minimum(queue: int, gpus: int, quotas: Ints) -> bool:
    """Whether a queue or one above it would still be within its guaranteed minimum."""
    while queue >= 0:
        if quotas[USED, queue] + gpus <= quotas[MINIMUM, queue]:
            return True
        queue = quotas[PARENT, queue]
    return False


@lean
def use(queue: int, gpus: int, quotas: Ints) -> None:
    """Count GPUs given to a queue, and so to all above it; a negative number is given back."""
    while queue >= 0:
        quotas[USED, queue] += gpus
        queue = quotas[PARENT, queue]


@lean
def charge(row: int, partner: int, gpus: int, queue: Ints, quotas: Ints) -> None:
    """Count GPUs given to a job, and to the job it shares them with (-1 for none); `queue` is by row."""
    use(queue[row], gpus, quotas)
    if partner >= 0:
        use(queue[partner], gpus, quotas)


@lean
def affordable(row: int, partner: int, gpus: int, queue: Ints, quotas: Ints) -> bool:
    """Whether the queues of a job, and of the job it is to share with (-1 for none), may have this many GPUs more."""
    fits = within_maximum(queue[row], gpus, quotas)
    if partner >= 0:
        use(queue[row], gpus, quotas)
        fits = fits and within_maximum(queue[partner], gpus, quotas)
        use(queue[row], -gpus, quotas)
    return fits
