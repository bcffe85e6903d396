"""What winners pay: the part of its bundle that each gives back, as it costs the others by being there.

c_i is the product of the others' values with i over the same without i. W(i), the best the others
can do without i, depends on the bids of the others alone; that is what makes lying useless.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.auction.winner_program import Market
from horae.solve.auction.winners import Effort, Winners, find_winners_without, slack

#: A part that is kept is above 0, however little it is.
_LEAST = 1e-300


@dataclass(frozen=True)
class Payments:
    """The part that each app keeps, and how the others would have fared without it."""

    #: 1 for losers.
    fraction: Floats
    #: For each winner: apps whose column would be another, and which (-1: nothing).
    displaced: dict[int, dict[int, int]]
    #: Whether all fractions are exact.
    exact: bool
    #: The logarithm of each fraction is less than this below what it is said to be.
    log_gap: float


def charge(market: Market, winners: Winners, log_value: Floats, effort: Effort) -> Payments:
    """Solve once more without each winner, from the solution with it.

    `log_value` is of columns, over nothing. What is the same app but for its name need not be
    solved for again: without the one, the other has what the one would have had without it.
    """
    fraction, displaced = np.ones(len(winners.choice)), dict[int, dict[int, int]]()
    exact, gap, known = winners.exact, 0.0, dict[int, Winners]()
    # Where winners are not certain, payments need not be either.
    work = effort.work if exact else 0
    for app in np.flatnonzero(winners.choice >= 0).tolist():
        twin = int(market.twin[app])
        same = known.get(twin)
        if same is None:
            without = find_winners_without(market, app, winners, replace(effort, work=work))
            work -= without.looked
        else:
            without = _exchanged(market, same, twin, app)
        known[app] = without
        displaced[app] = _changed(winners.choice, without.choice, app)
        fraction[app] = _fraction(market, winners, without, app, log_value)
        exact, gap = exact and without.exact, max(gap, without.log_gap)
    return Payments(fraction, displaced, exact, gap)


def _exchanged(market: Market, without: Winners, absent: int, app: int) -> Winners:
    """The solution without an app, from the one without its twin."""
    choice = without.choice.copy()
    if choice[app] >= 0:
        choice[absent] = choice[app] - market.first[app] + market.first[absent]
    choice[app] = -1
    return replace(without, choice=choice)


def _changed(now: Ints, then: Ints, app: int) -> dict[int, int]:
    others = np.flatnonzero(now != then)
    return {other: int(then[other]) for other in others.tolist() if other != app}


def _fraction(market: Market, winners: Winners, without: Winners, app: int, log_value: Floats) -> float:
    """The part that a winner keeps; exactly 1 where the others lose nothing but what rounding makes."""
    others_now = winners.gain - int(market.gain[winners.choice[app]])
    if without.gain - others_now <= slack(market):
        return 1.0
    lost = _log_value(log_value, without.choice) - _log_value(log_value, winners.choice)
    lost[app] = 0.0
    return max(float(f"{np.exp(-float(lost.sum())):.12g}"), _LEAST)


def _log_value(log_value: Floats, choice: Ints) -> Floats:
    return np.where(choice >= 0, np.append(log_value, 0.0)[choice], 0.0)
