"""The reconciler: a backend around any cluster manager that has a driver.

Intentions come in (`start`, `stop`), events go out (`watch`). One thread looks at the cluster and does what is missing,
so that a lost answer, a lost submission, a doubled submission and a crash are the same case: the next look settles it.

1. Note the intentions on the shared folder, before anything follows from them.
2. Look. Out of sight, nothing is concluded.
3. For each attempt: submit the pieces that are missing, pass a stop on, read the last words of its pieces.
4. Kill pieces that nobody wants. Tell which attempts each node has, once after each time out of sight.

An end needs proof: the last word of each piece, and that the cluster manager no longer holds its GPUs. If a piece has
no last word, the cluster manager must deny it, and its beat must be older than the fence: by then the runner has killed
its job, even on a node that is cut off. GPU numbers are seats; the cluster manager chooses the GPUs.

    <shared>/jobs/<job>/<attempt>/order.json   the attempt as it was ordered; `stop` beside it, if it must stop
    <shared>/jobs/<job>/<attempt>/<node>/      a piece: order.json, claim, runner.json, beat, stop, exit.json, log.txt

The other files are as in `local/attempt_folders.py`. Stored: change by addition.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from horae.backends.driver import (
    NODE_VARIABLE,
    ClusterDriver,
    EndCause,
    Look,
    OutOfSight,
    Piece,
    PieceEnded,
    PieceId,
    PiecesRefused,
    PieceState,
    PieceWaiting,
    SeenNode,
)
from horae.backends.local import runner
from horae.backends.local.attempt_folders import AttemptFolders, read_json, work_saved
from horae.backends.local.runner_order import make_order, task_of
from horae.backends.protocol import KILLED, RUN_AGAIN, Attempt, Backend, Seen, Sight, Start
from horae.backends.task import Task
from horae.core.cluster import BadCluster
from horae.core.errors import UserError
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeObserved

#: Exit code of a piece that could not be started, as in shells.
_CANNOT_RUN = 126
#: Variables that name the GPUs which the cluster manager chose.
_TAKEN_OVER = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """How patient a reconciler is, in seconds."""

    #: From one look to the next, unless something was asked for.
    look_every_s: float = 1.0
    #: After which a job that never reports counts as started.
    ready_s: float = 5.0
    #: Without a beat: the runner kills its job.
    beat_limit_s: float = 60.0
    #: Without a beat, by the file server's clock: a piece that the cluster manager denies is gone.
    fence_s: float = 90.0
    #: After its grace period, a piece is killed by the cluster manager. An ended piece has as long to free its GPUs.
    overdue_s: float = 15.0
    #: Without an answer of the driver, the cluster is out of sight.
    silence_s: float = 30.0

    def __post_init__(self) -> None:
        assert self.beat_limit_s < self.fence_s, "a job must be dead before others believe it"


@dataclass(slots=True)
class _Followed:
    """An attempt that is not forgotten."""

    attempt: Attempt
    path: Path
    #: None if the attempt was only stopped, or cannot be started.
    order: dict[str, Any] | None
    task: Task | None
    stopping: bool
    announced: bool = False
    ended: bool = False
    #: When this reconciler first told the pieces to end, or first saw all last words; monotonic.
    told_s: float | None = None
    over_s: float | None = None
    nodes: tuple[str, ...] = field(default=())

    def folder(self, node: str) -> Path:
        return self.path / node

    def piece(self, node: str) -> PieceId:
        return PieceId(*self.attempt, node)


class Reconciler(Backend):
    """A backend around a driver and a folder that the service and all nodes share, at the same path."""

    shares_gpus = False

    def __init__(
        self,
        driver: ClusterDriver,
        shared: Path,
        secrets: Path | None = None,
        settings: ReconcilerSettings | None = None,
        python: str = sys.executable,
    ) -> None:
        self._driver, self._shared, self._secrets = driver, shared.resolve(), secrets
        self._settings, self._python = settings or ReconcilerSettings(), python
        self._folders: AttemptFolders | None = None
        self._program = ""
        # Shared with the daemon's thread, under the lock.
        self._lock = threading.Lock()
        self._notes: deque[Start | Attempt] = deque()
        self._forgotten: deque[Attempt] = deque()
        self._followed: dict[Attempt, _Followed] = {}
        self._events: list[Event] = []
        self._sight: Sight | None = None
        self._trouble = "The cluster was not looked at yet."
        self._looked_s = time.monotonic()
        # Of the thread alone.
        self._observed: set[str] = set()
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="horae-reconciler", daemon=True)
        self._thread.start()

    # --- the protocol: nothing here waits

    @property
    def trouble(self) -> str:
        """Why the cluster is out of sight, or what is wrong with its nodes."""
        return self._trouble or ("The cluster does not answer." if self._silent else "")

    @property
    def _silent(self) -> bool:
        return time.monotonic() - self._looked_s > self._settings.silence_s

    def sight(self) -> Sight | None:
        """The nodes of the last look; None while the cluster is out of sight."""
        return None if self._silent else self._sight

    def start(self, start: Start) -> None:
        """Note an attempt to start."""
        with self._lock:
            self._notes.append(start)
        self._wake.set()

    def stop(self, job: str, attempt: int) -> None:
        """Note that an attempt must stop."""
        with self._lock:
            self._notes.append((job, attempt))
        self._wake.set()

    def watch(self, now_s: float) -> list[Event]:
        """Empty the queue of events."""
        with self._lock:
            events, self._events = self._events, []
        return [replace(event, at_s=now_s) for event in events]

    def forget(self, job: str, attempt: int) -> None:
        """Drop the records of an ended attempt. Its logs stay, and it never runs again."""
        with self._lock:
            followed = self._followed.get((job, attempt))
            if followed and followed.ended:
                del self._followed[job, attempt]
                self._forgotten.append((job, attempt))
                self._events = [event for event in self._events if _attempt_of(event) != (job, attempt)]
        self._wake.set()

    def discard(self, jobs: Iterable[str], kept: Iterable[Task]) -> list[str]:
        """Delete the folders of jobs. Deletes nothing before the shared folder was read."""
        if not self._folders:
            return []
        with self._lock:
            noted = {note.job if isinstance(note, Start) else note[0] for note in self._notes}
            needed = noted | {job for job, _ in self._followed} | self._folders.jobs_named_in(kept)
        return [job for job in jobs if job not in needed and self._folders.discard(job)]

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """The log file of a piece."""
        path = self._shared / "jobs" / job / str(attempt)
        nodes = (read_json(path / runner.ORDER) or {}).get("nodes", [])
        return (path / nodes[piece] if piece < len(nodes) else path) / runner.LOG

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of the secrets of these names; secrets that cannot be read are left out."""
        found: dict[str, str] = {}
        if self._secrets:
            for name in names:
                with suppress(OSError, UnicodeDecodeError):
                    found[name] = (self._secrets / name).read_text(encoding="utf-8")
        return found

    def close(self) -> None:
        """End the thread; what was asked for is on disk by then, unless the driver hangs. Running attempts go on."""
        self._closing = True
        self._wake.set()
        self._thread.join(self._settings.overdue_s)

    # --- the thread

    def _run(self) -> None:
        while True:
            self._wake.wait(self._settings.look_every_s)
            self._wake.clear()
            try:
                self._open()
                self._take_notes()
                if self._closing:
                    return
                self._round()
            except Exception as why:
                self._lose_sight(why)
                if self._closing:
                    return

    def _lose_sight(self, why: Exception) -> None:
        self._observed.clear()
        self._sight = None
        match why:
            case OutOfSight():
                self._trouble = f"The cluster is out of sight. {why}"
            case OSError():
                self._trouble = f"The shared folder cannot be used: {why.strerror or type(why).__name__}."
            case _:
                self._trouble = f"The cluster is out of sight: its driver failed with {type(why).__name__}."

    def _open(self) -> None:
        """Read the attempts of the reconciler before this one. Put the runner where all nodes find it."""
        if self._folders:
            return
        folders = AttemptFolders(self._shared)
        source = Path(runner.__file__).read_bytes()
        program = self._shared / f"runner-{hashlib.sha256(source).hexdigest()[:12]}.py"
        if not program.exists():
            draft = program.with_suffix(f".{os.getpid()}")
            draft.write_bytes(source)
            draft.rename(program)
        self._program = str(program)
        found = {attempt: self._load(folders, attempt) for attempt in folders.tracked()}
        with self._lock:
            self._folders, self._followed = folders, found
        folders.empty_bin()

    def _load(self, folders: AttemptFolders, attempt: Attempt) -> _Followed:
        folder = folders.of(attempt)
        order = folder.order()
        task = task_of(order) if order else None
        nodes = tuple(order["nodes"]) if order else ()
        return _Followed(attempt, folder.path, order, task, folder.stop_requested, nodes=nodes)

    # --- 1. intentions

    def _take_notes(self) -> None:
        """Write the intentions down, in their order. An intention that cannot be written stays noted."""
        while self._notes:
            note = self._notes[0]
            if isinstance(note, Start):
                self._note_start(note)
            else:
                self._note_stop(note)
            self._notes.popleft()
        while self._forgotten:
            self._write_forgotten(self._forgotten[0])
            self._forgotten.popleft()

    def _note_start(self, start: Start) -> None:
        attempt = (start.job, start.attempt)
        assert self._folders
        folder = self._folders.of(attempt)
        if attempt in self._followed or folder.order() or folder.exit() or folder.stop_requested:
            return
        self._folders.remember(attempt)
        try:
            order = make_order(start, folder.path, {}, self._secrets)
            seats = [list(place.gpus) for place in start.places]
            folder.write_order({**order, "saved": work_saved(start.task, folder.path), "seats": seats})
        except UserError as why:
            end = {"code": _CANNOT_RUN, "stopped": False, "why": str(why)}
            runner.write_atomically(str(folder.path), runner.EXIT, end, once=True)
        self._follow(attempt)

    def _note_stop(self, attempt: Attempt) -> None:
        assert self._folders
        folder = self._folders.of(attempt)
        followed = self._followed.get(attempt)
        if not followed and (folder.order() or folder.exit() or folder.stop_requested):
            return  # ended and forgotten
        if not followed:
            self._folders.remember(attempt)
        (folder.path / runner.STOP).touch(mode=0o600)
        if followed:
            followed.stopping = True
        else:
            self._follow(attempt)

    def _follow(self, attempt: Attempt) -> None:
        assert self._folders
        followed = self._load(self._folders, attempt)
        with self._lock:
            self._followed[attempt] = followed

    def _write_forgotten(self, attempt: Attempt) -> None:
        """Remove the marker, and the environment with the token from all orders."""
        assert self._folders
        folder = self._folders.of(attempt)
        order = folder.order()
        with suppress(OSError):  # the job may be discarded already
            folder.scrub()
            for node in order["nodes"] if order else ():
                if piece := read_json(folder.path / node / runner.ORDER):
                    runner.write_atomically(str(folder.path / node), runner.ORDER, {**piece, "env": {}})
                with suppress(OutOfSight):
                    self._driver.forget(PieceId(*attempt, node))
        self._folders.forget(attempt)

    # --- 2. to 4.: look, act, tell

    def _round(self) -> None:
        look = self._driver.look()
        if self._silent:
            self._observed.clear()
        trouble = self._show(look)
        with self._lock:
            living = [followed for followed in self._followed.values() if not followed.ended]
        for followed in living:
            if self._closing:
                return
            self._see_to(followed, look)
        self._kill_unwanted(look)
        self._observe()
        self._trouble, self._looked_s = trouble, time.monotonic()

    def _show(self, look: Look) -> str:
        """Make the look the backend's sight; returns what is wrong with its nodes. It names no job."""
        seen, misnamed = [], []
        for node in look.nodes.values():
            is_open = node.is_open and not look.foreign.get(node.name)
            try:
                shown = Seen(node.name, node.gpu_type, node.gpus, node.rack or "rack-0", is_open)
            except BadCluster:
                misnamed.append(node.name)
                continue
            if not node.is_lost:
                seen.append(shown)
        sight = Sight(tuple(seen))
        if sight != self._sight:
            self._sight = sight
        foreign = [name for name in look.nodes if look.foreign.get(name)]
        return " ".join(
            [f"Work of others runs on {', '.join(foreign)}: closed for new jobs."] * bool(foreign)
            + [f"Cannot be used because of their names: {', '.join(misnamed)}."] * bool(misnamed)
        )

    def _see_to(self, followed: _Followed, look: Look) -> None:
        """Do for an attempt what is missing, and tell what became of it."""
        if not followed.order:
            self._end_without_order(followed)
            return
        words = {node: self._last_word(followed, node, look) for node in followed.nodes}
        if all(words.values()):
            self._finish(followed, {node: word for node, word in words.items() if word}, look)
            return
        failed = _first_failure(followed, words)
        if followed.stopping or failed:
            self._tell_to_end(followed, failed, [node for node, word in words.items() if not word])
        else:
            self._submit_missing(followed, look)
        self._announce(followed)

    def _last_word(self, followed: _Followed, node: str, look: Look) -> dict[str, Any] | None:
        """How a piece ended; None while it has not, or nobody can be sure."""
        folder = followed.folder(node)
        if word := read_json(folder / runner.EXIT):
            return word
        state = look.pieces.get(followed.piece(node))
        if isinstance(state, PieceEnded) and self._end_unbegun(followed, node, state):
            return read_json(folder / runner.EXIT)
        if (state is None or isinstance(state, PieceEnded)) and self._silence_s(folder) > self._settings.fence_s:
            end = {"code": KILLED, "signal": KILLED - 128, "stopped": True, "up_s": None}
            runner.write_atomically(str(folder), runner.EXIT, end, once=True)
            return read_json(folder / runner.EXIT)
        return None

    def _end_unbegun(self, followed: _Followed, node: str, state: PieceEnded) -> bool:
        """End a piece that the cluster manager has ended before its runner began. False if the runner did begin."""
        if state.cause in (EndCause.STOPPED, EndCause.CANCELLED):
            return self._cancel(followed, node, RUN_AGAIN, stopped=True)
        why = state.why or "its runner ended before the job began"
        return self._cancel(followed, node, _CANNOT_RUN, stopped=False, why=why)

    def _cancel(self, followed: _Followed, node: str, code: int, stopped: bool, why: str = "") -> bool:
        """Write the end of a piece that never began, and now never can. False if it did begin."""
        path = followed.folder(node)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not runner.claim(str(path), "horae") and (read_json(path / runner.CLAIM) or {}).get("by") != "horae":
            return False
        end = {"code": code, "signal": 0, "stopped": stopped, "up_s": None, "why": why}
        runner.write_atomically(str(path), runner.EXIT, end, once=True)
        return True

    def _silence_s(self, folder: Path) -> float:
        """Seconds since the last beat of a begun piece, by the file server's clock; 0 if it was never begun."""
        beats = [_changed_s(folder / name) for name in (runner.CLAIM, runner.BEAT)]
        if not beats[0]:
            return 0.0
        return self._clock_s() - max(beats)

    def _clock_s(self) -> float:
        """The time, by the file server's clock."""
        clock = self._shared / "clock"
        clock.touch(mode=0o600)
        return clock.stat().st_mtime

    # --- starting and stopping

    def _submit_missing(self, followed: _Followed, look: Look) -> None:
        """Submit the pieces that were neither begun nor are known to the cluster manager."""
        missing = [
            node
            for node in followed.nodes
            if followed.piece(node) not in look.pieces and not (followed.folder(node) / runner.CLAIM).exists()
        ]
        if not missing or any(node not in look.nodes for node in followed.nodes):
            return
        for node in followed.nodes:
            self._write_piece_order(followed, node, look.nodes)
        try:
            self._driver.submit([self._piece(followed, node) for node in missing])
        except PiecesRefused as why:
            for node in missing:
                self._cancel(followed, node, _CANNOT_RUN, stopped=False, why=str(why))
            self._wake.set()

    def _piece(self, followed: _Followed, node: str) -> Piece:
        assert followed.order
        gpus = len(followed.order["seats"][followed.nodes.index(node)])
        # The runner forks beside its beating thread, which newer Pythons warn of in the job's log.
        python = (self._python, "-I", "-S", "-W", "ignore")
        command = (*python, self._program, str(followed.path), runner.PIECE)
        return Piece(followed.piece(node), followed.order["env"]["HORAE_GPU_TYPE"], gpus, command)

    def _write_piece_order(self, followed: _Followed, node: str, nodes: Mapping[str, SeenNode]) -> None:
        """Write what the runner of a piece has to know, with the values of secrets: other machines do not have them."""
        order, folder = followed.order, followed.folder(node)
        assert order
        if (folder / runner.ORDER).exists():
            return
        group = followed.nodes.index(node)
        ranks = [dict(rank) for rank in order["ranks"] if rank["GROUP_RANK"] == str(group)]
        for rank in ranks:
            rank.pop("CUDA_VISIBLE_DEVICES")
        secrets = {name: value.rstrip("\r\n") for name, value in self.secrets(order["secrets"]).items()}
        env = {
            **order["env"],
            **secrets,
            NODE_VARIABLE: node,
            "MASTER_ADDR": nodes[followed.nodes[0]].address,
            "MASTER_PORT": str(master_port(min(order["seats"][0]), followed.attempt[1])),
        }
        unread = {name: path for name, path in order["secrets"].items() if name not in secrets}
        piece = {**order, "env": env, "secrets": unread, "ranks": ranks, "take_over": _TAKEN_OVER}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {**piece, "beat_limit_s": self._settings.beat_limit_s}
        runner.write_atomically(str(folder), runner.ORDER, content, once=True)

    def _tell_to_end(self, followed: _Followed, failed: Mapping[str, Any] | None, nodes: list[str]) -> None:
        """Tell pieces to end: by their stop signal, or because another piece has ended. Kill those that do not."""
        if failed and int(failed["code"]) != RUN_AGAIN:
            how = runner.STOP_NOW
        else:
            how = runner.STOP_NOTICE if followed.stopping else runner.STOP_GRACE
        for node in nodes:
            if not self._cancel(followed, node, RUN_AGAIN, stopped=True):
                _write_stop(followed.folder(node), how)
        assert followed.task
        if followed.told_s is None:
            followed.told_s = time.monotonic()
            self._wake.set()
        elif time.monotonic() - followed.told_s > followed.task.grace_s + self._settings.overdue_s:
            for node in nodes:
                self._driver.kill(followed.piece(node))

    def _kill_unwanted(self, look: Look) -> None:
        """Kill pieces of attempts that have ended: the cluster manager may start a lost submission late."""
        for piece, state in look.pieces.items():
            followed = self._followed.get((piece.job, piece.attempt))
            if not isinstance(state, PieceEnded) and (not followed or followed.ended):
                self._driver.kill(piece)

    # --- telling

    def _tell(self, *events: Event) -> None:
        with self._lock:
            self._events += events

    def _observe(self) -> None:
        """Tell which attempts live, or may live, on each node that was not told of since it is in sight."""
        for node in self._sight.nodes if self._sight else ():
            if node.name not in self._observed:
                self._observed.add(node.name)
                alive = [
                    attempt for attempt, each in self._followed.items() if not each.ended and node.name in each.nodes
                ]
                self._tell(NodeObserved(0.0, node.name, tuple(sorted(alive))))

    def _announce(self, followed: _Followed) -> None:
        """Tell that an attempt has started once all its pieces have been up for `ready_s`."""
        if followed.announced:
            return
        ups_s = [_up_since_s(followed.folder(node)) for node in followed.nodes]
        if not all(ups_s):
            return
        up_s = max(self._clock_s() - max(ups_s), 0.0)
        if up_s >= self._settings.ready_s:
            followed.announced = True
            self._tell(JobStarted(0.0, *followed.attempt, up_s=up_s))

    def _end_without_order(self, followed: _Followed) -> None:
        """Tell the end of an attempt that could not be ordered, or was stopped before it was started."""
        word = read_json(followed.path / runner.EXIT)
        if word:
            self._conclude(followed, LaunchFailed(0.0, *followed.attempt, word["why"]))
        else:
            self._conclude(followed, JobStopped(0.0, *followed.attempt, self._work_done(followed)))

    def _finish(self, followed: _Followed, words: Mapping[str, dict[str, Any]], look: Look) -> None:
        """Tell the end of an attempt whose pieces have all ended, once the cluster manager holds its GPUs no more."""
        held = [piece for piece in map(followed.piece, followed.nodes) if _is_held(look.pieces.get(piece))]
        if held:
            followed.over_s = followed.over_s or time.monotonic()
            overdue = time.monotonic() - followed.over_s > self._settings.overdue_s
            for piece in held:
                if overdue or isinstance(look.pieces[piece], PieceWaiting):
                    self._driver.kill(piece)
            return
        ups_s = [word["up_s"] for word in words.values() if word.get("up_s") is not None]
        if ups_s and not followed.announced:
            followed.announced = True
            self._tell(JobStarted(0.0, *followed.attempt, up_s=max(ups_s)))
        self._conclude(followed, self._end_of(followed, words))

    def _end_of(self, followed: _Followed, words: Mapping[str, dict[str, Any]]) -> Event:
        failed = _first_failure(followed, words)
        if not failed:
            return JobFinished(0.0, *followed.attempt)
        assert followed.order
        code, done = int(failed["code"]), self._work_done(followed)
        if failed.get("why") and not followed.stopping:
            return LaunchFailed(0.0, *followed.attempt, failed["why"])
        saved_more = code == RUN_AGAIN and done > float(followed.order["saved"])
        if failed["stopped"] or saved_more or (followed.stopping and code == RUN_AGAIN):
            return JobStopped(0.0, *followed.attempt, done)
        return JobFailed(0.0, *followed.attempt, code, done)

    def _conclude(self, followed: _Followed, event: Event) -> None:
        with self._lock:
            followed.ended = True
            self._events.append(event)

    def _work_done(self, followed: _Followed) -> float:
        """Work in the checkpoint of a job, which any order of the job leads to."""
        assert self._folders
        task = followed.task or next(map(task_of, self._folders.orders(followed.attempt[0])), None)
        return work_saved(task, followed.path) if task else 0.0


