"""What is on disk of attempts: a folder for each, and a marker for each that is not forgotten.

<state>/jobs/<job>/checkpoint/     what the job saves, by default
<state>/jobs/<job>/<attempt>/      order.json, runner.json, exit.json, log.txt, lock, stop; work/
<state>/attempts/<job>@<attempt>   a marker, so that a restart need not look through all that ever ran
<state>/bin/<job>/                 what was a job's folder, on its way out
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from horae.backends.local import runner
from horae.backends.local.processes import Process
from horae.backends.protocol import Attempt
from horae.backends.task import Task

_JOB = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class AttemptFolder:
    """The records of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        """What the attempt printed."""
        return self.path / runner.LOG

    def make(self) -> None:
        """Have the folder, for nobody else to read, and the job's own place in it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / "work").mkdir(mode=0o700, exist_ok=True)

    def write_order(self, order: dict[str, Any]) -> None:
        """Write the order for good; the first one stands."""
        runner.write_whole(str(self.path), runner.ORDER, order, once=True)

    def order(self) -> dict[str, Any] | None:
        """The order, if there is one."""
        return read_json(self.path / runner.ORDER)

    def scrub(self) -> None:
        """Drop the environment, and the token with it, from the order; the task stays known."""
        order = self.order()
        if order and order["env"]:
            runner.write_whole(str(self.path), runner.ORDER, {**order, "env": {}})

    def runner(self) -> dict[str, Any] | None:
        """What the runner said of itself, if there was one."""
        if not (self.path / runner.RUNNER).exists():
            return None
        # Unreadable after a power cut: no process of before lives.
        return read_json(self.path / runner.RUNNER) or {"pid": 0, "start_time": 0, "boot_id": "", "up_at": None}

    def runner_stamp(self) -> int:
        """What changes whenever the runner says something anew; 0 before it has said anything."""
        try:
            return (self.path / runner.RUNNER).stat().st_ino
        except OSError:
            return 0

    def runner_process(self) -> Process | None:
        """The runner's process, alive or not, if there was one."""
        who = self.runner()
        return Process(int(who["pid"]), int(who["start_time"]), who["boot_id"]) if who else None

    def exit(self) -> dict[str, Any] | None:
        """How it ended, if it did."""
        return read_json(self.path / runner.EXIT)

    def ask_to_stop(self) -> None:
        """Note that a stop was asked for, before anybody is signalled; a full disk keeps no stop from going on."""
        with suppress(OSError):
            (self.path / runner.STOP).touch(mode=0o600)

    @property
    def asked_to_stop(self) -> bool:
        """Whether a stop was asked for."""
        return (self.path / runner.STOP).exists()

    def end(self, code: int, at: float, stopped: bool, begun: bool) -> bool:
        """Write the exit in a runner's place, under its lock; False if a runner is about, or begun is not as said."""
        lock = runner.take_lock(str(self.path)) if self.path.exists() else None
        if lock is None:
            return False
        try:
            if self.exit() or (self.path / runner.RUNNER).exists() != begun:
                return False
            end = {"code": code, "signal": max(code - 128, 0), "stopped": stopped, "at": at}
            return runner.write_whole(str(self.path), runner.EXIT, end)
        finally:
            os.close(lock)

    @property
    def locked(self) -> bool:
        """Whether a runner, or someone in its place, is at work right now."""
        # Not made for the question alone: on a full disk it could not be.
        lock = runner.take_lock(str(self.path)) if (self.path / runner.LOCK).exists() else -1
        if lock is not None and lock >= 0:
            os.close(lock)
        return lock is None


class Folders:
    """All attempts on disk."""

    def __init__(self, state: Path) -> None:
        self._jobs, self._markers, self._bin = state / "jobs", state / "attempts", state / "bin"
        for folder in (state, self._jobs, self._markers):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of(self, attempt: Attempt) -> AttemptFolder:
        """The folder of an attempt, there or not."""
        job, number = attempt
        assert _JOB.fullmatch(job), f"{job!r} is no safe name for a folder"
        return AttemptFolder(self._jobs / job / str(number))

    def remembered(self) -> list[Attempt]:
        """Attempts that are not forgotten, in order."""
        parts = (entry.name.rpartition("@") for entry in os.scandir(self._markers))
        return sorted((job, int(number)) for job, _, number in parts)

    def remember(self, attempt: Attempt) -> AttemptFolder:
        """Make the folder of an attempt and its marker, which comes first: nothing runs that nobody remembers."""
        (self._markers / f"{attempt[0]}@{attempt[1]}").touch(mode=0o600)
        folder = self.of(attempt)
        folder.make()
        return folder

    def forget(self, attempt: Attempt) -> None:
        """Take the marker away. Log and exit stay: the attempt never runs again."""
        (self._markers / f"{attempt[0]}@{attempt[1]}").unlink(missing_ok=True)

    def spoken_of(self, tasks: Iterable[Task]) -> set[str]:
        """Jobs whose folders tasks name: to go on from where another job ended, for one."""
        folder = re.compile(re.escape(f"{self._jobs}/") + r"([^/\s]+)")
        return {job for task in tasks for text in _texts(task) for job in folder.findall(text)}

    def discard(self, job: str) -> bool:
        """Put the folder of a job into the bin; False if that cannot be done now."""
        assert _JOB.fullmatch(job), f"{job!r} is no safe name for a folder"
        try:
            self._bin.mkdir(mode=0o700, exist_ok=True)
            # One that never ran has none, nor has one that went before that was noted.
            if os.path.lexists(self._jobs / job):
                (self._jobs / job).rename(self._bin / job)
        except OSError:
            return False
        return True

    @property
    def has_full_bin(self) -> bool:
        """Whether anything is on its way out."""
        return bool(self._discarded())

    def empty_bin(self) -> None:
        """Delete what is on its way out; what cannot be deleted stays, and is tried again the next time."""
        for entry in self._discarded():
            # A job may have put anything in the place of its folder; a link is never followed.
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    Path(entry.path).unlink()

    def _discarded(self) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self._bin))
        except OSError:
            return []

    def orders(self, job: str) -> Iterator[dict[str, Any]]:
        """All orders of a job, the newest first."""
        attempts = [int(entry.name) for entry in os.scandir(self._jobs / job) if entry.name.isdigit()]
        found = (self.of((job, number)).order() for number in sorted(attempts, reverse=True))
        return (order for order in found if order)


def _texts(task: Task) -> Iterator[str]:
    """Whatever in a task may be, or hold, a path."""
    workdir = f"{task.workdir}/" if task.workdir else ""
    paths = (os.path.normpath(path) for path in (task.workdir, f"{workdir}{task.checkpoint_dir}") if path)
    return chain(paths, (task.workdir, task.checkpoint_dir, task.setup), task.run, task.env.values())


def read_json(path: Path) -> dict[str, Any] | None:
    """The map in a JSON file; None if the file is missing, unreadable or holds something else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
