"""Processes that are not children of this process: whether they are alive, and when they exit.

The system uses process ids again, so a process is identified by its id, its start time and the boot of the machine.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from horae.backends.local import runner
from horae.backends.protocol import Attempt

#: Identifier of the current boot; constant while this process lives.
this_boot = cache(runner.boot_id)


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine, distinct from later processes with the same id."""

    pid: int
    start_time: int
    boot_id: str

    @staticmethod
    def of(pid: int) -> Process:
        """The process that has this id now."""
        return Process(pid, runner.start_time(pid), this_boot())

    def is_alive(self) -> bool:
        """Whether the process still runs. A zombie does not count."""
        return self.boot_id == this_boot() and 0 < self.start_time == runner.start_time(self.pid)

    def send(self, number: int) -> None:
        """Send a signal to the process, if it still runs and may be signalled."""
        try:
            handle = os.pidfd_open(self.pid)
        except AttributeError:  # a kernel, or a C library, without pidfds
            if self.is_alive():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, number)
            return
        except OSError:
            return
        try:
            # Opened before it is compared, so the id cannot be reused in between.
            if self.is_alive():
                signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            pass
        finally:
            os.close(handle)

    def has_argument(self, argument: str) -> bool:
        """Whether the process was started with this argument; False if that cannot be read."""
        try:
            return argument in Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return False


class ExitWatcher:
    """Watches the runners of attempts; one system call finds all runners that have exited.

    Each process has a file descriptor (pidfd). If the kernel has no pidfd, or no descriptor is left, /proc is
    read for each process instead.
    """

    def __init__(self) -> None:
        self._poll = select.epoll() if hasattr(select, "epoll") else None
        self._handles: dict[Attempt, int] = {}
        self._attempts: dict[int, Attempt] = {}
        self._without_handle: dict[Attempt, Process] = {}

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._handles or attempt in self._without_handle

    def follow(self, attempt: Attempt, process: Process) -> None:
        """Watch the runner of an attempt, instead of an earlier runner."""
        self.unfollow(attempt)
        handle = self._open(process)
        if handle is None or self._poll is None:
            self._without_handle[attempt] = process
            return
        self._handles[attempt], self._attempts[handle] = handle, attempt
        self._poll.register(handle, select.EPOLLIN)

    def _open(self, process: Process) -> int | None:
        """A pidfd of the process. Opened before the start time is compared, so the id cannot be reused in between."""
        try:
            handle = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            return None
        if process.boot_id == this_boot() and runner.start_time(process.pid) in (0, process.start_time):
            return handle
        os.close(handle)
        return None

    def unfollow(self, attempt: Attempt) -> None:
        """Stop watching the runner of an attempt."""
        self._without_handle.pop(attempt, None)
        handle = self._handles.pop(attempt, None)
        if handle is not None:
            del self._attempts[handle]
            os.close(handle)

    def poll(self) -> list[Attempt]:
        """Attempts whose runners have exited. Each is returned once and no longer watched."""
        ready = self._poll.poll(0, max(len(self._handles), 1)) if self._poll and self._handles else []
        dead = [self._attempts[handle] for handle, _ in ready]
        dead += [attempt for attempt, process in self._without_handle.items() if not process.is_alive()]
        for attempt in dead:
            self.unfollow(attempt)
        return dead

    def kill(self, attempt: Attempt) -> None:
        """Kill the runner of an attempt, if it is watched and alive."""
        try:
            if attempt in self._handles:
                signal.pidfd_send_signal(self._handles[attempt], signal.SIGKILL)
            elif attempt in self._without_handle:
                self._without_handle[attempt].send(signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # the runner has exited already, or runs under another account by now

    def close(self) -> None:
        """Close all descriptors. The processes go on."""
        for attempt in list(self._handles):
            self.unfollow(attempt)
        if self._poll:
            self._poll.close()


def leftovers(leader: Process, marker: str) -> list[int]:
    """Living processes of a dead leader's session, and all processes with `marker` in their environment.

    A job may have named any process as the leader: this process, and those that started it, are never among them.
    """
    if leader.boot_id and leader.boot_id != this_boot():
        return []
    own = set(_ancestors(os.getpid()))
    return [pid for pid in process_ids() if pid not in own and _belongs(pid, leader, marker)]


def _ancestors(pid: int) -> Iterator[int]:
    """A process, its parent, the parent of that, and so on."""
    while pid > 0:
        yield pid
        pid = int((runner.stat_of(pid)[1:2] or ["0"])[0])


def process_ids() -> Iterator[int]:
    """Ids of all processes of this machine."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def _belongs(pid: int, leader: Process, marker: str) -> bool:
    fields = runner.stat_of(pid)
    if not fields or fields[0] in "ZX" or int(fields[19]) < leader.start_time:
        return False
    in_session = leader.pid > 0 and int(fields[3]) == leader.pid != os.getsid(0)
    return in_session or marker in environment_of(pid)


def environment_of(pid: int) -> list[str]:
    """The environment a process was started with, as `NAME=value`; empty if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
