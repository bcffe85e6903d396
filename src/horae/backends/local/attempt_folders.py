"""Files of attempts on disk. Stored: change by addition.

A job can write the files of its own attempts. So whatever is in them, or in their place, reading does not raise, does
not wait for a pipe, and does not read more than a little: a file that cannot be understood is as good as none, but for
`exit.json`, which then tells of a failure.

<state>/jobs/<job>/checkpoint/     checkpoints of the job, by default
<state>/jobs/<job>/<attempt>/      order.json, runner.json, exit.json, log.txt, lock, stop; work/
<state>/attempts/<job>@<attempt>   marker of an attempt that is not forgotten, so that a restart reads only these
<state>/bin/<job>/                 folder of a discarded job, to be deleted
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from horae.backends.local import runner
from horae.backends.local.processes import Process
from horae.backends.local.runner_order import task_of
from horae.backends.protocol import Attempt
from horae.backends.task import Task

_FOLDER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_MARKER = re.compile(rf"({_FOLDER_NAME.pattern})@([1-9][0-9]{{0,9}})", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
#: Exit code of an attempt whose `exit.json` cannot be understood.
_UNREADABLE = 1
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerRecord:
    """Content of `runner.json`."""

    process: Process
    #: When the job's processes came up, in seconds of the monotonic clock of that boot.
    up_at: float | None
    #: Folder of the control group of the job's processes; empty if they have none.
    control_group: str = ""

    @staticmethod
    def of(content: Mapping[str, Any]) -> RunnerRecord:
        """The record in a file. One that cannot be understood is that of a process which is not alive."""
        try:
            process = Process(int(content["pid"]), int(content["start_time"]), str(content["boot_id"]))
            up_at = content.get("up_at")
            up_at = None if up_at is None or not math.isfinite(up_at) else float(up_at)
            group = content.get("control_group", "")
            return RunnerRecord(process if 0 < process.pid < 2**31 else _NOBODY, up_at, str(group))
        except (KeyError, TypeError, ValueError, OverflowError):
            return RunnerRecord(_NOBODY, None)


#: The process of a `runner.json` that was cut off, as by a power cut: then none of the processes is alive.
_NOBODY = Process(0, 0, "")


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """Content of `exit.json`: how an attempt ended."""

    code: int
    stopped: bool
    #: Whether the runner died without a word, so that somebody else wrote this.
    silent: bool = False
    #: Why the attempt could not be started; empty if it could.
    why: str = ""
    #: What the runner found in `saved.json` before and after the job, if only the job's user can read that.
    saved_before: dict[str, Any] | None = None
    saved_after: dict[str, Any] | None = None

    @staticmethod
    def of(content: Mapping[str, Any]) -> ExitRecord:
        """The record in a file. One that cannot be understood is that of a failure."""
        code, why = content.get("code"), content.get("why", "")
        if type(code) is not int or not 0 <= code <= 255 or not isinstance(why, str):
            return ExitRecord(_UNREADABLE, stopped=False)
        before, after = (content.get(name) for name in ("saved_before", "saved_after"))
        return ExitRecord(
            code,
            content.get("stopped") is True,
            content.get("silent") is True,
            why,
            before if isinstance(before, dict) else None,
            after if isinstance(after, dict) else None,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """What of `order.json` concerns the backend."""

    content: dict[str, Any]
    nodes: tuple[str, ...]
    task: Task
    #: Work in the job's checkpoint when the order was written.
    saved: float

    @property
    def is_user_owned(self) -> bool:
        """Whether the job runs under its user's account, so that only that account can read its checkpoint."""
        return bool(self.content.get("account"))

    @staticmethod
    def of(content: dict[str, Any] | None) -> Order | None:
        """The order in a file; None if there is none, or it cannot be understood."""
        if content is None:
            return None
        try:
            nodes, saved = tuple(map(str, content["nodes"])), float(content.get("saved", 0.0))
            if any({"", ".", ".."} & set(node.split("/")) for node in nodes):
                return None
            return Order(content, nodes, task_of(content), saved if math.isfinite(saved) else 0.0)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return None


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

    def order(self) -> Order | None:
        """The order; None if there is none, or it cannot be understood. Like all reads here, raises OSError if a moment
        later there may be one.
        """
        return Order.of(read_json(self.path / runner.ORDER, runner.LARGEST_ORDER, sure=True))

    @property
    def was_ordered(self) -> bool:
        """Whether there is an order, even one that cannot be understood."""
        return os.path.lexists(self.path / runner.ORDER)

    def claimed_pieces(self) -> tuple[str, ...]:
        """Nodes whose pieces were begun, by their files alone: nodes are called HOST or HOST/TYPE."""
        found = (*self.path.glob(f"*/{runner.CLAIM}"), *self.path.glob(f"*/*/{runner.CLAIM}"))
        names = (path.parent.relative_to(self.path) for path in found)
        return tuple(sorted(str(name) for name in names if name.parts[0] != "work"))

    def scrub(self) -> None:
        """Remove the environment, and with it the token, from the order. The task stays.

        Need not be durable: what a power cut brings back is the token of an attempt that is over.
        """
        remove_drafts(self.path)
        order = read_json(self.path / runner.ORDER, runner.LARGEST_ORDER)
        if order and order.get("env"):
            runner.write_atomically(str(self.path), runner.ORDER, {**order, "env": {}}, durable=False)

    def runner(self) -> RunnerRecord | None:
        """Content of `runner.json`; None if no runner was started."""
        path = self.path / runner.RUNNER
        return RunnerRecord.of(read_json(path, sure=True) or {}) if os.path.lexists(path) else None

    def runner_process(self) -> Process | None:
        """The runner's process, alive or dead; None if no runner was started."""
        record = self.runner()
        return record.process if record else None

    def exit(self) -> ExitRecord | None:
        """Content of `exit.json`; None if the attempt has not ended."""
        path = self.path / runner.EXIT
        return ExitRecord.of(read_json(path, sure=True) or {}) if os.path.lexists(path) else None

    def request_stop(self) -> None:
        """Record the stop request before any signal is sent. A full disk must not prevent the stop."""
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(self.path / runner.STOP, flags, 0o600))

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return os.path.lexists(self.path / runner.STOP)

    def end(self, code: int, now_s: float, stopped: bool, was_begun: bool, silent: bool = False, why: str = "") -> bool:
        """Write `exit.json` instead of the runner, under its lock.

        False if a runner holds the lock, an exit exists, or `was_begun` does not match the disk.
        """
        lock = runner.take_lock(str(self.path)) if self.path.exists() else None
        if lock is None:
            return False
        try:
            if self.exit() or os.path.lexists(self.path / runner.RUNNER) != was_begun:
                return False
            end: dict[str, Any] = {"code": code, "signal": max(code - 128, 0), "stopped": stopped, "at": now_s}
            end |= ({"silent": True} if silent else {}) | ({"why": why} if why else {})
            return runner.write_atomically(str(self.path), runner.EXIT, end)
        finally:
            os.close(lock)

    @property
    def locked(self) -> bool:
        """Whether a runner, or `end`, holds the lock now."""
        # Do not create the lock file only to test it: on a full disk that would fail.
        try:
            lock = runner.take_lock(str(self.path)) if os.path.lexists(self.path / runner.LOCK) else -1
        except OSError:
            return False
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
        with os.scandir(self._markers) as entries:
            found = {entry.name: None if _is_folder(entry) else _MARKER.fullmatch(entry.name) for entry in entries}
        strays = sorted(name for name, marker in found.items() if not marker)
        if strays:
            _LOG.warning(
                "%d files in %s are no markers of attempts, such as %r.", len(strays), self._markers, strays[0]
            )
        return sorted((marker[1], int(marker[2])) for marker in found.values() if marker)

    def is_tracked(self, attempt: Attempt) -> bool:
        """Whether an attempt has a marker."""
        return os.path.lexists(self._markers / f"{attempt[0]}@{attempt[1]}")

    def remember(self, attempt: Attempt) -> AttemptFolder:
        """Create the folder of an attempt, then its marker: each marker has a folder, and nothing runs without one."""
        folder = self.of(attempt)
        folder.make()
        (self._markers / f"{attempt[0]}@{attempt[1]}").touch(mode=0o600)
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
            with suppress(OSError):  # its order cannot be read now: what is outside the state folder stays
                if order := next(_orders(Path(entry.path)), None):
                    remove(order.content)
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

    def orders(self, job: str) -> Iterator[Order]:
        """All orders of a job that can be read, newest first."""
        return _orders(self._jobs / job)

    def last_saved(self, job: str) -> dict[str, Any] | None:
        """What the last runner that read it found in `saved.json` of a job whose files belong to its user."""
        ends = (self.of((job, number)).exit() for number in _attempt_numbers(self._jobs / job))
        return next((end.saved_after for end in ends if end and end.saved_after is not None), None)


