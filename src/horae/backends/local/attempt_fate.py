"""What became of an attempt, by its files and processes. Called by threads that may wait for a disk."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from horae.backends.local.attempt_folders import AttemptFolder, AttemptFolders, ExitRecord, Order, RunnerRecord
from horae.backends.local.processes import Process, leftovers, process_ids, this_boot
from horae.backends.local.runner_order import ATTEMPT_VARIABLE
from horae.backends.protocol import KILLED, RUN_AGAIN, Attempt
from horae.backends.saved_work import work_in, work_saved
from horae.backends.task import Task


@dataclass(frozen=True, slots=True)
class Fate:
    """What is known of an attempt."""

    order: Order | None
    #: Its runner, if that lives.
    runner: Process | None = None
    #: When its processes came up, in seconds of the monotonic clock; None if they did not, or in another boot.
    up_at: float | None = None
    #: How it ended, and the work in its checkpoint before it began and then.
    exit: ExitRecord | None = None
    saved: float = 0.0
    done: float = 0.0
    stop_requested: bool = False
    #: Whether it is about to begin or to end: its lock is held, or processes that a dead runner left are being killed.
    is_changing: bool = False


def find_out(
    folders: AttemptFolders, attempt: Attempt, child: Process | None, late: str, left_in: Callable[[str], list[int]]
) -> Fate:
    """Find out whether an attempt lives, has ended, or was never begun, and see to it that a dead one ends.

    `child` is the runner that this process started, if it did; `late` is why an attempt that did not come up in time
    has failed. `left_in` kills the processes that are left in a control group, and returns them.
    """
    folder = folders.of(attempt)
    record = folder.runner()
    up_at = record.up_at if record and record.process.boot_id == this_boot() else None
    now = Fate(folder.order(), up_at=up_at, stop_requested=folder.stop_requested)
    if living := _living_runner(folder, child, record):
        return replace(now, runner=living)
    if not (end := folder.exit()):
        if record:
            end = _end_after_crash(folder, child, record, late, left_in)
        elif now.stop_requested:
            end = _cancel(folder)
    if not end:
        return replace(now, is_changing=record is not None or folder.locked)
    order = now.order or next(folders.orders(attempt[0]), None)
    if not order:
        return replace(now, exit=end)
    saved = max(now.order.saved if now.order else 0.0, work_in(order.task, end.saved_before))
    done = work_done(folders, attempt, order.task, order.is_user_owned)
    return replace(now, exit=end, saved=saved, done=done)


def work_done(folders: AttemptFolders, attempt: Attempt, task: Task, is_user_owned: bool) -> float:
    """Work in the checkpoint of a job. If that belongs to its user, the last runner has read what is in it."""
    if is_user_owned:
        return work_in(task, folders.last_saved(attempt[0]))
    return work_saved(task, folders.of(attempt).path)


def _living_runner(folder: AttemptFolder, child: Process | None, record: RunnerRecord | None) -> Process | None:
    """The runner, if it lives. A job can write `runner.json`: a process counts only if it runs this very attempt."""
    if child and child.is_alive():
        return child
    if record:
        process = record.process
        return process if process.is_alive() and process.has_argument(str(folder.path)) else None
    if child or not folder.was_ordered:
        return None
    # The last backend may have started one that has written nothing yet, or is frozen.
    found = (Process.of(pid) for pid in process_ids())
    return next((each for each in found if each.has_argument(str(folder.path)) and each.is_alive()), None)


def _end_after_crash(
    folder: AttemptFolder,
    child: Process | None,
    record: RunnerRecord,
    late: str,
    left_in: Callable[[str], list[int]],
) -> ExitRecord | None:
    """Kill what a dead runner left, then write the exit that it did not write; None until all is gone.

    If the machine went down, the attempt counts as stopped, so that the job runs again.
    """
    leader = child or record.process
    went_down = bool(leader.boot_id) and leader.boot_id != this_boot()
    for pid in (left := [] if went_down else leftovers(leader, f"{ATTEMPT_VARIABLE}={folder.path}")):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if left or (not went_down and record.control_group and left_in(record.control_group)):
        return None
    stopped = folder.stop_requested or went_down
    folder.end(KILLED, time.time(), stopped, was_begun=True, silent=not stopped, why=late)
    return folder.exit()


def _cancel(folder: AttemptFolder) -> ExitRecord | None:
    """Make sure that an attempt that was never started cannot start any more."""
    folder.end(RUN_AGAIN, time.time(), stopped=True, was_begun=False)
    return folder.exit()
