"""A call to a database that may hang, made in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from horae.service.store.connection import StoreTrouble

Answer = TypeVar("Answer")

#: Seconds that a caller waits for the call, which mostly takes milliseconds, before it goes on without an answer.
_GLANCE_S = 0.25


class BackgroundCall(Generic[Answer]):
    """Makes a call in a thread, each time when it is asked for the answer, so that nobody waits for long.

    There is one call at a time: one that hangs until its deadline is not made a second time meanwhile.
    """

    def __init__(self, call: Callable[[], Answer], glance_s: float = _GLANCE_S) -> None:
        self._call, self._glance_s = call, glance_s
        self._lock = threading.Lock()
        self._running: threading.Thread | None = None
        self._results: list[Answer | BaseException] = []
        self._last_failure: StoreTrouble | None = None

    def answer(self) -> Answer:
        """The answer of a call that began now or earlier; raises what it raised, or `StoreTrouble` while it runs."""
        with self._lock:
            if self._running is None:
                self._running = threading.Thread(target=self._run, name="horae-store", daemon=True)
                self._running.start()
                self._running.join(self._glance_s)
            if self._running.is_alive():
                raise self._last_failure or StoreTrouble("The journal does not answer: check that its database runs.")
            self._running = None
            result = self._results.pop()
        if isinstance(result, StoreTrouble):
            self._last_failure = result
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:
            self._results.append(error)
