"""Who wins what: disjoint bundles whose values have the largest product (proportional fairness).

1. Prices come down to a bound that no allocation exceeds; on the way, allocations are filled at
   them and made better by moves, and the best is polished.
2. Where a gap is left, a tree of choices closes it, if that takes no more than the effort allows.
3. Of allocations that are equally good, the one in which the first app, by name, has most on the
   machine that is lowest by name; then the second, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.auction.branch_and_bound import climb, list_options
from horae.solve.auction.local_search import kick, polish, refill
from horae.solve.auction.moves import allocate, fill, improve, total_gain
from horae.solve.auction.prices import Priced, first_prices, priced, settle_prices
from horae.solve.auction.winner_program import UNIT, Market


@dataclass(frozen=True)
class Effort:
    """How hard to try; all in numbers of things looked at, so that every machine comes to the same."""

    #: Times that prices change before allocations are filled anew, and how often that is done.
    steps: int = 60
    rounds: int = 6
    #: How often each column may be looked at for moves, for kicks, and for neighbourhoods of so many apps.
    moves: int = 50
    kicks: int = 500
    polish: int = 100
    together: int = 12
    #: How many columns may be looked at for moves when one app is out, and again for kicks.
    moves_without: int = 12_000
    #: How many columns the tree may look at to find the winners, and again for all payments together.
    work: int = 250_000

    def times(self, factor: float) -> Effort:
        """More of the search that proves."""
        return replace(self, work=int(self.work * factor))


@dataclass(frozen=True)
class Winners:
    """An allocation of all apps but one or none."""

    #: The column of each app, or -1.
    choice: Ints
    #: What it gains, and what none gains more than, in units.
    gain: int
    bound: int
    #: Whether it is the best there is; then gain and bound are the same but for rounding of logarithms.
    exact: bool
    #: Prices of rows that prove the bound, or would with more effort.
    price: Floats
    #: Columns that the tree looked at.
    looked: int

    @property
    def log_gap(self) -> float:
        """By how much the sum of all log V may be larger."""
        return 0.0 if self.exact else (self.bound - self.gain) / UNIT


def find_winners(market: Market, effort: Effort) -> Winners:
    """The best allocation that the effort finds, by the rule for ties where it is known to be the best."""
    price, choice = first_prices(market), np.full(len(market.first) - 1, -1, np.int64)
    for _ in range(effort.rounds):
        price, bound = settle_prices(market, -1, price, float(total_gain(market, choice)), effort.steps)
        choice = max((choice, _filled(market, price, effort)), key=lambda found: total_gain(market, found))
        if bound - total_gain(market, choice) <= slack(market):
            break
    prices = priced(market, -1, price)
    if prices.bound - total_gain(market, choice) > slack(market):
        choice = _refined(market, prices, choice, effort)
    return _named_first(market, prices, _proved(market, -1, prices, price, choice, effort), effort)


def find_winners_without(market: Market, out: int, with_all: Winners, effort: Effort) -> Winners:
    """The best allocation if one app had not come, from the one that there is: others can only gain by that."""
    choice = with_all.choice.copy()
    column, choice[out] = choice[out], -1
    prices, now = priced(market, out, with_all.price), allocate(market, choice)
    now.open[:] = False
    now.open[market.row[market.start[column] : market.start[column + 1]]] = True
    improve(market, out, prices, now, effort.moves_without)
    if prices.bound - total_gain(market, now.choice) > slack(market):
        refill(market, out, prices, now, column, effort.moves_without)
    gain, price = total_gain(market, now.choice), with_all.price
    if effort.work > 0 and prices.bound - gain > slack(market):
        price, _ = settle_prices(market, out, price, float(gain), effort.steps)
        prices = priced(market, out, price)
    return _proved(market, out, prices, price, now.choice, effort)


def slack(market: Market) -> int:
    """Gains that differ by less are the same: each logarithm was rounded to a whole number."""
    return len(market.first) - 1


def _filled(market: Market, price: Floats, effort: Effort) -> Ints:
    """An allocation at these prices, made better by moves."""
    prices = priced(market, -1, price)
    now = allocate(market, fill(market, prices))
    improve(market, -1, prices, now, effort.moves * len(market.gain))
    return now.choice


def _refined(market: Market, prices: Priced, choice: Ints, effort: Effort) -> Ints:
    """A better allocation, or the same: kicks while they help, then neighbourhoods, then moves once more."""
    columns, now, begin, before = len(market.gain), allocate(market, choice), 0, -1
    work = effort.kicks * columns
    while work > 0 and total_gain(market, now.choice) > before:
        before = total_gain(market, now.choice)
        begin, work = kick(market, prices, now, begin, work)
    polish(market, prices, now, effort.together, effort.polish * columns)
    now.open[:] = True
    improve(market, -1, prices, now, effort.moves * columns)
    return now.choice


def _proved(market: Market, out: int, prices: Priced, price: Floats, choice: Ints, effort: Effort) -> Winners:
    """The same allocation or a better one, and whether it is the best."""
    gain, equal = int(total_gain(market, choice)), slack(market)
    margin = prices.bound - gain - equal - 1
    if margin < 0:
        return Winners(choice, gain, int(prices.bound), True, price, 0)
    if effort.work <= 0:
        return Winners(choice, gain, int(prices.bound), False, price, 0)
    options = list_options(market, _all_but(market, out), prices, margin, False)
    found = climb(market, prices, options, market.capacity, margin, equal + 1, effort.work)
    if found.short <= margin:
        choice, gain = found.choice, int(prices.bound - found.short)
    return Winners(choice, gain, int(prices.bound), bool(found.proved), price, int(found.looked))


def _all_but(market: Market, out: int) -> Ints:
    apps = np.arange(len(market.first) - 1)
    return np.asarray(apps[apps != out])


def _named_first(market: Market, prices: Priced, winners: Winners, effort: Effort) -> Winners:
    """Of all allocations that are as good, the one that comes first by name."""
    if not winners.exact:
        return winners
    margin = prices.bound - winners.gain + slack(market)
    options = list_options(market, _all_but(market, -1), prices, margin, True)
    found = climb(market, prices, options, market.capacity, margin, 0, effort.work)
    if found.short > margin:
        return winners
    return replace(winners, choice=found.choice, gain=int(prices.bound - found.short))
