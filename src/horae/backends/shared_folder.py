"""The folder that the service and all nodes share, at the same path. Stored: change by addition.

    <shared>/service.json                      the service that owns the folder
    <shared>/runner-<hash>.py                  the runner, for all nodes
    <shared>/clock                             touched to learn the file server's time
    <shared>/gone/<host>                       written when it was sure that nothing runs on a machine any more
    <shared>/jobs/<job>/<attempt>/order.json   the attempt as it was ordered; beside it `stop`, if it must stop
    <shared>/jobs/<job>/<attempt>/<node>/      the files of a piece

The other files are as in `local/attempt_folders.py`. An attempt's order survives a power cut of the file server:
without it, a service that starts later would take the attempt for one that never began, and give its GPUs away while it
runs. It is the one thing here that waits for the disk, which takes milliseconds. What is lost of the rest is written
again, and whether a piece was begun is what its runner writes durably.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from horae.backends.driver import NODE_VARIABLE, PieceId, SeenNode, host_of
from horae.backends.local import runner
from horae.backends.local.attempt_folders import AttemptFolders, Order, read_json
from horae.backends.local.runner_order import make_order, master_variables
from horae.backends.piece_files import CANNOT_RUN, PieceFiles, is_there
from horae.backends.protocol import RUN_AGAIN, Attempt, Start
from horae.backends.saved_work import work_saved
from horae.backends.task import Task
from horae.core.errors import UserError

#: File with the id of the service.
SERVICE = "service.json"
#: How often a checkpoint whose folder fails is read again, before it counts as none.
_READ_TRIES = 20
#: Variables that name the GPUs which the cluster manager chose.
_TAKEN_OVER = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class OrderedAttempt:
    """An attempt as it was ordered."""

    id: Attempt
    path: Path
    #: None if the attempt was stopped before it was started, or cannot be started.
    order: Mapping[str, Any] | None
    task: Task | None
    nodes: tuple[str, ...]
    stop_requested: bool
    #: Whether its order is there, and cannot be understood. Its nodes are then those that have files.
    is_broken: bool = False

    def piece(self, node: str) -> PieceFiles:
        """The files of the piece on a node."""
        return PieceFiles(self.path / node)

    def piece_id(self, node: str) -> PieceId:
        """How the cluster manager's driver calls the piece on a node."""
        return PieceId(*self.id, node)

    def tell_to_stop(self) -> None:
        """Ask all pieces to stop; those that were not begun never will be. Works while the cluster is out of sight."""
        for node in self.nodes:
            files = self.piece(node)
            if not files.cancel():
                files.ask_to_stop(runner.STOP_NOTICE)

    def why_not_ordered(self) -> str:
        """Why the attempt could not be ordered; empty if it was only stopped before."""
        return str((read_json(self.path / runner.EXIT, sure=True) or {}).get("why", ""))


