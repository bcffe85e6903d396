"""What an auction comes to."""

from __future__ import annotations

from dataclasses import dataclass

from horae.solve.auction.bids import Offer

#: GPUs by position of the machine in the offer.
Counts = dict[int, int]


@dataclass(frozen=True)
class Displaced:
    """What another app would have had without the winner."""

    app: str
    #: Row of its table that it would have won, or None for nothing; the same as now.
    bundle: int | None
    now: int | None
    rho: float
    rho_now: float


@dataclass(frozen=True)
class Award:
    """What one bidder won, paid and kept."""

    app: str
    gang: int
    #: Row of its table, or None for nothing.
    bundle: int | None
    #: Slow-down that it bid for the bundle, and for nothing.
    rho: float
    rho_of_nothing: float
    #: The bundle before payment; the part that is the app's; what it keeps in whole gangs.
    proportional: Counts
    fraction: float
    kept: Counts
    #: The number drawn for it: a part of a gang above it becomes a whole one.
    drawn: float
    displaced: tuple[Displaced, ...]

    @property
    def gangs(self) -> int:
        """Gangs won."""
        return sum(self.proportional.values()) // self.gang

    @property
    def gangs_kept(self) -> int:
        """Gangs kept."""
        return sum(self.kept.values()) // self.gang


@dataclass(frozen=True)
class Outcome:
    """Awards by app, and who has the leftovers."""

    offer: Offer
    awards: dict[str, Award]
    leftover: dict[str, Counts]
    #: The geometric mean of all V is at most this part below the best possible: exp((bound - reached) / bids) - 1.
    gap: float
    #: The same for their product, as a logarithm: bound - reached.
    log_gap: float
    #: Whether fractions are exact, and if not, how far the logarithm of any may be too high.
    exact: bool
    payment_log_gap: float

    @property
    def won(self) -> int:
        """GPUs in winning bundles."""
        return sum(sum(award.proportional.values()) for award in self.awards.values())

    @property
    def paid(self) -> int:
        """GPUs that winners gave back."""
        return self.won - sum(sum(award.kept.values()) for award in self.awards.values())

    def holdings(self) -> dict[str, Counts]:
        """All that each app has now, from the auction and from leftovers."""
        held: dict[str, Counts] = {}
        for app, counts in (*((a.app, a.kept) for a in self.awards.values()), *self.leftover.items()):
            mine = held.setdefault(app, {})
            for machine, gpus in counts.items():
                mine[machine] = mine.get(machine, 0) + gpus
        return {app: counts for app, counts in held.items() if counts}
