"""Real processes on this machine.

Each attempt has a folder and a runner, a small process of its own that outlives the daemon
(`runner.py`). All that must survive is on disk before it is acted on, so a backend opened on
the folder of a dead one finds what runs, takes it up again, and starts nothing twice.
"""

from __future__ import annotations

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
from horae.backends.local.attempt_folders import AttemptFolder, Folders, read_json
from horae.backends.local.processes import Deaths, Process, leftovers, this_boot
from horae.backends.local.runner_order import MARK, BadTask, checkpoint_folder, make_order, task_of
from horae.backends.protocol import KILLED, RUN_AGAIN, Attempt, Start
from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.errors import UserError
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed

#: A job that does not say when it is ready counts as started after this long.
READY_S = 5.0


@dataclass(slots=True)
class _Known:
    """What the backend knows of an attempt that is not forgotten."""

    attempt: Attempt
    folder: AttemptFolder
    nodes: tuple[str, ...]
    task: Task | None
    #: Work that the job's checkpoint held when the attempt was ordered.
    saved: float = 0.0
    #: The runner we started ourselves, until it is reaped.
    child: int = 0
    #: Whether we asked for a runner, so that one that never shows up is news.
    ordered: bool = False
    #: When the job's processes came up, in seconds since boot, and which word of the runner was read last.
    stamp: int = 0
    up_at: float | None = None
    over: bool = False


