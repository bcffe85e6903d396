"""The daemon's loop: the engine with a real clock, a journal and a backend.

One thread owns the engine. A cycle takes what came in since the last one (requests over the API, reports of the
backend), writes it to the journal in one transaction, applies it, answers those who asked, and decides; a decision
is in the journal before it is performed. What cannot be written did not happen: requests are refused, reports are
kept for the next cycle, and an engine that has decided what the journal could not take is rebuilt from the journal.
So is one that the journal has overtaken: a database that was lost sight of may have written what it did not confirm.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, assert_never

import numpy as np

from horae.backends.protocol import Backend, Place, Start
from horae.backends.task import Task
from horae.core import checkpoint
from horae.core.cluster import Node
from horae.core.commands import Command, Launch, Stop, WakeAt
from horae.core.engine import Engine, Report
from horae.core.errors import UserError
from horae.core.events import (
    PRECEDENCE,
    Event,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobsRetired,
    JobStopped,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
)
from horae.core.job import JobSpec
from horae.core.states import LAUNCHING, RUNNING, STATES, State
from horae.core.status import ClusterStatus
from horae.service.clock import Clock
from horae.service.gpu_locations import numbers_by_node
from horae.service.loop_counters import LoopCounters
from horae.service.recovery import InitialSettings, recover
from horae.service.store.connection import StoreTrouble
from horae.service.store.store import Store
from horae.service.store.stored_records import Act

Answer = TypeVar("Answer")

#: Requests that come so close together share one write to disk; reports are looked for at least so often.
GATHER_S, WATCH_S = 0.005, 0.05
#: A checkpoint is written after so many records; one that holds a policy's memory counts for more, by its numbers.
CHECKPOINT_EVERY, NUMBERS_A_RECORD = 5000, 1000
#: Jobs that have ended, and records that a checkpoint covers, are kept for so long; what is older goes once a day.
DAY_S = 86400.0
KEEP_S = 90 * DAY_S
#: After trouble with the journal, wait so long before the next try; after so long without any it is over: a disk
#: without room for what was refused may have some for a trial.
_TROUBLE_S, _CALM_S = 1.0, 10.0
_LEAVING = "The service is shutting down: try again in a moment."
#: Who ends a job that has run longer than it may.
TIME_LIMIT = "time limit"

_ENDS = (JobFinished, JobFailed, JobStopped, LaunchFailed)


@dataclass(frozen=True)
class Change:
    """What a request comes to: records for the journal, and what they bring with them."""

    events: tuple[Event, ...] = ()
    tasks: tuple[Task, ...] = ()
    acts: tuple[Act, ...] = ()


#: Looks at the engine, at a time, and says what to write and what to answer.
Prepare = Callable[[Engine, float], tuple[Change, Answer]]


@dataclass
class _Request(Generic[Answer]):
    """Somebody waits for this."""

    prepare: Prepare[Answer]
    answer: Future[Answer] = field(default_factory=Future)


class Closed(UserError):
    """The service is on its way out."""


class OtherNode(UserError):
    """A node that is not the machine it was when the service began."""


class Daemon:
    """Runs jobs. `start` begins the loop, `ask` is how other threads change anything, `standing` how they look."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        beginning: InitialSettings,
        clock: Clock,
        environment: Callable[[str, int], dict[str, str]],
        watch_s: float = WATCH_S,
        keep_s: float | None = None,
    ) -> None:
        self.store, self.backend, self.clock = store, backend, clock
        #: Variables that an attempt of a job is given: where the service is, and a token.
        self._environment = environment
        self.beginning, self._watch_s = beginning, watch_s
        #: How long jobs that have ended are kept; what they wrote goes with them only if somebody said how long.
        self._keep_s, self._discards = (KEEP_S, False) if keep_s is None else (keep_s, True)
        self.engine, self.seq = recover(store, beginning)
        # Counted over all lives of the daemon: one that keeps dying young must write checkpoints, too.
        self._checkpointed = (store.newest_checkpoint() or (0, b""))[0]
        #: Numbers that decisions since the last checkpoint remember.
        self._remembered = 0
        self.tasks: dict[str, Task] = store.tasks()
        #: Where things stand, and the last record that went into it.
        self.standing: ClusterStatus = self.engine.standing()
        self.shown = self.seq
        self.meter: LoopCounters = LoopCounters()
        self._inbox: list[_Request[Any]] = []
        self._carried: list[Event] = []
        #: Stops that the backend could not take.
        self._to_stop: list[Stop] = []
        #: Trouble since the engine and the journal were last seen to agree; whether the engine has run ahead.
        self._in_doubt = self._ahead = False
        self._troubled_s = -math.inf
        #: When what is old was last let go.
        self._tidied_s = -math.inf
        self._news = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="horae-daemon", daemon=True)
        self.crashed: BaseException | None = None

    # ---------------------------------------------------------------- outside

    def start(self, first: Prepare[Any] | None = None) -> None:
        """Take up what the journal left: learn what still runs, perform again what was decided, then loop.

        What is asked for `first` is changed before anything is decided.
        """
        self.meter.cycle_s = self.clock()
        self._take_up()
        if first:
            self._record(first(self.engine, self.clock())[0])
            self._publish()
        self._thread.start()

    def close(self, wait_s: float | None = None) -> None:
        """Leave, at the latest after `wait_s`. Jobs that run stay, and are taken up by the next daemon here."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def ask(self, prepare: Prepare[Answer], timeout_s: float = 30.0) -> Answer:
        """Have something changed; returns once it is in the journal. `prepare` runs in the daemon's thread."""
        request: _Request[Answer] = _Request(prepare)
        with self._news:
            if self._closing:
                raise Closed(_LEAVING)
            self._inbox.append(request)
            self._news.notify_all()
        return request.answer.result(timeout_s)

    @property
    def closing(self) -> bool:
        """Whether the daemon is on its way out."""
        return self._closing

    # --------------------------------------------------------------- the loop

    def _take_up(self) -> None:
        now_s = self.clock()
        changes = self._unknown([*self.backend.watch(now_s), *self._changed_nodes(now_s)])
        self._record(Change(changes))
        # An attempt that was on its way when the last daemon died counts as there only once it is ordered again.
        self._launch_again()
        for node, alive in self.backend.alive().items():
            self._record(Change((NodeObserved(now_s, node, alive),)))
        self._stop_again()
        self._publish()

    def _launch_again(self) -> None:
        """Order once more what was decided and may not have been performed."""
        launching = {spec.id for spec, state in self._occupants() if state is LAUNCHING}
        outstanding = self.engine.outstanding()
        self._perform([one for one in outstanding if isinstance(one, Launch) and one.job in launching])

    def _stop_again(self) -> None:
        self._perform([one for one in self.engine.outstanding() if isinstance(one, Stop)])

    def _occupants(self) -> Iterator[tuple[JobSpec, State]]:
        """Jobs that sit on GPUs, and their states."""
        jobs = self.engine.jobs
        for row in self.engine.gpus.occupied:
            yield jobs.specs[row], STATES[int(jobs.state[row])]

    def _changed_nodes(self, now_s: float) -> list[Event]:
        """Nodes that came, went or changed while nobody watched."""
        there = {node.name: node for node in self.backend.nodes()}
        ledger = self.engine.gpus
        known = {node.name: up for node, up in zip(ledger.cluster.nodes, ledger.node_up, strict=True)}
        changed = [event for node in there.values() for event in self._changed_node(node, now_s)]
        went = [NodeLost(now_s, name) for name, up in known.items() if up and name not in there]
        return [*changed, *went]

    def _changed_node(self, node: Node, now_s: float) -> list[Event]:
        """What became of a node that is there: it is as it was, new, back, or has another number of GPUs."""
        ledger = self.engine.gpus
        number = ledger.cluster.node_numbers.get(node.name)
        if number is None:
            return [NodeJoined(now_s, node)]
        first = ledger.cluster.nodes[number]
        if node.gpus > first.gpus or node.gpu_type != first.gpu_type:
            raise OtherNode(
                f"Node {node.name} has {node.gpus} {node.gpu_type} GPUs now, and this service knows it with "
                f"{first.gpus} {first.gpu_type}: give it these again, or fewer (with --gpus, if they are virtual), or "
                "begin a new service with another --state."
            )
        if not ledger.node_up[number]:
            return [NodeJoined(now_s, node)]
        had = ledger.node_gpus[number]
        if node.gpus == had:
            return []
        # Which GPUs are gone nobody can tell: numbers on the machine count what is left.
        lost = [NodeLost(now_s, node.name)] if node.gpus < had else []
        drained = [NodeDraining(now_s, node.name)] if ledger.node_draining[number] else []
        return [*lost, NodeJoined(now_s, node), *drained]

    def _run(self) -> None:
        try:
            while self._wait():
                self._cycle()
            if not self._in_doubt:
                self._save()
        except BaseException as error:
            # Whoever started the daemon tells of it; a thread could only print it.
            self.crashed = error
        finally:
            self._closing = True
            self._refuse(self._take(), Closed(_LEAVING))

    def _wait(self) -> bool:
        """Wait for requests, for the time to look for reports, or for the time to decide; False to leave."""
        in_s = min(self._watch_s, max(0.0, self.engine.wake_s - self.clock()))
        with self._news:
            if not self._inbox and not self._closing:
                self._news.wait(in_s)
            if self._inbox and not self._closing:
                # Others may be about to ask; together they cost one write.
                self._news.wait(GATHER_S)
            return not self._closing

    def _take(self) -> list[_Request[Any]]:
        with self._news:
            taken, self._inbox = self._inbox, []
        return taken

    def _cycle(self) -> None:
        """1. take what came, 2. write it, 3. apply and answer, 4. decide, write, perform, 5. show."""
        now_s = self.clock()
        self.meter.cycle_s = now_s
        if self._in_doubt and not self._agree_with_journal():
            self._serve(self._take(), now_s)
            self._pause()
            return
        if now_s - self._troubled_s >= _CALM_S:
            self.meter.trouble = ""
        reports = [*self._carried, *self.backend.watch(now_s), *self._over_time(now_s)]
        self._carried = []
        changed = self._heed(reports) | self._serve(self._take(), now_s)
        if not self._in_doubt:
            changed |= self._decide()
        if self._to_stop:
            again, self._to_stop = self._to_stop, []
            self.meter.unstopped = ""
            self._perform(again)
        # What was answered is shown already, and of many jobs that takes milliseconds.
        if changed and self.shown != self.seq and not self._ahead:
            self._publish()
        records = self.seq - self._checkpointed + self._remembered // NUMBERS_A_RECORD
        if records >= CHECKPOINT_EVERY and not self._in_doubt:
            self._save()
        if now_s - self._tidied_s >= DAY_S and not self._in_doubt:
            self._tidy(now_s)

    def _heed(self, reports: Sequence[Event]) -> bool:
        """What the backend says. What the journal cannot take is kept for later, never lost."""
        news = self._unknown(reports)
        if not news:
            return False
        try:
            self._record(Change(tuple(sorted(news, key=lambda event: PRECEDENCE[type(event)]))))
        except StoreTrouble as trouble:
            self._note_trouble(trouble)
            # Jobs over their time are found again.
            self._carried = [event for event in news if not isinstance(event, JobCancelled)]
            return False
        if any(isinstance(event, NodeLost) for event in news):
            # Whoever was being stopped there will never say that it is gone, unless it is asked again.
            self._stop_again()
        return True

    def _unknown(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """What is not known yet. A backend that was restarted tells again what it told the daemon before."""
        news: list[Event] = []
        known: list[Event] = []
        for event in events:
            (known if isinstance(event, Report) and not self.engine.heeds(event) else news).append(event)
        self._forget(known)
        return tuple(news)

    def _forget(self, events: Sequence[Event]) -> None:
        """Ends that are in the journal need be remembered by nobody else."""
        for event in events:
            if isinstance(event, _ENDS):
                self.backend.forget(event.job, event.attempt)

    def _serve(self, requests: Sequence[_Request[Any]], now_s: float) -> bool:
        """Answer those who asked, together: each is refused by itself, all are written at once."""
        if self._in_doubt:
            self._refuse(requests, StoreTrouble(self.meter.trouble))
            return False
        ready: list[tuple[_Request[Any], Change, Any]] = []
        for request in requests:
            try:
                change, answer = request.prepare(self.engine, now_s)
            except Exception as error:
                # The asker's mistake or a bug of ours: theirs to hear, and no reason for others to wait.
                request.answer.set_exception(error)
                continue
            ready.append((request, change, answer))
        if not ready:
            return False
        changes = [change for _, change, _ in ready]
        try:
            self._record(_together(changes))
        except StoreTrouble as trouble:
            self._note_trouble(trouble)
            self._refuse([request for request, _, _ in ready], trouble)
            return False
        except BaseException:
            self._refuse([request for request, _, _ in ready], Closed(_LEAVING))
            raise
        if self.shown != self.seq:
            self._publish()
        for request, _, answer in ready:
            request.answer.set_result(answer)
        return any(change.events for change in changes)

    def _refuse(self, requests: Sequence[_Request[Any]], error: UserError) -> None:
        for request in requests:
            request.answer.set_exception(error)

    def _record(self, change: Change) -> None:
        """Write what happened, then let it have happened."""
        if not (change.events or change.tasks or change.acts):
            return
        self.seq = self.store.append(change.events, change.tasks, change.acts, self.seq)
        self.meter.trouble = ""
        self.tasks.update((task.job, task) for task in change.tasks)
        for event in change.events:
            self.engine.apply(event)
        self._forget(change.events)

    def _decide(self) -> bool:
        """Decide as long as there is reason to; each decision is written before it is performed."""
        decided = False
        while self.engine.due(now_s := self.clock()):
            with self.meter.deciding():
                record = self.engine.decide(now_s)
            try:
                self.seq = self.store.append((record,), (), (), self.seq)
            except StoreTrouble as trouble:
                self._note_trouble(trouble)
                self._ahead = True
                self._agree_with_journal()
                self._pause()
                return True
            self.meter.count(record)
            self._remembered += sum(np.size(values) for _, _, values in record.memory)
            self._perform(record.commands)
            decided = True
        return decided

    def _note_trouble(self, trouble: StoreTrouble) -> None:
        self.meter.trouble, self._troubled_s = str(trouble), self.clock()
        self._in_doubt = True

    def _agree_with_journal(self) -> bool:
        """After trouble: go back to what is written if the engine believes anything else; False while there is trouble.

        What is written may be more than was confirmed. Then it has happened, and what follows from it is performed.
        """
        try:
            if self.store.try_writing() != self.seq or self._ahead:
                self.engine, self.seq = recover(self.store, self.beginning)
                self.tasks = self.store.tasks()
                # Whoever is launched may report at once: its job must be known by then.
                self._publish()
                self._launch_again()
                self._stop_again()
        except StoreTrouble as trouble:
            self._note_trouble(trouble)
            return False
        self._in_doubt = self._ahead = False
        return True

    def _pause(self) -> None:
        with self._news:
            if not self._closing:
                self._news.wait(_TROUBLE_S)

    # ------------------------------------------------------------ the commands

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Launch():
                    self._launch(command)
                case Stop():
                    self._stop(command)
                case WakeAt():
                    pass
                case _:
                    assert_never(command)

    def _stop(self, stop: Stop) -> None:
        """Have an attempt end. A machine that cannot even write that down now is asked again."""
        try:
            self.backend.stop(stop.job, stop.attempt)
        except OSError as error:
            self.meter.unstopped = f"Job {stop.job} cannot be stopped: {error.strerror or error}."
            self._to_stop.append(stop)

    def _launch(self, launch: Launch) -> None:
        try:
            self.backend.start(self._start_of(launch))
        except OSError as error:
            why = error.strerror or error.__class__.__name__
            self._carried.append(LaunchFailed(self.clock(), launch.job, launch.attempt, why))

    def _start_of(self, launch: Launch) -> Start:
        cluster = self.engine.gpus.cluster
        by_node = numbers_by_node(cluster, launch.gpu_ids)
        places = tuple(Place(cluster.nodes[node].name, tuple(gpus)) for node, gpus in by_node.items())
        return Start(
            job=launch.job,
            attempt=launch.attempt,
            task=self.tasks[launch.job],
            gpu_type=cluster.nodes[next(iter(by_node))].gpu_type,
            places=places,
            env=self._environment(launch.job, launch.attempt),
            report_at=launch.report_at,
        )

    def _over_time(self, now_s: float) -> list[Event]:
        """Jobs that have run for longer than they may."""
        over: list[Event] = []
        jobs = self.engine.jobs
        for row in self.engine.gpus.occupied:
            limit_s = self.tasks[jobs.specs[row].id].max_duration_s
            if limit_s is None or STATES[jobs.state[row]] not in (LAUNCHING, RUNNING):
                continue
            # An attempt that is still coming up has its GPUs since it was launched.
            since_s = float((jobs.since_s if jobs.executing[row] else jobs.launched_s)[row])
            if float(jobs.executed_s[row]) + now_s - since_s >= limit_s:
                over.append(JobCancelled(now_s, jobs.specs[row].id, TIME_LIMIT))
        return over

    # --------------------------------------------------------------- for people

    def _publish(self) -> None:
        """Let people see where things stand now."""
        self.standing = self.engine.standing()
        self.shown = self.seq

    def _tidy(self, now_s: float) -> None:
        """Let go of what is older than is kept. From disk go the jobs that left the last time: nobody sees them now."""
        self._tidied_s = now_s
        try:
            self._discard()
            retired = JobsRetired(now_s, now_s - self._keep_s)
            if self.engine.retires(retired.before_s):
                self._record(Change((retired,)))
                self._publish()
                self._save()
        except StoreTrouble as trouble:
            self._note_trouble(trouble)

    def _discard(self) -> None:
        """Drop what is left of jobs that have left, and of what they wrote; what cannot go now is tried again."""
        rows = self.engine.jobs.rows
        left = [job for job in self.tasks if job not in rows]
        if not left:
            return
        kept = [task for job, task in self.tasks.items() if job in rows]
        gone = self.backend.discard(left, kept) if self._discards else left
        self.store.drop_tasks(gone)
        for job in gone:
            del self.tasks[job]

    def _save(self) -> None:
        """Write a checkpoint, and drop what it makes superfluous. Without room for it, the journal alone will do."""
        try:
            self.store.save_checkpoint(self.seq, checkpoint.save(self.engine))
            since_s = self.clock() - self._keep_s
            self.store.compact(self.seq, since_s, self.engine.jobs.submitted_before(since_s))
        except StoreTrouble as trouble:
            self._note_trouble(trouble)
        self._checkpointed, self._remembered = self.seq, 0


def _together(changes: Sequence[Change]) -> Change:
    """Several changes as one."""
    return Change(
        tuple(event for change in changes for event in change.events),
        tuple(task for change in changes for task in change.tasks),
        tuple(act for change in changes for act in change.acts),
    )
