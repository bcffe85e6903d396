"""Better allocations, a few apps at a time: those that compete for the same rows choose anew, all others stay."""

from __future__ import annotations

import numpy as np

from horae.core.compiled import compiled_when_called
from horae.solve.auction.bids import Ints
from horae.solve.auction.market import Market
from horae.solve.auction.moves import Allocation, change, take
from horae.solve.auction.prices import Priced, loss_of
from horae.solve.auction.tree import climb, list_options

#: Columns that one neighbourhood may look at.
_AT_ONCE = 20_000


@compiled_when_called
def polish(market: Market, prices: Priced, now: Allocation, apps: int, work: int) -> int:
    """Let the neighbours of every app that loses something choose anew, who loses most first.

    Neighbourhoods have up to `apps`; gives how much of the `work` is left, in columns to look at.
    """
    loss = np.empty(len(now.choice), np.int64)
    for app in range(len(loss)):
        loss[app] = loss_of(prices, app, now.choice[app])
    for app in np.argsort(-loss, kind="mergesort"):
        if work <= 0:
            return 0
        if loss_of(prices, app, now.choice[app]) > 0:
            work -= _choose_anew(market, prices, now, _neighbours(market, prices, now, app, apps), work)
    return work


@compiled_when_called
def _choose_anew(market: Market, prices: Priced, now: Allocation, apps: Ints, work: int) -> int:
    """The best for some apps, if it is better than what they have; gives the columns looked at."""
    left, short = now.left.copy(), 0
    for r in range(len(left)):
        short += prices.price[r] * left[r]
    for app in apps:
        short += loss_of(prices, app, now.choice[app])
        take(market, now.choice[app], left, -1)
    options = list_options(market, apps, prices, short - 1, False)
    found = climb(market, prices, options, left, short - 1, 1, min(work, _AT_ONCE))
    if found.short < short:
        # All leave before anyone comes: a row has room for its users, not for those of two allocations.
        for app in apps:
            change(market, now, app, -1)
        for app in apps:
            change(market, now, app, found.choice[app])
    return found.looked


@compiled_when_called
def _neighbours(market: Market, prices: Priced, now: Allocation, app: int, most: int) -> Ints:
    """An app, and those that have what it would rather have."""
    found, known, count = np.empty(most, np.int64), np.zeros(len(now.choice), np.bool_), 1
    found[0] = app
    known[app] = True
    own = loss_of(prices, app, now.choice[app])
    order = market.first[app] + np.argsort(prices.loss[market.first[app] : market.first[app + 1]], kind="mergesort")
    for c in order:
        if prices.loss[c] >= own:
            break
        for e in range(market.start[c], market.start[c + 1]):
            r = market.row[e]
            for n in range(now.seat[r], now.seat[r] + now.users[r]):
                if count < most and not known[now.user[n]]:
                    found[count] = now.user[n]
                    known[now.user[n]] = True
                    count += 1
    return np.sort(found[:count])
