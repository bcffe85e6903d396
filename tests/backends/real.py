"""Helpers for tests with real processes; each test ends all it has started."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from horae.backends.local.attempt_folders import AttemptFolder
from horae.backends.local.backend import LocalBackend
from horae.backends.local.processes import Process, environment_of, process_ids
from horae.backends.local.runner_order import ATTEMPT_VARIABLE
from horae.backends.protocol import Attempt, Place, Start
from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.events import Event, JobStarted, NodeObserved

NODES = (Node("v100", "v100", 4), Node("k80", "k80", 4))
#: Far more than anything takes, so that a busy machine fails no test.
PATIENCE_S = 30.0


def bash(text: str) -> tuple[str, ...]:
    return ("bash", "-c", text)


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


def task(run: Sequence[str] = ("sleep", "60"), job: str = "a-1", **more: Any) -> Task:
    return Task(**{"user": "ann", "name": "a", "work": 100.0, "grace_s": 20.0, **more, "job": job, "run": tuple(run)})


def start(run: Sequence[str] | Task = ("sleep", "60"), attempt: int = 1, **more: Any) -> Start:
    """A start on one GPU, of which only the interesting part is named."""
    places = more.pop("places", (Place("v100", (0,)),))
    env, report_at = more.pop("env", {}), more.pop("report_at", ())
    what = run if isinstance(run, Task) else task(run, **more)
    return Start(what.job, attempt, what, "v100", places, env, report_at)


def until(look: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """Wait until something is true, and give it."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {patience_s:g} s in vain {what}")


def next_events(backend: LocalBackend, now_s: float = 7.0) -> list[Event]:
    """Watch until something happens; without the start that is told together with an end."""
    found: list[Event] = until(lambda: watched(backend, now_s), "for an event")
    return [event for event in found if not isinstance(event, JobStarted)] or found


def watched(backend: LocalBackend, now_s: float = 7.0) -> list[Event]:
    """Events of attempts, without what a backend tells of its nodes at first."""
    return [event for event in backend.watch(now_s) if not isinstance(event, NodeObserved)]


def alive(backend: LocalBackend) -> dict[str, tuple[Attempt, ...]]:
    """Attempts that a backend which is opened now would observe, by node."""
    return {event.node: event.alive for event in backend._alive() if isinstance(event, NodeObserved)}


def folder(state: Path, job: str = "a-1", attempt: int = 1) -> AttemptFolder:
    return AttemptFolder(state / "jobs" / job / str(attempt))


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def lives(pid: int) -> bool:
    return Process.of(pid).start_time > 0


def pid_in(path: Path) -> int:
    """The process number a job has written into a file, once it is there whole."""
    return int(until(lambda: text_of(path).endswith("\n") and text_of(path), f"for a number in {path}"))


@contextmanager
def opened(state: Path, **more: Any) -> Iterator[LocalBackend]:
    """A backend; all that it started is killed at the end."""
    backend = LocalBackend(state, NODES, **{"ready_s": 600.0, **more})
    try:
        yield backend
    finally:
        backend.close()
        end_all(state)


def end_all(state: Path) -> None:
    """Kill every runner and every process of the attempts in a folder, and wait until all are gone."""
    until(lambda: not _kill_all(state), "for processes to die")


def _kill_all(state: Path) -> list[int]:
    jobs = f"{state.resolve()}/jobs/"
    pids = [pid for pid in process_ids() if lives(pid) and (_runs_attempt_in(pid, jobs) or _belongs_to(pid, jobs))]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def _runs_attempt_in(pid: int, jobs: str) -> bool:
    """Whether a process is a runner there, even one that has not looked around yet."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return "-S" in words and any(word.startswith(jobs) for word in words)


def _belongs_to(pid: int, jobs: str) -> bool:
    return any(one.startswith(f"{ATTEMPT_VARIABLE}={jobs}") for one in environment_of(pid))