class SharedFolder:
    """Orders, stops and pieces of all attempts on the shared folder. Raises OSError while it cannot be used."""

    def __init__(self, path: Path, secrets: Path | None, max_log_bytes: int = runner.LARGEST_LOG) -> None:
        self.path, self._secrets, self._max_log_bytes = path, secrets, max_log_bytes
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._attempts = AttemptFolders(path)
        self._clock = path / "clock"
        self._clock.touch(mode=0o600)
        _sync(path)
        #: How often in a row a job's checkpoint could not be read.
        self._unread: Counter[str] = Counter()
        #: The thread that deletes; jobs that it has to discard, and jobs whose folders are gone.
        self._bin_thread, self._bin_lock = threading.Thread(), threading.Lock()
        self._to_discard: set[str] = set()
        self._discarded: set[str] = set()
        #: When it was sure that nothing runs on nodes, by the names of their files; None until it is read.
        self._gone_s: dict[str, float] | None = None
        self.program = str(self._place_runner())
        self._empty_bin()

    def _place_runner(self) -> Path:
        """Put the runner where all nodes find it. Runners of other versions stay: their pieces may not have begun."""
        source = Path(runner.__file__).read_bytes()
        program = self.path / f"runner-{hashlib.sha256(source).hexdigest()[:12]}.py"
        if not program.exists():
            draft = program.with_suffix(f".{os.getpid()}")
            with os.fdopen(runner.create(str(draft)), "wb") as file:
                file.write(source)
            draft.rename(program)
        return program

    def remove_old_runners(self) -> None:
        """Remove runners of other versions. No piece that was not begun may need them."""
        for program in self.path.glob("runner-*.py"):
            if str(program) != self.program:
                program.unlink(missing_ok=True)

    def clock_s(self) -> float:
        """The time by the file server's clock. Raises OSError if the folder is away, or another in its place."""
        os.utime(self._clock)
        return self._clock.stat().st_mtime

    # --- attempts

    def tracked(self) -> list[OrderedAttempt]:
        """All attempts that are not forgotten."""
        return [self.attempt(attempt) for attempt in self._attempts.tracked()]

    def attempt(self, attempt: Attempt) -> OrderedAttempt:
        """An attempt as it was ordered. Raises OSError if that cannot be read now."""
        folder = self._attempts.of(attempt)
        path = folder.path / runner.ORDER
        # One that was given up is not started, though a service that was replaced meanwhile may have ordered it late.
        is_ordered = is_there(path) and not (folder.exit() and not folder.claimed_pieces())
        order = Order.of(read_json(path, runner.LARGEST_ORDER, sure=True)) if is_ordered else None
        if order and _can_be_submitted(order):
            return OrderedAttempt(attempt, folder.path, order.content, order.task, order.nodes, folder.stop_requested)
        nodes = folder.claimed_pieces() if is_ordered else ()
        return OrderedAttempt(attempt, folder.path, None, None, nodes, folder.stop_requested, is_ordered)

    def order(self, start: Start) -> bool:
        """Write the order of an attempt down; False if the attempt was ordered, or stopped, before."""
        attempt = (start.job, start.attempt)
        folder = self._attempts.of(attempt)
        if folder.was_ordered or folder.exit() or folder.stop_requested:
            return False
        self._attempts.remember(attempt)
        try:
            order, saved = make_order(start, folder.path, {}, self._secrets), self._work_saved(start.task, folder.path)
            seats = [list(place.gpus) for place in start.places]
            order |= {"saved": saved, "max_log_bytes": self._max_log_bytes}
            folder.write_order({**order, "seats": seats})
        except UserError as why:
            end = {"code": CANNOT_RUN, "stopped": False, "why": str(why)}
            runner.write_atomically(str(folder.path), runner.EXIT, end, once=True)
        return True

    def give_up(self, ordered: OrderedAttempt) -> None:
        """Write down that an attempt which was not ordered never starts, whoever orders it from now on."""
        self._attempts.of(ordered.id).make()
        end = {"code": RUN_AGAIN, "stopped": True}
        runner.write_atomically(str(ordered.path), runner.EXIT, end, once=True)

    def is_tracked(self, attempt: Attempt) -> bool:
        """Whether an attempt was ordered and is not forgotten."""
        return self._attempts.is_tracked(attempt)

    def request_stop(self, attempt: Attempt, followed: bool) -> bool:
        """Write down that an attempt must stop; False if it has ended and is forgotten."""
        folder = self._attempts.of(attempt)
        if not followed:
            if folder.was_ordered or folder.exit() or folder.stop_requested:
                return False
            self._attempts.remember(attempt)
        folder.make()  # services before this one made the marker first, and may have died then
        if not folder.stop_requested:
            os.close(runner.create(str(folder.path / runner.STOP)))
        return True

    def forget(self, attempt: Attempt) -> tuple[PieceId, ...]:
        """Remove the marker, and token and secrets from all orders; returns the pieces. Logs and ends stay."""
        folder, ordered = self._attempts.of(attempt), self.attempt(attempt)
        with suppress(OSError):  # the job may be discarded already
            folder.scrub()
            for node in ordered.nodes:
                ordered.piece(node).remove_environment()
        self._attempts.forget(attempt)
        return tuple(ordered.piece_id(node) for node in ordered.nodes)

    def work_done(self, ordered: OrderedAttempt) -> float:
        """Work in the checkpoint of a job, which any order of the job leads to."""
        task = ordered.task or next((order.task for order in self._attempts.orders(ordered.id[0])), None)
        return self._work_saved(task, ordered.path) if task else 0.0

    def _work_saved(self, task: Task, folder: Path) -> float:
        """Work in a job's checkpoint. A folder that fails for a moment is tried again, but not for ever."""
        try:
            saved = work_saved(task, folder, sure=True)
        except OSError:
            self._unread[task.job] += 1
            if self._unread[task.job] < _READ_TRIES:
                raise
            saved = 0.0
        self._unread.pop(task.job, None)
        return saved

    # --- pieces

    def write_piece_orders(self, ordered: OrderedAttempt, nodes: Mapping[str, SeenNode], beat_limit_s: float) -> None:
        """Write what the runners of the pieces have to know, once."""
        for group, node in enumerate(ordered.nodes):
            files = ordered.piece(node)
            if not files.ordered:
                files.write_order({**self._piece_order(ordered, group, nodes), "beat_limit_s": beat_limit_s})

    def _piece_order(self, ordered: OrderedAttempt, group: int, nodes: Mapping[str, SeenNode]) -> dict[str, Any]:
        """The order of a piece, with the values of secrets: other machines do not have them."""
        order = ordered.order
        assert order
        ranks = [dict(rank) for rank in order["ranks"] if rank["GROUP_RANK"] == str(group)]
        for rank in ranks:
            rank.pop("CUDA_VISIBLE_DEVICES")
        found = read_secrets(self._secrets, order["secrets"].values())
        secrets = {name: found[path].rstrip("\r\n") for name, path in order["secrets"].items() if path in found}
        env = {
            **order["env"],
            **secrets,
            NODE_VARIABLE: ordered.nodes[group],
            **master_variables(nodes[ordered.nodes[0]].address, master_port(min(order["seats"][0]), ordered.id[1])),
        }
        unread = {name: path for name, path in order["secrets"].items() if name not in secrets}
        return {**order, "env": env, "secrets": unread, "ranks": ranks, "take_over": _TAKEN_OVER}

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of the secrets of these names; secrets that cannot be read are left out."""
        return read_secrets(self._secrets, names)

    # --- nodes that are surely gone

    def note_gone(self, node: str) -> None:
        """Remember that nothing runs on a node's machine any more, as of now."""
        mark = self.path / "gone" / quote(host_of(node), safe="")
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        mark.write_text("", encoding="utf-8")
        self._gone_s = None

    def gone_s(self, node: str) -> float:
        """When it was last sure that nothing runs on a node; 0 if never."""
        if self._gone_s is None:
            self._gone_s = {entry.name: entry.stat().st_mtime for entry in self._gone_entries()}
        if not self._gone_s:
            return 0.0
        # Marks of nodes such as HOST/TYPE were written by earlier versions.
        return max(self._gone_s.get(quote(name, safe=""), 0.0) for name in (node, host_of(node)))

    def _gone_entries(self) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self.path / "gone"))
        except FileNotFoundError:
            return []

    # --- discarded jobs

    def discard(self, jobs: Iterable[str], needed: set[str], kept: Iterable[Task]) -> list[str]:
        """Delete the folders of jobs, except needed ones and those that tasks name; returns the jobs that are gone.

        A thread of its own does that: file servers take their time, and a checkpoint may hold a million files. Ask
        again for those that are not gone yet.
        """
        needed = needed | self._attempts.jobs_named_in(kept)
        wanted = [job for job in jobs if job not in needed]
        with self._bin_lock:
            gone = [job for job in wanted if job in self._discarded]
            self._discarded.difference_update(gone)
            self._to_discard |= set(wanted).difference(gone)
        self._empty_bin()
        return gone

    def _empty_bin(self) -> None:
        if not self._bin_thread.is_alive() and (self._to_discard or self._attempts.has_full_bin):
            self._bin_thread = threading.Thread(target=self._delete, name="horae-bin", daemon=True)
            self._bin_thread.start()

    def _delete(self) -> None:
        """Move discarded jobs into the bin, and delete what is in it."""
        jobs: set[str] = set()
        while True:
            moved = {job for job in jobs if self._attempts.discard(job)}
            with self._bin_lock:
                self._discarded |= moved
                jobs, self._to_discard = self._to_discard, set()
            if not jobs:
                break
        self._attempts.empty_bin()


