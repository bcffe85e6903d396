"""The local backend: attempts as real processes on this machine.

Each attempt has a folder and a runner, a small process that outlives the daemon (`runner.py`). State is
written to disk before it is acted on, so a backend opened on the folder of a dead backend finds the running
attempts, follows them again, and starts nothing twice.

Disks may be slow and jobs may write into the folders of their attempts, so threads read and write these
(`disk_workers.py`), in order for one attempt. The daemon's loop takes up what they found out. A launch or a stop that
hears nothing has a deadline: the runner and all that it started are killed. If that does not help, the node is closed.
"""

from __future__ import annotations

import fcntl
import logging
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
from horae.backends.local.attempt_fate import Fate, find_out, work_done
from horae.backends.local.attempt_folders import AttemptFolder, AttemptFolders, ExitRecord, Order
from horae.backends.local.disk_workers import DiskWorkers, Then
from horae.backends.local.isolation.modes import Isolation, NoIsolation
from horae.backends.local.processes import ExitWatcher, Process
from horae.backends.local.runner_order import BadTask, driver_numbers, make_order
from horae.backends.protocol import RUN_AGAIN, Attempt, Seen, Sight, Start, is_shortage
from horae.backends.silent_ends import SilentEnds
from horae.backends.task import Task
from horae.backends.terms import Overtaken, Term
from horae.core.cluster import Node
from horae.core.errors import UserError
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeObserved

_LOG = logging.getLogger(__name__)
#: Seconds after which a job that never reports counts as started.
READY_S = 5.0
#: Seconds between two looks at an attempt that is about to begin or to end, and at one that was only ordered.
_LOOK_AGAIN_S, _LOOK_RARELY_S = 0.1, 1.0
#: Most seconds for which a new backend waits for the records of the last one, and for which an old one finishes work.
_OPEN_S, _CLOSE_S = 10.0, 10.0


@dataclass(frozen=True, slots=True)
class RunnerDeadlines:
    """How long the local backend waits for a runner, in seconds."""

    #: From its start until the job's processes are up.
    launch_s: float = 60.0
    #: From a stop until the end, after the job's grace period: five seconds from SIGTERM to SIGKILL, and some more.
    stop_s: float = 5.0 + 30.0
    #: From the kill of the runner until nothing is left; after that the node is closed.
    kill_s: float = 30.0


@dataclass(slots=True)
class _TrackedAttempt:
    """Everything the backend knows about an attempt that is not forgotten."""

    attempt: Attempt
    folder: AttemptFolder
    #: What its order says; None before it is written or read, or if it cannot be understood.
    order: Order | None = None
    #: The runner, if this backend started it. Set by the thread that did, so that the next one knows it.
    child: Process | None = None
    #: Whether a start was asked for.
    asked_for: bool = False
    #: Whether processes of it may live although no runner is followed.
    may_live: bool = True
    #: When the job's processes came up, in seconds of the monotonic clock.
    up_at: float | None = None
    #: Whether this backend has reported the attempt as started.
    announced: bool = False
    ended: bool = False
    #: When to look at its files again; None if there is no need to.
    look_s: float | None = None
    #: When its launch, or its stop, has taken too long; when it was killed for that; monotonic.
    launch_by_s: float | None = None
    stop_by_s: float | None = None
    killed_s: float | None = None
    #: Why it counts as a failed launch: it did not come up in time.
    late: str = ""

    def may_be_on(self, node: str) -> bool:
        """Whether it is on a node, as far as is known."""
        return not self.order or node in self.order.nodes


