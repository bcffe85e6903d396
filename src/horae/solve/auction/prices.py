"""Prices of rows, and the Lagrangian bound that they prove.

At any prices, each app chooses the column with the largest gain less its price, or nothing. The sum of these profits
and of the price of all capacity is an upper bound on the gain of any allocation. A subgradient method lowers the bound:
the price of a row falls where capacity is left, and rises where it is exceeded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.winner_program import UNIT, Market

#: Steps without a better bound after which the step length is halved, and the least step length.
_PATIENCE = 12
_SHORTEST = 1e-3
#: Weight of the last direction in a step.
_MOMENTUM = 0.7


class PricedMarket(NamedTuple):
    """A market at prices in whole units, so that its bound is exact."""

    #: Price of each row.
    price: Ints
    #: Loss of each column: profit of the app's best column (or nothing) less profit of this column.
    loss: Ints
    #: Largest profit (gain less price) of each app; also the loss of choosing nothing.
    best: Ints
    #: Upper bound on the gain of all allocations.
    bound: int


@compiled_when_called
def lower_bound(market: Market, out: int, price: Floats, reached: float, steps: int) -> tuple[Floats, float]:
    """Prices with a lower bound, and that bound in units, for all apps but `out` (-1: for all).

    `reached` is the gain of some allocation: no bound is below it, and steps aim at it.
    """
    capacity = market.capacity.astype(np.float64)
    best_price, best = price.copy(), np.inf
    price, direction, length, waited = price.copy(), np.zeros(len(price)), 1.0, 0
    slack = np.empty(len(price))
    for _ in range(steps):
        bound = lagrangian_bound(market, out, price, slack)
        if bound < best - 1e-7 * abs(best - reached) or best == np.inf:
            waited = 0
        else:
            waited += 1
        if bound < best:
            best = bound
            best_price[:] = price
        if waited >= _PATIENCE:
            length, waited = length / 2, 0
            price[:] = best_price
            direction[:] = 0.0
            if length < _SHORTEST:
                break
            continue
        norm = 0.0
        for r in range(len(price)):
            direction[r] = _MOMENTUM * direction[r] + slack[r]
            if price[r] > 0 or direction[r] < 0:
                norm += direction[r] * direction[r] / max(capacity[r], 1.0)
        if norm <= 0.0 or bound - reached < 0.5:
            break
        for r in range(len(price)):
            price[r] = max(0.0, price[r] - length * (bound - reached) / norm * direction[r] / max(capacity[r], 1.0))
    return best_price, best


@inner_when_called
def lagrangian_bound(market: Market, out: int, price: Floats, slack: Floats) -> float:
    """The bound at these prices; writes to `slack` the capacity that each app's best column leaves of every row."""
    bound = 0.0
    for r in range(len(price)):
        slack[r] = market.capacity[r]
        bound += price[r] * market.capacity[r]
    for app in range(len(market.first) - 1):
        best, chosen = 0.0, -1
        if app != out:
            for c in range(market.first[app], market.first[app + 1]):
                profit = float(market.gain[c])
                for e in range(market.start[c], market.start[c + 1]):
                    profit -= price[market.row[e]] * market.amount[e]
                if profit > best:
                    best, chosen = profit, c
        bound += best
        if chosen >= 0:
            for e in range(market.start[chosen], market.start[chosen + 1]):
                slack[market.row[e]] -= market.amount[e]
    return bound


@compiled_when_called
def price_market(market: Market, out: int, price: Floats) -> PricedMarket:
    """The market at these prices, rounded to whole numbers."""
    whole = np.empty(len(price), np.int64)
    loss, best, bound = np.empty(len(market.gain), np.int64), np.zeros(len(market.first) - 1, np.int64), 0
    for r in range(len(price)):
        whole[r] = int(price[r] + 0.5)
        bound += whole[r] * market.capacity[r]
    for app in range(len(best)):
        for c in range(market.first[app], market.first[app + 1]):
            profit = market.gain[c]
            for e in range(market.start[c], market.start[c + 1]):
                profit -= whole[market.row[e]] * market.amount[e]
            loss[c] = profit
            best[app] = max(best[app], profit)
        for c in range(market.first[app], market.first[app + 1]):
            loss[c] = best[app] - loss[c]
        if app != out:
            bound += best[app]
    return PricedMarket(whole, loss, best, bound)


@inner_when_called
def ascending(keys: Ints, begin: int, end: int, order: Ints) -> None:
    """Sort the positions begin:end by key into the same places of `order`; of equal keys the earlier first.

    Insertion sort: there are few keys, and numba takes seconds to compile NumPy's sort.
    """
    for n in range(begin, end):
        place = n
        while place > begin and keys[order[place - 1]] > keys[n]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = n


@inner_when_called
def loss_of(prices: PricedMarket, app: int, column: int) -> int:
    """Loss of a column, or of nothing (-1), of an app."""
    return int(prices.loss[column] if column >= 0 else prices.best[app])


def first_prices(market: Market) -> Floats:
    """Start prices: equal for all rows, so that all capacity costs about as much as all apps could gain."""
    if not len(market.capacity):
        return np.empty(0)
    highest = (
        np.maximum.reduceat(market.gain, market.first[:-1][np.diff(market.first) > 0]) if len(market.gain) else [0.0]
    )
    # At most UNIT.
    return np.full(len(market.capacity), min(float(np.sum(highest)) / max(market.capacity.sum(), 1), UNIT))
