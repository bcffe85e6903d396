"""What auctions cost: the GPUs that winners pay with, so that nobody gains by a lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Auctions:
    """All auctions of a run, of whichever jobs; none under a policy that holds none."""

    held: int
    #: Before payments; GPUs that are won again count again.
    gpus_won: int
    gpus_paid: int
    #: The part of the GPUs won that was paid with; others are given it, so that it is not idle.
    paid_share: float

    @staticmethod
    def of(counters: Mapping[str, int]) -> Auctions:
        """From what a policy counts on the way, if it counts auctions."""
        won, paid = counters.get("gpus_won", 0), counters.get("gpus_paid", 0)
        return Auctions(counters.get("auctions", 0), won, paid, paid / won if won else math.nan)
