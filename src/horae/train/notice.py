"""The notice that a job has to leave: a signal, which does no more than raise a flag."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType


class Notice:
    """Whether this process was asked to stop.

    The signal that comes first goes to the whole process group. It is blocked here, and looked for when
    somebody asks. Whatever this process starts inherits that, so that no worker dies of it in mid-step.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._first = stop_signal(env)
        self._raised = False
        self._before: signal._HANDLER = None
        self._listens = False
        self._blocks = False

    @property
    def given(self) -> bool:
        """Whether a signal has come."""
        return self._raised or (self._blocks and self._first in signal.sigpending())

    def listen(self) -> None:
        """Take the signal that Horae sends first, and SIGTERM, which comes at the end of the grace period."""
        # Python lets no other thread take signals. A run that is made there is ended by them, like any process.
        if self._listens or threading.current_thread() is not threading.main_thread():
            return
        self._listens = True
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        if self._first != signal.SIGTERM:
            # Threads that were there before do not inherit the block: the handler is for those.
            signal.signal(self._first, self._on_signal)
            signal.pthread_sigmask(signal.SIG_BLOCK, {self._first})
            self._blocks = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._give_back)

    def rest(self) -> None:
        """The loop is over: from now on SIGTERM ends the process again, and only the first signal grants it time."""
        if threading.current_thread() is threading.main_thread():
            self._give_back()

    def _give_back(self) -> None:
        """SIGTERM does again what it did before; in a forked worker, too."""
        if self._listens:
            self._listens = False
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._raised = True


def stop_signal(env: Mapping[str, str]) -> signal.Signals:
    """The signal that gives notice; SIGUSR1 unless the environment names another, or the system has none."""
    usual = signal.Signals.__members__.get("SIGUSR1", signal.SIGTERM)
    return signal.Signals.__members__.get(env.get("HORAE_STOP_SIGNAL", ""), usual)
