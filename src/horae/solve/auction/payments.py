"""Payments: the fraction of its bundle that each winner keeps, by what it costs the others.

The fraction c_i is the product of the others' values with app i over the same without app i. The latter depends on the
bids of the others alone, so a misreport cannot raise c_i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.solve.auction.winner_program import Market
from horae.solve.auction.winners import Effort, Winners, find_winners_without, slack

#: Least fraction: a fraction is above 0.
_LEAST = 1e-300


@dataclass(frozen=True)
class Payments:
    """The fraction that each app keeps, and the choices of the others without it."""

    #: Fraction of the bundle that each app keeps; 1 for losers.
    fraction: Floats
    #: For each winner: the apps with another column without it, and that column (-1: nothing).
    displaced: dict[int, dict[int, int]]
    #: Whether all fractions are exact.
    exact: bool
    #: Largest error of the logarithm of a fraction: the true value may be lower by this.
    log_gap: float


def charge(market: Market, winners: Winners, log_value: Floats, effort: Effort) -> Payments:
    """Solve the market without each winner, starting from the solution with it.

    `log_value`: log V of columns, less log V of nothing. Apps that are equal but for the name share one solution:
    without the one, the other has what the one has without it.
    """
    fraction, displaced = np.ones(len(winners.choice)), dict[int, dict[int, int]]()
    exact, gap, solved = winners.exact, 0.0, dict[int, Winners]()
    # If the winners are not proved optimal, payments need not be either.
    work = effort.work if exact else 0
    for app in np.flatnonzero(winners.choice >= 0).tolist():
        twin = int(market.twin[app])
        of_twin = solved.get(twin)
        if of_twin is None:
            without = find_winners_without(market, app, winners, replace(effort, work=work))
            work -= without.examined
        else:
            without = _exchanged(market, of_twin, twin, app)
        solved[app] = without
        displaced[app] = _changed(winners.choice, without.choice, app)
        fraction[app] = _fraction(market, winners, without, app, log_value)
        exact, gap = exact and without.exact, max(gap, without.log_gap)
    return Payments(fraction, displaced, exact, gap)


def _exchanged(market: Market, without: Winners, absent: int, app: int) -> Winners:
    """The solution without an app, from the solution without its twin."""
    choice = without.choice.copy()
    if choice[app] >= 0:
        choice[absent] = choice[app] - market.first[app] + market.first[absent]
    choice[app] = -1
    return replace(without, choice=choice)


def _changed(actual: Ints, without: Ints, app: int) -> dict[int, int]:
    """Apps other than `app` with another column without it, and that column."""
    others = np.flatnonzero(actual != without)
    return {other: int(without[other]) for other in others.tolist() if other != app}


def _fraction(market: Market, winners: Winners, without: Winners, app: int, log_value: Floats) -> float:
    """The fraction that a winner keeps; exactly 1 if the others lose no more than rounding errors."""
    gain_of_others = winners.gain - int(market.gain[winners.choice[app]])
    if without.gain - gain_of_others <= slack(market):
        return 1.0
    lost = _log_value(log_value, without.choice) - _log_value(log_value, winners.choice)
    lost[app] = 0.0
    return max(float(f"{np.exp(-float(lost.sum())):.12g}"), _LEAST)


def _log_value(log_value: Floats, choice: Ints) -> Floats:
    return np.where(choice >= 0, np.append(log_value, 0.0)[choice], 0.0)
