"""Local search: kicks (forced moves, kept if they gain) and neighbourhoods (a few apps choose anew). Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.branch_and_bound import branch_and_bound, list_options
from horae.solve.auction.moves import Allocation, change, ejection_chain, improve, shortfall, take, total_gain
from horae.solve.auction.prices import PricedMarket, ascending, loss_of
from horae.solve.auction.winner_program import Market

#: Number of columns that one neighbourhood may examine.
_MOST_EXAMINED = 20_000
#: Number of columns that moves may examine after a kick.
_EXAMINED_AFTER_KICK = 3_000
#: Below the gain of any move: accepts every loss.
_ANY_LOSS = -(1 << 60)
#: Number of columns of an app that kicks and neighbourhoods use, the least loss first.
_BEST_COLUMNS = 4


@compiled_when_called
def kick(market: Market, prices: PricedMarket, allocation: Allocation, begin: int, work: int) -> tuple[int, int]:
    """Give apps their best columns, whatever that costs at first, and keep the result if it gains after moves.

    Begins with app `begin` and goes round once, or until `work` columns were examined. Returns the app where it
    stopped, and the work that is left.
    """
    apps, before, order = len(allocation.choice), allocation.choice.copy(), np.empty(len(market.gain), np.int64)
    for n in range(apps):
        app = (begin + n) % apps
        first, end = int(market.first[app]), int(market.first[app + 1])
        ascending(prices.loss, first, end, order)
        for n_best in range(first, min(end, first + _BEST_COLUMNS)):
            if work <= 0:
                return app, 0
            work -= _kick_column(market, -1, prices, allocation, before, order[n_best])
    return begin, work


@compiled_when_called
def refill(market: Market, out: int, prices: PricedMarket, allocation: Allocation, column: int, work: int) -> None:
    """Kicks with the columns that compete for the rows which one column left, the least loss first."""
    found, loss, count = np.empty(len(market.gain), np.int64), np.empty(len(market.gain), np.int64), 0
    seen, before, most = (
        np.zeros(len(market.gain), np.bool_),
        allocation.choice.copy(),
        shortfall(prices, out, allocation),
    )
    for e in range(market.start[column], market.start[column + 1]):
        for n in range(market.of_row[market.row[e]], market.of_row[market.row[e] + 1]):
            c = market.column[n]
            # A loss as large as the shortfall cannot help.
            if not seen[c] and market.app[c] != out and prices.loss[c] < most:
                seen[c] = True
                found[count], loss[count] = c, prices.loss[c]
                count += 1
    order = np.empty(count, np.int64)
    ascending(loss, 0, count, order)
    for place in order:
        if work <= 0 or loss[place] >= shortfall(prices, out, allocation):
            break
        work -= _kick_column(market, out, prices, allocation, before, found[place])


@inner_when_called
def _kick_column(
    market: Market, out: int, prices: PricedMarket, allocation: Allocation, before: Ints, column: int
) -> int:
    """Give an app a column, improve by moves, and keep that or restore `before`. Returns the columns examined."""
    if allocation.choice[market.app[column]] == column:
        return 0
    allocation.open[:] = False
    _, examined = ejection_chain(market, out, allocation, column, _ANY_LOSS)
    tries = improve(market, out, prices, allocation, _EXAMINED_AFTER_KICK)
    if total_gain(market, allocation.choice) > total_gain(market, before):
        before[:] = allocation.choice
    else:
        _restore(market, allocation, before)
    return examined + _EXAMINED_AFTER_KICK - tries + 1


@inner_when_called
def _restore(market: Market, allocation: Allocation, before: Ints) -> None:
    """Restore an earlier choice. All apps leave before any comes back: a row has room for its users only."""
    changed = allocation.choice != before
    for app in range(len(before)):
        if changed[app]:
            change(market, allocation, app, -1)
    for app in range(len(before)):
        if changed[app]:
            change(market, allocation, app, before[app])


@compiled_when_called
def polish(market: Market, prices: PricedMarket, allocation: Allocation, together: int, work: int) -> int:
    """Let neighbouring apps choose anew, `together` at a time, around apps with a loss and rows with capacity left.

    The largest loss, or price of capacity left, comes first. Returns what is left of `work`, in columns to examine.
    """
    apps, rows = len(allocation.choice), len(allocation.left)
    priority, order = np.empty(apps + rows, np.int64), np.empty(apps + rows, np.int64)
    for app in range(apps):
        priority[app] = -loss_of(prices, app, allocation.choice[app])
    for r in range(rows):
        priority[apps + r] = -prices.price[r] * allocation.left[r]
    ascending(priority, 0, apps + rows, order)
    for n in order:
        if priority[n] >= 0 or work <= 0:
            break
        app = int(n) if n < apps else _cheapest_taker(market, prices, allocation, int(n) - apps)
        if app >= 0:
            work -= _reoptimise(
                market, prices, allocation, _neighbours(market, prices, allocation, app, together), work
            )
    return work


@inner_when_called
def _cheapest_taker(market: Market, prices: PricedMarket, allocation: Allocation, row: int) -> int:
    """The app that would lose least by taking from a row with capacity left, or -1."""
    least, taker = 0, -1
    if allocation.left[row] > 0:
        for n in range(market.of_row[row], market.of_row[row + 1]):
            c = market.column[n]
            worse = prices.loss[c] - loss_of(prices, market.app[c], allocation.choice[market.app[c]])
            if allocation.choice[market.app[c]] != c and (taker < 0 or worse < least):
                least, taker = worse, market.app[c]
    return taker


@inner_when_called
def _reoptimise(market: Market, prices: PricedMarket, allocation: Allocation, apps: Ints, work: int) -> int:
    """Give some apps their best columns together, if that is better. Returns the columns examined."""
    left = np.zeros(len(allocation.left), np.int64)
    for app in apps:
        for e in range(market.start[market.first[app]], market.start[market.first[app + 1]]):
            # Capacity that none of these apps can use does not count as left.
            left[market.row[e]] = allocation.left[market.row[e]]
    short = 0
    for r in range(len(left)):
        short += prices.price[r] * left[r]
    for app in apps:
        short += loss_of(prices, app, allocation.choice[app])
        take(market, allocation.choice[app], left, -1)
    options = list_options(market, apps, prices, short - 1, False)
    found = branch_and_bound(market, prices, options, left, short - 1, 1, min(work, _MOST_EXAMINED))
    if found.short < short:
        # All apps leave before any comes: a row has room for the users of one allocation.
        for app in apps:
            change(market, allocation, app, -1)
        for app in apps:
            change(market, allocation, app, found.choice[app])
    return found.examined


@inner_when_called
def _neighbours(market: Market, prices: PricedMarket, allocation: Allocation, app: int, most: int) -> Ints:
    """An app, the apps that use the rows of its best columns, the apps that use those of theirs, and so on."""
    found, seen, count, n_done = np.empty(most, np.int64), np.zeros(len(allocation.choice), np.bool_), 1, 0
    found[0] = app
    seen[app] = True
    order = np.empty(len(market.gain), np.int64)
    while n_done < count < most:
        first, end = market.first[found[n_done]], market.first[found[n_done] + 1]
        ascending(prices.loss, first, end, order)
        for n_best in range(first, min(end, first + _BEST_COLUMNS)):
            c = order[n_best]
            for e in range(market.start[c], market.start[c + 1]):
                r = market.row[e]
                for n in range(allocation.seat[r], allocation.seat[r] + allocation.users[r]):
                    if count < most and not seen[allocation.user[n]]:
                        found[count] = allocation.user[n]
                        seen[allocation.user[n]] = True
                        count += 1
        n_done += 1
    return found[:count]
