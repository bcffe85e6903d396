"""An allocation, and moves that make it better: an app takes another bundle, alone or at the expense of some others.

Every move gains, so that the search ends. It looks only at rows that are open: all of them at
first; when one app leaves an allocation that no move could better, only what it leaves, and then
what those leave that move there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Bools, Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.prices import Priced, ascending, loss_of
from horae.solve.auction.winner_program import Market

#: What a move must gain, in units.
_LEAST = 1
#: So many apps at most change for another one's sake.
_CHAIN = 12


class Allocation(NamedTuple):
    """Who has what; all of it changes in place."""

    #: The column of each app, or -1.
    choice: Ints
    #: What is free of each row.
    left: Ints
    #: Apps that have something of row r: user[seat[r] : seat[r] + users[r]].
    user: Ints
    users: Ints
    seat: Ints
    #: Rows that moves look at.
    open: Bools


@compiled_when_called
def allocate(market: Market, choice: Ints) -> Allocation:
    """An allocation with these columns; all rows are open."""
    rows = len(market.capacity)
    seat = np.zeros(rows + 1, np.int64)
    for r in range(rows):
        # Everybody who has something of a row has at least 1; one more for the moment in which two exchange it.
        seat[r + 1] = seat[r] + market.capacity[r] + 1
    nobody = np.full(len(choice), -1)
    user, users = np.empty(seat[rows], np.int64), np.zeros(rows, np.int64)
    made = Allocation(nobody, market.capacity.copy(), user, users, seat, np.ones(rows, np.bool_))
    for app in range(len(choice)):
        change(market, made, app, choice[app])
    return made


@inner_when_called
def change(market: Market, now: Allocation, app: int, column: int) -> None:
    """Give an app another column, or -1; there may be less than nothing left then."""
    old = now.choice[app]
    if old >= 0:
        for e in range(market.start[old], market.start[old + 1]):
            r = market.row[e]
            now.left[r] += market.amount[e]
            last = now.seat[r] + now.users[r] - 1
            for n in range(now.seat[r], last):
                if now.user[n] == app:
                    now.user[n] = now.user[last]
                    break
            now.users[r] -= 1
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            r = market.row[e]
            now.left[r] -= market.amount[e]
            now.user[now.seat[r] + now.users[r]] = app
            now.users[r] += 1
    now.choice[app] = column


@inner_when_called
def take(market: Market, column: int, left: Ints, sign: int) -> None:
    """Take what a column needs (1), or give it back (-1)."""
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            left[market.row[e]] -= sign * market.amount[e]


@inner_when_called
def fits(market: Market, column: int, left: Ints) -> bool:
    """Whether there is enough left for a column."""
    for e in range(market.start[column], market.start[column + 1]):  # noqa: SIM110, not to be compiled otherwise
        if market.amount[e] > left[market.row[e]]:
            return False
    return True


@inner_when_called
def cost_of(market: Market, column: int, price: Ints) -> int:
    """What a column costs; nothing costs nothing."""
    cost = 0
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            cost += price[market.row[e]] * market.amount[e]
    return cost


@inner_when_called
def gain_of(market: Market, column: int) -> int:
    """What a column gains."""
    return int(market.gain[column]) if column >= 0 else 0


@compiled_when_called
def total_gain(market: Market, choice: Ints) -> int:
    """What an allocation gains."""
    total = 0
    for app in range(len(choice)):
        total += gain_of(market, choice[app])
    return total


@compiled_when_called
def fill(market: Market, prices: Priced) -> Ints:
    """A first allocation: apps in the order of what they gain at these prices, each the best that is left for it."""
    apps = len(prices.best)
    left, choice, order, key = market.capacity.copy(), np.full(apps, -1), np.empty(apps, np.int64), -prices.best
    ascending(key, 0, apps, order)
    for app in order:
        least = prices.best[app]
        for c in range(market.first[app], market.first[app + 1]):
            if prices.loss[c] < least and fits(market, c, left):
                least = prices.loss[c]
                choice[app] = c
        take(market, choice[app], left, 1)
    return choice


@compiled_when_called
def improve(market: Market, out: int, prices: Priced, now: Allocation, tries: int) -> int:
    """Make moves until none gains, or until `tries` columns were looked at; gives the tries that are left."""
    while True:
        tries -= _grow(market, out, prices.price, now)
        gained, tries = _displace(market, out, prices, now, tries)
        if gained == 0:
            return tries


@inner_when_called
def _grow(market: Market, out: int, price: Ints, now: Allocation) -> int:
    """Let apps take better bundles from what is left, whoever gains most for what it costs first."""
    looked = 0
    while True:
        best, who, what = 0.0, -1, -1
        for r in range(len(now.left)):
            if not now.open[r] or now.left[r] <= 0:
                continue
            for n in range(market.of_row[r], market.of_row[r + 1]):
                c = market.column[n]
                app = market.app[c]
                looked += 1
                if (
                    app == out
                    or market.gain[c] <= gain_of(market, now.choice[app])
                    or not _fits_instead(market, now, c)
                ):
                    continue
                more = market.gain[c] - gain_of(market, now.choice[app])
                # What costs less than it did is best of all.
                worth = more / max(cost_of(market, c, price) - cost_of(market, now.choice[app], price), 1)
                if worth > best or (worth == best and c < what):
                    best, who, what = worth, app, c
        if who < 0:
            return looked
        _open(market, now, now.choice[who])
        change(market, now, who, what)


@inner_when_called
def _fits_instead(market: Market, now: Allocation, column: int) -> bool:
    """Whether an app can have a column instead of its own; rows of both stand in order."""
    held = now.choice[market.app[column]]
    at, end = (market.start[held], market.start[held + 1]) if held >= 0 else (0, 0)
    for e in range(market.start[column], market.start[column + 1]):
        r = market.row[e]
        while at < end and market.row[at] < r:
            at += 1
        own = market.amount[at] if at < end and market.row[at] == r else 0
        if market.amount[e] > now.left[r] + own:
            return False
    return True


@inner_when_called
def _open(market: Market, now: Allocation, column: int) -> None:
    """Look at the rows of this column from now on."""
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            now.open[market.row[e]] = True


@inner_when_called
def _displace(market: Market, out: int, prices: Priced, now: Allocation, tries: int) -> tuple[int, int]:
    """One round of moves in which an app takes a better bundle and others lesser ones, if that gains.

    An allocation gains the bound, less the losses of its columns and the price of what is left. So
    a column that loses more than that is not worth a look.
    """
    gained, spare = 0, shortfall(prices, out, now)
    for r in range(len(now.left)):
        if not now.open[r]:
            continue
        for n in range(market.of_row[r], market.of_row[r + 1]):
            c = market.column[n]
            app = market.app[c]
            more = market.gain[c] - gain_of(market, now.choice[app])
            if app == out or more < _LEAST or prices.loss[c] - loss_of(prices, app, now.choice[app]) >= spare:
                continue
            if tries <= 0:
                return gained, tries
            step, looked = push(market, out, now, c, _LEAST)
            tries -= looked
            if step >= _LEAST:
                gained += step
                spare = shortfall(prices, out, now)
    return gained, tries


@inner_when_called
def shortfall(prices: Priced, out: int, now: Allocation) -> int:
    """By how much the allocation falls short of the bound."""
    short = 0
    for r in range(len(now.left)):
        short += prices.price[r] * now.left[r]
    for app in range(len(now.choice)):
        if app != out:
            short += loss_of(prices, app, now.choice[app])
    return short


@inner_when_called
def push(market: Market, out: int, now: Allocation, column: int, least: int) -> tuple[int, int]:
    """Give an app a column at the expense of others, if that gains at least so much; else leave all as it was.

    Gives what is gained, which is less than asked for if it was left, and how many columns were looked at.
    """
    app = market.app[column]
    more = market.gain[column] - gain_of(market, now.choice[app])
    who, had, count, looked = np.empty(_CHAIN + 1, np.int64), np.empty(_CHAIN + 1, np.int64), 1, 0
    who[0], had[0] = app, now.choice[app]
    change(market, now, app, column)
    while more >= least:
        scarce = _short_of(market, column, now.left)
        if scarce < 0:
            for n in range(count):
                _open(market, now, had[n])
            return more, looked
        if count > _CHAIN:
            break
        other, lesser, lost, seen = _whom(market, out, now, app, scarce, more - least + 1)
        looked += seen
        if other < 0:
            break
        who[count], had[count] = other, now.choice[other]
        count += 1
        more -= lost
        change(market, now, other, lesser)
    for n in range(count - 1, -1, -1):
        change(market, now, who[n], had[n])
    return least - 1, looked


@inner_when_called
def _whom(market: Market, out: int, now: Allocation, app: int, scarce: int, most: int) -> tuple[int, int, int, int]:
    """Who takes which lesser column so that more is left of a row and least is lost, less than `most`.

    The app, the column, what is lost, and how many columns were looked at.
    """
    best, who, what, looked = most, -1, -1, 0
    for n in range(now.seat[scarce], now.seat[scarce] + now.users[scarce]):
        other = now.user[n]
        if other in (app, out):
            continue
        held = now.choice[other]
        looked += 1 + market.first[other + 1] - market.first[other]
        if market.gain[held] < best:
            best, who, what = market.gain[held], other, -1
        take(market, held, now.left, -1)
        for c in range(market.first[other], market.first[other + 1]):
            lost = market.gain[held] - market.gain[c]
            if lost < best and c != held and fits(market, c, now.left):
                best, who, what = lost, other, c
        take(market, held, now.left, 1)
    return who, what, best, looked


@inner_when_called
def _short_of(market: Market, column: int, left: Ints) -> int:
    """A row of this column of which more was taken than there is, or -1."""
    for e in range(market.start[column], market.start[column + 1]):
        if left[market.row[e]] < 0:
            return int(market.row[e])
    return -1
