"""An allocation, and moves that improve it: an app takes another column, from free capacity or by an ejection chain.

Every move gains, so the search ends. Moves look only at rows that are open: all rows at first. When an app leaves an
allocation that no move could improve, only the rows that it leaves are open, and then the rows that moves leave.
Compiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Bools, Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.prices import PricedMarket, ascending, loss_of
from horae.solve.auction.winner_program import Market

#: Least gain of a move, in units.
_LEAST = 1
#: Largest number of apps that one ejection chain changes.
_LONGEST_CHAIN = 12


class Allocation(NamedTuple):
    """The column of each app, and the capacity left; all arrays change in place."""

    #: The column of each app, or -1.
    choice: Ints
    #: Capacity left of each row.
    left: Ints
    #: Apps that take from row r: user[seat[r] : seat[r] + users[r]].
    user: Ints
    users: Ints
    seat: Ints
    #: Rows that moves look at.
    open: Bools


@compiled_when_called
def allocate(market: Market, choice: Ints) -> Allocation:
    """The allocation with these columns; all rows are open."""
    rows = len(market.capacity)
    seat = np.zeros(rows + 1, np.int64)
    for r in range(rows):
        # An app takes at least 1 from a row; one more place for the moment in which two apps exchange.
        seat[r + 1] = seat[r] + market.capacity[r] + 1
    nothing = np.full(len(choice), -1)
    user, users = np.empty(seat[rows], np.int64), np.zeros(rows, np.int64)
    made = Allocation(nothing, market.capacity.copy(), user, users, seat, np.ones(rows, np.bool_))
    for app in range(len(choice)):
        change(market, made, app, choice[app])
    return made


@inner_when_called
def change(market: Market, allocation: Allocation, app: int, column: int) -> None:
    """Give an app another column, or -1 for nothing; the capacity left may become negative."""
    old = allocation.choice[app]
    if old >= 0:
        for e in range(market.start[old], market.start[old + 1]):
            r = market.row[e]
            allocation.left[r] += market.amount[e]
            last = allocation.seat[r] + allocation.users[r] - 1
            for n in range(allocation.seat[r], last):
                if allocation.user[n] == app:
                    allocation.user[n] = allocation.user[last]
                    break
            allocation.users[r] -= 1
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            r = market.row[e]
            allocation.left[r] -= market.amount[e]
            allocation.user[allocation.seat[r] + allocation.users[r]] = app
            allocation.users[r] += 1
    allocation.choice[app] = column


@inner_when_called
def take(market: Market, column: int, left: Ints, sign: int) -> None:
    """Take the amounts of a column from `left` (sign 1), or give them back (sign -1)."""
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            left[market.row[e]] -= sign * market.amount[e]


@inner_when_called
def fits(market: Market, column: int, left: Ints) -> bool:
    """Whether the capacity left is enough for a column."""
    for e in range(market.start[column], market.start[column + 1]):  # noqa: SIM110, not to be compiled otherwise
        if market.amount[e] > left[market.row[e]]:
            return False
    return True


@inner_when_called
def cost_of(market: Market, column: int, price: Ints) -> int:
    """Price of a column; 0 for nothing (-1)."""
    cost = 0
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            cost += price[market.row[e]] * market.amount[e]
    return cost


@inner_when_called
def gain_of(market: Market, column: int) -> int:
    """Gain of a column; 0 for nothing (-1)."""
    return int(market.gain[column]) if column >= 0 else 0


@compiled_when_called
def total_gain(market: Market, choice: Ints) -> int:
    """Gain of an allocation."""
    total = 0
    for app in range(len(choice)):
        total += gain_of(market, choice[app])
    return total


@compiled_when_called
def fill(market: Market, prices: PricedMarket) -> Ints:
    """A first allocation: apps by profit at these prices, largest first; each takes its best column that fits."""
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
def improve(market: Market, out: int, prices: PricedMarket, allocation: Allocation, tries: int) -> int:
    """Make moves until no move gains, or until `tries` columns were examined; returns the tries that are left."""
    while True:
        tries -= _take_free(market, out, prices.price, allocation)
        gained, tries = _try_ejections(market, out, prices, allocation, tries)
        if gained == 0:
            return tries


@inner_when_called
def _take_free(market: Market, out: int, price: Ints, allocation: Allocation) -> int:
    """Let apps take better columns from the capacity left, the largest gain for its price first."""
    examined = 0
    while True:
        best, who, what = 0.0, -1, -1
        for r in range(len(allocation.left)):
            if not allocation.open[r] or allocation.left[r] <= 0:
                continue
            for n in range(market.of_row[r], market.of_row[r + 1]):
                c = market.column[n]
                app = market.app[c]
                examined += 1
                if (
                    app == out
                    or market.gain[c] <= gain_of(market, allocation.choice[app])
                    or not _fits_instead(market, allocation, c)
                ):
                    continue
                more = market.gain[c] - gain_of(market, allocation.choice[app])
                # A column that costs less than the present one is best of all.
                worth = more / max(cost_of(market, c, price) - cost_of(market, allocation.choice[app], price), 1)
                if worth > best or (worth == best and c < what):
                    best, who, what = worth, app, c
        if who < 0:
            return examined
        _open_rows(market, allocation, allocation.choice[who])
        change(market, allocation, who, what)


@inner_when_called
def _fits_instead(market: Market, allocation: Allocation, column: int) -> bool:
    """Whether an app can have a column instead of its present one; the rows of both are sorted."""
    held = allocation.choice[market.app[column]]
    entry, end = (market.start[held], market.start[held + 1]) if held >= 0 else (0, 0)
    for e in range(market.start[column], market.start[column + 1]):
        r = market.row[e]
        while entry < end and market.row[entry] < r:
            entry += 1
        own = market.amount[entry] if entry < end and market.row[entry] == r else 0
        if market.amount[e] > allocation.left[r] + own:
            return False
    return True


@inner_when_called
def _open_rows(market: Market, allocation: Allocation, column: int) -> None:
    """Open the rows of this column."""
    if column >= 0:
        for e in range(market.start[column], market.start[column + 1]):
            allocation.open[market.row[e]] = True


@inner_when_called
def _try_ejections(
    market: Market, out: int, prices: PricedMarket, allocation: Allocation, tries: int
) -> tuple[int, int]:
    """One round of ejection chains: an app takes a better column and others lesser columns, if that gains.

    The gain of an allocation is the bound, less the losses of its columns and the price of the capacity left. So a
    column whose loss is larger than the present shortfall cannot help.
    """
    gained, spare = 0, shortfall(prices, out, allocation)
    for r in range(len(allocation.left)):
        if not allocation.open[r]:
            continue
        for n in range(market.of_row[r], market.of_row[r + 1]):
            c = market.column[n]
            app = market.app[c]
            more = market.gain[c] - gain_of(market, allocation.choice[app])
            if app == out or more < _LEAST or prices.loss[c] - loss_of(prices, app, allocation.choice[app]) >= spare:
                continue
            if tries <= 0:
                return gained, tries
            step, examined = ejection_chain(market, out, allocation, c, _LEAST)
            tries -= examined
            if step >= _LEAST:
                gained += step
                spare = shortfall(prices, out, allocation)
    return gained, tries


@inner_when_called
def shortfall(prices: PricedMarket, out: int, allocation: Allocation) -> int:
    """The bound less the gain of the allocation."""
    short = 0
    for r in range(len(allocation.left)):
        short += prices.price[r] * allocation.left[r]
    for app in range(len(allocation.choice)):
        if app != out:
            short += loss_of(prices, app, allocation.choice[app])
    return short


@inner_when_called
def ejection_chain(market: Market, out: int, allocation: Allocation, column: int, least: int) -> tuple[int, int]:
    """Give an app a column at the expense of others, if that gains at least `least`; else change nothing.

    Returns the gain, which is below `least` if nothing changed, and the number of columns examined.
    """
    app = market.app[column]
    more = market.gain[column] - gain_of(market, allocation.choice[app])
    who, had, count, examined = np.empty(_LONGEST_CHAIN + 1, np.int64), np.empty(_LONGEST_CHAIN + 1, np.int64), 1, 0
    who[0], had[0] = app, allocation.choice[app]
    change(market, allocation, app, column)
    while more >= least:
        exceeded = _exceeded_row(market, column, allocation.left)
        if exceeded < 0:
            for n in range(count):
                _open_rows(market, allocation, had[n])
            return more, examined
        if count > _LONGEST_CHAIN:
            break
        other, lesser, lost, seen = _cheapest_ejection(market, out, allocation, app, exceeded, more - least + 1)
        examined += seen
        if other < 0:
            break
        who[count], had[count] = other, allocation.choice[other]
        count += 1
        more -= lost
        change(market, allocation, other, lesser)
    for n in range(count - 1, -1, -1):
        change(market, allocation, who[n], had[n])
    return least - 1, examined


@inner_when_called
def _cheapest_ejection(
    market: Market, out: int, allocation: Allocation, app: int, exceeded: int, most: int
) -> tuple[int, int, int, int]:
    """The app and its lesser column that free capacity of a row at the least loss, below `most`.

    Returns the app, the column, the loss, and the number of columns examined.
    """
    best, who, what, examined = most, -1, -1, 0
    for n in range(allocation.seat[exceeded], allocation.seat[exceeded] + allocation.users[exceeded]):
        other = allocation.user[n]
        if other in (app, out):
            continue
        held = allocation.choice[other]
        examined += 1 + market.first[other + 1] - market.first[other]
        if market.gain[held] < best:
            best, who, what = market.gain[held], other, -1
        take(market, held, allocation.left, -1)
        for c in range(market.first[other], market.first[other + 1]):
            lost = market.gain[held] - market.gain[c]
            if lost < best and c != held and fits(market, c, allocation.left):
                best, who, what = lost, other, c
        take(market, held, allocation.left, 1)
    return who, what, best, examined


@inner_when_called
def _exceeded_row(market: Market, column: int, left: Ints) -> int:
    """A row of this column whose capacity is exceeded, or -1."""
    for e in range(market.start[column], market.start[column + 1]):
        if left[market.row[e]] < 0:
            return int(market.row[e])
    return -1
