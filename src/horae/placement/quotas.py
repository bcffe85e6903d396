"""Minimum and maximum GPUs of counters, along the chain of a quota node. Compiled."""

from __future__ import annotations

from horae.core.arrays import Ints
from horae.core.jit import inlined, lean
from horae.placement.kernel_args import COUNTER, MAXIMUM, MINIMUM, PARENT, USED


@lean
def within_maximum(node: int, gpus: int, quotas: Ints) -> bool:
    """Whether all counters of a node may have this many GPUs more."""
    while node >= 0:
        counter = quotas[COUNTER, node]
        if quotas[USED, counter] + gpus > quotas[MAXIMUM, counter]:
            return False
        node = quotas[PARENT, node]
    return True


@inlined
def within_minimum(node: int, gpus: int, quotas: Ints) -> bool:
    """Whether a counter of a node would still be within its guaranteed minimum."""
    while node >= 0:
        counter = quotas[COUNTER, node]
        if quotas[USED, counter] + gpus <= quotas[MINIMUM, counter]:
            return True
        node = quotas[PARENT, node]
    return False


@lean
def use(node: int, gpus: int, quotas: Ints) -> None:
    """Count GPUs for all counters of a node; a negative number is given back."""
    while node >= 0:
        quotas[USED, quotas[COUNTER, node]] += gpus
        node = quotas[PARENT, node]


@lean
def charge(row: int, partner: int, gpus: int, quota: Ints, quotas: Ints) -> None:
    """Count GPUs given to a job, and to the job it shares them with (-1 for none); `quota` is by row."""
    use(quota[row], gpus, quotas)
    if partner >= 0:
        use(quota[partner], gpus, quotas)


@lean
def affordable(row: int, partner: int, gpus: int, quota: Ints, quotas: Ints) -> bool:
    """Whether the counters of a job, and of the job it is to share with (-1 for none), may have this many GPUs more."""
    fits = within_maximum(quota[row], gpus, quotas)
    if partner >= 0:
        use(quota[row], gpus, quotas)
        fits = fits and within_maximum(quota[partner], gpus, quotas)
        use(quota[row], -gpus, quotas)
    return fits
