"""Files of attempts on disk. Stored: change by addition.

<state>/jobs/<job>/checkpoint/     checkpoints of the job, by default
<state>/jobs/<job>/<attempt>/      order.json, runner.json, exit.json, log.txt, lock, stop; work/
<state>/attempts/<job>@<attempt>   marker of an attempt that is not forgotten, so that a restart reads only these
<state>/bin/<job>/                 folder of a discarded job, to be deleted
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from horae.backends.local import runner
from horae.backends.local.processes import Process
from horae.backends.local.runner_order import checkpoint_folder
from horae.backends.protocol import Attempt
from horae.backends.task import Task

_FOLDER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class AttemptFolder:
    """The files of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        """The log file: what the attempt printed."""
        return self.path / runner.LOG

    def make(self) -> None:
        """Create the folder and its working folder, readable by the owner only."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / "work").mkdir(mode=0o700, exist_ok=True)

    def write_order(self, order: dict[str, Any], durable: bool = True) -> None:
        """Write the order. An existing order is kept. `durable`: it survives a power cut."""
        runner.write_atomically(str(self.path), runner.ORDER, order, once=True, durable=durable)

    def order(self) -> dict[str, Any] | None:
        """The order; None if there is none."""
        return read_json(self.path / runner.ORDER)

    def scrub(self, durable: bool = True) -> None:
        """Remove the environment, and with it the token, from the order. The task stays."""
        remove_drafts(self.path)
        order = self.order()
        if order and order["env"]:
            runner.write_atomically(str(self.path), runner.ORDER, {**order, "env": {}}, durable=durable)

    def runner(self) -> dict[str, Any] | None:
        """Content of `runner.json`; None if no runner was started."""
        if not (self.path / runner.RUNNER).exists():
            return None
        # Unreadable after a power cut: then none of the processes is alive.
        return read_json(self.path / runner.RUNNER) or {"pid": 0, "start_time": 0, "boot_id": "", "up_at": None}

    def runner_stamp(self) -> int:
        """Version of `runner.json`, which changes at every write; 0 before the first."""
        try:
            return (self.path / runner.RUNNER).stat().st_ino
        except OSError:
            return 0

    def runner_process(self) -> Process | None:
        """The runner's process, alive or dead; None if no runner was started."""
        identity = self.runner()
        return Process(int(identity["pid"]), int(identity["start_time"]), identity["boot_id"]) if identity else None

    def exit(self) -> dict[str, Any] | None:
        """Content of `exit.json`; None if the attempt has not ended."""
        return read_json(self.path / runner.EXIT)

    def request_stop(self) -> None:
        """Record the stop request before any signal is sent. A full disk must not prevent the stop."""
        with suppress(OSError):
            (self.path / runner.STOP).touch(mode=0o600)

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return (self.path / runner.STOP).exists()

    def end(self, code: int, now_s: float, stopped: bool, was_begun: bool) -> bool:
        """Write `exit.json` instead of the runner, under its lock.

        False if a runner holds the lock, an exit exists, or `was_begun` does not match the disk.
        """
        lock = runner.take_lock(str(self.path)) if self.path.exists() else None
        if lock is None:
            return False
        try:
            if self.exit() or (self.path / runner.RUNNER).exists() != was_begun:
                return False
            end = {"code": code, "signal": max(code - 128, 0), "stopped": stopped, "at": now_s}
            return runner.write_atomically(str(self.path), runner.EXIT, end)
        finally:
            os.close(lock)

    @property
    def locked(self) -> bool:
        """Whether a runner, or `end`, holds the lock now."""
        # Do not create the lock file only to test it: on a full disk that would fail.
        lock = runner.take_lock(str(self.path)) if (self.path / runner.LOCK).exists() else -1
        if lock is not None and lock >= 0:
            os.close(lock)
        return lock is None


