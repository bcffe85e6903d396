"""Better allocations, a few apps at a time: those that compete for the same rows choose anew, all others stay."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.branch_and_bound import climb, list_options
from horae.solve.auction.moves import Allocation, change, improve, push, shortfall, take, total_gain
from horae.solve.auction.prices import Priced, ascending, loss_of
from horae.solve.auction.winner_program import Market

#: Columns that one neighbourhood may look at.
_AT_ONCE = 20_000
#: Columns that moves may look at after a kick.
_AFTER = 3_000
#: Less than any move gains.
_ANYTHING = -(1 << 60)
#: Columns by which an app meets its neighbours, those first that lose least.
_WISHES = 4


@compiled_when_called
def kick(market: Market, prices: Priced, now: Allocation, begin: int, work: int) -> tuple[int, int]:
    """Give apps what they would rather have, whatever that costs at first, and keep what comes of it if it gains.

    Begins with the app at `begin` and goes round once, or until so much `work` is done, in columns
    looked at. Gives where it stopped, and what is left of the work.
    """
    apps, before, order = len(now.choice), now.choice.copy(), np.empty(len(market.gain), np.int64)
    for n in range(apps):
        app = (begin + n) % apps
        of, to = int(market.first[app]), int(market.first[app + 1])
        ascending(prices.loss, of, to, order)
        for wish in range(of, min(to, of + _WISHES)):
            if work <= 0:
                return app, 0
            work -= _kick_one(market, -1, prices, now, before, order[wish])
    return begin, work


@compiled_when_called
def refill(market: Market, out: int, prices: Priced, now: Allocation, column: int, work: int) -> None:
    """The same for columns that would have some of what one column left, those first that lose least."""
    found, loss, count = np.empty(len(market.gain), np.int64), np.empty(len(market.gain), np.int64), 0
    known, before, most = np.zeros(len(market.gain), np.bool_), now.choice.copy(), shortfall(prices, out, now)
    for e in range(market.start[column], market.start[column + 1]):
        for n in range(market.of_row[market.row[e]], market.of_row[market.row[e] + 1]):
            c = market.column[n]
            # What loses as much as is missing in all cannot help.
            if not known[c] and market.app[c] != out and prices.loss[c] < most:
                known[c] = True
                found[count], loss[count] = c, prices.loss[c]
                count += 1
    order = np.empty(count, np.int64)
    ascending(loss, 0, count, order)
    for place in order:
        if work <= 0 or loss[place] >= shortfall(prices, out, now):
            break
        work -= _kick_one(market, out, prices, now, before, found[place])


@inner_when_called
def _kick_one(market: Market, out: int, prices: Priced, now: Allocation, before: Ints, column: int) -> int:
    """Give an app a column; `before` is what there was, and becomes what there is. Gives the columns looked at."""
    if now.choice[market.app[column]] == column:
        return 0
    now.open[:] = False
    _, looked = push(market, out, now, column, _ANYTHING)
    tries = improve(market, out, prices, now, _AFTER)
    if total_gain(market, now.choice) > total_gain(market, before):
        before[:] = now.choice
    else:
        _return_to(market, now, before)
    return looked + _AFTER - tries + 1


@inner_when_called
def _return_to(market: Market, now: Allocation, before: Ints) -> None:
    """Undo what changed; all leave before anyone comes, since a row has room for its users alone."""
    changed = now.choice != before
    for app in range(len(before)):
        if changed[app]:
            change(market, now, app, -1)
    for app in range(len(before)):
        if changed[app]:
            change(market, now, app, before[app])


@compiled_when_called
def polish(market: Market, prices: Priced, now: Allocation, together: int, work: int) -> int:
    """Let neighbours choose anew, `together` at a time, around every app that loses and every row that is left over.

    Those with most to make good come first. Gives what is left of `work`, in columns to look at.
    """
    apps, rows = len(now.choice), len(now.left)
    made_good, order = np.empty(apps + rows, np.int64), np.empty(apps + rows, np.int64)
    for app in range(apps):
        made_good[app] = -loss_of(prices, app, now.choice[app])
    for r in range(rows):
        made_good[apps + r] = -prices.price[r] * now.left[r]
    ascending(made_good, 0, apps + rows, order)
    for n in order:
        if made_good[n] >= 0 or work <= 0:
            break
        app = int(n) if n < apps else _who_wants(market, prices, now, int(n) - apps)
        if app >= 0:
            work -= _choose_anew(market, prices, now, _neighbours(market, prices, now, app, together), work)
    return work


@inner_when_called
def _who_wants(market: Market, prices: Priced, now: Allocation, row: int) -> int:
    """Whoever would lose least by having something of a row that is left over, or -1."""
    least, who = 0, -1
    if now.left[row] > 0:
        for n in range(market.of_row[row], market.of_row[row + 1]):
            c = market.column[n]
            worse = prices.loss[c] - loss_of(prices, market.app[c], now.choice[market.app[c]])
            if now.choice[market.app[c]] != c and (who < 0 or worse < least):
                least, who = worse, market.app[c]
    return who


@inner_when_called
def _choose_anew(market: Market, prices: Priced, now: Allocation, apps: Ints, work: int) -> int:
    """The best for some apps, if it is better than what they have; gives the columns looked at."""
    left = np.zeros(len(now.left), np.int64)
    for app in apps:
        for e in range(market.start[market.first[app]], market.start[market.first[app + 1]]):
            # What none of them can have does not count as left over.
            left[market.row[e]] = now.left[market.row[e]]
    short = 0
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


@inner_when_called
def _neighbours(market: Market, prices: Priced, now: Allocation, app: int, most: int) -> Ints:
    """An app, those that have what it would like to have, those that have what these would like, and so on."""
    found, known, count, at = np.empty(most, np.int64), np.zeros(len(now.choice), np.bool_), 1, 0
    found[0] = app
    known[app] = True
    order = np.empty(len(market.gain), np.int64)
    while at < count < most:
        of, to = market.first[found[at]], market.first[found[at] + 1]
        ascending(prices.loss, of, to, order)
        for wish in range(of, min(to, of + _WISHES)):
            c = order[wish]
            for e in range(market.start[c], market.start[c + 1]):
                r = market.row[e]
                for n in range(now.seat[r], now.seat[r] + now.users[r]):
                    if count < most and not known[now.user[n]]:
                        found[count] = now.user[n]
                        known[now.user[n]] = True
                        count += 1
        at += 1
    return found[:count]