def service_id(shared: Path) -> str:
    """The id of the service that owns a shared folder, made on its first day: services must not mix up their jobs."""
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    runner.write_atomically(str(shared), "service.json", {"id": os.urandom(4).hex()}, once=True)
    return str((read_json(shared / "service.json") or {})["id"])


def master_port(first_seat: int, attempt: int) -> int:
    """The port of rank 0. Seats are unique on a node, so nobody has to be asked; the next attempt takes another."""
    return 29000 + 16 * first_seat + attempt % 16


def _first_failure(followed: _Followed, words: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """The last word of the piece that ended first with another code than 0, by the file server's clock."""
    failed = [(node, word) for node, word in words.items() if word and int(word["code"]) != 0]
    if not failed:
        return None
    return min(failed, key=lambda found: _changed_s(followed.folder(found[0]) / runner.EXIT))[1]


def _write_stop(folder: Path, how: str) -> None:
    """Write the file `stop` of a piece, all at once. An existing file is kept."""
    if (folder / runner.STOP).exists():
        return
    draft = folder / f".stop.{os.getpid()}"
    draft.write_text(how, encoding="utf-8")
    draft.rename(folder / runner.STOP)


def _changed_s(path: Path) -> float:
    """When a file was last changed, by the file server's clock; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _up_since_s(folder: Path) -> float:
    """When the processes of a piece came up, by the file server's clock; 0 if they have not."""
    identity = read_json(folder / runner.RUNNER)
    return _changed_s(folder / runner.RUNNER) if identity and identity["up_at"] is not None else 0.0


def _is_held(state: PieceState | None) -> bool:
    return state is not None and not isinstance(state, PieceEnded)


def _attempt_of(event: Event) -> Attempt | None:
    match event:
        case JobStarted() | LaunchFailed() | JobStopped() | JobFinished() | JobFailed():
            return event.job, event.attempt
        case _:
            return None