def _can_be_submitted(order: Order) -> bool:
    """Whether an order has what its pieces need: a job may have written it anew."""
    parts = {"seats": list, "ranks": list, "env": dict, "secrets": dict}
    whole = all(isinstance(order.content.get(name), part) for name, part in parts.items())
    return whole and len(order.content["seats"]) == len(order.nodes)


def _sync(folder: Path) -> None:
    """Wait until the names in a folder would survive a power cut of the file server."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def service_id(shared: Path) -> str:
    """The id of the service that owns a shared folder, made on its first day: services must not mix up their jobs."""
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    runner.write_atomically(str(shared), SERVICE, {"id": os.urandom(4).hex()}, once=True)
    return str((read_json(shared / SERVICE) or {})["id"])


def piece_log(shared: Path, attempt: Attempt, piece: int) -> Path:
    """The log file of an attempt's piece, counted from 0."""
    path = shared / "jobs" / attempt[0] / str(attempt[1])
    order = Order.of(read_json(path / runner.ORDER, runner.LARGEST_ORDER, sure=True))
    nodes = order.nodes if order else ()
    return PieceFiles(path / nodes[piece] if piece < len(nodes) else path).log


def read_secrets(folder: Path | None, names: Iterable[str]) -> dict[str, str]:
    """Values of the secrets of these names in a folder; secrets that cannot be read are left out."""
    found: dict[str, str] = {}
    if folder:
        for name in names:
            with suppress(OSError, UnicodeDecodeError):
                found[name] = (folder / name).read_text(encoding="utf-8")
    return found


def master_port(first_seat: int, attempt: int) -> int:
    """The port of rank 0. Seats are unique on a node, so nobody has to be asked; the next attempt takes another."""
    return 29000 + 16 * first_seat + attempt % 16