def _attempt_numbers(job_folder: Path) -> list[int]:
    """Numbers of a job's attempts, the last first."""
    try:
        names = [path.name for path in job_folder.iterdir()]
    except OSError:
        return []
    return sorted((int(name) for name in names if _NUMBER.fullmatch(name)), reverse=True)


def _orders(job_folder: Path) -> Iterator[Order]:
    found = (AttemptFolder(job_folder / str(number)).order() for number in _attempt_numbers(job_folder))
    return (order for order in found if order)


def remove_drafts(folder: Path) -> None:
    """Remove drafts of orders, with tokens and secrets, that a process left when it died."""
    for draft in folder.glob(f".{runner.ORDER}.*"):
        with suppress(OSError):
            draft.unlink()


def _path_texts(task: Task) -> Iterator[str]:
    """All texts of a task that may be, or contain, a path."""
    workdir = f"{task.workdir}/" if task.workdir else ""
    paths = (os.path.normpath(path) for path in (task.workdir, f"{workdir}{task.checkpoint_dir}") if path)
    return chain(paths, (task.workdir, task.checkpoint_dir, task.setup), task.run, task.env.values())


def read_json(path: Path, most: int = runner.LARGEST_FILE, sure: bool = False) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing, unreadable, too large or holds something else.

    With `sure`, raises OSError if the file may be readable a moment later.
    """
    return runner.read_object(str(path), most, sure)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
