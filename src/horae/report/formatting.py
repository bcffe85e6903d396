"""Numbers as people write them: seconds in a unit that suits them, shares in per cent."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time and its length."""

    symbol: str
    plural: str
    seconds: float


_UNITS = (
    TimeUnit("s", "seconds", 1),
    TimeUnit("min", "minutes", 60),
    TimeUnit("h", "hours", 3600),
    TimeUnit("d", "days", 86400),
)

#: Shown in place of a number that does not exist.
NOTHING = "–"

#: Distances between the ticks of a time axis, in seconds, that people count in.
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def time_unit(longest_s: float) -> TimeUnit:
    """The largest unit of which `longest_s` holds at least two (90 minutes, 30 hours)."""
    fitting = [unit for unit in _UNITS if longest_s >= 2 * unit.seconds]
    return fitting[-1] if fitting else _UNITS[0]


def duration(seconds: float) -> str:
    """A length of time with its unit, such as 3.4 h."""
    if not math.isfinite(seconds):
        return NOTHING
    unit = time_unit(abs(seconds))
    return f"{number(seconds / unit.seconds)} {unit.symbol}"


def number(value: float) -> str:
    """About three digits, thousands set apart, no exponent."""
    if not math.isfinite(value):
        return NOTHING
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent(share: float) -> str:
    """A share as a percentage; only none and all are round."""
    if not math.isfinite(share):
        return NOTHING
    return f"{100 * share:.0f}%" if share in (0, 1) else f"{100 * share:.1f}%"


def time_ticks(begin_s: float, end_s: float, most: int = 9) -> tuple[list[float], TimeUnit]:
    """Moments at a round distance from `begin_s`, in at most `most` steps, and the unit to name them in."""
    length_s = max(end_s - begin_s, 1e-9)
    step = _time_step(length_s / most)
    return [begin_s + k * step for k in range(int(length_s / step * (1 + 1e-9)) + 1)], time_unit(length_s)


def _time_step(least_s: float) -> float:
    """The shortest step not below `least_s`: decimal below a second and above a day, as clocks count between."""
    if least_s < 1:
        return _decimal_step(least_s)
    return next((step for step in _TICKS_S if step >= least_s), 86400 * _decimal_step(least_s / 86400))


def _decimal_step(least: float) -> float:
    """The first of 1, 2, 5, 10 ... times a power of ten that is not below `least`."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))
