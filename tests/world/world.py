"""A seeded world: the daemon, the reconciler and everything around them in one thread, where everything goes wrong.

    python -m tests.world.world 42 --trace       one seed again, with what happens

Real are the daemon, the engine, its policies, the operations, the reconciler and all that it does with files. Models
are the store, the file system, the cluster manager, its nodes and the runners there. A seed decides who asks for what,
what fails, when time passes and when the service dies. Nothing else does: the same seed is the same world.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from horae.backends import saved_work
from horae.backends.attempt_round import ReconcilerSettings
from horae.backends.driver import SeenNode
from horae.backends.local import runner, runner_order
from horae.backends.protocol import Start
from horae.backends.reconcile import Reconciler
from horae.backends.saved_work import TimedReads
from horae.backends.terms import Term, known_term
from horae.core import checkpoint
from horae.core.cluster import Node
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.states import ENDED, STATES
from horae.service import daemon as daemon_module
from horae.service import operations
from horae.service.checkpoint_encoder import CheckpointEncoder
from horae.service.clock import Clock, wall_clock
from horae.service.daemon import Daemon, Prepare, _Request
from horae.service.initial_settings import InitialSettings
from horae.service.job_file import read_job
from horae.service.operations import Operations
from horae.service.recovery import recover
from horae.service.roles import Caller, Role
from horae.service.store.chain import JournalLost
from horae.service.store.connection import StoreInUse
from horae.service.store.high_water_mark import MARK_FILE, HighWaterMark
from horae.service.store.opening import raise_numbers, take_store
from horae.service.store.store import Record
from tests.world.faults import POINTS, Answer, Crash, CrashPoints, FaultyStore, FileFaults, StoreFaults
from tests.world.invariants import Broken, Invariants, Promises, require
from tests.world.memory_files import ROOT, MemoryFiles, mounted
from tests.world.model_cluster import JobPlan, ModelCluster
from tests.world.model_store import Disk, ModelStore

#: Steps of a seed, and faults among them, at least.
STEPS, FAULTS = 200, 10
#: Policies, with settings by which jobs are preempted often.
POLICIES: tuple[tuple[str, dict[str, str]], ...] = (
    ("fifo-backfill", {}),
    ("tiresias", {}),
    ("themis", {"lease": "20"}),
    ("max-min", {"round": "20"}),
    ("time-slice", {"quantum": "10"}),
)
#: Records between two checkpoints.
CHECKPOINT_EVERY = 25
#: Calls that a service makes when it starts, and hardly later.
_AT_A_START = ("store.last_seq", "store.newest_checkpoint", "store.tasks", "store.tail")
#: Settings of the reconciler; an operator may change them from one start to the next.
_PATIENCE = partial(ReconcilerSettings, ready_s=2.0, overdue_s=5.0, launch_limit_s=60.0)
SETTINGS = (_PATIENCE(beat_limit_s=20.0, fence_s=30.0), _PATIENCE(beat_limit_s=60.0, fence_s=90.0))
ADMIN, ANN = Caller("root", Role.ADMIN), Caller("ann", Role.USER)
#: The world's first second, by all clocks.
FIRST_S = 1_000_000.0
#: Seconds after which every job must have ended once nothing goes wrong any more.
PATIENCE_S = 6000.0
#: Content of a file that a job writes in place of an honest one.
GARBAGE = (
    b"",
    b"{",
    b"null",
    b'{"step": 1' + b"0" * 400 + b', "code": 1' + b"0" * 400 + b', "stopped": 1, "up_s": 1' + b"0" * 400 + b"}",
    b"[" * 3000,
    b'{"step": NaN, "total": -1, "code": "x", "stopped": [], "up_s": "y", "up_at": {}, "pid": []}',
    b"\xff\xfe\x00" * 50,
)
#: The folder of jobs, and that of the services.
SHARED, STATE = Path(ROOT) / "shared", Path(ROOT) / "state"


class SteppedDaemon(Daemon):
    """A daemon whose cycles the world runs. Who asks it gets an answer that comes with a later cycle."""

    points: CrashPoints
    waits: Callable[[float], None]

    def ask(self, prepare: Prepare[Any], timeout_s: float = 30.0) -> Any:
        request: _Request[Any] = _Request(prepare, Answer(self.points))
        self._inbox.append(request)
        self.asked = request.answer
        return request.answer

    def _pause(self) -> None:
        self.waits(1.0)


class SteppedReconciler(Reconciler):
    """A reconciler without a thread, whose turns the world takes. It tells the invariants what it is told."""

    invariants: Invariants

    def _begin(self) -> None:
        pass

    def start(self, start: Start) -> None:
        self.invariants.started(start.job, start.attempt)
        super().start(start)

    def stop(self, job: str, attempt: int) -> None:
        self.invariants.stopped(job, attempt)
        super().stop(job, attempt)


@dataclass(eq=False)
class Life:
    """A service from its start to its death."""

    store: FaultyStore
    reconciler: SteppedReconciler
    daemon: SteppedDaemon
    operations: Operations
    points: CrashPoints


@dataclass
class Asked:
    """A request on its way: what it is about, and its answer."""

    what: str
    target: str
    answer: Answer
    life: Life


@dataclass
class Backup:
    """A copy of the journal, and what was promised when it was made."""

    disk: Disk
    promises: Promises


class World:
    """Everything of one seed."""

    def __init__(
        self, seed: int, deaths: Counter[str] | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.seed, self._random, self._tell = seed, random.Random(seed), tell
        self.now_s = FIRST_S
        #: How far the time of day, and the clock of the file server, are from the truth.
        self.day_s = self.folder_s = 0.0
        self.digest, self.steps, self.faults = hashlib.blake2b(digest_size=16), 0, Counter[str]()
        self.deaths: Counter[str] = Counter() if deaths is None else deaths
        self.points = CrashPoints(self.deaths)
        self.disk, self.store_faults, self.file_faults = Disk(epoch=FIRST_S), StoreFaults(), FileFaults()
        self.files = MemoryFiles(lambda: self.now_s + self.folder_s)
        self.files.before, self.files.after = self._before_file, self._after_file
        nodes = self._nodes()
        self.cluster = ModelCluster(
            self.files, lambda: self.now_s, nodes, self._before_call, self._after_call, self.note
        )
        self.cluster.delay_s = lambda: self._random.choice((0.0, 0.1, 0.5, 3.0))
        policy, settings = POLICIES[seed % len(POLICIES)]
        self.beginning = InitialSettings(
            tuple(Node(node.name, node.gpu_type, node.gpus) for node in nodes), policy, settings
        )
        self.invariants = Invariants(self.cluster)
        self.life: Life | None = None
        self._asked: list[Asked] = []
        self._jobs = 0
        #: When the reconciler may take a turn again, if its driver hangs.
        self._hangs_until_s = 0.0
        #: An old copy of the journal and, while it is in the journal's place, the newest one.
        self._old_copy: Backup | None = None
        self._newest: Disk | None = None
        #: Whether the operator goes on with an old copy, until a service has started on it.
        self._accepts_loss = False
        #: Services that another has taken over from, and that have not noticed.
        self._overtaken: list[Life] = []
        #: Number of the record after which the service was last looked at.
        self._checked = 0
        #: What ends by itself, and when.
        self._cures: list[tuple[float, Callable[[], None]]] = []

    def _nodes(self) -> list[SeenNode]:
        """Two or three small nodes, of one type or two."""
        count = self._random.choice((2, 2, 3))
        types = self._random.choice((("v100",), ("v100", "k80")))
        return [
            SeenNode(f"n{k}", f"10.0.0.{k}", types[k % len(types)], self._random.choice((1, 2, 2, 4)), 8, 8000)
            for k in range(count)
        ]

    # --- what happens, in words

    def note(self, what: str) -> None:
        """Something happens."""
        self.digest.update(f"{self.now_s!r} {what}\n".encode())
        if self._tell:
            self._tell(f"{self.now_s:10.2f} {what}")

    # --- calls across interfaces

    def _before_call(self, name: str) -> None:
        self.points.before(name)

    def _after_call(self, name: str) -> None:
        self.points.after(name)

    def _before_file(self, name: str, path: str) -> None:
        actor = self.cluster.actor
        if actor:
            node = self.cluster.nodes[actor]
            if not node.has_folder:
                raise OSError(errno.EIO, "Input/output error", path)
            return
        self.points.before(name)
        self.file_faults.check(name, path)

    def _after_file(self, name: str, path: str) -> None:
        if not self.cluster.actor:
            self.points.after(name)

    def _written(self, seq: int, record: Record) -> None:
        self.note(f"record {seq} {self.disk.journal[seq].body}")
        self.invariants.written(record)
        assert self.invariants.shadow
        self.invariants.shadow.apply(record)

    # --- the service

    def start_service(self) -> None:
        """Start a service on what is durable; it may be refused, or die while it starts."""
        assert self.life is None
        self.points = points = CrashPoints(self.deaths, armed=self.points.armed)
        try:
            store = FaultyStore(self.disk, points, self.store_faults, self._written, self.invariants.confirmed)
        except UserError as why:
            self.note(f"not started: {why}")
            return
        try:
            self._open(store)
            self.life = self._new_life(store)
            if self.invariants.shadow is None:
                self.invariants.shadow = self.beginning.engine(live=True)
            self.invariants.check_journal(self.invariants.shadow, self.life.daemon.engine)
            self.life.daemon._resume()
        except Crash:
            self._end_life(store, points)
        except JournalLost:
            self._end_life(store, points)
            self._choose_journal()
        except (UserError, OSError) as why:
            self.note(f"not started: {why}")
            self._end_life(store, points)
        else:
            self.note(f"started, term {store.term}")
            self._check()

    def _open(self, store: FaultyStore) -> None:
        """Verify the journal as `store/opening.py` does."""
        try:
            take_store(store, STATE)
        except JournalLost as lost:
            if not self._accepts_loss:
                raise
            mark = HighWaterMark(STATE / MARK_FILE)
            self.note(f"loss accepted: {raise_numbers(store, mark.mark, (STATE, SHARED), lost.what)}")
            store.keep_mark(mark)
        else:
            if self._newest and self._old_copy:
                self.note("an old journal is taken: it lacks only what was not confirmed")
                engine, _ = recover(ModelStore(self.disk), self.beginning)
                self.invariants.lose_unconfirmed(self._old_copy.promises, engine)
        self._accepts_loss, self._newest = False, None

    def _choose_journal(self) -> None:
        """The journal was set back, and the start refused: put the newest one back, or go on with the old one."""
        if self._accepts_loss:
            return
        assert self._newest
        assert self._old_copy
        if self._random.random() < 0.5:
            self.note("the newest journal is put back")
            self.disk.restore(self._newest)
            self._newest = None
            return
        self.note("an old journal is accepted")
        self.faults["loss accepted"] += 1
        self._accepts_loss, self._checked = True, 0
        engine, _ = recover(ModelStore(self.disk), self.beginning)
        self.invariants.accept_loss(self._old_copy.promises, engine)
        self._old_copy = None

    def _new_life(self, store: FaultyStore) -> Life:
        """As the server makes a service: it has a term above all terms that are known."""
        store.raise_term(known_term(STATE, store.identity))
        term = Term(STATE, store.identity, store.term)
        term.claim()
        reconciler = SteppedReconciler(
            self.cluster, SHARED, settings=self._random.choice(SETTINGS), python="python3", monotonic=lambda: self.now_s
        )
        reconciler.act_under(term)
        reconciler.invariants = self.invariants
        daemon = SteppedDaemon(store, reconciler, self.beginning, self._clock(store), lambda job, attempt: {})
        daemon.points, daemon.waits = self.points, self.pass_time
        daemon._encoder = PromptEncoder()
        daemon._idle.set()  # there is but one thread: nobody has to give way
        return Life(store, reconciler, daemon, Operations(daemon), self.points)

    def _clock(self, store: FaultyStore) -> Clock:
        """As the server makes it."""
        last = next(store.tail(store.last_seq() - 1), None)
        not_before_s = last[1].at_s if last else 0.0
        return wall_clock(store.epoch, not_before_s, lambda: self.now_s + self.day_s, lambda: self.now_s)

    def _end_life(self, store: FaultyStore, points: CrashPoints) -> None:
        """A service is dead, and with it its lock and all requests that it has not answered."""
        self.note("died")
        points.dead, points.armed = True, None
        store.close()
        self._asked = [asked for asked in self._asked if asked.life.store is not store]
        self._overtaken = [life for life in self._overtaken if life.store is not store]
        if self.life and self.life.store is store:
            self.life = None

    def _live(self, what: Callable[[Life], None], life: Life | None = None) -> None:
        """Let the service, or one that was taken over, do something; it may die of it."""
        life = life or self.life
        if life is None:
            self.start_service()
            return
        before, self.points = self.points, life.points
        try:
            what(life)
        except (Crash, StoreInUse) as why:
            # Who finds another service in its place ends.
            require(isinstance(why, Crash) or life is not self.life, f"the service ends: {why}")
            self._hear_answers()
            self._end_life(life.store, life.points)
        finally:
            self.points = self.life.points if self.life else before
        self._check()

    def _check(self) -> None:
        self._hear_answers()
        if self.life is None:
            return
        daemon = self.life.daemon
        if daemon.seq == self._checked:
            return
        self.faults["orphans seen"] += bool(daemon.orphans.attempts)
        self._checked = daemon.seq
        self.invariants.check_service(daemon)
        if not daemon._in_doubt and self.invariants.shadow and daemon.seq == self.disk.last:
            whole = self._checked % 16 == 0
            self.invariants.check_journal(daemon.engine, self.invariants.shadow, whole)

    # --- steps

    def run(self) -> None:
        """All steps with faults, and then time without any until all is done."""
        faults_at = self._times_of_faults()
        self.start_service()
        for number in range(STEPS):
            self.steps += 1
            if number in faults_at:
                self._fault()
            else:
                self._step()
            self.invariants.check_cluster()
        self._settle()

    def _times_of_faults(self) -> frozenset[int]:
        count = FAULTS + self._random.choice((0, 5, 20))
        return frozenset(self._random.sample(range(10, STEPS), count))

    def _step(self) -> None:
        step = self._random.choices(
            (self._cycle, self._turn, self._pass, self._arrive, self._report),
            (35, 30, 20, 10, 5),
        )[0]
        step()

    def _pass(self) -> None:
        self.pass_time(self._random.choice((0.1, 0.5, 1.0, 1.0, 2.0, 2.0, 5.0, 10.0, 30.0)))

    def pass_time(self, span_s: float) -> None:
        """Let time go on for everybody."""
        while span_s > 0:
            part_s = min(span_s, 5.0)
            span_s -= part_s
            self.now_s += part_s
            for cure_s, cure in self._cures:
                if self.now_s >= cure_s:
                    cure()
            self._cures = [each for each in self._cures if self.now_s < each[0]]
            self.cluster.pass_time()
            self.invariants.check_cluster()

    def _cycle(self) -> None:
        self.pass_time(self._random.choice((0.05, 0.05, 0.25, 1.0)))
        self._live(lambda life: life.daemon._cycle(), self._who())

    def _turn(self) -> None:
        self.pass_time(self._random.choice((0.0, 0.1, 0.5, 1.0)))
        if self.now_s >= self._hangs_until_s:
            self._live(lambda life: life.reconciler._take_turn(), self._who())

    def _who(self) -> Life | None:
        """The service, or now and then one that was taken over."""
        return self._random.choice(self._overtaken) if self._overtaken and self._random.random() < 0.3 else self.life

    def _report(self) -> None:
        """A progress report arrives: in order, late, twice, or never."""
        reports = self.cluster.reports
        if self.life is None or not reports:
            return
        late = self._random.random() < 0.3
        report = reports.pop(self._random.randrange(len(reports)) if late else 0)
        if self._random.random() < 0.2:
            reports.append(report)
        self.note(f"report {report}")
        try:
            self.life.operations.progress(*report)
        except UserError as why:
            require(self.invariants.loss_accepted, f"{report} was refused: {why}")

    # --- who asks for what

    def _arrive(self) -> None:
        if self.life is None:
            return
        what = self._random.choices(
            (self._submit, self._request, self._drain, self._resume, self._configure), (60, 25, 5, 5, 5)
        )[0]
        try:
            what(self.life)
        except Crash:
            self._end_life(self.life.store, self.life.points)

    def _submit(self, life: Life) -> None:
        self._jobs += 1
        if self._jobs > 14:
            return
        name, plan = f"j{self._jobs}", self._plan()
        self.cluster.plans[name] = plan
        nodes = list(self.cluster.nodes.values())
        node = self._random.choice(nodes).seen
        resources: dict[str, Any] = {"gpus": f"{node.gpu_type}:{self._random.randint(1, node.gpus)}"}
        alike = [each for each in nodes if each.seen.gpu_type == node.gpu_type]
        if self._random.random() < 0.25 and len(alike) > 1:
            least = min(each.seen.gpus for each in alike)
            resources = {"gpus": f"{node.gpu_type}:{2 * self._random.randint(1, least)}", "nodes": 2}
        document: dict[str, Any] = {
            "name": name,
            "run": ["train"],
            "resources": resources,
            "queue": self._random.choice(("default", "org/a", "org/b")),
            "checkpoint": {"grace": self._random.choice((1, 5, 10))},
            "recovery": {"max_restarts": 1000},
            "estimate": {"steps": max(1.0, plan.work_s), "throughput": {each.seen.gpu_type: 1.0 for each in nodes}},
        }
        if plan.limited:
            document["max_duration"] = self._random.choice((5, 20))
        self._ask(life, "submit", name, partial(life.operations.submit, ANN, [read_job(document)]))

    def _plan(self) -> JobPlan:
        draw = self._random
        garbage = {}
        if draw.random() < 0.15:
            name = draw.choice(("saved.json", "saved.json", runner.EXIT, runner.RUNNER))
            garbage = {name: draw.choice(GARBAGE)}
        return JobPlan(
            work_s=float(draw.randint(2, 40)),
            save_every_s=draw.choice((2.0, 5.0, 15.0)),
            leaves_s=draw.choice((0.0, 0.5, 3.0)),
            heeds=draw.random() < 0.8,
            reports=draw.random() < 0.5,
            fails=draw.choice(((), (), (), (1,), (1, 2))),
            code=draw.choice((1, 75, 137)),
            garbage=garbage,
            limited=draw.random() < 0.1,
        )

    def _request(self, life: Life) -> None:
        jobs = self.invariants.promises.jobs
        if jobs:
            what = self._random.choice(("cancel", "hold", "hold", "release", "release"))
            job = self._random.choice(jobs[-6:])
            if what == "cancel":
                self.invariants.promises.may_be_cancelled.add(job)
            if what == "release":
                self.invariants.promises.held.discard(job)
            self._ask(life, what, job, partial(life.operations.request, ANN, what, [job]))

    def _drain(self, life: Life) -> None:
        node = self._random.choice(list(self.cluster.nodes))
        evict = self._random.random() < 0.5
        if not self.cluster.nodes[node].up and self._random.random() < 0.5:
            self._ask(life, "lose", node, partial(life.operations.lose, ADMIN, node))
        else:
            self._ask(life, "drain", node, partial(life.operations.drain, ADMIN, node, evict))

    def _resume(self, life: Life) -> None:
        node = self._random.choice(list(self.cluster.nodes))
        self._ask(life, "resume", node, partial(life.operations.resume, ADMIN, node))

    def _configure(self, life: Life) -> None:
        """Another policy, or other settings."""
        policy, settings = self._random.choice(POLICIES)
        values = {name: str(self._random.choice((10, 20, 60))) for name in settings}
        self._ask(life, "configure", policy, partial(life.operations.configure, ADMIN, policy, values))

    def _ask(self, life: Life, what: str, target: str, call: Callable[[], Any]) -> None:
        self.note(f"ask {what} {target}")
        call()
        self._asked.append(Asked(what, target, life.daemon.asked, life))

    def _hear_answers(self) -> None:
        """Take down what the service has acknowledged."""
        waiting: list[Asked] = []
        promises = self.invariants.promises
        for asked in self._asked:
            if not asked.answer.done():
                waiting.append(asked)
                continue
            error = asked.answer.exception()
            if error is not None:
                require(isinstance(error, UserError), f"{asked.what} was answered with {error!r}")
                self.note(f"refused {asked.what} {asked.target}: {error}")
                continue
            said = asked.answer.result()
            self.note(f"answered {asked.what} {asked.target}: {said}")
            if asked.what == "submit":
                promises.jobs += said
            elif asked.what == "cancel" and said[asked.target] == "done":
                promises.cancelled.add(asked.target)
                promises.held.discard(asked.target)
            elif asked.what == "hold" and said[asked.target] == "done":
                later = any(each.what == "release" and each.target == asked.target for each in self._asked)
                if not later:
                    promises.held.add(asked.target)
        self._asked = waiting

    # --- what goes wrong

    def _fault(self) -> None:
        kinds = tuple(_FAULTS)
        name = self._random.choices(kinds, [_FAULTS[kind][0] for kind in kinds])[0]
        self.faults[name] += 1
        self.note(f"fault: {name}")
        _FAULTS[name][1](self)

    def _crash(self) -> None:
        """The service dies at one of its next calls."""
        if self._random.random() < 0.5:
            self.points.arm("", self._random.choice((1, 2, 5, 20, 60, 200)))
        else:
            point = self._random.choice(POINTS)
            if point.startswith(_AT_A_START):
                self._kill()
            if point.startswith("driver.last_line"):
                self.cluster.submissions.append("die")
            self.points.arm(point, self._random.choice((1, 1, 2, 5)))

    def _kill(self) -> None:
        """The service dies between two steps."""
        if self.life:
            self._end_life(self.life.store, self.life.points)

    def _last(self, cure: Callable[[], None]) -> None:
        """Let a fault last for a while."""
        self._cures.append((self.now_s + self._random.choice((2.0, 10.0, 40.0)), cure))

    def _fail_store(self) -> None:
        how = self._random.choice(("full", "away", "before", "before", "after", "after"))
        if how in ("full", "away"):
            self.store_faults.lasting = how
            self._last(lambda: setattr(self.store_faults, "lasting", ""))
        else:
            self.store_faults.once = how

    def _fail_files(self) -> None:
        self.file_faults.error = self._random.choice((errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ESTALE))
        self.file_faults.every = self._random.choice((1, 2, 3, 7, 20))
        self._last(lambda: setattr(self.file_faults, "error", 0))

    def _cut_folder_power(self) -> None:
        """The file server loses what it had not on disk."""
        self.invariants.power_was_cut = True
        self.files.cut_power(lambda count: self._random.randint(0, count))

    def _jump_day(self) -> None:
        self.day_s += self._random.choice((-3600.0, -60.0, 60.0, 3600.0))

    def _jump_folder(self) -> None:
        self.folder_s += self._random.choice((-3600.0, -20.0, 20.0, 3600.0))

    def _sleep(self) -> None:
        """The service's machine is suspended."""
        self.pass_time(self._random.choice((20.0, 60.0, 200.0)))

    def _hang(self) -> None:
        """The driver does not answer for a while."""
        self._hangs_until_s = self.now_s + self._random.choice((5.0, 40.0, 100.0))

    def _blind(self) -> None:
        self.cluster.blind = True
        self._last(lambda: setattr(self.cluster, "blind", False))

    def _node(self) -> None:
        """A node is lost in one of many ways, or is back."""
        name = self._random.choice(list(self.cluster.nodes))
        node = self.cluster.nodes[name]
        if not (node.up and node.in_touch and node.has_folder and node.shown and node.open) or node.foreign:
            self.cluster.bring_back(name, kills=self._random.random() < 0.5)
            self.note(f"{name} is back")
            return
        how = self._random.choice(("power", "touch", "folder", "both", "hidden", "closed", "foreign"))
        self.note(f"{name}: {how}")
        if how == "power":
            self.cluster.cut_power(name)
        node.in_touch = how not in ("touch", "both")
        self.cluster.thaw(() if node.in_touch else (name,))
        node.has_folder = how not in ("folder", "both")
        node.shown, node.open, node.foreign = how != "hidden", how != "closed", how == "foreign"

    def _freeze(self) -> None:
        """A runner that the cluster manager knows of freezes, or goes on."""
        cluster = self.cluster
        seen = [each for each in cluster.runners if each.piece in cluster.pieces]
        runners = [each for each in seen if cluster.nodes[each.piece.node].in_touch]
        if runners:
            each = self._random.choice(runners)
            each.frozen = not each.frozen
            self.note(f"{each.piece} {'freezes' if each.frozen else 'goes on'}")

    def _kill_runner(self) -> None:
        """A runner dies, and its job with it."""
        if self.cluster.runners:
            chosen = self._random.choice(self.cluster.runners)
            self.note(f"{chosen.piece} is killed")
            chosen.lives = chosen.job_lives = False

    def _fail_submissions(self) -> None:
        cluster = self.cluster
        how = self._random.choice(
            ("lose", "lose answer", "double", "die", "refuses", "starts_nothing", "kills_nothing")
        )
        if how in ("lose", "lose answer", "double", "die"):
            cluster.submissions.append(how)
        else:
            setattr(cluster, how, True)
            self._last(lambda: setattr(cluster, how, False))

    def _forget_pieces(self) -> None:
        self.cluster.lose_memory()

    def _second_service(self) -> None:
        """Another service is started on the same store: it is refused, or takes over from one that is cut off."""
        life = self.life
        if life is None:
            return
        try:
            ModelStore(self.disk, own=True)
        except StoreInUse:
            pass
        else:
            raise Broken("two services own one store")
        how = self._random.choice(("refused", "between", "at a point", "at a point"))
        if how == "between":
            self._take_over(life)
        elif how == "at a point":
            count = self._random.choice((1, 2, 5, 20, 60))
            life.points.arm("", count, lambda: self._take_over(life))

    def _take_over(self, life: Life) -> None:
        """A service loses its lock while it does something, and goes on when another has taken over."""
        if life is not self.life:
            return
        self.note("taken over")
        self.faults["taken over"] += 1
        self.disk.owner, self.life = None, None
        self._overtaken.append(life)
        self._cures.append((self.now_s + self._random.choice((5.0, 20.0, 60.0)), lambda: self._drop(life)))
        self.start_service()
        for _ in range(self._random.randint(0, 6)):
            act = self._random.choice((Daemon._cycle, Reconciler._take_turn))
            self._live(lambda new, act=act: act(new.daemon if act is Daemon._cycle else new.reconciler))
        self.points = life.points

    def _drop(self, life: Life) -> None:
        """A service that was taken over is gone at last."""
        if life in self._overtaken:
            self._end_life(life.store, life.points)

    def _restore(self) -> None:
        """The journal is set back to an older copy while no service runs: the next start is refused."""
        self._kill()
        for life in list(self._overtaken):
            self._drop(life)
        if self._newest or self._accepts_loss:
            return
        old, newest = self._old_copy, self.disk.backup()
        if old is None or self._random.random() < 0.3:
            self._old_copy = Backup(newest, self.invariants.promises.copy())
        elif old.disk.last < newest.last:
            self.disk.restore(old.disk)
            self._newest = newest

    # --- in the end

    def _settle(self) -> None:
        """Nothing goes wrong any more; every job must end."""
        self.note("settle")
        for life in list(self._overtaken):
            self._drop(life)
        self.points.armed, self._cures = None, []
        self.store_faults = self._reset(self.store_faults, StoreFaults())
        self.file_faults = self._reset(self.file_faults, FileFaults())
        cluster = self.cluster
        cluster.blind = cluster.refuses = cluster.starts_nothing = cluster.kills_nothing = False
        cluster.submissions = []
        for name in cluster.nodes:
            cluster.bring_back(name, kills=True)
        for each in cluster.runners:
            each.frozen = False
        self._hangs_until_s = 0.0
        end_s = self.now_s + PATIENCE_S
        while self.life is None or not self._all_over(self.life):
            require(self.now_s < end_s, f"after {PATIENCE_S:.0f} s without faults: {self._unfinished()}")
            self._settle_once()
        for _ in range(3):
            self._settle_once()
        self.invariants.check_end(self.life.daemon)

    @staticmethod
    def _reset(old: Any, new: Any) -> Any:
        vars(old).update(vars(new))
        return old

    def _settle_once(self) -> None:
        self.pass_time(4.0 if self.cluster.runners or self._random.random() < 0.3 else 20.0)
        self._live(lambda life: life.reconciler._take_turn())
        self._live(lambda life: life.daemon._cycle())
        if self.life and not self._asked:
            self._release(self.life)
        if self._asked:
            self._live(lambda life: life.daemon._cycle())

    def _release(self, life: Life) -> None:
        """Users release what they held, and operators open what they closed."""
        engine = life.daemon.engine
        held = [spec.id for row, spec in enumerate(engine.jobs.specs) if STATES[engine.jobs.state[row]].name == "HELD"]
        for job in held:
            self.invariants.promises.held.discard(job)
            self._ask(life, "release", job, partial(life.operations.request, ADMIN, "release", [job]))
        for name in list(engine.gpus.closed_by):
            if engine.gpus.closed_by[name] == "root":
                self._ask(life, "resume", name, partial(life.operations.resume, ADMIN, name))

    def _all_over(self, life: Life) -> bool:
        jobs = life.daemon.engine.jobs
        over = all(STATES[state] in ENDED for state in jobs.state[: len(jobs)].tolist())
        # What the journal has lost ends by itself.
        over = over and not any(self.cluster.living())
        return over and not life.daemon._in_doubt and not self._asked and not life.daemon._inbox

    def _unfinished(self) -> str:
        if self.life is None:
            return "no service runs"
        jobs = self.life.daemon.engine.jobs
        states = {spec.id: STATES[jobs.state[row]].name for row, spec in enumerate(jobs.specs)}
        over = [state.name for state in ENDED]
        stuck = {job: state for job, state in states.items() if state not in over}
        return f"{stuck}, trouble: {self.life.daemon.backend.trouble!r}"


