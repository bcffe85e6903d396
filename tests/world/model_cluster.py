"""A cluster in a seeded world: a cluster manager, its nodes, and the runners and jobs on them, without processes.

A runner here does with its files what `backends/local/runner.py` does, by the same functions: it claims its piece,
beats, looks for `stop`, and says its last word. What lives on a node is the truth; what the cluster manager shows may
not be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horae.backends.driver import (
    ClusterDriver,
    EndCause,
    Look,
    OutOfSight,
    Piece,
    PieceEnded,
    PieceId,
    PieceRunning,
    PiecesRefused,
    PieceState,
    PieceWaiting,
    SeenNode,
)
from horae.backends.local import runner
from horae.backends.protocol import KILLED, RUN_AGAIN, Attempt
from tests.world.memory_files import MemoryFiles

#: Seconds from SIGTERM to SIGKILL, and for which a runner tries to write its last word.
_TERM_TO_KILL_S, _LAST_WORD_S = 5.0, 60.0


@dataclass(frozen=True)
class JobPlan:
    """What a job does, which the service does not know."""

    #: Seconds of work, from the first step to the last; from one save to the next; from its notice to its end.
    work_s: float
    save_every_s: float
    leaves_s: float
    #: Whether it hears its notice, and whether it reports its progress.
    heeds: bool = True
    reports: bool = False
    #: Attempts that fail by themselves, and the code.
    fails: tuple[int, ...] = ()
    code: int = 1
    #: Files that the first attempts write in place of honest ones, by name.
    garbage: Mapping[str, bytes] = field(default_factory=dict)
    #: Whether it has a time limit, which may end it.
    limited: bool = False


@dataclass
class ModelNode:
    """A node as it is."""

    seen: SeenNode
    #: Whether the machine runs, whether the cluster manager reaches it, and whether it reaches the shared folder.
    up: bool = True
    in_touch: bool = True
    has_folder: bool = True
    #: Whether the cluster manager shows it, takes pieces for it, and finds work of others there.
    shown: bool = True
    open: bool = True
    foreign: bool = False


@dataclass(eq=False)
class Runner:
    """The runner of a piece on its node, and its job."""

    piece: PieceId
    path: str
    begins_s: float
    plan: JobPlan | None = None
    seats: tuple[int, ...] = ()
    is_first: bool = False
    order: dict[str, Any] = field(default_factory=dict)
    begun: bool = False
    #: Whether the processes of the job live; the runner's own may go on without them, and the other way round.
    job_lives: bool = False
    lives: bool = True
    frozen: bool = False
    seen_s: float = 0.0
    last_beat_s: float = 0.0
    up_s: float = 0.0
    #: Work of the job, and when it was last saved.
    done: float = 0.0
    saved_s: float = 0.0
    reported_s: float = 0.0
    #: When the job ends because it was told to; whether that was a stop, by the service's wish.
    leaves_s: float = float("inf")
    told: bool = False
    stopped: bool = False
    #: The last word that is still to be written, and until when that is tried.
    word: dict[str, Any] | None = None
    word_until_s: float = 0.0


class ModelCluster(ClusterDriver):
    """All nodes, and the driver of their cluster manager. It outlives the services that use it."""

    honours = frozenset(("cpus_per_gpu", "memory_per_gpu", "image"))

    def __init__(
        self,
        files: MemoryFiles,
        clock: Callable[[], float],
        nodes: Sequence[SeenNode],
        call: Callable[[str], None],
        called: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._files, self._clock = files, clock
        self.nodes = {node.name: ModelNode(node) for node in nodes}
        #: Called before and after each call of the service; called with what happens.
        self._call, self._called, self._note = call, called, note
        self.plans: dict[str, JobPlan] = {}
        #: What the cluster manager knows of pieces, and the runners that live.
        self.pieces: dict[PieceId, PieceState] = {}
        self._asked: dict[PieceId, Piece] = {}
        self.runners: list[Runner] = []
        #: Which node the code that runs now is on; empty for the service.
        self.actor = ""
        #: How often each piece began; most work saved, by job.
        self.begun: dict[PieceId, int] = {}
        self.saved: dict[str, float] = {}
        self.completed: dict[str, int] = {}
        self._completed_attempts: set[Attempt] = set()
        #: Progress reports on their way: job, attempt, step, total.
        self.reports: list[tuple[str, int, float, float]] = []
        self.blind = False
        self.refuses = self.starts_nothing = self.kills_nothing = False
        #: How the next submissions go wrong: "lose", "lose answer", "double"; "die" before the runner begins.
        self.submissions: list[str] = []
        #: Seconds from a submission to the start of its pieces, in turn.
        self.delay_s: Callable[[], float] = lambda: 0.1
        self._starts_s: dict[PieceId, float] = {}

    # --- the driver

    def _ask(self, name: str) -> None:
        self._call(f"driver.{name}")
        if self.blind:
            raise OutOfSight("The model cluster is blind.")

    def look(self) -> Look:
        self._ask("look")
        nodes = {name: self._seen(node) for name, node in self.nodes.items() if node.shown}
        pieces = {piece: self._state(piece) for piece in self.pieces}
        foreign = {name: ("a job of ann",) for name, node in self.nodes.items() if node.foreign}
        self._called("driver.look")
        return Look(nodes, pieces, foreign)

    def _seen(self, node: ModelNode) -> SeenNode:
        seen, lost = node.seen, not (node.up and node.in_touch)
        return SeenNode(
            seen.name,
            seen.address,
            seen.gpu_type,
            seen.gpus,
            seen.cpus,
            seen.memory_mb,
            is_open=node.open and not lost,
            is_lost=lost,
        )

    def _state(self, piece: PieceId) -> PieceState:
        node = self.nodes[piece.node]
        if not isinstance(self.pieces[piece], PieceEnded) and not (node.up and node.in_touch):
            return PieceEnded(None, EndCause.STOPPED, "node failed")
        return self.pieces[piece]

    def submit(self, pieces: Sequence[Piece]) -> None:
        self._ask("submit")
        if self.refuses:
            raise PiecesRefused("no such account")
        how = self.submissions.pop(0) if self.submissions else ""
        if how == "lose":
            return
        for piece in pieces:
            if piece.id not in self.pieces:
                self._note(f"submitted {piece.id}")
                self.pieces[piece.id] = PieceWaiting()
                self._asked[piece.id] = piece
                self._starts_s[piece.id] = self._clock() + self.delay_s()
                if how == "double":
                    self._spawn(piece)
                elif how == "die":
                    self.pieces[piece.id] = PieceEnded(None, EndCause.EXITED)
        if how == "lose answer":
            raise OutOfSight("The answer was lost.")
        self._called("driver.submit")

    def kill(self, piece: PieceId) -> None:
        self._ask("kill")
        node = self.nodes[piece.node]
        if piece in self.pieces and not self.kills_nothing and node.in_touch:
            self._note(f"killed {piece}")
            self.pieces[piece] = PieceEnded(None, EndCause.CANCELLED)
            self._end_processes(lambda each: each.piece == piece)
        self._called("driver.kill")

    def forget(self, piece: PieceId) -> None:
        self._ask("forget")
        if isinstance(self.pieces.get(piece), PieceEnded):
            self._drop(piece)
        self._called("driver.forget")

    def last_line(self, piece: Piece) -> str:
        self._ask("last_line")
        self._called("driver.last_line")
        return "python: not found"

    def _drop(self, piece: PieceId) -> None:
        self.pieces.pop(piece, None)
        self._starts_s.pop(piece, None)

    # --- what goes wrong with the cluster manager and its nodes

    def lose_memory(self) -> None:
        """The cluster manager was restarted, and has forgotten all pieces; their processes go on."""
        self.thaw(self.nodes)
        for piece in list(self.pieces):
            self._drop(piece)

    def cut_power(self, name: str) -> None:
        """A node is gone with all that runs there."""
        self.nodes[name].up = False
        self._end_processes(lambda each: each.piece.node == name)

    def thaw(self, nodes: Container[str]) -> None:
        """Let frozen runners go on. Nobody is left to end a job whose runner is frozen out of everybody's sight."""
        for each in self.runners:
            each.frozen = each.frozen and each.piece.node not in nodes

    def bring_back(self, name: str, kills: bool) -> None:
        """A node is back, whatever was wrong. The cluster manager may kill what it believed to have ended."""
        node = self.nodes[name]
        was_lost = not (node.up and node.in_touch)
        node.up = node.in_touch = node.has_folder = node.shown = node.open = True
        node.foreign = False
        if not was_lost:
            return
        if kills:
            self._end_processes(lambda each: each.piece.node == name)
        for piece, state in self.pieces.items():
            alive = any(each.piece == piece and each.lives for each in self.runners)
            if piece.node == name and not isinstance(state, PieceEnded) and not alive:
                self.pieces[piece] = PieceEnded(None, EndCause.STOPPED, "node failed")

    def _end_processes(self, which: Callable[[Runner], bool]) -> None:
        for each in self.runners:
            if which(each):
                each.lives = each.job_lives = False
        self.runners = [each for each in self.runners if not which(each)]

    # --- the truth

    def living(self) -> Iterator[Runner]:
        """Runners whose jobs have processes."""
        return (each for each in self.runners if each.job_lives)

    def attempt_lives(self, attempt: Attempt) -> bool:
        """Whether an attempt has processes."""
        return any((each.piece.job, each.piece.attempt) == attempt for each in self.living())

    # --- time

    def pass_time(self) -> None:
        """Let runners and jobs do what they do until now."""
        now_s = self._clock()
        for piece, state in list(self.pieces.items()):
            node = self.nodes[piece.node]
            ready = isinstance(state, PieceWaiting) and not self.starts_nothing and node.up and node.in_touch
            if ready and node.open and now_s >= self._starts_s[piece] and self._has_room(piece):
                self.pieces[piece] = PieceRunning()
                self._spawn(self._asked[piece])
        for each in self.runners:
            if each.lives:
                with self._on(each.piece.node):
                    self._run(each, now_s)
                each.seen_s = now_s
        for each in self.runners:
            if not each.lives and isinstance(self.pieces.get(each.piece), PieceRunning):
                twin = any(other.piece == each.piece and other.lives for other in self.runners)
                if not twin:
                    self.pieces[each.piece] = PieceEnded(None, EndCause.EXITED)
        self.runners = [each for each in self.runners if each.lives]

    def _has_room(self, piece: PieceId) -> bool:
        """Whether the node has as many GPUs free, as the cluster manager knows them."""
        held = [
            self._asked[other].gpus
            for other, state in self.pieces.items()
            if other.node == piece.node and isinstance(state, PieceRunning)
        ]
        return sum(held) + self._asked[piece].gpus <= self.nodes[piece.node].seen.gpus

    @contextmanager
    def _on(self, node: str) -> Iterator[None]:
        before, self.actor = self.actor, node
        try:
            yield
        finally:
            self.actor = before

    def _spawn(self, piece: Piece) -> None:
        path = f"{piece.command[-2]}/{piece.id.node}"
        now_s = self._clock()
        self.runners.append(Runner(piece.id, path, now_s, seen_s=now_s, last_beat_s=now_s))

    def _run(self, each: Runner, now_s: float) -> None:
        """One runner, until now. A frozen one does nothing, but its job goes on."""
        if not each.begun:
            if not each.frozen:
                self._begin(each, now_s)
            return
        self._work(each, now_s)
        if each.frozen:
            return
        if each.word is None:
            self._heed_files(each, now_s)
        if each.word is not None:
            self._say_last_word(each, now_s)

    def _begin(self, each: Runner, now_s: float) -> None:
        """Claim the piece and start its job, as `main_of_piece` does."""
        try:
            if not runner.claim(each.path, f"{each.piece.node} {len(self.begun)}"):
                each.lives = False
                return
            each.begun, each.last_beat_s = True, each.begins_s
            each.order = json.loads(_read(f"{each.path}/{runner.ORDER}"))
            identity = {"pid": 1, "start_time": 1, "boot_id": "", "group": 0, "up_at": None}
            runner.write_atomically(each.path, runner.RUNNER, identity, durable=False)
            self._beat(each, now_s)
            if Path(f"{each.path}/{runner.EXIT}").exists():
                each.lives = False
            elif Path(f"{each.path}/{runner.STOP}").exists():
                self._end_job(each, RUN_AGAIN, stopped=True, now_s=now_s)
            else:
                Path(each.order["checkpoint_dir"]).mkdir(parents=True, exist_ok=True)
                self._start_job(each, now_s)
                runner.write_atomically(each.path, runner.RUNNER, {**identity, "up_at": now_s}, durable=False)
        except (OSError, ValueError):
            # As an error that ends the runner's process. Nothing has begun, or the job dies with it.
            each.lives = each.job_lives = False

    def _start_job(self, each: Runner, now_s: float) -> None:
        job = each.piece.job
        self._note(f"began {each.piece}")
        self.begun[each.piece] = self.begun.get(each.piece, 0) + 1
        each.plan = self.plans[each.order["task"]["name"]]
        each.is_first = each.order["nodes"][0] == each.piece.node
        each.seats = tuple(each.order["seats"][each.order["nodes"].index(each.piece.node)])
        each.job_lives, each.up_s, each.saved_s, each.reported_s = True, now_s, now_s, now_s
        each.done = self._load(each)
        honest = not each.plan.garbage
        assert not honest or each.done >= self.saved.get(job, 0.0), f"{each.piece} lost what was saved: {each.done}"
        if each.piece.attempt <= 2 and each.is_first:
            for name, content in each.plan.garbage.items():
                folder = each.order["checkpoint_dir"] if name == "saved.json" else each.path
                _write(f"{folder}/{name}", content)
        if each.plan.reports and each.is_first:
            self.reports.append((job, each.piece.attempt, each.done, each.plan.work_s))

    def _load(self, each: Runner) -> float:
        try:
            return float(json.loads(_read(f"{each.order['checkpoint_dir']}/saved.json"))["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0.0

    def _work(self, each: Runner, now_s: float) -> None:
        """The job works, saves, reports, and ends by itself."""
        if not each.job_lives:
            return
        plan, node = each.plan, self.nodes[each.piece.node]
        assert plan
        if not each.is_first:
            self._follow_first(each, now_s)
            return
        attempt = each.piece.attempt
        each.done = min(plan.work_s, each.done + now_s - max(each.seen_s, each.up_s))
        leaving = now_s >= each.leaves_s and plan.heeds
        if node.has_folder and (now_s - each.saved_s >= plan.save_every_s or leaving):
            self._save(each, now_s)
        if plan.reports and now_s - each.reported_s >= 4.0:
            each.reported_s = now_s
            self.reports.append((each.piece.job, attempt, each.done, plan.work_s))
        if attempt in plan.fails and now_s - each.up_s > 2.0:
            self._end_job(each, plan.code, stopped=False, now_s=now_s)
        elif each.done >= plan.work_s:
            self.completed[each.piece.job] = self.completed.get(each.piece.job, 0) + 1
            self._completed_attempts.add((each.piece.job, attempt))
            self._end_job(each, 0, stopped=each.stopped, now_s=now_s)
        elif leaving:
            self._end_job(each, RUN_AGAIN, stopped=each.stopped, now_s=now_s)

    def _follow_first(self, each: Runner, now_s: float) -> None:
        """Other pieces of a gang end well when the first has, and leave when they are told to."""
        assert each.plan
        if (each.piece.job, each.piece.attempt) in self._completed_attempts:
            self._end_job(each, 0, stopped=each.stopped, now_s=now_s)
        elif now_s >= each.leaves_s and each.plan.heeds:
            self._end_job(each, RUN_AGAIN, stopped=each.stopped, now_s=now_s)

    def _save(self, each: Runner, now_s: float) -> None:
        assert each.plan
        if each.plan.garbage.get("saved.json") is not None and each.piece.attempt <= 2:
            return
        try:
            saved = {"step": each.done, "total": each.plan.work_s}
            runner.write_atomically(each.order["checkpoint_dir"], "saved.json", saved)
        except OSError:
            return
        each.saved_s = now_s
        self.saved[each.piece.job] = max(self.saved.get(each.piece.job, 0.0), each.done)

    def _end_job(self, each: Runner, code: int, stopped: bool, now_s: float) -> None:
        self._note(f"job of {each.piece} ended with {code}")
        each.job_lives = False
        up_s = now_s - each.up_s if each.up_s else None
        each.word = {"code": code, "signal": max(code - 128, 0), "stopped": stopped, "up_s": up_s}
        each.word_until_s = now_s + max(_LAST_WORD_S, float(each.order.get("beat_limit_s", 0.0)))

    def _heed_files(self, each: Runner, now_s: float) -> None:
        """Beat, look for `stop` and for an end that the service has written; kill the job if its time is up."""
        limit_s = float(each.order["beat_limit_s"])
        late = each.seen_s - each.last_beat_s >= limit_s
        given_up = False
        try:
            if not late:
                given_up = Path(f"{each.path}/{runner.EXIT}").exists()
                self._beat(each, now_s)
                if not each.told:
                    self._look_for_stop(each, now_s)
        except OSError:
            late = now_s - each.last_beat_s >= limit_s
        if late or given_up:
            self._end_job(each, KILLED, stopped=True, now_s=now_s)
        elif each.told and each.job_lives and each.plan and now_s >= each.leaves_s and not each.plan.heeds:
            self._end_job(each, KILLED, stopped=each.stopped, now_s=now_s)

    def _beat(self, each: Runner, now_s: float) -> None:
        os.close(os.open(f"{each.path}/{runner.BEAT}", os.O_WRONLY | os.O_CREAT, 0o600))
        os.utime(f"{each.path}/{runner.BEAT}")
        each.last_beat_s = now_s

    def _look_for_stop(self, each: Runner, now_s: float) -> None:
        try:
            how = _read(f"{each.path}/{runner.STOP}").decode()
        except FileNotFoundError:
            return
        assert each.plan
        each.told, each.stopped = True, how == runner.STOP_NOTICE
        grace_s = float(each.order["task"]["grace_s"])
        term_s = 0.0 if how == runner.STOP_NOW else grace_s
        heeds = each.plan.heeds and how == runner.STOP_NOTICE
        each.leaves_s = now_s + (min(each.plan.leaves_s, term_s) if heeds else term_s + _TERM_TO_KILL_S)
        if how == runner.STOP_NOW:
            self._end_job(each, KILLED, stopped=False, now_s=now_s)

    def _say_last_word(self, each: Runner, now_s: float) -> None:
        try:
            runner.write_atomically(each.path, runner.EXIT, each.word, once=True)
        except OSError:
            each.lives = now_s < each.word_until_s
        else:
            each.lives = False


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _write(path: str, content: bytes) -> None:
    with os.fdopen(runner.create(path), "wb") as file:
        file.write(content)
