"""The reconciler: a backend around any cluster manager that has a driver.

Intentions come in (`start`, `stop`), events go out (`watch`). One thread looks at the cluster and does what is missing,
so that a lost answer, a lost submission, a doubled submission and a crash are the same case: the next look settles it.

1. Note the intentions on the shared folder, before anything follows from them.
2. Look. Out of sight, nothing is concluded.
3. For each attempt: submit the pieces that are missing, pass a stop on, read the last words of its pieces.
4. Kill pieces that nobody wants. Tell which attempts each node has, once after each time out of sight.

An end needs proof: the last word of each piece, and that the cluster manager no longer holds its GPUs. If a piece has
no last word, either the cluster manager must deny it, and its beat must be older than the fence: by then the runner has
killed its job, even on a node that is cut off. Or somebody must be sure that the node is gone: an operator, or the
site's fence, a command that cuts its power. GPU numbers are seats; the cluster manager chooses the GPUs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from horae.backends.attempt_round import (
    NEVER_SEEN,
    SEE_TO_FIRST,
    AttemptRound,
    FollowedAttempt,
    ReconcilerSettings,
    is_held,
)
from horae.backends.driver import ClusterDriver, Look, OutOfSight, Piece, PieceId, PieceRunning, host_of
from horae.backends.fence import Fence
from horae.backends.local import runner
from horae.backends.looking_backend import LookingBackend
from horae.backends.protocol import Attempt, Seen, Sight, Start
from horae.backends.shared_folder import OrderedAttempt, SharedFolder, piece_log, read_secrets
from horae.backends.silent_ends import SilentEnds
from horae.backends.task import Task
from horae.backends.terms import Overtaken
from horae.core.cluster import BadCluster
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed

#: Seconds until a kill is repeated: the first wait, and the longest; each is twice the one before.
_KILL_AGAIN_S, _KILL_RARELY_S = 2.0, 60.0
#: Seconds after which starts wait for the next look, so that stops and ends are not kept waiting.
_SLICE_S = 1.0
#: Calls for single attempts without an answer, in one round, after which the cluster is out of sight.
_REFUSALS = 3
#: For how many times as long as it has worked this thread waits for the daemon's loop, which needs the interpreter.
_GIVE_WAY = 4.0
#: Most events that `watch` returns at once.
_EVENTS = 100
#: Seconds until the files of a running piece are read again although the cluster manager says nothing new of it.
_READ_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class _Stop:
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class _Forget:
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class _Gone:
    """Nothing runs on a node any more."""

    node: str


_Note = Start | _Stop | _Forget | _Gone


class Reconciler(LookingBackend):
    """A backend around a driver and a folder that the service and all nodes share, at the same path."""

    shares_gpus = False

    @property
    def honours(self) -> frozenset[str]:
        """What the driver passes on."""
        return self._driver.honours

    def __init__(
        self,
        driver: ClusterDriver,
        shared: Path,
        secrets: Path | None = None,
        settings: ReconcilerSettings | None = None,
        python: str = sys.executable,
        fence: str = "",
        max_log_bytes: int = runner.LARGEST_LOG,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._python = settings or ReconcilerSettings(), python
        super().__init__("horae-reconciler", self._settings.silence_s, monotonic)
        self._driver, self._shared, self._secrets = driver, shared.resolve(), secrets
        self._max_log_bytes = max_log_bytes
        self._folder: SharedFolder | None = None
        # Shared with the daemon's thread, under the lock.
        self._notes: list[_Note] = []
        self._followed: dict[Attempt, FollowedAttempt] = {}
        #: Attempts that were started or stopped though attempts with their ids had ended and were forgotten.
        self._forgotten: set[Attempt] = set()
        # Of the thread alone.
        #: The nodes of the last look, by name. They are kept while the cluster is out of sight.
        self._last_seen: dict[str, Seen] = {}
        #: What cannot be done on the shared folder for single attempts, in words, by job.
        self._stuck: dict[str, str] = {}
        #: When to repeat the kill of a piece, and how long to wait then; monotonic.
        self._kills: dict[PieceId, tuple[float, float]] = {}
        self._silent_ends = SilentEnds()
        self._rounds = 0
        self._fence = Fence(fence, lambda node: self._note(_Gone(node)))
        #: Set while the daemon's loop waits for something to do; when this thread last gave way to it; monotonic.
        self._loop_idle, self._gave_way_s = threading.Event(), monotonic()
        self._loop_idle.set()
        self._begin()

    # --- the protocol: nothing here waits

    def start(self, start: Start) -> None:
        """Note an attempt to start."""
        self._note(start)

    def stop(self, job: str, attempt: int) -> None:
        """Note that an attempt must stop."""
        self._note(_Stop(job, attempt))

    def gone(self, node: str) -> None:
        """Note that nothing runs on a node any more."""
        self._note(_Gone(node))

    def give_way_until(self, idle: threading.Event) -> None:
        """Let the daemon's loop have the interpreter first whenever it has something to do."""
        self._loop_idle = idle

    def _note(self, note: _Note) -> None:
        with self._lock:
            self._notes.append(note)
        self._wake.set()

    def watch(self, now_s: float) -> list[Event]:
        """The next events of the queue, a limited number: the daemon applies them in one cycle."""
        with self._lock:
            events, self._events = self._events[:_EVENTS], self._events[_EVENTS:]
            # What was told of forgotten attempts is known.
            attempts = self._followed.keys() | self._forgotten
            news = [event for event in events if (of := _attempt_of(event)) is None or of in attempts]
        return [replace(event, at_s=now_s) for event in news]

    def forget(self, job: str, attempt: int) -> None:
        """Drop the records of an ended attempt. Its logs stay, and it never runs again."""
        with self._lock:
            self._forgotten.discard((job, attempt))
            followed = self._followed.get((job, attempt))
            if followed and followed.ended:
                del self._followed[job, attempt]
                self._notes.append(_Forget(job, attempt))
        self._wake.set()

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete the folders of jobs. Deletes nothing before the shared folder was read."""
        if not self._folder:
            return []
        with self._lock:
            needed = {note.job for note in self._notes if isinstance(note, Start | _Stop)}
            needed |= {job for job, _ in self._followed}
        return self._folder.discard(jobs, needed, kept)

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """The log file of a piece."""
        return piece_log(self._shared, (job, attempt), piece)

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of the secrets of these names; secrets that cannot be read are left out."""
        return read_secrets(self._secrets, names)

    def close(self) -> None:
        """End the thread; what was asked for is on disk by then, unless the driver hangs. Running attempts go on."""
        self._end_thread(self._settings.overdue_s)

    # --- the thread

    def _pause_s(self) -> float:
        return self._settings.look_every_s

    def _turn(self) -> None:
        folder = self._folder or self._open()
        try:
            self._take_notes(folder)
        except OSError:
            for followed in self._living():
                followed.folder_was_away = True
            raise
        if not self._closing:
            self._round(folder)

    def _why_blind(self, why: Exception) -> str:
        match why:
            case OutOfSight():
                return f"The cluster is out of sight. {why}"
            case OSError():
                return f"The shared folder cannot be used: {_in_words(why)}."
            case _:
                return f"The cluster is out of sight: its driver failed with {type(why).__name__}."

    def _open(self) -> SharedFolder:
        """Read the attempts of the reconciler before this one."""
        folder = SharedFolder(self._shared, self._secrets, self._max_log_bytes)
        found = {ordered.id: FollowedAttempt(ordered, ordered.stop_requested) for ordered in folder.tracked()}
        if all(each.ordered.piece(node).begun for each in found.values() for node in each.nodes):
            folder.remove_old_runners()
        with self._lock:
            self._folder, self._followed = folder, found
        return folder

    # --- 1. intentions

    def _take_notes(self, folder: SharedFolder) -> None:
        """Write the intentions down. One that cannot be written stays noted, before later ones for the same job."""
        folder.clock_s()  # raises if nothing can be written at all
        self._stuck = {}
        with self._lock:
            notes = list(self._notes)
        end_s = self._monotonic() + _SLICE_S
        kept: list[_Note] = []
        # Stops first. A start of an attempt that must stop is then not performed at all.
        for note in sorted(notes, key=_urgency):
            self._give_way()
            if self._monotonic() > end_s and isinstance(note, Start | _Forget):
                kept.append(note)
                self._wake.set()
            elif not self._try_for(_subject(note), partial(self._take, folder, note)):
                kept.append(note)
        with self._lock:
            self._notes[: len(notes)] = kept

    def _try_for(self, subject: str, do: Callable[[], None]) -> bool:
        """Do something with the files of a job; False if that fails, or has failed before in this round."""
        if subject in self._stuck:
            return False
        try:
            do()
        except (OutOfSight, Overtaken):
            raise
        except Exception as why:
            self._log_fault(why)
            self._stuck[subject] = _in_words(why)
            return False
        return True

    def _take(self, folder: SharedFolder, note: _Note) -> None:
        match note:
            case Start():
                attempt = (note.job, note.attempt)
                if attempt in self._followed:
                    return
                if folder.order(note) or folder.is_tracked(attempt):
                    self._follow(folder.attempt(attempt))
                else:
                    why = "its folder was used by another attempt"
                    self._tell_of_forgotten(attempt, LaunchFailed(0.0, *attempt, why))
            case _Stop():
                self._take_stop(folder, (note.job, note.attempt))
            case _Forget():
                folder.forget((note.job, note.attempt))
            case _Gone():
                folder.note_gone(note.node)

    def _take_stop(self, folder: SharedFolder, attempt: Attempt) -> None:
        followed = self._followed.get(attempt)
        if folder.request_stop(attempt, bool(followed)):
            if followed:
                followed.stopping, followed.seen_to = True, SEE_TO_FIRST
                followed.ordered.tell_to_stop()
            else:
                self._follow(folder.attempt(attempt))
        elif not folder.is_tracked(attempt):
            # It has ended and is forgotten, so the journal had its end. One that was restored has not.
            done = folder.work_done(folder.attempt(attempt))
            self._tell_of_forgotten(attempt, JobStopped(0.0, *attempt, done))

    def _follow(self, ordered: OrderedAttempt) -> None:
        with self._lock:
            self._followed[ordered.id] = FollowedAttempt(ordered, ordered.stop_requested)

    def _tell_of_forgotten(self, attempt: Attempt, end: Event) -> None:
        """Tell, once, the end of an attempt whose folder has the end of one that was forgotten."""
        with self._lock:
            if attempt not in self._forgotten:
                self._forgotten.add(attempt)
                self._events.append(end)

    # --- 2. to 4.: look, act, tell

    def _round(self, folder: SharedFolder) -> None:
        look = self._driver.look()
        if self._silent:
            self._observed.clear()
        trouble = self._show(look)
        self._kills = {piece: when for piece, when in self._kills.items() if piece in look.pieces}
        self._see_to_all(folder, look)
        if self._closing:
            return
        self._drop_unwanted(look)
        self._observe_attempts()
        self._trouble, self._looked_s = f"{trouble} {self._stuck_in_words()}".strip(), self._monotonic()

    def _see_to_all(self, folder: SharedFolder, look: Look) -> None:
        """See to the attempts in turn, for a while: thousands of launches must not keep a stop waiting."""
        living = self._living()
        self._rounds += 1
        refused, end_s = 0, self._monotonic() + _SLICE_S
        for followed in sorted(living, key=lambda each: each.seen_to):
            followed.seen_to = self._rounds
            if self._goes_on(followed, folder, look):
                continue
            self._give_way()
            try:
                self._try_for(followed.id[0], self._attempt_round(followed, folder, look).see_to)
            except OutOfSight as why:
                # The cluster manager may refuse one submission for now, and take the next.
                refused += 1
                self._stuck[followed.id[0]] = str(why).rstrip(".")
                if refused >= _REFUSALS:
                    raise
            if self._closing or self._monotonic() > end_s:
                self._wake.set()
                return

    def _attempt_round(self, followed: FollowedAttempt, folder: SharedFolder, look: Look) -> AttemptRound:
        return AttemptRound(followed, folder, look, self._settings, self, self._monotonic())

    def _give_way(self) -> None:
        """Wait while the daemon's loop is busy, but only a few times as long as this thread has worked since."""
        worked_s = self._monotonic() - self._gave_way_s
        if not self._loop_idle.is_set():
            self._loop_idle.wait(_GIVE_WAY * worked_s)
        self._gave_way_s = self._monotonic()

    def _goes_on(self, followed: FollowedAttempt, folder: SharedFolder, look: Look) -> bool:
        """Whether an attempt of one piece simply runs, so that there is nothing to do for it.

        Its end would be told only when the cluster manager says that the piece has ended, too. Of a gang, one piece
        may end while the cluster manager says that all run.
        """
        now_s = self._monotonic()
        if not followed.announced or followed.stopping or len(followed.nodes) != 1:
            return False
        [node] = followed.nodes
        state = look.pieces.get(followed.ordered.piece_id(node))
        if not isinstance(state, PieceRunning) or folder.gone_s(node) or now_s >= followed.read_again_s:
            followed.read_again_s = now_s + _READ_AGAIN_S
            return False
        return True

    def _living(self) -> list[FollowedAttempt]:
        """The attempts that have not ended. The daemon's thread may wait for the lock: it is held for the copy only."""
        with self._lock:
            followed = list(self._followed.values())
        return [each for each in followed if not each.ended]

    def _show(self, look: Look) -> str:
        """Make the look the backend's sight; returns what is wrong with its nodes. It names no job.

        A node that the cluster manager has given up is lost when nobody can live there any more. Until then it is only
        closed: what lives there may go on to its end.
        """
        living = {node for each in self._living() for node in each.nodes}
        seen, misnamed = [], []
        for node in look.nodes.values():
            if node.is_lost and node.name not in living:
                continue
            is_open = node.is_open and not node.is_lost and not look.foreign.get(node.name)
            why = "" if is_open else "; ".join(look.foreign.get(node.name, ())) or node.why
            try:
                rack, room = node.rack or "rack-0", (node.cpus, node.memory_mb)
                seen.append(Seen(node.name, node.gpu_type, node.gpus, rack, is_open, why, *room))
            except BadCluster:
                misnamed.append(node.name)
        seen += self._missing_nodes(living - look.nodes.keys())
        self._last_seen = {node.name: node for node in seen}
        self._show_sight(Sight(tuple(seen)))
        foreign = [name for name in look.nodes if look.foreign.get(name)]
        return " ".join(
            [f"Work of others runs on {', '.join(foreign)}: closed for new jobs."] * bool(foreign)
            + [f"Cannot be used because of their names: {', '.join(misnamed)}."] * bool(misnamed)
        )

    def _missing_nodes(self, names: Iterable[str]) -> list[Seen]:
        """Nodes that the cluster manager does not show although pieces have begun there: closed, as they were.

        A cluster manager that was restarted shows its nodes one after the other. Attempts that have not begun go
        elsewhere.
        """
        return [
            replace(self._last_seen[name], open=False, why="The cluster does not show this node.")
            for name in sorted(names)
            if name in self._last_seen and self._has_begun_on(name)
        ]

    def _has_begun_on(self, node: str) -> bool:
        """Whether a piece of a living attempt has begun on a node."""
        return any(node in each.nodes and each.ordered.piece(node).begun for each in self._living())

    def _stuck_in_words(self) -> str:
        if not self._stuck:
            return ""
        whose = "one job" if len(self._stuck) == 1 else f"{len(self._stuck)} jobs"
        return f"Nothing can be done for {whose} now: {next(iter(self._stuck.values()))}."

    def _drop_unwanted(self, look: Look) -> None:
        """Kill pieces of ended attempts, since a lost submission may start late, and forget those of forgotten ones."""
        for piece, state in look.pieces.items():
            followed = self._followed.get((piece.job, piece.attempt))
            if is_held(state) and (not followed or followed.ended):
                self.kill(piece)
            elif not followed:
                self._driver.forget(piece)

    def _observe_attempts(self) -> None:
        """Tell which attempts live, or may live, on nodes that have come into sight.

        An attempt that nobody has seen to yet may have ended: the service would stop it as one that it does not know.
        """
        living = self._living()
        if all(each.seen_to != NEVER_SEEN for each in living):
            self._observe((each.id, each.nodes) for each in living)

    # --- what the round of an attempt asks for

    def conclude(self, followed: FollowedAttempt, end: Event) -> None:
        """Tell the end of an attempt."""
        self._silent_ends.note_end(followed.id, end)
        with self._lock:
            followed.ended = True
            self._events.append(end)

    def submit(self, ordered: OrderedAttempt, nodes: Sequence[str]) -> None:
        """Submit the pieces on these nodes."""
        assert self._folder
        self.check_term()
        # The runner forks beside its beating thread, which newer Pythons warn of in the job's log.
        python = (self._python, "-I", "-S", "-W", "ignore")
        command = (*python, self._folder.program, str(ordered.path), runner.PIECE)
        self._driver.submit([_piece(ordered, node, command) for node in nodes])

    def last_line(self, ordered: OrderedAttempt, node: str) -> str:
        """The last line that was printed for the piece on a node, whose runner never began."""
        return self._driver.last_line(_piece(ordered, node, ()))

    def kill(self, piece: PieceId) -> None:
        """Kill a piece; again if that has not helped after a while, and then less and less often."""
        now_s = self._monotonic()
        due_s, wait_s = self._kills.get(piece, (0.0, _KILL_AGAIN_S))
        if now_s >= due_s:
            self.check_term()
            self._kills[piece] = (now_s + wait_s, min(2 * wait_s, _KILL_RARELY_S))
            self._driver.kill(piece)

    def fence_off(self, node: str) -> None:
        """Let the site's fence make sure that nothing runs on a node's machine."""
        self.check_term()
        self._fence.use_on(host_of(node))

    def look_again(self) -> None:
        """Look again at once."""
        self._wake.set()

    def is_hopeless(self, attempt: Attempt, done: float) -> bool:
        """Note that an attempt ended without a word; whether so did those before it, without progress."""
        return self._silent_ends.add(attempt, done)

    @property
    def settings(self) -> ReconcilerSettings:
        """How patient this reconciler is."""
        return self._settings


def _piece(ordered: OrderedAttempt, node: str, command: tuple[str, ...]) -> Piece:
    assert ordered.order
    assert ordered.task
    task, gpus = ordered.task, len(ordered.order["seats"][ordered.nodes.index(node)])
    limits = (task.cpus_per_gpu, task.memory_mb_per_gpu, task.image)
    return Piece(ordered.piece_id(node), ordered.order["env"]["HORAE_GPU_TYPE"], gpus, command, *limits)


def _urgency(note: _Note) -> int:
    return 0 if isinstance(note, _Stop | _Gone) else 1


def _subject(note: _Note) -> str:
    """What a note is about: intentions for one job keep their order."""
    return f"node {note.node}" if isinstance(note, _Gone) else note.job


def _in_words(why: Exception) -> str:
    """What is wrong, without a path."""
    return (isinstance(why, OSError) and why.strerror) or type(why).__name__


def _attempt_of(event: Event) -> Attempt | None:
    match event:
        case JobStarted() | LaunchFailed() | JobStopped() | JobFinished() | JobFailed():
            return event.job, event.attempt
        case _:
            return None
