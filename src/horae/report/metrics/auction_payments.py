"""Payments in auctions: the GPUs that winners give up, so that a misreport does not pay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Auctions:
    """All auctions of a run, whatever the window; 0 under a policy without auctions."""

    held: int
    #: Before payments; GPUs that are won again count again.
    gpus_won: int
    gpus_paid: int
    #: GPUs paid over GPUs won. Other jobs get the GPUs that were paid.
    paid_share: float

    @staticmethod
    def of(counters: Mapping[str, int]) -> Auctions:
        """From the counters of a policy."""
        won, paid = counters.get("gpus_won", 0), counters.get("gpus_paid", 0)
        return Auctions(counters.get("auctions", 0), won, paid, paid / won if won else math.nan)
