"""Prices of rows, and the bound that they prove.

At any prices, every app takes the bundle that gains most less what it costs, or nothing. What
all of them gain so, and what all that there is would cost, is at least the gain of any
allocation: the Lagrangian bound. Prices fall where there is enough and rise where there is not
(a subgradient method), so that the bound comes down.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.winner_program import UNIT, Market

#: Steps without a better bound after which steps become shorter, and the shortest that are worth taking.
_PATIENCE = 12
_SHORTEST = 1e-3
#: How much of the last direction a step keeps.
_MOMENTUM = 0.7


class Priced(NamedTuple):
    """What prices say, in whole units, so that what follows from it is certain."""

    #: Of each row.
    price: Ints
    #: By how much each column is worse for its app, its price paid, than the best.
    loss: Ints
    #: What the best is worth to each app, its price paid; so much worse is nothing.
    best: Ints
    #: What no allocation gains more than.
    bound: int


@compiled_when_called
def settle_prices(market: Market, out: int, price: Floats, reached: float, steps: int) -> tuple[Floats, float]:
    """Better prices, and their bound in units, for all apps but `out` (-1: for all).

    `reached` is what some allocation gains: no bound is below it, and steps aim at it.
    """
    capacity = market.capacity.astype(np.float64)
    best_price, best = price.copy(), np.inf
    price, direction, length, waited = price.copy(), np.zeros(len(price)), 1.0, 0
    slack = np.empty(len(price))
    for _ in range(steps):
        bound = answer_prices(market, out, price, slack)
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
def answer_prices(market: Market, out: int, price: Floats, slack: Floats) -> float:
    """The bound at some prices; writes what would be left of every row to `slack`."""
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
def priced(market: Market, out: int, price: Floats) -> Priced:
    """What prices, as whole numbers, say of every column."""
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
    return Priced(whole, loss, best, bound)


@inner_when_called
def ascending(keys: Ints, begin: int, end: int, order: Ints) -> None:
    """Put the positions begin:end by key into the same places of `order`; of equal ones the earlier first.

    By insertion: there are few, and numba takes seconds to compile what numpy offers.
    """
    for n in range(begin, end):
        at = n
        while at > begin and keys[order[at - 1]] > keys[n]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = n


@inner_when_called
def loss_of(prices: Priced, app: int, column: int) -> int:
    """By how much a column, or nothing, is worse than the app's best."""
    return int(prices.loss[column] if column >= 0 else prices.best[app])


def first_prices(market: Market) -> Floats:
    """Where to begin: the same for a GPU everywhere, so that all there is would cost about what all could gain."""
    if not len(market.capacity):
        return np.empty(0)
    highest = (
        np.maximum.reduceat(market.gain, market.first[:-1][np.diff(market.first) > 0]) if len(market.gain) else [0.0]
    )
    # At least a little: a market in which nothing is scarce ends there at once.
    return np.full(len(market.capacity), min(float(np.sum(highest)) / max(market.capacity.sum(), 1), UNIT))
