"""Daemons of a small real engine in a folder: started, killed, frozen, each by its recorded process.

A later process that has the same id is never touched: records hold the start time and the boot of the machine.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from horae.backends.local.processes import Process, process_ids
from horae.backends.local.runner import stat_of
from horae.core.errors import UserError

#: Seconds for a start or a stop, far more than it takes: a busy machine is no failure.
PATIENCE_S = 60.0


class DaemonTrouble(UserError):
    """A daemon of an engine did not start or end in time."""


class Daemons:
    """Daemons by name. `FOLDER/pids` has their processes, `FOLDER/log` what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Daemons that are children of this process: they are waited for, so that they leave no zombies.
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start a daemon, unless it runs, and record its process."""
        if self.process(name).is_alive():
            return
        for folder in ("pids", "log"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as out:
            child = subprocess.Popen(
                [str(word) for word in command],
                env=dict(environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._children[child.pid] = child
        process = Process.of(child.pid)
        record = {"pid": process.pid, "start_time": process.start_time, "boot_id": process.boot_id}
        (self.folder / "pids" / name).write_text(json.dumps(record), encoding="utf-8")

    def log(self, name: str) -> Path:
        """What a daemon printed."""
        return self.folder / "log" / f"{name}.out"

    def names(self) -> list[str]:
        """Daemons that were ever started in the folder."""
        pids = self.folder / "pids"
        return sorted(path.name for path in pids.iterdir()) if pids.is_dir() else []

    def process(self, name: str) -> Process:
        """The process of a daemon, as recorded; a dead process if there is no record."""
        try:
            return Process(**json.loads((self.folder / "pids" / name).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return Process(0, 0, "")

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a daemon a signal, if it runs."""
        process = self.process(name)
        if process.is_alive():
            os.kill(process.pid, number)

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a daemon a signal, and wait until it is gone. A frozen daemon ends by SIGKILL only."""
        process = self.process(name)
        self.send(name, number)
        until(lambda: not process.is_alive(), f"{name} to end")
        if child := self._children.pop(process.pid, None):
            child.wait(PATIENCE_S)


def until(ready: Callable[[], object], what: str, log: Path | None = None, patience_s: float = PATIENCE_S) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + patience_s
    while not ready():
        if time.monotonic() > end_s:
            raise DaemonTrouble(f"Waited {patience_s:g} s in vain for {what}.{f' See {log}.' if log else ''}")
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """TCP ports of the loopback address that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def with_descendants(roots: Iterable[int]) -> set[int]:
    """Processes, and all that descend from them."""
    parents = {pid: int(fields[1]) for pid in process_ids() if (fields := stat_of(pid))}
    found, layer = set(roots), set(roots)
    while layer := {pid for pid, parent in parents.items() if parent in layer} - found:
        found |= layer
    return found


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes; some may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
