"""The outcome of an auction: awards, payments, leftovers."""

from __future__ import annotations

from dataclasses import dataclass

from horae.solve.auction.bids import Offer

#: GPU count by position of the machine in the offer.
Counts = dict[int, int]


@dataclass(frozen=True)
class Displaced:
    """An app that would have won something else without a winner."""

    app: str
    #: Row of its table that it would have won, and that it won; None for nothing.
    bundle: int | None
    actual_bundle: int | None
    #: Rho of the two.
    rho: float
    actual_rho: float


@dataclass(frozen=True)
class Award:
    """What one bidder won, paid and keeps."""

    app: str
    gang: int
    #: Row of its table that it won; None for nothing.
    bundle: int | None
    #: Rho that it bid for the bundle, and for winning nothing.
    rho: float
    rho_of_nothing: float
    #: The bundle before payment (GPU count by machine), the fraction that the app keeps, and that in whole gangs.
    proportional: Counts
    fraction: float
    kept: Counts
    #: Number from 0 to 1 drawn for the app: a fraction of a gang above it is rounded up.
    drawn: float
    displaced: tuple[Displaced, ...]

    @property
    def gangs(self) -> int:
        """Number of gangs won."""
        return sum(self.proportional.values()) // self.gang

    @property
    def gangs_kept(self) -> int:
        """Number of gangs kept."""
        return sum(self.kept.values()) // self.gang


@dataclass(frozen=True)
class AuctionOutcome:
    """Awards by app, leftovers by app, and how exact the solution is."""

    offer: Offer
    awards: dict[str, Award]
    leftover: dict[str, Counts]
    #: The geometric mean of all V is at most this fraction below the best: exp((bound - reached) / bids) - 1.
    gap: float
    #: The same for the product of all V, as a logarithm: bound - reached.
    log_gap: float
    #: Whether all fractions are exact; if not, the largest error of the logarithm of a fraction.
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
        """GPU count by machine of each app, from the auction and from leftovers."""
        held: dict[str, Counts] = {}
        for app, counts in (*((a.app, a.kept) for a in self.awards.values()), *self.leftover.items()):
            of_app = held.setdefault(app, {})
            for machine, gpus in counts.items():
                of_app[machine] = of_app.get(machine, 0) + gpus
        return {app: counts for app, counts in held.items() if counts}
