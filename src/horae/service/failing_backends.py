"""How a service goes on with a backend that raises, though no backend should."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from horae.backends.found_jobs import FindsJobs
from horae.backends.protocol import Attempt, Backend, Sight, Start, is_shortage
from horae.backends.task import Task
from horae.core.events import Event, JobStopped, LaunchFailed

#: Seconds between two tries of a start or stop that failed, and tries of a start before the launch has failed.
_RETRY_S, _START_TRIES = 1.0, 3
_LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class SteadyBackend:
    """A backend whose methods never raise. What it raises is told as trouble, and a start or stop is tried again.

    A start that raised may have happened all the same, for example if only the answer was late. So a launch has
    failed only when the attempt was stopped, and the backend reports it as gone.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        #: Sentences by what failed last time.
        self._failures: dict[str, str] = {}
        #: Starts that failed, and how often; stops that failed.
        self._starts: dict[Attempt, tuple[Start, int]] = {}
        self._stops: set[Attempt] = set()
        #: Why attempts that were given up could not be started.
        self._given_up: dict[Attempt, str] = {}
        #: Whether the last call failed because this machine is short of something.
        self._is_short = False
        self._now_s = self._retry_s = -math.inf

    @property
    def shares_gpus(self) -> bool:
        """Whether two jobs can have the same GPUs."""
        return self._backend.shares_gpus

    @property
    def honours(self) -> frozenset[str]:
        """What else than GPUs jobs can ask for; nothing, with backends that do not say."""
        return frozenset(getattr(self._backend, "honours", ()))

    def refusal(self, user: str) -> str:
        """Why jobs of a user cannot run; empty with backends that do not say."""
        refuses: Callable[[str], str] = getattr(self._backend, "refusal", lambda user: "")
        return refuses(user)

    @property
    def submit_with(self) -> str:
        """How users submit jobs where the backend finds them itself; empty if they are submitted to the service."""
        return self._backend.submit_with if isinstance(self._backend, FindsJobs) else ""

    @property
    def trouble(self) -> str:
        """What is wrong, in one sentence; empty if nothing is."""
        try:
            return next(iter(tuple(self._failures.values())), "") or self._backend.trouble
        except Exception as error:
            return _sentence("say what is wrong", error)

    def give_way_until(self, idle: threading.Event) -> None:
        """Let threads of the backend wait for this event, which is set while the service's loop has nothing to do."""
        if give_way := getattr(self._backend, "give_way_until", None):
            give_way(idle)

    def sight(self) -> Sight | None:
        """The nodes; unknown if the backend fails to say."""
        return self._try("list its nodes", self._backend.sight, None)

    def start(self, start: Start) -> None:
        """Start an attempt; if that fails, again in a second, and at last give the attempt up.

        While this machine is short of descriptors, memory or processes, no attempt is given up.
        """
        attempt = (start.job, start.attempt)
        _, tries = self._starts.pop(attempt, (start, 0))
        failure = self._do("start a job", lambda: self._backend.start(start), bool(self._starts))
        if failure and (self._is_short or tries + 1 < _START_TRIES):
            self._starts[attempt] = (start, tries + (not self._is_short))
        elif failure:
            self._given_up[attempt] = failure
            self.stop(*attempt)

    def stop(self, job: str, attempt: int) -> None:
        """Stop an attempt; if that fails, again each second."""
        self._starts.pop((job, attempt), None)
        self._stops.discard((job, attempt))
        if self._do("stop a job", lambda: self._backend.stop(job, attempt), bool(self._stops)):
            self._stops.add((job, attempt))

    def gone(self, node: str) -> None:
        """Tell that nothing runs on a node any more. If that fails, the operator has to say so again."""
        self._try("note that a node is gone", lambda: self._backend.gone(node), None)

    def watch(self, now_s: float) -> list[Event]:
        """Try again what failed, then return the events of the backend."""
        self._now_s = now_s
        if now_s >= self._retry_s:
            self._retry_s = math.inf
            for start, _ in list(self._starts.values()):
                self.start(start)
            for stop in sorted(self._stops):
                self.stop(*stop)
        nothing: list[Event] = []
        events = self._try("watch its jobs", lambda: self._backend.watch(now_s), nothing)
        return [self._as_failed_launch(event) for event in events]

    def _as_failed_launch(self, event: Event) -> Event:
        """The end of an attempt that was given up is a failed launch."""
        if isinstance(event, JobStopped) and (why := self._given_up.get((event.job, event.attempt))):
            return LaunchFailed(event.at_s, event.job, event.attempt, why)
        return event

    def forget(self, job: str, attempt: int) -> None:
        """Drop the records of an attempt. If that fails, the next backend on these records reports it again."""
        if self._given_up.pop((job, attempt), None) and not (self._given_up or self._starts):
            self._failures.pop("start a job", None)
        self._try("forget a job", lambda: self._backend.forget(job, attempt), None)

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete the files of jobs. If that fails, the next clean-up tries again."""
        return self._try("delete files", lambda: self._backend.discard(jobs, kept), [])

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """The log file. Who asks gets the error, if there is one."""
        return self._backend.log(job, attempt, piece)

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of secrets. Who asks gets the error, if there is one: a log must not be shown unmasked."""
        return self._backend.secrets(names)

    def close(self) -> None:
        """Release all resources."""
        self._backend.close()

    def _do(self, what: str, call: Callable[[], None], failed_before: bool) -> str:
        """Make a call that is tried again if it fails; returns why it failed, or ""."""
        before = self._failures.get(what) if failed_before else None

        def performed() -> bool:
            call()
            return True

        failed = not self._try(what, performed, False)
        if failed:
            self._retry_s = self._now_s + _RETRY_S
        elif before:
            # Another attempt still waits for its next try.
            self._failures[what] = before
        return self._failures[what] if failed else ""

    def _try(self, what: str, call: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """What a call returns, or `otherwise` if it raises."""
        try:
            answer = call()
        except Exception as error:
            self._is_short = is_shortage(error)
            sentence = _sentence(what, error)
            if self._failures.get(what) != sentence:
                _LOG.warning(sentence, exc_info=error)
            self._failures[what] = sentence
            return otherwise
        self._failures.pop(what, None)
        return answer


def _sentence(what: str, error: Exception) -> str:
    """What failed, and why, without anything that not everybody may read."""
    why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    return f"The backend failed to {what}: {why}."
