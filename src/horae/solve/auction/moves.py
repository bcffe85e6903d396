"""An allocation, and moves that make it better: one app takes another bundle, alone or at another's expense.

`choice` has the column of each app, or -1; `left` what is free of each row. Every move gains, so
that the search ends; where it ends, no move of one app or of two is left that gains.
"""

from __future__ import annotations

import numpy as np

from horae.core.compiled import compiled_when_called
from horae.solve.auction.bids import Ints
from horae.solve.auction.market import Market
from horae.solve.auction.prices import Priced, loss_of

#: What a move must gain, in units.
_LEAST = 1


@compiled_when_called
def take(market: Market, column: int, left: Ints, sign: int) -> None:
    """Take what a column needs (1), or give it back (-1)."""
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            left[market.row[e]] -= sign * market.amount[e]


@compiled_when_called
def fits(market: Market, column: int, left: Ints) -> bool:
    """Whether there is enough left for a column."""
    for e in range(market.start[column], market.start[column + 1]):  # noqa: SIM110, not to be compiled otherwise
        if market.amount[e] > left[market.row[e]]:
            return False
    return True


@compiled_when_called
def cost_of(market: Market, column: int, price: Ints) -> int:
    """What a column costs; nothing costs nothing."""
    cost = 0
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            cost += price[market.row[e]] * market.amount[e]
    return cost


@compiled_when_called
def gain_of(market: Market, column: int) -> int:
    """What a column gains."""
    return market.gain[column] if column >= 0 else 0


@compiled_when_called
def total_gain(market: Market, choice: Ints) -> int:
    """What an allocation gains."""
    total = 0
    for app in range(len(choice)):
        total += gain_of(market, choice[app])
    return total


@compiled_when_called
def what_is_left(market: Market, choice: Ints) -> Ints:
    """What an allocation leaves of each row."""
    left = market.capacity.copy()
    for app in range(len(choice)):
        take(market, choice[app], left, 1)
    return left


@compiled_when_called
def fill(market: Market, out: int, price: Ints) -> Ints:
    """A first allocation: apps in the order of what they gain at these prices, each the best that is left for it."""
    apps = len(market.first) - 1
    choice, left, profit = np.full(apps, -1), market.capacity.copy(), np.zeros(apps, np.int64)
    for app in range(apps):
        for c in range(market.first[app], market.first[app + 1]):
            profit[app] = max(profit[app], market.gain[c] - cost_of(market, c, price))
    for app in np.argsort(-profit, kind="mergesort"):
        if app == out:
            continue
        best = 0
        for c in range(market.first[app], market.first[app + 1]):
            worth = market.gain[c] - cost_of(market, c, price)
            if worth > best and fits(market, c, left):
                best = worth
                choice[app] = c
        take(market, choice[app], left, 1)
    return choice


@compiled_when_called
def improve(market: Market, out: int, prices: Priced, choice: Ints, left: Ints, tries: int) -> int:
    """Make moves until none gains, or until `tries` moves of two apps were looked at; gives what all of them gained."""
    gained = 0
    while True:
        gained += _grow(market, out, prices.price, choice, left)
        step, tries = _displace(market, out, prices, choice, left, tries)
        if step == 0:
            return gained
        gained += step


@compiled_when_called
def _grow(market: Market, out: int, price: Ints, choice: Ints, left: Ints) -> int:
    """Let apps take better bundles from what is left, whoever gains most for what it costs first."""
    gained = 0
    while True:
        best, who, what = 0.0, -1, -1
        for app in range(len(choice)):
            if app == out:
                continue
            now, had = gain_of(market, choice[app]), cost_of(market, choice[app], price)
            take(market, choice[app], left, -1)
            for c in range(market.first[app], market.first[app + 1]):
                if market.gain[c] > now and fits(market, c, left):
                    # What costs less than it did is best of all.
                    worth = (market.gain[c] - now) / max(cost_of(market, c, price) - had, 1)
                    if worth > best:
                        best, who, what = worth, app, c
            take(market, choice[app], left, 1)
        if who < 0:
            return gained
        gained += market.gain[what] - gain_of(market, choice[who])
        take(market, choice[who], left, -1)
        take(market, what, left, 1)
        choice[who] = what


@compiled_when_called
def _displace(market: Market, out: int, prices: Priced, choice: Ints, left: Ints, tries: int) -> tuple[int, int]:
    """One round of moves in which an app takes a better bundle and another one a lesser.

    An allocation gains the bound, less the losses of its columns and the price of what is left. So
    a column that loses more than there is to make good is not worth a look.
    """
    gained, spare = 0, _spare(prices, choice, left)
    for app in range(len(choice)):
        if app == out:
            continue
        for c in range(market.first[app], market.first[app + 1]):
            more = market.gain[c] - gain_of(market, choice[app])
            if more < _LEAST or prices.loss[c] - loss_of(prices, app, choice[app]) >= spare:
                continue
            if tries <= 0:
                return gained, tries
            take(market, choice[app], left, -1)
            take(market, c, left, 1)
            other, lesser, looked = _whom(market, out, app, c, more, choice, left)
            tries -= looked
            if other < 0:
                take(market, c, left, -1)
                take(market, choice[app], left, 1)
                continue
            gained += more - (gain_of(market, choice[other]) - gain_of(market, lesser))
            take(market, choice[other], left, -1)
            take(market, lesser, left, 1)
            choice[app], choice[other] = c, lesser
            spare = _spare(prices, choice, left)
    return gained, tries


@compiled_when_called
def _spare(prices: Priced, choice: Ints, left: Ints) -> int:
    """The most that a move of two can make good: what is left at its price, and the largest loss."""
    most, spare = 0, 0
    for r in range(len(left)):
        spare += prices.price[r] * left[r]
    for app in range(len(choice)):
        most = max(most, loss_of(prices, app, choice[app]))
    return spare + most


@compiled_when_called
def _whom(market: Market, out: int, app: int, column: int, more: int, choice: Ints, left: Ints) -> tuple[int, int, int]:
    """Who else must take which lesser column so that `column` is not taken twice, if that loses less than `more`.

    Also how many apps were looked at.
    """
    scarce = _short_of(market, column, left)
    best, who, what, looked = more - _LEAST + 1, -1, -1, 0
    for other in range(len(choice)):
        held = choice[other]
        if other in (app, out) or held < 0 or not _takes_from(market, held, scarce):
            continue
        looked += 1
        take(market, held, left, -1)
        if _short_of(market, column, left) < 0:
            if market.gain[held] < best:
                best, who, what = market.gain[held], other, -1
            for c in range(market.first[other], market.first[other + 1]):
                if c != held and market.gain[held] - market.gain[c] < best and fits(market, c, left):
                    best, who, what = market.gain[held] - market.gain[c], other, c
        take(market, held, left, 1)
    return who, what, looked


@compiled_when_called
def _takes_from(market: Market, column: int, row: int) -> bool:
    for e in range(market.start[column], market.start[column + 1]):  # noqa: SIM110, not to be compiled otherwise
        if market.row[e] == row:
            return True
    return False


@compiled_when_called
def _short_of(market: Market, column: int, left: Ints) -> int:
    """A row of this column of which more was taken than there is, or -1."""
    for e in range(market.start[column], market.start[column + 1]):
        if left[market.row[e]] < 0:
            return int(market.row[e])
    return -1
