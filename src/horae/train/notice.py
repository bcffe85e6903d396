"""The notice that a job has to leave: a signal, which does no more than raise a flag."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType


class Notice:
    """Whether this process was asked to stop."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.given = False
        self._first = stop_signal(env)
        self._before: signal._HANDLER = None
        self._listens = False

    def listen(self) -> None:
        """Take the signal that Horae sends first, and SIGTERM, which comes at the end of the grace period."""
        # Python hands signals to the main thread only; elsewhere the notice still comes with an answer to a report.
        if self._listens or threading.current_thread() is not threading.main_thread():
            return
        self._listens = True
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(self._first, self._on_signal)
        os.register_at_fork(after_in_child=self._leave_to_the_parent)

    def rest(self) -> None:
        """The loop is over: from now on SIGTERM ends the process again, and only the first signal grants it time."""
        if self._listens and threading.current_thread() is threading.main_thread():
            self._listens = False
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.given = True

    def _leave_to_the_parent(self) -> None:
        """In a forked worker: the notice to the whole group must not kill it in mid-step, and SIGTERM must."""
        if self._listens:
            signal.signal(self._first, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)


def stop_signal(env: Mapping[str, str]) -> signal.Signals:
    """The signal that gives notice; SIGUSR1 unless the environment names another."""
    return signal.Signals.__members__.get(env.get("HORAE_STOP_SIGNAL", ""), signal.SIGUSR1)