class AttemptFolders:
    """The folders of all attempts, and their markers."""

    def __init__(self, state: Path) -> None:
        self._jobs, self._markers, self._bin = state / "jobs", state / "attempts", state / "bin"
        for folder in (state, self._jobs, self._markers):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of(self, attempt: Attempt) -> AttemptFolder:
        """The folder of an attempt, whether it exists or not."""
        job, number = attempt
        assert _FOLDER_NAME.fullmatch(job), f"{job!r} is no safe name for a folder"
        return AttemptFolder(self._jobs / job / str(number))

    def tracked(self) -> list[Attempt]:
        """Attempts that are not forgotten, sorted."""
        parts = (entry.name.rpartition("@") for entry in os.scandir(self._markers))
        return sorted(
            (job, int(number)) for job, _, number in parts if number.isdigit() and _FOLDER_NAME.fullmatch(job)
        )

    def is_tracked(self, attempt: Attempt) -> bool:
        """Whether an attempt has a marker."""
        return (self._markers / f"{attempt[0]}@{attempt[1]}").exists()

    def remember(self, attempt: Attempt) -> AttemptFolder:
        """Create the marker of an attempt, then its folder: no attempt may run without a marker."""
        (self._markers / f"{attempt[0]}@{attempt[1]}").touch(mode=0o600)
        folder = self.of(attempt)
        folder.make()
        return folder

    def forget(self, attempt: Attempt) -> None:
        """Remove the marker. Log and exit stay, so the attempt never runs again."""
        (self._markers / f"{attempt[0]}@{attempt[1]}").unlink(missing_ok=True)

    def jobs_named_in(self, tasks: Iterable[Task], job_folders: str = "") -> set[str]:
        """Jobs whose folders these tasks name, for example to continue from another job's checkpoint.

        `job_folders`: how paths to folders of jobs go on that are not in the state folder.
        """
        places = "|".join(re.escape(f"{place}/") for place in (self._jobs, job_folders) if place)
        folder = re.compile(rf"(?:{places})([^/\s]+)")
        return {job for task in tasks for text in _path_texts(task) for job in folder.findall(text)}

    def discard(self, job: str) -> bool:
        """Move the folder of a job into the bin; False if that is not possible now."""
        assert _FOLDER_NAME.fullmatch(job), f"{job!r} is no safe name for a folder"
        try:
            self._bin.mkdir(mode=0o700, exist_ok=True)
            # A job that never ran has no folder; neither has a job that was discarded before a crash.
            if os.path.lexists(self._jobs / job):
                (self._jobs / job).rename(self._bin / job)
        except OSError:
            return False
        return True

    @property
    def has_full_bin(self) -> bool:
        """Whether the bin holds anything."""
        return bool(self._discarded())

    def empty_bin(self, remove: Callable[[dict[str, Any]], None] = lambda order: None) -> None:
        """Delete everything in the bin. What cannot be deleted stays, and is tried again next time.

        `remove` is given an order of each job first, to delete what is not in the state folder.
        """
        for entry in self._discarded():
            for order in _orders(Path(entry.path)):
                remove(order)
                break
            # A job may have replaced its folder by anything; links are never followed.
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
        """All orders of a job, newest first."""
        return _orders(self._jobs / job)

    def last_saved(self, job: str) -> dict[str, Any] | None:
        """What the last runner that read it found in `saved.json` of a job whose files belong to its user."""
        for number in _attempt_numbers(self._jobs / job):
            end = self.of((job, number)).exit()
            if end and isinstance(saved := end.get("saved_after"), dict):
                return saved
        return None


def _attempt_numbers(job_folder: Path) -> list[int]:
    """Numbers of a job's attempts, the last first."""
    try:
        names = [entry.name for entry in os.scandir(job_folder)]
    except OSError:
        return []
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def _orders(job_folder: Path) -> Iterator[dict[str, Any]]:
    found = (AttemptFolder(job_folder / str(number)).order() for number in _attempt_numbers(job_folder))
    return (order for order in found if order)


def remove_drafts(folder: Path) -> None:
    """Remove drafts of orders, with tokens and secrets, that a process left when it died."""
    for draft in folder.glob(f".{runner.ORDER}.*"):
        draft.unlink(missing_ok=True)


def _path_texts(task: Task) -> Iterator[str]:
    """All texts of a task that may be, or contain, a path."""
    workdir = f"{task.workdir}/" if task.workdir else ""
    paths = (os.path.normpath(path) for path in (task.workdir, f"{workdir}{task.checkpoint_dir}") if path)
    return chain(paths, (task.workdir, task.checkpoint_dir, task.setup), task.run, task.env.values())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing, unreadable or holds something else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_if_there(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is none. Raises OSError if nobody can tell."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def work_saved(task: Task, folder: Path) -> float:
    """Work in the checkpoint of a task whose attempt has this folder."""
    return work_in(task, read_json(checkpoint_folder(task, folder) / "saved.json"))


def work_in(task: Task, saved: Mapping[str, Any] | None) -> float:
    """Work in the checkpoint of a task whose `saved.json` has this content."""
    if not saved:
        return 0.0
    try:
        return task.work_done(float(saved["step"]), float(saved["total"]) if saved.get("total") else None)
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0
