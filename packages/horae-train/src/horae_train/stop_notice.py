"""The stop notice: a signal that asks the job to save and exit. The handler only sets a flag."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType


class StopNotice:
    """Whether this process was asked to stop.

    Horae sends the stop signal to the whole process group. This process blocks the signal and
    checks whether it is pending. Child processes inherit the block, so that no worker process
    dies of the signal in the middle of a step.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._stop_signal = stop_signal(env)
        self._flag = False
        self._previous_handler: signal._HANDLER = None
        self._listening = False
        self._blocked = False

    @property
    def received(self) -> bool:
        """Whether the stop signal or SIGTERM has arrived."""
        return self._flag or (self._blocked and self._stop_signal in signal.sigpending())

    def listen(self) -> None:
        """Handle the stop signal, and SIGTERM, which Horae sends at the end of the grace period."""
        # Python lets only the main thread handle signals. A run in another thread is ended by them, like any process.
        if self._listening or threading.current_thread() is not threading.main_thread():
            return
        self._listening = True
        self._previous_handler = signal.signal(signal.SIGTERM, self._on_signal)
        if self._stop_signal != signal.SIGTERM:
            # Threads that were started earlier do not inherit the block: the handler serves them.
            signal.signal(self._stop_signal, self._on_signal)
            signal.pthread_sigmask(signal.SIG_BLOCK, {self._stop_signal})
            self._blocked = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._restore_sigterm)

    def stop_listening(self) -> None:
        """After the loop, SIGTERM ends the process again; the stop signal stays blocked, so the script may finish."""
        if threading.current_thread() is threading.main_thread():
            self._restore_sigterm()

    def _restore_sigterm(self) -> None:
        """Put back the earlier handler of SIGTERM; a forked worker process does the same."""
        if self._listening:
            self._listening = False
            signal.signal(signal.SIGTERM, self._previous_handler or signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._flag = True


def stop_signal(env: Mapping[str, str]) -> signal.Signals:
    """The job's stop signal: HORAE_STOP_SIGNAL, else SIGUSR1, or SIGTERM where the system has no SIGUSR1."""
    default = signal.Signals.__members__.get("SIGUSR1", signal.SIGTERM)
    return signal.Signals.__members__.get(env.get("HORAE_STOP_SIGNAL", ""), default)
