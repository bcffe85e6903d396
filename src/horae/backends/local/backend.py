"""The local backend: attempts as real processes on this machine.

Each attempt has a folder and a runner, a small process that outlives the daemon (`runner.py`). State is
written to disk before it is acted on, so a backend opened on the folder of a dead backend finds the running
attempts, follows them again, and starts nothing twice.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from horae.backends.local import runner
from horae.backends.local.attempt_folders import AttemptFolder, AttemptFolders, work_in, work_saved
from horae.backends.local.isolation.modes import Isolation, NoIsolation
from horae.backends.local.processes import ExitWatcher, Process, leftovers, this_boot
from horae.backends.local.runner_order import ATTEMPT_VARIABLE, BadTask, driver_numbers, make_order, task_of
from horae.backends.protocol import KILLED, RUN_AGAIN, Attempt, Seen, Sight, Start
from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.errors import UserError
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeObserved

#: Seconds after which a job that never reports counts as started.
READY_S = 5.0


@dataclass(slots=True)
class _TrackedAttempt:
    """Everything the backend knows about an attempt that is not forgotten."""

    attempt: Attempt
    folder: AttemptFolder
    nodes: tuple[str, ...]
    task: Task | None
    #: Work in the job's checkpoint when the order was written.
    saved: float = 0.0
    #: Process id of the runner if this backend started it and has not reaped it; else 0.
    child: int = 0
    #: Whether this backend started a runner, so that a runner that never appears is a failed launch.
    ordered: bool = False
    #: Version of `runner.json` that was read last; 0 before the first.
    runner_stamp: int = 0
    #: When the job's processes came up, in seconds of the monotonic clock.
    up_at: float | None = None
    #: Whether this backend has reported the attempt as started.
    announced: bool = False
    ended: bool = False


class LocalBackend:
    """Runs attempts as processes of this machine. Not thread-safe, but for `log` and `secrets`."""

    shares_gpus = True

    def __init__(
        self,
        state: Path,
        nodes: Sequence[Node],
        secrets: Path | None = None,
        devices: Mapping[Node, tuple[int, ...]] | None = None,
        ready_s: float = READY_S,
        isolation: Isolation | None = None,
    ) -> None:
        """Continue from the folder `state`; `devices` holds the driver's GPU numbers by node, if GPUs are real."""
        self._isolation: Isolation = isolation or NoIsolation()
        self._sight, self._ready_s = Sight(tuple(Seen.of(node) for node in nodes)), ready_s
        self._secrets = secrets.resolve() if secrets else None
        self._devices = {node.name: numbers for node, numbers in (devices or {}).items()}
        self._folders = AttemptFolders(state.resolve())
        self._runners = ExitWatcher()
        self._events: list[Event] = []
        #: Starts and stops that the disk did not allow, tried again at each `watch`, and why.
        self._noted: dict[Attempt, Start | None] = {}
        self._refusal = ""
        #: Whether `watch` has told which attempts live.
        self._observed = False
        self._tracked: dict[Attempt, _TrackedAttempt] = {}
        #: Attempts with a followed runner that are not reported as started yet.
        self._starting: dict[Attempt, _TrackedAttempt] = {}
        #: Attempts that have not ended and have no followed runner: their fate must be read from disk.
        self._unresolved: dict[Attempt, _TrackedAttempt] = {}
        self._bin_thread = threading.Thread()
        self._empty_bin()
        for attempt in self._folders.tracked():
            self._resolve(self._load(attempt))

    @property
    def trouble(self) -> str:
        """Why an attempt cannot be started or stopped now."""
        return self._refusal or self._isolation.trouble

    @property
    def honours(self) -> frozenset[str]:
        """CPUs and memory, if the isolation divides them."""
        return self._isolation.honours

    def refusal(self, user: str) -> str:
        """Why jobs of a user cannot run, in a sentence; empty if they can. Called from any thread."""
        return self._isolation.refusal(user)

    def sight(self) -> Sight:
        """One node for each GPU type of this machine."""
        return self._sight

    def start(self, start: Start) -> None:
        """Write the order of an attempt and start its runner, unless the attempt was started before."""
        self._try((start.job, start.attempt), start)

    def stop(self, job: str, attempt: int) -> None:
        """Ask the runner of an attempt to stop it; cancel an attempt that has no runner."""
        self._try((job, attempt), None)

    def gone(self, node: str) -> None:
        """Do nothing: of this machine it is always known what runs."""

    def _try(self, attempt: Attempt, start: Start | None) -> None:
        """Start an attempt, or stop it (None). What the disk does not allow is tried again later."""
        self._noted.pop(attempt, None)
        try:
            if start:
                self._start(start)
            else:
                self._stop(attempt)
        except OSError as error:
            self._noted[attempt] = start
            self._refusal = f"A job cannot be {'started' if start else 'stopped'}: {error.strerror or error}."

    def _start(self, start: Start) -> None:
        attempt = (start.job, start.attempt)
        if attempt in self._runners or runner.was_begun(str(self._folders.of(attempt).path)):
            self._adopt(attempt)
            return
        tracked = self._tracked.get(attempt)
        if tracked and tracked.ended:
            return
        try:
            tracked = self._order(start)
            tracked.child = self._spawn(tracked.folder)
        except (OSError, UserError) as why:
            self._launch_failed(self._tracked.get(attempt) or self._track_failed(start), str(why))
            return
        tracked.ordered = True
        self._follow(tracked, Process.of(tracked.child))

    def _stop(self, attempt: Attempt) -> None:
        tracked = self._tracked.get(attempt)
        if not tracked:
            self._folders.remember(attempt)
            tracked = self._load(attempt)
        if tracked.ended:
            return
        tracked.folder.request_stop()
        self._resolve(tracked)
        self._runners.terminate(tracked.attempt)

    def watch(self, now_s: float) -> list[Event]:
        """Events since the last call. Costs one system call if nothing happened."""
        for attempt, start in list(self._noted.items()):
            self._try(attempt, start)
        self._refusal = self._refusal if self._noted else ""
        for attempt in self._runners.poll():
            self._starting.pop(attempt, None)
            self._unresolved[attempt] = self._tracked[attempt]
        for tracked in list(self._unresolved.values()):
            with suppress(OSError):  # the disk is full: try again at the next call
                self._resolve(tracked)
        self._report_started()
        events, self._events = self._events, []
        if not self._observed:
            self._observed = True
            events += self._alive()
        return [replace(event, at_s=now_s) for event in events]

    def _alive(self) -> list[Event]:
        """Attempts with living processes, by node."""
        alive = [tracked for tracked in self._tracked.values() if self._is_alive(tracked)]
        return [
            NodeObserved(0.0, name, tuple(sorted(tracked.attempt for tracked in alive if name in tracked.nodes)))
            for name in (node.name for node in self._sight.nodes)
        ]

    def forget(self, job: str, attempt: int) -> None:
        """Drop the records of an ended attempt. Its log stays, and it never runs again."""
        tracked = self._tracked.get((job, attempt))
        if not tracked or self._is_alive(tracked):
            return
        with suppress(OSError):  # the disk is full: leftover files do no harm
            tracked.folder.end(RUN_AGAIN, time.time(), stopped=True, was_begun=False)
            tracked.folder.scrub()
        with suppress(OSError):  # the next backend reports the end again
            self._folders.forget(tracked.attempt)
        del self._tracked[tracked.attempt]
        self._unresolved.pop(tracked.attempt, None)
        self._events = [event for event in self._events if _attempt_of(event) != tracked.attempt]

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete the folders of jobs: logs, working folders and checkpoints in the state folder, nothing outside it."""
        needed = {job for job, _ in self._tracked} | self._folders.jobs_named_in(kept, self._isolation.job_folders)
        gone = [job for job in jobs if job not in needed and self._folders.discard(job)]
        self._empty_bin()
        return gone

    def _empty_bin(self) -> None:
        """Delete discarded folders in a thread of its own, since checkpoints are large."""
        if not self._bin_thread.is_alive() and self._folders.has_full_bin:
            empty, remove = self._folders.empty_bin, self._isolation.remove
            self._bin_thread = threading.Thread(target=empty, args=(remove,), name="horae-bin", daemon=True)
            self._bin_thread.start()

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """The log file of an attempt, the same for all of its nodes: they are one machine."""
        return self._folders.of((job, attempt)).log

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of the secrets of these names; secrets that cannot be read are left out."""
        return dict(_file_contents(self._secrets, names)) if self._secrets else {}

    def close(self) -> None:
        """Release all resources. Running attempts go on; the next backend on this folder follows them."""
        self._runners.close()

    # --- starting

    def _order(self, start: Start) -> _TrackedAttempt:
        """Track an attempt and write its order. An order that exists already is kept."""
        attempt = (start.job, start.attempt)
        self._check_places(start)
        folder = self._folders.of(attempt).path
        job_folder = self._isolation.job_folder(start)
        order = make_order(start, folder, self._devices, self._secrets, job_folder)
        gpus = [number for place in start.places for number in driver_numbers(place, self._devices)]
        order = self._isolation.adapt(order, start, gpus)
        # An attempt that adds nothing to its checkpoint must not ask to be run again.
        order["saved"] = self._work_saved(start.job, start.task, folder, is_user_owned=job_folder is not None)
        self._folders.remember(attempt).write_order(order)
        return self._load(attempt)

    def _check_places(self, start: Start) -> None:
        """Refuse GPUs that this machine no longer has."""
        gpus = {node.name: node.gpus for node in self._sight.nodes}
        for place in start.places:
            gone = [number for number in place.gpus if number >= gpus.get(place.node, 0)]
            if gone:
                raise BadTask(f"Node {place.node} no longer has GPU {gone[0]}.")

    def _load(self, attempt: Attempt) -> _TrackedAttempt:
        """Track an attempt from its files."""
        folder = self._folders.of(attempt)
        order = folder.order()
        tracked = _TrackedAttempt(
            attempt, folder, tuple(order["nodes"]) if order else (), task_of(order) if order else None
        )
        tracked.saved = float(order.get("saved", 0.0)) if order else 0.0
        self._tracked[attempt] = self._unresolved[attempt] = tracked
        return tracked

    def _adopt(self, attempt: Attempt) -> None:
        """Follow an attempt that another backend started. An ended and forgotten attempt stays forgotten."""
        if attempt not in self._tracked and not self._folders.of(attempt).exit():
            self._folders.remember(attempt)
            self._resolve(self._load(attempt))

    def _track_failed(self, start: Start) -> _TrackedAttempt:
        """Track an attempt whose order could not be written."""
        attempt = (start.job, start.attempt)
        tracked = _TrackedAttempt(attempt, self._folders.of(attempt), (), start.task)
        self._tracked[attempt] = tracked
        return tracked

    def _follow(self, tracked: _TrackedAttempt, process: Process) -> None:
        self._unresolved.pop(tracked.attempt, None)
        self._starting[tracked.attempt] = tracked
        self._runners.follow(tracked.attempt, process)

    # --- finding out what became of an attempt

    def _resolve(self, tracked: _TrackedAttempt) -> None:
        """Read from disk whether an attempt without a followed runner has ended, lives, crashed or never started."""
        if tracked.attempt not in self._unresolved:
            return
        process, end = tracked.folder.runner_process(), tracked.folder.exit()
        if end:
            self._reap(tracked)
            self._report_end(tracked, int(end["code"]), bool(end["stopped"]))
        elif process and process.is_alive():
            self._reap(tracked)
            self._follow(tracked, process)
        elif process:
            self._reap(tracked)
            self._clean_up_after_crash(tracked, process)
        elif tracked.folder.stop_requested:
            self._cancel_unstarted(tracked)
        elif tracked.ordered and not tracked.folder.locked and not tracked.folder.runner():
            self._reap(tracked)
            self._launch_failed(tracked, f"its runner ended before the job began; {tracked.folder.log} says why")

    def _clean_up_after_crash(self, tracked: _TrackedAttempt, process: Process) -> None:
        """Clean up after a runner that died without writing `exit.json`: kill its processes, then write the exit.

        If the machine went down, the attempt counts as stopped, so that the job runs again.
        """
        stopped = tracked.folder.stop_requested or process.boot_id != this_boot()
        leftover_pids = leftovers(process, f"{ATTEMPT_VARIABLE}={tracked.folder.path}")
        for pid in leftover_pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        control_group = (tracked.folder.runner() or {}).get("control_group", "")
        if process.boot_id == this_boot() and control_group:
            leftover_pids += self._isolation.left(str(control_group))
        if not leftover_pids and tracked.folder.end(KILLED, time.time(), stopped, was_begun=True):
            self._report_end(tracked, KILLED, stopped)

    def _cancel_unstarted(self, tracked: _TrackedAttempt) -> None:
        """Make sure that an attempt that was never started cannot start any more."""
        if tracked.folder.end(RUN_AGAIN, time.time(), stopped=True, was_begun=False):
            self._reap(tracked)
            self._report_end(tracked, RUN_AGAIN, stopped=True)

    def _report_end(self, tracked: _TrackedAttempt, code: int, stopped: bool) -> None:
        job, attempt = tracked.attempt
        done = self._work_done(tracked)
        self._read_up_at(tracked)
        if tracked.up_at is not None and not tracked.announced:
            # It was up for less than `ready_s`, and worked all the same.
            self._announce(tracked, time.monotonic())
        if code == 0:
            self._finish(tracked, JobFinished(0.0, job, attempt))
        elif stopped or (code == RUN_AGAIN and (tracked.folder.stop_requested or done > tracked.saved)):
            self._finish(tracked, JobStopped(0.0, job, attempt, done))
        else:
            self._finish(tracked, JobFailed(0.0, job, attempt, code, done))

    def _launch_failed(self, tracked: _TrackedAttempt, why: str) -> None:
        self._finish(tracked, LaunchFailed(0.0, *tracked.attempt, why))

    def _finish(self, tracked: _TrackedAttempt, event: Event) -> None:
        tracked.ended = True
        self._unresolved.pop(tracked.attempt, None)
        self._starting.pop(tracked.attempt, None)
        self._runners.unfollow(tracked.attempt)
        self._events.append(event)

    def _reap(self, tracked: _TrackedAttempt) -> None:
        """Reap a dead runner that is a child of this process."""
        try:
            if tracked.child and os.waitpid(tracked.child, os.WNOHANG)[0]:
                tracked.child = 0
        except ChildProcessError:
            tracked.child = 0  # reaped elsewhere in this process

    def _report_started(self) -> None:
        """Report attempts as started whose processes have been up for `ready_s`."""
        now_s = time.monotonic()
        for tracked in list(self._starting.values()):
            self._read_up_at(tracked)
            if tracked.up_at is not None and now_s - tracked.up_at >= self._ready_s:
                del self._starting[tracked.attempt]
                self._announce(tracked, now_s)

    def _read_up_at(self, tracked: _TrackedAttempt) -> None:
        """Read when the job's processes came up, if `runner.json` is new. A moment of another boot is none of ours."""
        if tracked.up_at is None and tracked.runner_stamp != (stamp := tracked.folder.runner_stamp()):
            identity = tracked.folder.runner() or {"up_at": None, "boot_id": ""}
            tracked.runner_stamp = stamp
            tracked.up_at = identity["up_at"] if identity["boot_id"] == this_boot() else None

    def _announce(self, tracked: _TrackedAttempt, now_s: float) -> None:
        assert tracked.up_at is not None, f"{tracked.attempt} is not up"
        tracked.announced = True
        self._events.append(JobStarted(0.0, *tracked.attempt, up_s=now_s - tracked.up_at))

    def _is_alive(self, tracked: _TrackedAttempt) -> bool:
        """Whether any process of an attempt runs, including processes that a dead runner left behind."""
        if tracked.ended:
            return False
        return tracked.attempt in self._runners or tracked.folder.runner() is not None or tracked.folder.locked

    def _work_done(self, tracked: _TrackedAttempt) -> float:
        """Work in the checkpoint of a job; 0 if there is none or it cannot be read."""
        job, order = tracked.attempt[0], tracked.folder.order() or next(self._folders.orders(tracked.attempt[0]), None)
        task = tracked.task or (task_of(order) if order else None)
        is_user_owned = bool(order and order.get("account"))
        return self._work_saved(job, task, tracked.folder.path, is_user_owned) if task else 0.0

    def _work_saved(self, job: str, task: Task, folder: Path, is_user_owned: bool) -> float:
        """Work in the checkpoint of a job. If that belongs to its user, the last runner has read what is in it."""
        return work_in(task, self._folders.last_saved(job)) if is_user_owned else work_saved(task, folder)

    def _spawn(self, folder: AttemptFolder) -> int:
        """Start the runner of an attempt, with what the isolation gives it; returns its process id."""
        control = self._isolation.open(folder.order() or {})
        try:
            return _spawn(folder, control)
        finally:
            if control is not None:
                os.close(control)


