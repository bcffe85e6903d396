"""The daemon: a loop that connects the engine with a real clock, the journal and a backend.

One thread owns the engine. A cycle collects API requests and backend events, writes them to the journal in one
transaction, applies them, answers the requests, and decides. A decision is in the journal before it is performed.

What cannot be written did not happen: requests are refused, and backend events are kept for the next cycle. The
engine is rebuilt from the journal if it made a decision that could not be written, or if the outcome of a commit
is unknown (connection lost).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, assert_never

import numpy as np

from horae.backends.protocol import Backend, Place, Sight, Start
from horae.backends.task import Task
from horae.core import checkpoint
from horae.core.commands import Command, Launch, Stop, WakeAt
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.events import (
    PRECEDENCE,
    AttemptReport,
    Event,
    JobFailed,
    JobFinished,
    JobsRetired,
    JobStopped,
    JobTimedOut,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.core.job import JobSpec
from horae.core.states import LAUNCHING, RUNNING, STATES, State
from horae.core.status import ClusterStatus
from horae.service.checkpoint_encoder import CheckpointEncoder
from horae.service.clock import Clock
from horae.service.disk_reserve import DiskReserve
from horae.service.failing_backends import SteadyBackend
from horae.service.initial_settings import InitialSettings
from horae.service.interpreter_settings import answering_soon, collect_all, set_aside
from horae.service.loop_counters import LoopCounters
from horae.service.machines import changed_nodes, engine_names
from horae.service.orphans import Orphans, lost_launches
from horae.service.recent_records import RecentRecords
from horae.service.recovery import check_tasks, recover
from horae.service.store.connection import StoreFull, StoreTrouble
from horae.service.store.store import Store
from horae.service.store.stored_records import Act

Answer = TypeVar("Answer")

#: Seconds in which requests are collected for one write to disk, and most seconds between two looks for events.
GATHER_S, WATCH_S = 0.005, 0.05
#: Seconds between two searches for jobs over their time limit.
LIMITS_S = 0.25
#: Seconds between two looks at the free space of the disk.
LOOK_S = 1.0
#: Records between two checkpoints. A record also counts once more for each NUMBERS_A_RECORD numbers of policy memory.
CHECKPOINT_EVERY, NUMBERS_A_RECORD = 5000, 1000
#: Seconds for which ended jobs, and records covered by a checkpoint, are kept by default. Clean-up runs once a day.
DAY_S = 86400.0
KEEP_S = 90 * DAY_S
#: Seconds to wait after a failed write to the journal, and seconds without a failure after which the trouble is over:
#: a full disk may have space for a test write but not for a large record.
_RETRY_S, _CALM_S = 1.0, 10.0
_LEAVING = "The service is shutting down: try again in a moment."

_END_EVENTS = (JobFinished, JobFailed, JobStopped, LaunchFailed)
_FOUND_AGAIN = (JobTimedOut, NodeJoined, NodeLost, NodeDraining)


@dataclass(frozen=True)
class Change:
    """The result of a request: events for the journal, with the tasks and acts that belong to them."""

    events: tuple[Event, ...] = ()
    tasks: tuple[Task, ...] = ()
    acts: tuple[Act, ...] = ()


#: Reads the engine at a time (s), and returns what to write and what to answer. Runs in the daemon's thread.
Prepare = Callable[[Engine, float], tuple[Change, Answer]]


@dataclass
class _Request(Generic[Answer]):
    """A request of another thread, and the future that thread waits for."""

    prepare: Prepare[Answer]
    answer: Future[Answer] = field(default_factory=Future)


#: A request with its change and its answer.
_Ready = tuple[_Request[Any], Change, Any]


class Closed(UserError):
    """The service is shutting down."""


class Daemon:
    """Runs jobs. `start` starts the loop; other threads make changes with `ask` and read `status`."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        initial_settings: InitialSettings,
        clock: Clock,
        environment: Callable[[str, int], dict[str, str]],
        watch_s: float = WATCH_S,
        keep_s: float | None = None,
        recovered: tuple[Engine, int] | None = None,
        reserve: DiskReserve | None = None,
    ) -> None:
        """`recovered` is the engine of the journal's last record, if it is known, and that record's number."""
        self.store, self.clock = store, clock
        self.backend: SteadyBackend = SteadyBackend(backend)
        #: Environment variables for an attempt: address of the service, and token.
        self._environment = environment
        self.initial_settings, self._watch_s = initial_settings, watch_s
        #: Seconds for which ended jobs are kept. Their files are deleted only if the operator set `keep_s`.
        self._keep_s, self._deletes_files = (KEEP_S, False) if keep_s is None else (keep_s, True)
        self.engine, self.seq = recovered or recover(store, initial_settings)
        # Counted across restarts: a daemon that crashes often must write checkpoints, too.
        self._checkpointed = (store.newest_checkpoint() or (0, b""))[0]
        self._encoder = CheckpointEncoder()
        #: Numbers of policy memory in decisions since the last checkpoint.
        self._memory_numbers = 0
        self.tasks: dict[str, Task] = store.tasks()
        check_tasks(self.engine, self.tasks)
        #: The published cluster status, and the number of the last record in it.
        self.status: ClusterStatus = self.engine.status()
        self.published_seq = self.seq
        #: The newest records, for those who listen.
        self.recent = RecentRecords()
        self.counters: LoopCounters = LoopCounters()
        #: Space that is freed when the disk is full; None if the journal is not on a disk of the service.
        self.reserve = reserve
        #: Attempts that run and that the journal does not know.
        self.orphans = Orphans()
        self._inbox: list[_Request[Any]] = []
        self._unrecorded: list[Event] = []
        #: The nodes in sight that the engine's nodes were last compared with; None if they must be compared.
        self._compared: Sight | None = None
        #: Whether a write failed since engine and journal were last known to agree, and whether the engine holds a
        #: decision that is not in the journal.
        self._in_doubt = self._engine_ahead = False
        self._last_trouble_s = -math.inf
        #: Time of the last clean-up.
        self._cleaned_s = -math.inf
        #: Time of the last look at the disk.
        self._looked_s = -math.inf
        #: Time of the last search for jobs over their time limit.
        self._limits_s = -math.inf
        self._wakeup = threading.Condition()
        self._closing = False
        #: Set while the loop has nothing to do.
        self._idle = threading.Event()
        self.backend.give_way_until(self._idle)
        self._thread = threading.Thread(target=self._run, name="horae-daemon", daemon=True)
        self.crashed: BaseException | None = None

    # ---------------------------------------------------------------- outside

    def start(self, first: Prepare[Any] | None = None) -> None:
        """Continue from the journal: find what still runs, repeat commands that may be lost, then start the loop.

        `first` is a change to make before the first decision.
        """
        self.counters.cycle_s = self.clock()
        self._resume()
        if first:
            self._record(first(self.engine, self.clock())[0])
            self._publish()
        self._thread.start()

    def close(self, wait_s: float | None = None) -> None:
        """Stop the loop; wait at most `wait_s`. Running jobs go on, and the next daemon follows them."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify_all()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def ask(self, prepare: Prepare[Answer], timeout_s: float = 30.0) -> Answer:
        """Make a change; returns its answer once it is in the journal. `prepare` runs in the daemon's thread."""
        request: _Request[Answer] = _Request(prepare)
        with self._wakeup:
            if self._closing:
                raise Closed(_LEAVING)
            self._inbox.append(request)
            self._wakeup.notify_all()
        return request.answer.result(timeout_s)

    @property
    def closing(self) -> bool:
        """Whether the daemon is shutting down."""
        return self._closing

    # --------------------------------------------------------------- the loop

    def _resume(self) -> None:
        reports = self._reports(now_s := self.clock())
        self._record(Change(_in_order(self._new_events([*reports, *lost_launches(reports, self.engine, now_s)]))))
        self._repeat_launches()
        self._repeat_stops()
        self._publish()

    def _repeat_launches(self) -> None:
        """Repeat launches that were decided and may not have been performed."""
        launching = {spec.id for spec, state in self._occupants() if state is LAUNCHING}
        outstanding = self.engine.outstanding()
        self._perform([command for command in outstanding if isinstance(command, Launch) and command.job in launching])

    def _repeat_stops(self) -> None:
        self._perform([command for command in self.engine.outstanding() if isinstance(command, Stop)])

    def _occupants(self) -> Iterator[tuple[JobSpec, State]]:
        """Jobs that occupy GPUs, and their states."""
        jobs = self.engine.jobs
        for row in self.engine.gpus.occupied:
            yield jobs.specs[row], STATES[int(jobs.state[row])]

    def _reports(self, now_s: float) -> list[Event]:
        """Events of the backend and changes of its nodes since the last look, with the nodes' names in the engine."""
        events = self.backend.watch(now_s)
        # After `watch`: a node that it names is in sight, if it is still there.
        sight = self.backend.sight()
        changes = self._changed_nodes(sight, now_s) if sight is not None and sight is not self._compared else ()
        reports = [*changes, *engine_names(events, changes, self.engine.gpus.cluster)]
        return self.orphans.set_apart(reports, self.engine, sight, now_s)

    def _changed_nodes(self, sight: Sight, now_s: float) -> tuple[Event, ...]:
        """How the nodes in sight differ from the engine's. They are compared again while a node must wait."""
        changes = changed_nodes(sight, self.engine.gpus, now_s)
        self._compared = None if changes.waiting else sight
        return changes.events

    def _run(self) -> None:
        try:
            with answering_soon():
                while self._wait():
                    self._cycle()
            if not self._in_doubt:
                self._save_checkpoint()
        except BaseException as error:
            # `Server.wait` raises the error in the main thread.
            self.crashed = error
        finally:
            self._closing = True
            self._idle.set()
            self._refuse(self._take_requests(), Closed(_LEAVING))

    def _wait(self) -> bool:
        """Wait for a request, the next look for backend events, or the next decision; False to end the loop."""
        in_s = min(self._watch_s, max(0.0, self.engine.wake_s - self.clock()))
        self._idle.set()
        with self._wakeup:
            if not self._inbox and not self._closing:
                self._wakeup.wait(in_s)
            if self._inbox and not self._closing:
                # Collect requests that come at the same time: together they cost one write.
                self._wakeup.wait(GATHER_S)
            if not self._closing:
                self._idle.clear()
            return not self._closing

    def _take_requests(self) -> list[_Request[Any]]:
        with self._wakeup:
            taken, self._inbox = self._inbox, []
        return taken

    def _cycle(self) -> None:
        """1. collect events and requests, 2. write, 3. apply and answer, 4. decide, write, perform, 5. publish."""
        now_s = self.clock()
        self.counters.cycle_s = now_s
        if self._in_doubt and not self._resync_with_journal():
            # Nothing can be written: jobs are watched all the same, and requests are refused at once.
            self._keep_for_later(self._reports(now_s))
            self._answer_requests(self._take_requests(), now_s)
            self._pause()
            return
        if now_s - self._last_trouble_s >= _CALM_S:
            self.counters.trouble = ""
        if self.reserve and not 0.0 <= now_s - self._looked_s < LOOK_S:
            self._looked_s = now_s
            self.reserve.look()
        reports = [*self._unrecorded, *self._reports(now_s), *self._over_time_limit(now_s)]
        self._unrecorded = []
        changed = self._record_reports(reports) | self._answer_requests(self._take_requests(), now_s)
        if not self._in_doubt:
            changed |= self._decide()
        # Publishing takes milliseconds for many jobs; `_answer_requests` has done it if there were requests.
        if changed and self.published_seq != self.seq and not self._engine_ahead:
            self._publish()
        if not self._in_doubt:
            self._checkpoint_if_due()
        if now_s - self._cleaned_s >= DAY_S and not self._in_doubt:
            self._clean_up(now_s)

    def _record_reports(self, reports: Sequence[Event]) -> bool:
        """Record backend events. Events that cannot be written are kept for the next cycle."""
        new_events = self._new_events(reports)
        if not new_events:
            return False
        try:
            self._record(Change(_in_order(new_events)))
        except StoreTrouble as trouble:
            self._note_trouble(trouble)
            self._keep_for_later(new_events)
            return False
        if any(isinstance(event, NodeLost) for event in new_events):
            # Attempts being stopped on a lost node never report their end unless stopped again.
            self._repeat_stops()
        return True

    def _keep_for_later(self, events: Sequence[Event]) -> None:
        """Keep events that cannot be written now. Jobs over their time limit and changed nodes will be found again."""
        self._unrecorded += [event for event in events if not isinstance(event, _FOUND_AGAIN)]
        self._compared = None

    def _new_events(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Events that are not in the journal yet. A restarted backend repeats events that it reported before."""
        new_events: list[Event] = []
        recorded: list[Event] = []
        for event in events:
            (
                recorded if isinstance(event, AttemptReport) and not self.engine.would_change(event) else new_events
            ).append(event)
        self._forget(recorded)
        return tuple(new_events)

    def _forget(self, events: Sequence[Event]) -> None:
        """Let the backend forget attempts whose end is in the journal."""
        for event in events:
            if isinstance(event, _END_EVENTS):
                self.backend.forget(event.job, event.attempt)

    def _answer_requests(self, requests: Sequence[_Request[Any]], now_s: float) -> bool:
        """Prepare requests, write their changes in one transaction, then answer; a change of settings goes alone."""
        changed, left = False, requests
        while left and not self._in_doubt:
            ready, left = self._prepare(left, now_s)
            changed |= self._write_and_answer(ready)
        self._refuse(left, StoreTrouble(self.counters.trouble))
        return changed

    def _prepare(self, requests: Sequence[_Request[Any]], now_s: float) -> tuple[list[_Ready], Sequence[_Request[Any]]]:
        """Prepare each request by itself; returns those that are written together, and those that come after them.

        Jobs are checked against the settings, and settings against the jobs: each must see what the other has changed.
        """
        ready: list[_Ready] = []
        for number, request in enumerate(requests):
            try:
                change, answer = request.prepare(self.engine, now_s)
            except Exception as error:
                # A mistake of the caller or a bug: only this caller gets the error.
                request.answer.set_exception(error)
                continue
            alone = any(isinstance(event, SettingsChanged) for event in change.events)
            if alone and ready:
                return ready, requests[number:]
            ready.append((request, change, answer))
            if alone:
                return ready, requests[number + 1 :]
        return ready, ()

    def _write_and_answer(self, ready: Sequence[_Ready]) -> bool:
        if not ready:
            return False
        changes = [change for _, change, _ in ready]
        try:
            self._record(_merged(changes))
        except StoreTrouble as trouble:
            self._note_trouble(trouble)
            self._refuse([request for request, _, _ in ready], trouble)
            return False
        except BaseException:
            self._refuse([request for request, _, _ in ready], Closed(_LEAVING))
            raise
        if self.published_seq != self.seq:
            self._publish()
        for request, _, answer in ready:
            request.answer.set_result(answer)
        return any(change.events for change in changes)

    def _refuse(self, requests: Sequence[_Request[Any]], error: UserError) -> None:
        for request in requests:
            request.answer.set_exception(error)

    def _record(self, change: Change) -> None:
        """Write a change to the journal, then apply it to the engine."""
        if not (change.events or change.tasks or change.acts):
            return
        self.seq = self.store.append(change.events, change.tasks, change.acts, self.seq)
        self.recent.add(change.events, self.seq)
        self.counters.trouble = ""
        self.tasks.update((task.job, task) for task in change.tasks)
        for event in change.events:
            self.engine.apply(event)
        self._forget(change.events)

    def _decide(self) -> bool:
        """Decide while a decision is due. Each decision is written before it is performed."""
        decided = False
        while self.engine.due(now_s := self.clock()):
            with self.counters.deciding():
                record = self.engine.with_evidence(self.engine.decide(now_s))
            try:
                self.seq = self.store.append((record,), (), (), self.seq)
                self.recent.add((record,), self.seq)
            except StoreTrouble as trouble:
                self._note_trouble(trouble)
                self._engine_ahead = True
                self._resync_with_journal()
                self._pause()
                return True
            self.counters.count(record)
            self._memory_numbers += sum(np.size(values) for _, _, values in record.memory)
            self._perform(record.commands)
            decided = True
        return decided

    def _note_trouble(self, trouble: StoreTrouble) -> None:
        if isinstance(trouble, StoreFull) and self.reserve:
            self.reserve.free()
        self.counters.trouble, self._last_trouble_s = str(trouble), self.clock()
        self._in_doubt = True

    def _resync_with_journal(self) -> bool:
        """After a failed write: rebuild the engine if it differs from the journal. False while writing fails.

        The journal may hold more than was confirmed. Those records count, and their commands are performed.
        """
        try:
            if self.store.try_writing() != self.seq or self._engine_ahead:
                self.engine, self.seq = recover(self.store, self.initial_settings)
                self.tasks = self.store.tasks()
                self._compared = None
                # A launched attempt may report at once: its job must be published by then.
                self._publish()
                self._repeat_launches()
                self._repeat_stops()
        except StoreTrouble as trouble:
            self._note_trouble(trouble)
            return False
        self._in_doubt = self._engine_ahead = False
        return True

    def _pause(self) -> None:
        with self._wakeup:
            if not self._closing:
                self._wakeup.wait(_RETRY_S)

    # ------------------------------------------------------------ the commands

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Launch():
                    self.backend.start(self._start_of(command))
                case Stop():
                    self.backend.stop(command.job, command.attempt)
                case WakeAt():
                    pass
                case _:
                    assert_never(command)

    def _start_of(self, launch: Launch) -> Start:
        cluster = self.engine.gpus.cluster
        by_node = cluster.gpus_by_node(launch.gpu_ids)
        places = tuple(Place(cluster.nodes[node].host, tuple(gpus)) for node, gpus in by_node.items())
        return Start(
            job=launch.job,
            attempt=launch.attempt,
            task=self.tasks[launch.job],
            gpu_type=cluster.nodes[next(iter(by_node))].gpu_type,
            places=places,
            env=self._environment(launch.job, launch.attempt),
            report_at=launch.report_at,
            term=self.store.term,
        )

    def _over_time_limit(self, now_s: float) -> list[Event]:
        """Jobs that have reached their time limit (`max_duration`). All that run are looked at, but not each time."""
        over: list[Event] = []
        if 0.0 <= now_s - self._limits_s < LIMITS_S:
            return over
        self._limits_s = now_s
        jobs = self.engine.jobs
        for row in self.engine.gpus.occupied:
            limit_s = self.tasks[jobs.specs[row].id].max_duration_s
            if limit_s is None or STATES[jobs.state[row]] not in (LAUNCHING, RUNNING):
                continue
            # An attempt that has not started yet has had its GPUs since its launch.
            since_s = float((jobs.since_s if jobs.executing[row] else jobs.launched_s)[row])
            if float(jobs.executed_s[row]) + now_s - since_s >= limit_s:
                over.append(JobTimedOut(now_s, jobs.specs[row].id))
        return over

    # ------------------------------------------ published status, clean-up

    def _publish(self) -> None:
        """Publish the current cluster status for other threads."""
        self.status = self.engine.status()
        self.published_seq = self.seq

    def _clean_up(self, now_s: float) -> None:
        """Retire jobs that ended more than `keep_s` ago, and delete the files of jobs retired at the last clean-up."""
        self._cleaned_s = now_s
        collect_all()
        try:
            self._discard()
            retired = JobsRetired(now_s, now_s - self._keep_s)
            if self.engine.retires(retired.before_s):
                self._record(Change((retired,)))
                self._publish()
                self._save_checkpoint()
        except StoreTrouble as trouble:
            self._note_trouble(trouble)

    def _discard(self) -> None:
        """Delete tasks and, if asked for, files of retired jobs. What cannot be deleted now is tried again."""
        rows = self.engine.jobs.rows
        retired = [job for job in self.tasks if job not in rows]
        if not retired:
            return
        kept = [task for job, task in self.tasks.items() if job in rows]
        gone = self.backend.discard(retired, kept) if self._deletes_files else retired
        self.store.drop_tasks(gone)
        for job in gone:
            del self.tasks[job]

    def _checkpoint_if_due(self) -> None:
        """Begin a checkpoint every few thousand records; write it once it is encoded."""
        if encoded := self._encoder.take():
            self._write_checkpoint(*encoded)
        records = self.seq - self._checkpointed + self._memory_numbers // NUMBERS_A_RECORD
        if records >= CHECKPOINT_EVERY and not self._encoder.busy:
            self._encoder.begin(self.engine, self.seq)
            self._checkpointed, self._memory_numbers = self.seq, 0
            set_aside()

    def _save_checkpoint(self) -> None:
        """Write a checkpoint of the engine as it is."""
        self._encoder.drop()
        self._write_checkpoint(self.seq, checkpoint.save(self.engine))
        self._checkpointed, self._memory_numbers = self.seq, 0

    def _write_checkpoint(self, seq: int, body: bytes) -> None:
        """Write a checkpoint and compact the journal. On a full disk, the journal alone is enough."""
        try:
            self.store.save_checkpoint(seq, body)
            since_s = self.clock() - self._keep_s
            self.store.compact(seq, since_s, self.engine.jobs.submitted_before(since_s))
        except StoreTrouble as trouble:
            self._note_trouble(trouble)


def _in_order(events: Sequence[Event]) -> tuple[Event, ...]:
    """Events of one time in the order in which they are applied; a node joins before anything is said of it."""
    return tuple(sorted(events, key=lambda event: (PRECEDENCE[type(event)], isinstance(event, NodeObserved))))


def _merged(changes: Sequence[Change]) -> Change:
    """Several changes as one change."""
    return Change(
        tuple(event for change in changes for event in change.events),
        tuple(task for change in changes for task in change.tasks),
        tuple(act for change in changes for act in change.acts),
    )