class LocalBackend:
    """Runs attempts as processes of this machine. Not thread-safe, but for `log`, `secrets` and `refusal`."""

    shares_gpus = True

    def __init__(
        self,
        state: Path,
        nodes: Sequence[Node],
        secrets: Path | None = None,
        devices: Mapping[Node, tuple[int, ...]] | None = None,
        max_log_bytes: int = runner.LARGEST_LOG,
        ready_s: float = READY_S,
        deadlines: RunnerDeadlines | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        """Continue from the folder `state`; `devices` holds the driver's GPU numbers by node, if GPUs are real."""
        self._isolation: Isolation = isolation or NoIsolation()
        self._term = Term(state, "", 0)
        #: Why this service starts and stops nothing any more; empty while no other has taken over.
        self._overtaken = ""
        self._nodes = tuple(Seen.of(node) for node in nodes)
        self._sight, self._ready_s = Sight(self._nodes), ready_s
        self._deadlines = deadlines or RunnerDeadlines()
        self._secrets = secrets.resolve() if secrets else None
        self._devices = {node.name: numbers for node, numbers in (devices or {}).items()}
        self._folders, self._max_log_bytes = AttemptFolders(state.resolve()), max_log_bytes
        self._runners, self._workers, self._silent_ends = ExitWatcher(), DiskWorkers(), SilentEnds()
        self._events: list[Event] = []
        #: Stops that the disk did not allow, tried again at each `watch`, and why.
        self._noted: dict[Attempt, str] = {}
        #: Starts for which this machine was short of something, why, and when they are tried again (monotonic).
        self._unstarted: dict[Attempt, tuple[Start, str, float]] = {}
        #: Whether `watch` has told which attempts live.
        self._observed = False
        self._tracked: dict[Attempt, _TrackedAttempt] = {}
        #: Attempts with a followed runner that are not reported as started yet.
        self._starting: dict[Attempt, _TrackedAttempt] = {}
        #: Attempts that are to be looked at again, or have a deadline.
        self._pending: dict[Attempt, _TrackedAttempt] = {}
        #: Process ids of runners that are children of this process, and whose exit status was not read.
        self._unreaped: set[int] = set()
        #: Attempts that were killed and do not end.
        self._stuck: dict[Attempt, _TrackedAttempt] = {}
        self._bin_thread = threading.Thread()
        self._empty_bin()
        for attempt in self._folders.tracked():
            self._look_at(self._track(attempt))
        self._workers.wait(_OPEN_S)
        self._take_up()

    @property
    def trouble(self) -> str:
        """Why an attempt cannot be started or stopped now, or does not end, or why nothing is started any more."""
        if self._overtaken:
            return self._overtaken
        if why := next(iter(self._noted.values()), ""):
            return f"A job cannot be stopped: {why}."
        if starts := next(iter(self._unstarted.values()), None):
            return f"A job cannot be started: {starts[1]}."
        if self._stuck:
            nodes = ", ".join(sorted(self._stuck_nodes()))
            return f"Processes of a job do not end although they were killed: {nodes} closed until they are gone."
        return self._isolation.trouble

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
        """Note an attempt to start; a thread writes its order and starts its runner, unless it was started before."""
        attempt = (start.job, start.attempt)
        tracked = self._tracked.get(attempt) or self._track(attempt)
        if not tracked.ended and not tracked.asked_for and attempt not in self._runners:
            tracked.asked_for = tracked.may_live = True
            self._submit_launch(tracked, start)

    def _submit_launch(self, tracked: _TrackedAttempt, start: Start) -> None:
        self._workers.submit(tracked.attempt, lambda: self._launch(tracked, start))

    def stop(self, job: str, attempt: int) -> None:
        """Note that an attempt must stop; its runner is asked to once that is on disk. Cancels one without a runner."""
        tracked = self._tracked.get((job, attempt)) or self._track((job, attempt))
        if not tracked.ended:
            self._workers.submit(tracked.attempt, lambda: self._request_stop(tracked))

    def gone(self, node: str) -> None:
        """Do nothing: of this machine it is always known what runs."""

    def act_under(self, term: Term) -> None:
        """Start and stop nothing once another service has a higher term."""
        self._term = term

    def watch(self, now_s: float) -> list[Event]:
        """Events since the last call. Costs two system calls if nothing happened."""
        self._take_up()
        for attempt in list(self._noted):
            if not self._workers.is_busy(attempt):
                self.stop(*attempt)
        for attempt, (start, _, again_s) in self._unstarted.items():
            if time.monotonic() >= again_s and not self._workers.is_busy(attempt):
                self._submit_launch(self._tracked[attempt], start)
        if dead := self._runners.poll():
            self._reap()
        for attempt in dead:
            self._starting.pop(attempt, None)
            self._look_at(self._tracked[attempt])
        self._see_to_pending(time.monotonic())
        self._report_started()
        events, self._events = self._events, []
        if not self._observed:
            self._observed = True
            events += self._alive()
        return [replace(event, at_s=now_s) for event in events]

    def _alive(self) -> list[Event]:
        """Attempts with living processes, by node. One whose nodes are unknown may be on any."""
        alive = [tracked for tracked in self._tracked.values() if self._is_alive(tracked)]
        return [
            NodeObserved(0.0, node.name, tuple(sorted(each.attempt for each in alive if each.may_be_on(node.name))))
            for node in self._nodes
        ]

    def forget(self, job: str, attempt: int) -> None:
        """Drop the records of an ended attempt. Its log stays, and it never runs again."""
        tracked = self._tracked.get((job, attempt))
        if not tracked or self._is_alive(tracked):
            return
        del self._tracked[tracked.attempt]
        self._pending.pop(tracked.attempt, None)
        self._events = [event for event in self._events if _attempt_of(event) != tracked.attempt]
        self._workers.submit(tracked.attempt, lambda: self._remove_records(tracked))

    def _remove_records(self, tracked: _TrackedAttempt) -> Then:
        if not self._term.is_held:
            return _nothing
        with suppress(OSError):  # the disk is full: leftover files do no harm
            tracked.folder.end(RUN_AGAIN, time.time(), stopped=True, was_begun=False)
            tracked.folder.scrub()
        with suppress(OSError):  # the next backend reports the end again
            self._folders.forget(tracked.attempt)
        return _nothing

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete the folders of jobs: logs, working folders and checkpoints in the state folder, nothing outside it."""
        if not self._term.is_held:
            return []
        needed = {job for job, _ in self._tracked} | self._workers.jobs()
        needed |= self._folders.jobs_named_in(kept, self._isolation.job_folders)
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
        self._workers.close(_CLOSE_S)
        self._runners.close()

    # --- in threads: nothing here changes what the loop knows

    def _launch(self, tracked: _TrackedAttempt, start: Start) -> Then:
        """Write the order of an attempt and start its runner, unless the attempt was started before."""
        folder = tracked.folder
        try:
            self._term.check()
            if runner.was_begun(str(folder.path)):
                return self._take_up_begun(tracked)
            self._order(start)
            order = folder.order()
            tracked.child = child = Process.of(self._spawn(folder, order))
        except Overtaken as why:
            return self._overtaken_by(why)
        except Exception as why:
            if not isinstance(why, OSError | UserError):
                _LOG.exception("An attempt could not be started.")
            if is_shortage(why):
                return self._short_for(tracked, start, why)
            reason = str(why) or type(why).__name__
            return lambda: self._launch_failed(tracked, reason)
        return lambda: self._note_launched(tracked, order, child)

    def _short_for(self, tracked: _TrackedAttempt, start: Start, shortage: Exception) -> Then:
        """Try a start again later: that this machine is short of something is no fault of the job."""
        why = getattr(shortage, "strerror", None) or str(shortage)

        def note() -> None:
            if not tracked.ended:
                self._unstarted[tracked.attempt] = (start, why, time.monotonic() + _LOOK_AGAIN_S)

        return note

    def _take_up_begun(self, tracked: _TrackedAttempt) -> Then:
        """Follow an attempt that was begun before. One that has ended and was forgotten is another one's."""
        if not self._folders.is_tracked(tracked.attempt) and tracked.folder.exit():
            why = f"its folder {tracked.folder.path} was used by another attempt, whose end is in it"
            return lambda: self._launch_failed(tracked, why)
        self._folders.remember(tracked.attempt)
        return self._find_out(tracked)

    def _order(self, start: Start) -> None:
        """Write an order. An order that exists already is kept."""
        attempt = (start.job, start.attempt)
        self._check_places(start)
        folder = self._folders.of(attempt).path
        job_folder = self._isolation.job_folder(start)
        order = make_order(start, folder, self._devices, self._secrets, job_folder)
        gpus = [number for place in start.places for number in driver_numbers(place, self._devices)]
        order = self._isolation.adapt(order, start, gpus)
        # An attempt that adds nothing to its checkpoint must not ask to be run again.
        saved = work_done(self._folders, attempt, start.task, is_user_owned=job_folder is not None)
        order |= {"saved": saved, "max_log_bytes": self._max_log_bytes}
        self._folders.remember(attempt).write_order(order)

    def _spawn(self, folder: AttemptFolder, order: Order | None) -> int:
        """Start the runner of an attempt, with what the isolation gives it; returns its process id."""
        control = self._isolation.open(order.content if order else {})
        try:
            return _spawn(folder, control)
        finally:
            if control is not None:
                os.close(control)

    def _check_places(self, start: Start) -> None:
        """Refuse GPUs that this machine no longer has."""
        gpus = {node.name: node.gpus for node in self._nodes}
        for place in start.places:
            gone = [number for number in place.gpus if number >= gpus.get(place.node, 0)]
            if gone:
                raise BadTask(f"Node {place.node} no longer has GPU {gone[0]}.")

    def _request_stop(self, tracked: _TrackedAttempt) -> Then:
        """Record the stop request, and ask the runner to stop. One that the disk does not allow is tried again."""
        try:
            self._term.check()
            if not self._folders.is_tracked(tracked.attempt):
                self._folders.remember(tracked.attempt)
            tracked.folder.request_stop()
            fate = self._fate_of(tracked)
        except Overtaken as why_not:
            return self._overtaken_by(why_not)
        except OSError as error:
            why = error.strerror or str(error)
            return lambda: self._note_unstopped(tracked, why)
        if fate.runner:
            fate.runner.send(signal.SIGTERM)
        return lambda: self._note_stop(tracked, fate)

    def _find_out(self, tracked: _TrackedAttempt) -> Then:
        """Find out what became of an attempt. One whose files cannot be handled now is looked at again."""
        try:
            self._term.check()
            fate = self._fate_of(tracked)
        except Overtaken as why:
            return self._overtaken_by(why)
        except OSError:  # the disk is full
            return lambda: self._look_later(tracked, _LOOK_RARELY_S)
        except Exception:
            _LOG.exception("It cannot be found out what became of an attempt.")
            return lambda: self._note_changing(tracked, _LOOK_RARELY_S)
        return lambda: self._note_fate(tracked, fate)

    def _overtaken_by(self, why: Overtaken) -> Then:
        def note() -> None:
            self._overtaken = str(why)

        return note

    def _fate_of(self, tracked: _TrackedAttempt) -> Fate:
        return find_out(self._folders, tracked.attempt, tracked.child, tracked.late, self._isolation.left)

    # --- in the loop

    def _track(self, attempt: Attempt) -> _TrackedAttempt:
        self._tracked[attempt] = tracked = _TrackedAttempt(attempt, self._folders.of(attempt))
        return tracked

    def _look_at(self, tracked: _TrackedAttempt) -> None:
        """Have a thread find out what became of an attempt."""
        tracked.look_s = None
        self._workers.submit(tracked.attempt, lambda: self._find_out(tracked))

    def _look_later(self, tracked: _TrackedAttempt, in_s: float = _LOOK_AGAIN_S) -> None:
        tracked.look_s = time.monotonic() + in_s
        self._pending[tracked.attempt] = tracked

    def _take_up(self) -> None:
        """Take up what the threads have done."""
        for then in self._workers.take_done():
            then()

    def _note_launched(self, tracked: _TrackedAttempt, order: Order | None, child: Process) -> None:
        tracked.order = order
        self._unstarted.pop(tracked.attempt, None)
        self._unreaped.add(child.pid)
        self._follow(tracked, child)

    def _note_stop(self, tracked: _TrackedAttempt, fate: Fate) -> None:
        self._noted.pop(tracked.attempt, None)
        self._note_fate(tracked, fate)
        self._expect_stop(tracked)

    def _expect_stop(self, tracked: _TrackedAttempt) -> None:
        """Set the deadline of a stop, which an earlier stop may have done."""
        if not tracked.ended and tracked.stop_by_s is None:
            grace_s = tracked.order.task.grace_s if tracked.order else 0.0
            tracked.stop_by_s = time.monotonic() + grace_s + self._deadlines.stop_s
            self._pending[tracked.attempt] = tracked

    def _note_unstopped(self, tracked: _TrackedAttempt, why: str) -> None:
        if not tracked.ended:
            self._noted[tracked.attempt] = why

    def _note_fate(self, tracked: _TrackedAttempt, fate: Fate) -> None:
        """Follow a living attempt, or report the end of another one."""
        if tracked.ended or self._tracked.get(tracked.attempt) is not tracked:
            return
        tracked.order = fate.order or tracked.order
        tracked.up_at = tracked.up_at if fate.up_at is None else min(fate.up_at, time.monotonic())
        if fate.runner:
            if tracked.attempt not in self._runners:
                self._follow(tracked, fate.runner)
            if fate.stop_requested:
                self._expect_stop(tracked)
            return
        self._runners.unfollow(tracked.attempt)
        tracked.may_live = fate.is_changing
        if fate.exit:
            self._report_end(tracked, fate, fate.exit)
        elif fate.is_changing:
            self._note_changing(tracked)
        elif tracked.child:
            why = tracked.late or f"its runner ended before the job began; {tracked.folder.log} says why"
            self._launch_failed(tracked, why)
        else:  # the last backend ordered it, and may have started a runner
            self._look_later(tracked, _LOOK_RARELY_S)

    def _note_changing(self, tracked: _TrackedAttempt, look_in_s: float = _LOOK_AGAIN_S) -> None:
        """Look again at an attempt that is as good as gone; that it stays so for long is told."""
        tracked.killed_s = tracked.killed_s or time.monotonic()
        self._look_later(tracked, look_in_s)

    def _follow(self, tracked: _TrackedAttempt, process: Process) -> None:
        tracked.may_live, tracked.killed_s = True, None
        if not tracked.announced:
            self._starting[tracked.attempt] = tracked
        if tracked.up_at is None and tracked.launch_by_s is None:
            tracked.launch_by_s = time.monotonic() + self._deadlines.launch_s
        self._pending[tracked.attempt] = tracked
        self._runners.follow(tracked.attempt, process)

    def _see_to_pending(self, now_s: float) -> None:
        """Look again at attempts, and kill those whose launch or stop has taken too long."""
        for tracked in list(self._pending.values()):
            if tracked.look_s is not None and now_s >= tracked.look_s and not self._workers.is_busy(tracked.attempt):
                self._look_at(tracked)
            if tracked.up_at is not None:
                tracked.launch_by_s = None
            self._kill_overdue(tracked, now_s)
            deadlines = (tracked.look_s, tracked.launch_by_s, tracked.stop_by_s, tracked.killed_s)
            if all(each is None for each in deadlines):
                del self._pending[tracked.attempt]
        self._show_stuck(now_s)

    def _kill_overdue(self, tracked: _TrackedAttempt, now_s: float) -> None:
        """Kill a runner that is frozen, or cannot begin or end its job. What it leaves is killed after it."""
        is_late = tracked.launch_by_s is not None and now_s >= tracked.launch_by_s
        if not is_late and (tracked.stop_by_s is None or now_s < tracked.stop_by_s):
            return
        if not self._term.is_held:
            return
        if is_late and tracked.stop_by_s is None and not tracked.late:
            tracked.late = f"its processes were not up after {self._deadlines.launch_s:.0f} s"
        tracked.killed_s = tracked.killed_s or now_s
        self._runners.kill(tracked.attempt)

    def _show_stuck(self, now_s: float) -> None:
        """Close the nodes of attempts that were killed long ago and still have not ended; open them afterwards."""
        hanging = set(self._workers.hanging()) & self._tracked.keys()
        self._stuck = {
            tracked.attempt: tracked
            for tracked in (*self._pending.values(), *(self._tracked[attempt] for attempt in hanging))
            if tracked.attempt in hanging
            or (tracked.killed_s is not None and now_s - tracked.killed_s >= self._deadlines.kill_s)
        }
        if (closed := self._stuck_nodes()) != {node.name for node in self._sight.nodes if not node.open}:
            why = "Processes of a job do not end although they were killed."
            self._sight = Sight(
                tuple(replace(node, open=False, why=why) if node.name in closed else node for node in self._nodes)
            )

    def _stuck_nodes(self) -> set[str]:
        return {node.name for node in self._nodes for each in self._stuck.values() if each.may_be_on(node.name)}

    # --- reporting

    def _report_end(self, tracked: _TrackedAttempt, fate: Fate, end: ExitRecord) -> None:
        job, attempt = tracked.attempt
        if end.why and fate.up_at is None and not fate.stop_requested:
            self._launch_failed(tracked, end.why)
            return
        if fate.up_at is not None and not tracked.announced:
            # It was up for less than `ready_s`, and worked all the same.
            self._announce(tracked, time.monotonic())
        asked = fate.stop_requested or (fate.order is not None and fate.done > fate.saved)
        if end.code == 0:
            self._finish(tracked, JobFinished(0.0, job, attempt))
        elif end.stopped or (end.code == RUN_AGAIN and asked) or (end.silent and self._is_excused(tracked, fate)):
            self._finish(tracked, JobStopped(0.0, job, attempt, fate.done))
        else:
            self._finish(tracked, JobFailed(0.0, job, attempt, end.code, fate.done))

    def _is_excused(self, tracked: _TrackedAttempt, fate: Fate) -> bool:
        """Whether the end of a killed runner is no fault of the job: the third one in a row without progress is."""
        return fate.stop_requested or not self._silent_ends.add(tracked.attempt, fate.done)

    def _launch_failed(self, tracked: _TrackedAttempt, why: str) -> None:
        if not tracked.ended:
            self._finish(tracked, LaunchFailed(0.0, *tracked.attempt, why))

    def _finish(self, tracked: _TrackedAttempt, event: Event) -> None:
        self._reap()
        tracked.ended, tracked.may_live = True, False
        for attempts in (self._pending, self._starting, self._noted, self._unstarted, self._stuck):
            attempts.pop(tracked.attempt, None)
        self._runners.unfollow(tracked.attempt)
        self._silent_ends.note_end(tracked.attempt, event)
        self._events.append(event)

    def _reap(self) -> None:
        """Reap dead runners that are children of this process."""
        for pid in list(self._unreaped):
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._unreaped.discard(pid)
            except ChildProcessError:
                self._unreaped.discard(pid)  # reaped elsewhere in this process

    def _report_started(self) -> None:
        """Report attempts as started whose processes have been up for `ready_s`."""
        now_s = time.monotonic()
        for tracked in list(self._starting.values()):
            if tracked.up_at is None:
                if tracked.look_s is None and not self._workers.is_busy(tracked.attempt):
                    tracked.look_s = now_s + min(max(_LOOK_AGAIN_S / 2, self._ready_s / 10), _LOOK_RARELY_S / 2)
            elif now_s - tracked.up_at >= self._ready_s:
                del self._starting[tracked.attempt]
                self._announce(tracked, now_s)

    def _announce(self, tracked: _TrackedAttempt, now_s: float) -> None:
        assert tracked.up_at is not None, f"{tracked.attempt} is not up"
        tracked.announced = True
        self._events.append(JobStarted(0.0, *tracked.attempt, up_s=max(now_s - tracked.up_at, 0.0)))

    def _is_alive(self, tracked: _TrackedAttempt) -> bool:
        """Whether any process of an attempt runs or may run, including processes that a dead runner left behind."""
        return not tracked.ended and (tracked.attempt in self._runners or tracked.may_live)


def _nothing() -> None:
    """What is to be done after work whose result nobody needs."""


def _spawn(folder: AttemptFolder, control: int | None) -> int:
    """Start the runner of an attempt in a new session, with its output in the job's log; returns its process id.

    The runner gets the descriptor `control` as `runner.CONTROL`.
    """
    # To duplicate a descriptor onto itself would not keep it open in the new process.
    high = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, runner.CONTROL + 1) if control is not None else None
    log = (1, str(folder.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-W", "ignore", _runner_program(), str(folder.path)],
            {},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, *log),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *([(os.POSIX_SPAWN_DUP2, high, runner.CONTROL)] if high is not None else []),
            ],
            setsid=True,
            # A stop signal may come before the runner can handle it.
            setsigmask=runner.SIGNALS,
            setsigdef=(signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE),
        )
    finally:
        if high is not None:
            os.close(high)


def _runner_program() -> str:
    """The runner, compiled if that is up to date: where Python may not write, it may be of an older release."""
    compiled = runner.__spec__.cached if runner.__spec__ else None
    with suppress(OSError):
        if compiled and Path(compiled).stat().st_mtime >= Path(runner.__file__).stat().st_mtime:
            return compiled
    return runner.__file__


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