def _spawn(folder: AttemptFolder, control: int | None = None) -> int:
    """Start the runner of an attempt in a new session, with its output in the job's log; returns its process id.

    The runner gets the descriptor `control` as `runner.CONTROL`.
    """
    # To duplicate a descriptor onto itself would not keep it open in the new process.
    high = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, runner.CONTROL + 1) if control is not None else None
    try:
        return _spawn_with(folder, high)
    finally:
        if high is not None:
            os.close(high)


def _spawn_with(folder: AttemptFolder, control: int | None) -> int:
    log = (1, str(folder.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    program = _runner_program()
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", program, str(folder.path)],
        {},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, *log),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *([(os.POSIX_SPAWN_DUP2, control, runner.CONTROL)] if control is not None else []),
        ],
        setsid=True,
        # A stop signal may come before the runner can handle it.
        setsigmask=runner.SIGNALS,
        setsigdef=(signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE),
    )


def _runner_program() -> str:
    """The runner's compiled file if it is there and not older than its source, which is then not compiled again."""
    source, compiled = Path(runner.__file__), Path(runner.__spec__.cached or "") if runner.__spec__ else Path()
    with suppress(OSError):
        if compiled.suffix and compiled.stat().st_mtime >= source.stat().st_mtime:
            return str(compiled)
    return str(source)


def _attempt_of(event: Event) -> Attempt | None:
    match event:
        case JobStarted() | LaunchFailed() | JobStopped() | JobFinished() | JobFailed():
            return event.job, event.attempt
        case _:
            return None


def _file_contents(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and contents of the files of a folder that can be read."""
    for name in names:
        with suppress(OSError, UnicodeDecodeError):
            yield name, (folder / name).read_text(encoding="utf-8")
