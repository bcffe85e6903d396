"""Threads for the disk work of attempts: one after the other for an attempt, side by side for several.

The daemon's loop never waits for a disk: it hands work in, and takes up later what is to be done with the result. Work
that hangs costs a thread, which is replaced, up to a limit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from horae.backends.protocol import Attempt

#: Threads, and how many there may be with those that hang.
THREADS, MOST_THREADS = 8, 64
#: Seconds after which work counts as hanging.
PATIENCE_S = 20.0

#: What the loop does once work is done.
Then = Callable[[], None]
#: Work of a thread. It must not raise.
Work = Callable[[], Then]


class DiskWorkers:
    """A small pool of threads. All methods are called by the daemon's loop."""

    def __init__(
        self, threads: int = THREADS, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threads, self._patience_s, self._clock = threads, patience_s, clock
        self._changed = threading.Condition()
        #: Work that waits, by attempt; attempts whose turn it is.
        self._waiting: dict[Attempt, deque[Work]] = {}
        self._turns: deque[Attempt] = deque()
        #: Attempts that are worked for, and since when.
        self._running: dict[Attempt, float] = {}
        self._done: list[Then] = []
        self._alive = self._idle = 0
        self._closing = False

    def submit(self, attempt: Attempt, work: Work) -> None:
        """Perform work in a thread, after all that was submitted for the same attempt before."""
        with self._changed:
            self._waiting.setdefault(attempt, deque()).append(work)
            if attempt not in self._running and len(self._waiting[attempt]) == 1:
                self._turns.append(attempt)
            self._hire()
            self._changed.notify()

    def take_done(self) -> list[Then]:
        """What is to be done for all work that was finished since the last call."""
        with self._changed:
            if self._turns:
                self._hire()
            done, self._done = self._done, []
        return done

    def is_busy(self, attempt: Attempt) -> bool:
        """Whether there is work for an attempt whose result was not taken up."""
        with self._changed:
            return attempt in self._running or attempt in self._waiting

    def jobs(self) -> set[str]:
        """Jobs for which there is work."""
        with self._changed:
            return {job for job, _ in (*self._running, *self._waiting)}

    def hanging(self) -> list[Attempt]:
        """Attempts whose work hangs."""
        with self._changed:
            return [attempt for attempt, since_s in self._running.items() if self._hangs(since_s)]

    def wait(self, limit_s: float) -> bool:
        """Wait until nothing is left to do, but not for longer than this; whether nothing is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running and not self._waiting, limit_s)

    def close(self, limit_s: float) -> None:
        """Perform what was submitted, for a while; then begin nothing more."""
        self.wait(limit_s)
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._turns.clear()
            self._changed.notify_all()

    def _hangs(self, since_s: float) -> bool:
        return self._clock() - since_s > self._patience_s

    def _hire(self) -> None:
        """Start a thread if all are busy, and too few of them can be counted on."""
        hanging = sum(map(self._hangs, self._running.values()))
        if not self._idle and self._alive - hanging < self._threads and self._alive < MOST_THREADS:
            self._alive += 1
            threading.Thread(target=self._work, name="horae-disk", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._turns or self._closing)
                self._idle -= 1
                if self._closing:
                    self._alive -= 1
                    return
                attempt = self._turns.popleft()
                work = self._waiting[attempt].popleft()
                if not self._waiting[attempt]:
                    del self._waiting[attempt]
                self._running[attempt] = self._clock()
            then = work()
            with self._changed:
                del self._running[attempt]
                self._done.append(then)
                if attempt in self._waiting:
                    self._turns.append(attempt)
                self._changed.notify_all()
