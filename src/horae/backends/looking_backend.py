"""What backends have in common whose one thread looks at a cluster again and again and does what is missing.

The daemon's loop notes and takes, and never waits; the thread does everything else. What is out of sight concludes
nothing: the sight is None, and `trouble` says why.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace

from horae.backends.driver import OutOfSight
from horae.backends.protocol import Attempt, Backend, Sight
from horae.backends.terms import Overtaken, Term
from horae.core.events import Event, NodeObserved

_LOG = logging.getLogger(__name__)


class LookingBackend(Backend):
    """A backend with a thread. Its maker calls `_begin` when all is in place."""

    def __init__(self, thread_name: str, silence_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`silence_s`: without a look for as long, by the clock `monotonic`, the cluster is out of sight."""
        self._silence_s, self._monotonic = silence_s, monotonic
        # Shared with other threads, under the lock.
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._sight: Sight | None = None
        self._trouble = "The cluster was not looked at yet."
        self._looked_s = monotonic()
        # Of the thread alone: nodes whose attempts were told since they are in sight.
        self._observed: set[str] = set()
        #: Faults that the log has, by their place in the code.
        self._logged: set[str] = set()
        self._wake, self._closing = threading.Event(), False
        self._term: Term | None = None
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def act_under(self, term: Term) -> None:
        """Do nothing more once another service has a higher term."""
        self._term = term

    def check_term(self) -> None:
        """Raise `Overtaken` if another service has a higher term."""
        if self._term:
            self._term.check()

    def _begin(self) -> None:
        self._thread.start()

    # --- for the daemon: nothing here waits

    @property
    def trouble(self) -> str:
        """Why the cluster is out of sight, or what is wrong with its nodes."""
        return self._trouble or ("The cluster does not answer." if self._silent else "")

    @property
    def _silent(self) -> bool:
        return self._monotonic() - self._looked_s > self._silence_s

    def sight(self) -> Sight | None:
        """The nodes of the last look; None while the cluster is out of sight."""
        return None if self._silent else self._sight

    def watch(self, now_s: float) -> list[Event]:
        """Empty the queue of events."""
        with self._lock:
            events, self._events = self._events, []
        return [replace(event, at_s=now_s) for event in events]

    def _end_thread(self, limit_s: float) -> None:
        """End the thread after its next turn; a look that hangs is not waited for beyond the limit."""
        self._closing = True
        self._wake.set()
        self._thread.join(limit_s)

    # --- the thread

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._take_turn()
            if self._closing:
                return

    def _take_turn(self) -> None:
        """One turn; the cluster is out of sight if it fails."""
        try:
            self.check_term()
            self._turn()
        except Overtaken as why:
            self._lose_sight(str(why))
        except Exception as why:
            self._log_fault(why)
            self._lose_sight(self._why_blind(why))

    @abstractmethod
    def _pause_s(self) -> float:
        """Seconds to the next turn, if nothing wakes the thread."""

    @abstractmethod
    def _turn(self) -> None:
        """Write down what was noted; then, unless the backend is closing, look, act and tell."""

    @abstractmethod
    def _why_blind(self, why: Exception) -> str:
        """A sentence on a turn that failed. Anybody may read it: it names no job and no path."""

    def _log_fault(self, why: Exception) -> None:
        """Log where something failed that should not, once for each place. A cluster that is away is no fault."""
        if isinstance(why, OutOfSight | OSError):
            return
        place = traceback.format_tb(why.__traceback__)[-1]
        if place not in self._logged:
            self._logged.add(place)
            _LOG.warning("The backend failed, and goes on: %s.", type(why).__name__, exc_info=why)

    def _lose_sight(self, sentence: str) -> None:
        self._observed.clear()
        self._sight, self._trouble = None, sentence

    def _show_sight(self, sight: Sight) -> None:
        """Show these nodes. The sight stays the same object while nothing changes."""
        if sight != self._sight:
            self._sight = sight

    def _observe(self, living: Iterable[tuple[Attempt, Iterable[str]]]) -> None:
        """Tell which attempts live, or may live, on each node that was not told of since it is in sight.

        `living` are attempts with their nodes.
        """
        new = [node.name for node in (self._sight.nodes if self._sight else ()) if node.name not in self._observed]
        if not new:
            return
        alive: dict[str, list[Attempt]] = {}
        for attempt, nodes in living:
            for node in nodes:
                alive.setdefault(node, []).append(attempt)
        self._observed.update(new)
        self.tell(*(NodeObserved(0.0, node, tuple(sorted(alive.get(node, ())))) for node in new))

    def tell(self, *events: Event) -> None:
        """Put events into the queue."""
        with self._lock:
            self._events += events
