"""The auction of Themis (NSDI '20, section 5): partial allocation (Cole, Gkatzelis, Goel, EC '13) in whole gangs.

1. Bids become a market. 2. Winners are found. 3. Each winner pays with a fraction of its bundle. 4. The fraction that
it keeps is rounded to whole gangs. 5. GPUs left over go to apps that did not bid, then to bidders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from horae.core.arrays import Floats
from horae.solve.auction.bids import BadBid, Bid, Offer, Taker
from horae.solve.auction.leftovers import give_leftovers
from horae.solve.auction.machine_choice import place_bundles
from horae.solve.auction.outcome import AuctionOutcome, Award, Counts, Displaced
from horae.solve.auction.payments import Payments, charge
from horae.solve.auction.rounding import Seed, draw, gangs_kept, keep
from horae.solve.auction.winner_program import BuiltMarket, build_market
from horae.solve.auction.winners import Effort, Winners, find_winners


def hold_auction(
    offer: Offer, bids: Sequence[Bid], others: Sequence[Taker] = (), seed: Seed = 0, effort: Effort | None = None
) -> AuctionOutcome:
    """Hold one auction. Bids must have passed `check_bid`; their order does not matter."""
    effort = effort or Effort()
    bids = sorted(bids, key=lambda bid: bid.app)
    _require_names([*(bid.app for bid in bids), *(taker.app for taker in others)])
    built = build_market(offer, bids)
    winners = find_winners(built.market, effort)
    payments = charge(built.market, winners, _log_values(bids, built), effort)
    awards = _award(offer, bids, built, winners, payments, seed)
    kept = {award.app: award.kept for award in awards}
    left = offer.free.copy()
    for counts in kept.values():
        for machine, gpus in counts.items():
            left[machine] -= gpus
    leftover = give_leftovers(left, others, [bid.taker for bid in bids], kept, seed)
    return AuctionOutcome(
        offer,
        {award.app: award for award in awards},
        leftover,
        math.expm1(winners.log_gap / max(len(bids), 1)),
        winners.log_gap,
        payments.exact,
        payments.log_gap,
    )


def _require_names(names: list[str]) -> None:
    """Refuse two apps of the same name."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadBid(f"Two apps are called {twice!r}, among bids and others: give each a name of its own.")


def _log_values(bids: Sequence[Bid], built: BuiltMarket) -> Floats:
    """Log V of each column, less log V of winning nothing."""
    app = np.repeat(np.arange(len(bids)), np.diff(built.market.first))
    rho = [bids[a].bundles.rho[b] for a, b in zip(app.tolist(), built.bundle.tolist(), strict=True)]
    nothing = np.array([bid.rho_of_nothing for bid in bids])
    return np.asarray(np.log(nothing)[app] - np.log(np.array(rho, np.float64)))


def _award(
    offer: Offer, bids: Sequence[Bid], built: BuiltMarket, winners: Winners, payments: Payments, seed: Seed
) -> list[Award]:
    """The award of each bidder."""
    placed = place_bundles(offer, bids, built, winners.choice)
    awards = []
    for app, bid in enumerate(bids):
        fraction, drawn = float(payments.fraction[app]), draw(seed, bid.app)
        gangs = sum(placed[app].values()) // bid.gang
        kept: Counts = keep(placed[app], bid.gang, gangs_kept(fraction, gangs, drawn))
        bundle, rho = _won(bid, built, int(winners.choice[app]))
        displaced = _displaced(bids, built, winners, payments, app)
        awards.append(
            Award(bid.app, bid.gang, bundle, rho, bid.rho_of_nothing, placed[app], fraction, kept, drawn, displaced)
        )
    return awards


def _won(bid: Bid, built: BuiltMarket, column: int) -> tuple[int | None, float]:
    """The row of the bid's table that a column stands for, and its rho; None for nothing."""
    if column < 0:
        return None, bid.rho_of_nothing
    bundle = int(built.bundle[column])
    return bundle, float(bid.bundles.rho[bundle])


def _displaced(
    bids: Sequence[Bid], built: BuiltMarket, winners: Winners, payments: Payments, app: int
) -> tuple[Displaced, ...]:
    """Apps that would have won something else without this winner."""
    found = []
    for other, column in payments.displaced.get(app, {}).items():
        bundle, rho = _won(bids[other], built, column)
        actual, actual_rho = _won(bids[other], built, int(winners.choice[other]))
        found.append(Displaced(bids[other].app, bundle, actual, rho, actual_rho))
    return tuple(found)
