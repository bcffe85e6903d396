"""Processes that are not our children: whether they live, and when they go.

A process number alone means little, since numbers are used again. A process is known by its
number, its start time and the boot of the machine.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from horae.backends.local import runner
from horae.backends.protocol import Attempt

#: This boot of the machine; it cannot change while we live.
this_boot = cache(runner.boot_id)


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine, and no other that may come to have its number."""

    pid: int
    start_time: int
    boot_id: str

    @staticmethod
    def of(pid: int) -> Process:
        """The process that has a number now."""
        return Process(pid, runner.start_time(pid), this_boot())

    def lives(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return self.boot_id == this_boot() and 0 < self.start_time == runner.start_time(self.pid)


class Deaths:
    """Tells which of many processes have died, at the cost of one system call.

    Each is followed by a file descriptor (pidfd). Where the kernel has none, or the
    descriptors run out, /proc is read for each process instead.
    """

    def __init__(self) -> None:
        self._poll = select.epoll() if hasattr(select, "epoll") else None
        self._handles: dict[Attempt, int] = {}
        self._attempts: dict[int, Attempt] = {}
        self._plain: dict[Attempt, Process] = {}

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._handles or attempt in self._plain

    def follow(self, attempt: Attempt, process: Process) -> None:
        """Follow the runner of an attempt, in place of any before."""
        self.leave(attempt)
        handle = self._open(process)
        if handle is None or self._poll is None:
            self._plain[attempt] = process
            return
        self._handles[attempt], self._attempts[handle] = handle, attempt
        self._poll.register(handle, select.EPOLLIN)

    def _open(self, process: Process) -> int | None:
        """A descriptor of this very process; opened first, compared then, so that no other can slip in."""
        try:
            handle = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            return None
        if process.boot_id == this_boot() and runner.start_time(process.pid) in (0, process.start_time):
            return handle
        os.close(handle)
        return None

    def leave(self, attempt: Attempt) -> None:
        """Follow it no longer."""
        self._plain.pop(attempt, None)
        handle = self._handles.pop(attempt, None)
        if handle is not None:
            del self._attempts[handle]
            os.close(handle)

    def poll(self) -> list[Attempt]:
        """The attempts whose runners have died; each is told once and followed no longer."""
        found = self._poll.poll(0, max(len(self._handles), 1)) if self._poll and self._handles else []
        dead = [self._attempts[handle] for handle, _ in found]
        dead += [attempt for attempt, process in self._plain.items() if not process.lives()]
        for attempt in dead:
            self.leave(attempt)
        return dead

    def terminate(self, attempt: Attempt) -> None:
        """SIGTERM to the runner of an attempt, if it is followed and lives."""
        try:
            if attempt in self._handles:
                signal.pidfd_send_signal(self._handles[attempt], signal.SIGTERM)
            elif attempt in self._plain and self._plain[attempt].lives():
                os.kill(self._plain[attempt].pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # gone already, as asked

    def close(self) -> None:
        """Give the descriptors back; the processes stay."""
        for attempt in list(self._handles):
            self.leave(attempt)
        if self._poll:
            self._poll.close()


def leftovers(leader: Process, mark: str) -> list[int]:
    """Living processes of a session whose leader is dead, and any that carry a mark in their environment."""
    if leader.boot_id != this_boot():
        return []
    return [pid for pid in _pids() if _belongs(pid, leader, mark)]


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def _belongs(pid: int, leader: Process, mark: str) -> bool:
    fields = runner.stat_of(pid)
    if not fields or fields[0] in "ZX" or int(fields[19]) < leader.start_time:
        return False
    return int(fields[3]) == leader.pid or mark in _environment(pid)


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