class LocalBackend:
    """Runs attempts as processes of this machine. For one thread at a time."""

    def __init__(
        self,
        state: Path,
        nodes: Sequence[Node],
        secrets: Path | None = None,
        devices: Mapping[Node, tuple[int, ...]] | None = None,
        ready_s: float = READY_S,
    ) -> None:
        """Take up what is in the folder `state`; `devices` are the GPUs' numbers on the machine, if they are real."""
        self._nodes, self._ready_s = tuple(nodes), ready_s
        self._secrets = secrets.resolve() if secrets else None
        self._devices = {node.name: numbers for node, numbers in (devices or {}).items()}
        self._folders = Folders(state.resolve())
        self._deaths = Deaths()
        self._news: list[Event] = []
        self._known: dict[Attempt, _Known] = {}
        #: Attempts with a runner that is followed and whose job is not up yet, or not for long.
        self._rising: dict[Attempt, _Known] = {}
        #: Attempts without a runner that is followed, and not over: what became of them is to be found out.
        self._unclear: dict[Attempt, _Known] = {}
        self._emptying = threading.Thread()
        self._empty_bin()
        for attempt in self._folders.remembered():
            self._clear_up(self._take_up(attempt))

    def nodes(self) -> tuple[Node, ...]:
        """The machine's GPUs, a node for each type."""
        return self._nodes

    def start(self, start: Start) -> None:
        """Order an attempt and start its runner, unless it was begun before."""
        attempt = (start.job, start.attempt)
        if attempt in self._deaths or runner.begun(str(self._folders.of(attempt).path)):
            self._adopt(attempt)
            return
        known = self._known.get(attempt)
        if known and known.over:
            return
        try:
            known = self._order(start)
            known.child = _spawn(known.folder)
        except (OSError, UserError) as why:
            self._launch_failed(self._known.get(attempt) or self._remember_failed(start), str(why))
            return
        known.ordered = True
        self._follow(known, Process.of(known.child))

    def stop(self, job: str, attempt: int) -> None:
        """Tell the runner of an attempt to stop it; call an attempt off that has none."""
        known = self._known.get((job, attempt))
        if not known:
            self._folders.remember((job, attempt))
            known = self._take_up((job, attempt))
        if known.over:
            return
        known.folder.ask_to_stop()
        self._clear_up(known)
        self._deaths.terminate(known.attempt)

    def watch(self, now_s: float) -> list[Event]:
        """What happened since last asked; costs next to nothing when nothing did."""
        for attempt in self._deaths.poll():
            self._rising.pop(attempt, None)
            self._unclear[attempt] = self._known[attempt]
        for known in list(self._unclear.values()):
            with suppress(OSError):  # a full disk: it stays unclear until there is room
                self._clear_up(known)
        self._see_who_is_up()
        news, self._news = self._news, []
        return [replace(event, at_s=now_s) for event in news]

    def alive(self) -> dict[str, tuple[Attempt, ...]]:
        """The attempts that live, by node."""
        living = [known for known in self._known.values() if self._lives(known)]
        return {
            node.name: tuple(sorted(known.attempt for known in living if node.name in known.nodes))
            for node in self._nodes
        }

    def forget(self, job: str, attempt: int) -> None:
        """Drop what is remembered of an attempt that is over; its log stays, and it never runs again."""
        known = self._known.get((job, attempt))
        if not known or self._lives(known):
            return
        with suppress(OSError):  # a full disk: what stays is of no harm
            known.folder.end(RUN_AGAIN, time.time(), stopped=True, begun=False)
            known.folder.scrub()
        self._folders.forget(known.attempt)
        del self._known[known.attempt]
        self._unclear.pop(known.attempt, None)
        self._news = [event for event in self._news if _attempt_of(event) != known.attempt]

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Take away the folders of jobs: logs, own working folders and checkpoints, and nothing that is elsewhere."""
        needed = {job for job, _ in self._known} | self._folders.spoken_of(kept)
        gone = [job for job in jobs if job not in needed and self._folders.discard(job)]
        self._empty_bin()
        return gone

    def _empty_bin(self) -> None:
        """Delete what was discarded, beside everything else: checkpoints are large, and jobs many."""
        if not self._emptying.is_alive() and self._folders.has_full_bin:
            self._emptying = threading.Thread(target=self._folders.empty_bin, name="horae-bin", daemon=True)
            self._emptying.start()

    def log_path(self, job: str, attempt: int) -> Path:
        """The file with what an attempt printed."""
        return self._folders.of((job, attempt)).log

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """What secrets of these names hold now; those that cannot be read are left out."""
        return dict(_texts(self._secrets, names)) if self._secrets else {}

    def close(self) -> None:
        """Leave; what runs goes on and is taken up by the next backend on the same folder."""
        self._deaths.close()

    # --- starting

    def _order(self, start: Start) -> _Known:
        """Remember an attempt and write its order; the order that is there already stands."""
        attempt = (start.job, start.attempt)
        self._check_places(start)
        folder = self._folders.of(attempt).path
        order = make_order(start, folder, self._devices, self._secrets)
        # What the checkpoint holds before: an attempt that adds nothing to it has no reason to be run again.
        order["saved"] = _work_saved(start.task, folder)
        self._folders.remember(attempt).write_order(order)
        return self._take_up(attempt)

    def _check_places(self, start: Start) -> None:
        """An attempt may be meant for GPUs that this machine had yesterday."""
        gpus = {node.name: node.gpus for node in self._nodes}
        for place in start.places:
            gone = [number for number in place.gpus if number >= gpus.get(place.node, 0)]
            if gone:
                raise BadTask(f"There is no GPU {gone[0]} on node {place.node} any more.")

    def _take_up(self, attempt: Attempt) -> _Known:
        """Know an attempt by what is on disk."""
        folder = self._folders.of(attempt)
        order = folder.order()
        known = _Known(attempt, folder, tuple(order["nodes"]) if order else (), task_of(order) if order else None)
        known.saved = float(order.get("saved", 0.0)) if order else 0.0
        self._known[attempt] = self._unclear[attempt] = known
        return known

    def _adopt(self, attempt: Attempt) -> None:
        """Follow an attempt that another backend has begun; one that is over and forgotten stays so."""
        if attempt not in self._known and not self._folders.of(attempt).exit():
            self._folders.remember(attempt)
            self._clear_up(self._take_up(attempt))

    def _remember_failed(self, start: Start) -> _Known:
        """An attempt of which not even the order could be written."""
        attempt = (start.job, start.attempt)
        known = _Known(attempt, self._folders.of(attempt), (), start.task)
        self._known[attempt] = known
        return known

    def _follow(self, known: _Known, process: Process) -> None:
        self._unclear.pop(known.attempt, None)
        self._rising[known.attempt] = known
        self._deaths.follow(known.attempt, process)

    # --- finding out what became of an attempt

    def _clear_up(self, known: _Known) -> None:
        """Find out about an attempt without a runner that we follow: it ended, lives, died, or never began."""
        if known.attempt not in self._unclear:
            return
        process, end = known.folder.runner_process(), known.folder.exit()
        if end:
            self._reap(known)
            self._ended(known, int(end["code"]), bool(end["stopped"]))
        elif process and process.lives():
            self._reap(known)
            self._follow(known, process)
        elif process:
            self._reap(known)
            self._bury(known, process)
        elif known.folder.asked_to_stop:
            self._call_off(known)
        elif known.ordered and not known.folder.locked and not known.folder.runner():
            self._reap(known)
            self._launch_failed(known, f"its runner ended before the job began; {known.folder.log} says why")

    def _bury(self, known: _Known, process: Process) -> None:
        """The runner died without a word: kill what it left, and when all is gone write the end in its place.

        If the machine went down with it, that is no fault of the job's: it is to be run again.
        """
        stopped = known.folder.asked_to_stop or process.boot_id != this_boot()
        left = leftovers(process, f"{MARK}={known.folder.path}")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left and known.folder.end(KILLED, time.time(), stopped, begun=True):
            self._ended(known, KILLED, stopped)

    def _call_off(self, known: _Known) -> None:
        """See that an attempt that never began never will."""
        if known.folder.end(RUN_AGAIN, time.time(), stopped=True, begun=False):
            self._reap(known)
            self._ended(known, RUN_AGAIN, stopped=True)

    def _ended(self, known: _Known, code: int, stopped: bool) -> None:
        job, attempt = known.attempt
        done = self._work_done(known)
        if code == 0:
            self._over(known, JobFinished(0.0, job, attempt))
        elif stopped or (code == RUN_AGAIN and (known.folder.asked_to_stop or done > known.saved)):
            self._over(known, JobStopped(0.0, job, attempt, done))
        else:
            self._over(known, JobFailed(0.0, job, attempt, code, done))

    def _launch_failed(self, known: _Known, why: str) -> None:
        self._over(known, LaunchFailed(0.0, *known.attempt, why))

    def _over(self, known: _Known, event: Event) -> None:
        known.over = True
        self._unclear.pop(known.attempt, None)
        self._rising.pop(known.attempt, None)
        self._deaths.leave(known.attempt)
        self._news.append(event)

    def _reap(self, known: _Known) -> None:
        """Let a dead runner of our own go."""
        try:
            if known.child and os.waitpid(known.child, os.WNOHANG)[0]:
                known.child = 0
        except ChildProcessError:
            known.child = 0  # somebody else in this process has waited for it

    def _see_who_is_up(self) -> None:
        """Report attempts as started whose job has been up for a while without saying so."""
        now = time.monotonic()
        for known in list(self._rising.values()):
            if known.up_at is None and known.stamp != (stamp := known.folder.runner_stamp()):
                known.stamp, known.up_at = stamp, (known.folder.runner() or {"up_at": None})["up_at"]
            if known.up_at is not None and now - known.up_at >= self._ready_s:
                del self._rising[known.attempt]
                self._news.append(JobStarted(0.0, *known.attempt, up_s=now - known.up_at))

    def _lives(self, known: _Known) -> bool:
        """Whether anything of an attempt runs; one whose runner died lives until what it left is gone."""
        if known.over:
            return False
        return known.attempt in self._deaths or known.folder.runner() is not None or known.folder.locked

    def _work_done(self, known: _Known) -> float:
        """What the checkpoint of a job holds; 0 if there is none, or one that makes no sense."""
        task = known.task or next(map(task_of, self._folders.orders(known.attempt[0])), None)
        return _work_saved(task, known.folder.path) if task else 0.0


def _work_saved(task: Task, folder: Path) -> float:
    """The same, for an attempt of which the task and the folder are known."""
    saved = read_json(checkpoint_folder(task, folder) / "saved.json")
    if not saved:
        return 0.0
    try:
        return task.work_done(float(saved["step"]), float(saved["total"]) if saved.get("total") else None)
    except (KeyError, TypeError, ValueError):
        return 0.0


def _spawn(folder: AttemptFolder) -> int:
    """Start the runner of an attempt in a session of its own, its words going to the job's log."""
    log = (1, str(folder.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    compiled = runner.__spec__.cached if runner.__spec__ else None
    program = compiled if compiled and Path(compiled).exists() else runner.__file__
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", program, str(folder.path)],
        {},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, *log),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # A stop may come before the runner has looked around.
        setsigmask=runner.SIGNALS,
        setsigdef=(signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE),
    )


def _attempt_of(event: Event) -> Attempt | None:
    match event:
        case JobStarted() | LaunchFailed() | JobStopped() | JobFinished() | JobFailed():
            return event.job, event.attempt
        case _:
            return None


def _texts(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What files of a folder hold, of those that can be read."""
    for name in names:
        with suppress(OSError, UnicodeDecodeError):
            yield name, (folder / name).read_text(encoding="utf-8")
