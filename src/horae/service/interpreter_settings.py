"""Settings of the Python process that let the daemon's loop answer soon while other threads are busy.

Threads share one interpreter. A thread that waits for it gets it after the switch interval, at the latest, and the
loop waits for it after each statement of the database. The garbage collector, when it looks at all objects, stops all
threads: with ten thousand jobs for a third of a second. Jobs live long, so they are set aside, where it does not look.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds after which a waiting thread gets the interpreter; Python's own setting is 5 ms.
_SWITCH_S = 0.0005
#: After how many new objects, and collections of the next younger ones, the collector looks at each of its generations.
_THRESHOLDS = (5000, 10, 50)


@contextmanager
def answering_soon() -> Iterator[None]:
    """Keep these settings for a while."""
    before_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_THRESHOLDS)
    set_aside()
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def set_aside() -> None:
    """Set all objects that are not new aside. Garbage among them stays until `collect_all`."""
    gc.collect(1)
    gc.freeze()


def collect_all() -> None:
    """Collect all garbage, once a day: it stops all threads while it looks at each object."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
