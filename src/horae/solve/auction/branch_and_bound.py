"""Branch and bound: a search that finds, and proves, the best allocation. Compiled.

The gain of an allocation is the bound of the prices, less the losses of its columns and the price of the capacity left.
So the search for an allocation at most `margin` below the bound needs only columns with a loss up to the margin, and
turns back where losses add up to more. The loss that later apps cannot avoid, because better columns do not fit any
more, counts too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.moves import fits, take
from horae.solve.auction.prices import PricedMarket, ascending
from horae.solve.auction.winner_program import Market


class Options(NamedTuple):
    """Columns to try, in order: the app at depth d has the options first[d]:first[d + 1]."""

    app: Ints
    first: Ints
    #: Column of each option; -1: nothing.
    column: Ints
    loss: Ints
    #: Positions of options, sorted by loss within an app.
    by_loss: Ints
    #: The nearest lower depth with an equal app, or -1.
    twin: Ints


class BestFound(NamedTuple):
    """The result of a search."""

    #: The best allocation that was found.
    choice: Ints
    #: The bound less its gain; more than the margin if no allocation was found.
    short: int
    #: Whether it is proved to be the best.
    proved: bool
    #: Number of columns examined.
    examined: int


@compiled_when_called
def list_options(market: Market, apps: Ints, prices: PricedMarket, margin: int, by_name: bool) -> Options:
    """Options of some apps with a loss up to `margin`: in order of apps and columns, or apps with few options first."""
    count, place, size = np.zeros(len(apps), np.int64), np.arange(len(apps)), 0
    for n in range(len(apps)):
        for c in range(market.first[apps[n]], market.first[apps[n] + 1]):
            count[n] += prices.loss[c] <= margin
        count[n] += prices.best[apps[n]] <= margin
        size += count[n]
    if not by_name:
        ascending(count, 0, len(apps), place)
    order, first, n = np.empty(len(apps), np.int64), np.zeros(len(apps) + 1, np.int64), 0
    column, loss, by_loss = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    for depth in range(len(apps)):
        app = apps[place[depth]]
        for c in range(market.first[app], market.first[app + 1]):
            if prices.loss[c] <= margin:
                column[n], loss[n] = c, prices.loss[c]
                n += 1
        if prices.best[app] <= margin:
            column[n], loss[n] = -1, prices.best[app]
            n += 1
        order[depth], first[depth + 1] = app, n
        ascending(loss, first[depth], n, by_loss)
    options = Options(order, first, column, loss, by_loss, _twins_above(market, order))
    return options if by_name else _by_loss(options)


@inner_when_called
def _by_loss(options: Options) -> Options:
    """The same options, to be tried in order of loss."""
    column, loss, place = options.column.copy(), options.loss.copy(), np.arange(len(options.column))
    for n in range(len(column)):
        column[n], loss[n] = options.column[options.by_loss[n]], options.loss[options.by_loss[n]]
    return Options(options.app, options.first, column, loss, place, options.twin)


@inner_when_called
def _twins_above(market: Market, order: Ints) -> Ints:
    twin, last = np.full(len(order), -1), np.full(len(market.first) - 1, -1)
    for depth in range(len(order)):
        root = order[depth]
        while market.twin[root] >= 0:
            root = market.twin[root]
        twin[depth], last[root] = last[root], depth
    return twin


@compiled_when_called
def branch_and_bound(
    market: Market, prices: PricedMarket, options: Options, free: Ints, margin: int, step: int, work: int
) -> BestFound:
    """Search for the allocation of the free capacity with the largest gain, at most `margin` below the bound.

    Each allocation found must be better than the one before by `step`; 0: the first is enough. The search ends
    without proof after `work` columns.
    """
    depths = len(options.app)
    next_option, short = options.first[:-1].copy(), np.zeros(depths + 1, np.int64)
    left, chosen = free.copy(), np.full(depths, -1)
    choice, least, depth, examined = np.full(len(market.first) - 1, -1), margin + 1, 0, 0
    while depth >= 0:
        if examined > work:
            return BestFound(choice, least, False, examined)
        if depth == depths:
            total = short[depth]
            for r in range(len(left)):
                total += prices.price[r] * left[r]
            if total <= margin:
                for d in range(depths):
                    choice[options.app[d]] = options.column[chosen[d]]
                least = total
                if step == 0:
                    return BestFound(choice, least, True, examined)
                margin = total - step
        if depth == depths or next_option[depth] == options.first[depth + 1]:
            depth -= 1
            if depth >= 0:
                take(market, options.column[chosen[depth]], left, -1)
            continue
        option, examined = next_option[depth], examined + 1
        next_option[depth] += 1
        loss, column = short[depth] + options.loss[option], options.column[option]
        if loss > margin or (column >= 0 and not fits(market, column, left)):
            continue
        above = options.twin[depth]
        # Of two equal apps the first has the earlier option: exchanging them changes nothing.
        if above >= 0 and option - options.first[depth] < chosen[above] - options.first[above]:
            continue
        take(market, column, left, 1)
        more, seen = _unavoidable(market, options, depth + 1, left, margin - loss)
        examined += seen
        if loss + more > margin:
            take(market, column, left, -1)
            continue
        chosen[depth], short[depth + 1] = option, loss
        depth += 1
        if depth < depths:
            next_option[depth] = options.first[depth]
    return BestFound(choice, least, True, examined)


@inner_when_called
def _unavoidable(market: Market, options: Options, depth: int, left: Ints, margin: int) -> tuple[int, int]:
    """Least loss of all apps from a depth on (counted until it exceeds the margin), and the columns examined."""
    loss, examined = 0, 0
    for d in range(depth, len(options.app)):
        least = margin + 1
        for n in range(options.first[d], options.first[d + 1]):
            option = options.by_loss[n]
            examined += 1
            if options.column[option] < 0 or fits(market, options.column[option], left):
                least = options.loss[option]
                break
        loss += least
        if loss > margin:
            break
    return loss, examined
