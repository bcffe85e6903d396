"""The clock of the service: seconds since the journal's epoch, which never run backwards."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Returns the seconds since the journal's epoch.
Clock = Callable[[], float]


def wall_clock(
    epoch: float,
    not_before_s: float = 0.0,
    time_of_day: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Clock:
    """A clock that starts at the time of day minus `epoch`, and then ignores changes of the system clock."""
    begun_s = max(time_of_day() - epoch, not_before_s)
    ticks = monotonic()
    return lambda: begun_s + monotonic() - ticks
