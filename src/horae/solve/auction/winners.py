"""Winner determination: disjoint bundles with the largest product of values (proportional fairness).

1. Prices give an upper bound. At the prices allocations are filled and improved by moves; the best is polished.
2. Where a gap is left, branch and bound closes it, as far as the effort allows.
3. Of equally good allocations, the one in which the first app by name has most GPUs on the first machine by name; then
   the second app, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.auction.branch_and_bound import branch_and_bound, list_options
from horae.solve.auction.local_search import kick, polish, refill
from horae.solve.auction.moves import allocate, fill, improve, total_gain
from horae.solve.auction.prices import PricedMarket, first_prices, lower_bound, price_market
from horae.solve.auction.winner_program import UNIT, Market


@dataclass(frozen=True)
class Effort:
    """Limits of the search, in columns examined and not in seconds, so that every computer finds the same."""

    #: Price steps before an allocation is filled, and how often both are done.
    steps: int = 60
    rounds: int = 6
    #: How often each column may be examined for moves, kicks and neighbourhoods, and the apps of a neighbourhood.
    moves: int = 50
    kicks: int = 500
    polish: int = 100
    together: int = 12
    #: Columns to examine for moves when one app is out, and again for kicks.
    moves_without: int = 12_000
    #: Columns that branch and bound may examine to find the winners, and again for all payments together.
    work: int = 250_000

    def times(self, factor: float) -> Effort:
        """The same limits, with branch and bound multiplied by a factor."""
        return replace(self, work=int(self.work * factor))


@dataclass(frozen=True)
class Winners:
    """The best allocation found, of all apps or of all but one."""

    #: The column of each app, or -1.
    choice: Ints
    #: Its gain, and an upper bound on all gains, in units.
    gain: int
    bound: int
    #: Whether it is proved to be the best.
    exact: bool
    #: Prices of rows that prove the bound.
    price: Floats
    #: Number of columns that branch and bound examined.
    examined: int

    @property
    def log_gap(self) -> float:
        """Upper bound on the missing sum of log V; 0 if the allocation is proved to be the best."""
        return 0.0 if self.exact else (self.bound - self.gain) / UNIT


def find_winners(market: Market, effort: Effort) -> Winners:
    """The best allocation within the effort; the rule for ties applies if it is proved to be the best."""
    price, choice = first_prices(market), np.full(len(market.first) - 1, -1, np.int64)
    for _ in range(effort.rounds):
        price, bound = lower_bound(market, -1, price, float(total_gain(market, choice)), effort.steps)
        choice = max((choice, _filled(market, price, effort)), key=lambda found: total_gain(market, found))
        if bound - total_gain(market, choice) <= slack(market):
            break
    prices = price_market(market, -1, price)
    if prices.bound - total_gain(market, choice) > slack(market):
        choice = _refined(market, prices, choice, effort)
    return _named_first(market, prices, _proved(market, -1, prices, price, choice, effort), effort)


def find_winners_without(market: Market, out: int, with_all: Winners, effort: Effort) -> Winners:
    """The best allocation without app `out`, starting from the allocation with all apps."""
    choice = with_all.choice.copy()
    column, choice[out] = choice[out], -1
    prices, allocation = price_market(market, out, with_all.price), allocate(market, choice)
    allocation.open[:] = False
    allocation.open[market.row[market.start[column] : market.start[column + 1]]] = True
    improve(market, out, prices, allocation, effort.moves_without)
    if prices.bound - total_gain(market, allocation.choice) > slack(market):
        refill(market, out, prices, allocation, column, effort.moves_without)
    gain, price = total_gain(market, allocation.choice), with_all.price
    if effort.work > 0 and prices.bound - gain > slack(market):
        price, _ = lower_bound(market, out, price, float(gain), effort.steps)
        prices = price_market(market, out, price)
    return _proved(market, out, prices, price, allocation.choice, effort)


def slack(market: Market) -> int:
    """Gains that differ by at most this are equal: the logarithm of each app was rounded."""
    return len(market.first) - 1


def _filled(market: Market, price: Floats, effort: Effort) -> Ints:
    """An allocation filled at these prices and improved by moves."""
    prices = price_market(market, -1, price)
    allocation = allocate(market, fill(market, prices))
    improve(market, -1, prices, allocation, effort.moves * len(market.gain))
    return allocation.choice


def _refined(market: Market, prices: PricedMarket, choice: Ints, effort: Effort) -> Ints:
    """A better allocation, or the same: kicks while they gain, then neighbourhoods, then moves."""
    columns, allocation, begin, before = len(market.gain), allocate(market, choice), 0, -1
    work = effort.kicks * columns
    while work > 0 and total_gain(market, allocation.choice) > before:
        before = total_gain(market, allocation.choice)
        begin, work = kick(market, prices, allocation, begin, work)
    polish(market, prices, allocation, effort.together, effort.polish * columns)
    allocation.open[:] = True
    improve(market, -1, prices, allocation, effort.moves * columns)
    return allocation.choice


def _proved(market: Market, out: int, prices: PricedMarket, price: Floats, choice: Ints, effort: Effort) -> Winners:
    """The same allocation or a better one by branch and bound, and whether it is proved to be the best."""
    gain, equal = int(total_gain(market, choice)), slack(market)
    margin = prices.bound - gain - equal - 1
    if margin < 0:
        return Winners(choice, gain, int(prices.bound), True, price, 0)
    if effort.work <= 0:
        return Winners(choice, gain, int(prices.bound), False, price, 0)
    options = list_options(market, _all_but(market, out), prices, margin, False)
    found = branch_and_bound(market, prices, options, market.capacity, margin, equal + 1, effort.work)
    if found.short <= margin:
        choice, gain = found.choice, int(prices.bound - found.short)
    return Winners(choice, gain, int(prices.bound), bool(found.proved), price, int(found.examined))


def _all_but(market: Market, out: int) -> Ints:
    apps = np.arange(len(market.first) - 1)
    return np.asarray(apps[apps != out])


def _named_first(market: Market, prices: PricedMarket, winners: Winners, effort: Effort) -> Winners:
    """Of all equally good allocations, the first by names."""
    if not winners.exact:
        return winners
    margin = prices.bound - winners.gain + slack(market)
    options = list_options(market, _all_but(market, -1), prices, margin, True)
    found = branch_and_bound(market, prices, options, market.capacity, margin, 0, effort.work)
    if found.short > margin:
        return winners
    return replace(winners, choice=found.choice, gain=int(prices.bound - found.short))