class PromptReads(TimedReads):
    """Reads at once, in the world's one thread."""

    def read(self, read: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return read()
        except Exception:
            return otherwise


class PromptEncoder(CheckpointEncoder):
    """Encodes a checkpoint when it is begun, in the world's one thread."""

    def begin(self, engine: Engine, seq: int) -> None:
        body: Future[bytes] = Future()
        body.set_result(checkpoint.save(engine))
        self._begun = (seq, body)


#: Faults by name: how often they are drawn, and what they do.
_FAULTS: dict[str, tuple[int, Callable[[World], None]]] = {
    "crash": (30, World._crash),
    "kill": (6, World._kill),
    "store": (12, World._fail_store),
    "files": (10, World._fail_files),
    "file server power cut": (2, World._cut_folder_power),
    "time of day": (3, World._jump_day),
    "file server clock": (3, World._jump_folder),
    "sleep": (4, World._sleep),
    "driver hangs": (4, World._hang),
    "blind": (5, World._blind),
    "node": (16, World._node),
    "freeze": (8, World._freeze),
    "runner killed": (6, World._kill_runner),
    "submissions": (8, World._fail_submissions),
    "forgetful": (3, World._forget_pieces),
    "second service": (6, World._second_service),
    "restore": (6, World._restore),
}


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """What the code under test takes from the process: files, ports, compiled code, and the garbage collector."""
    with (
        mounted(world.files),
        mock.patch.object(saved_work, "READS", PromptReads()),
        mock.patch.object(runner_order, "_free_port", return_value=29000),
        mock.patch.object(operations, "warm_up"),
        mock.patch.object(daemon_module, "collect_all"),
        mock.patch.object(daemon_module, "set_aside"),
        mock.patch.object(daemon_module, "CHECKPOINT_EVERY", CHECKPOINT_EVERY),
    ):
        yield


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no cycle of garbage be looked for meanwhile: a world has few, and is gone in a moment."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)


def run_seed(seed: int, deaths: Counter[str] | None = None, tell: Callable[[str], None] | None = None) -> World:
    """A world from its first to its last step. Raises with the seed if something is broken."""
    world = World(seed, deaths, tell)
    with simulated(world), uncollected():
        try:
            SHARED.mkdir()
            STATE.mkdir()
            world.run()
        except BaseException as why:
            why.add_note(
                f"step {world.steps} of seed {seed}; to see it again: python -m tests.world.world {seed} --trace"
            )
            raise
    return world


if __name__ == "__main__":
    tell = print if "--trace" in sys.argv else None
    ran = run_seed(int(sys.argv[1]), tell=tell)  # type: ignore[arg-type]
    print(f"seed {ran.seed}: {ran.steps} steps, faults {dict(ran.faults)}, digest {ran.digest.hexdigest()}")  # noqa: T201
