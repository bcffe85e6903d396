"""Live time: seconds since the journal began, which never run backwards."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds since the journal began.
Clock = Callable[[], float]


def wall_clock(epoch: float, not_before_s: float = 0.0) -> Clock:
    """The time of day, counted from `epoch`, steady while the program runs, however somebody sets the day's clock."""
    begun_s = max(time.time() - epoch, not_before_s)
    ticks = time.monotonic()
    return lambda: begun_s + time.monotonic() - ticks
