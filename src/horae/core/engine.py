"""The scheduler as a deterministic state machine: events in, commands out.

`apply` folds one event into the state; `decide` plans, once for all the events of
an instant. The engine does no I/O, reads no clock and cannot tell a simulation
from a live cluster. A decision is a record (`Decided`); folding a journal of events
and decisions gives the same state again, without asking any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from math import isfinite
from typing import Any, assert_never

import numpy as np

from horae.core.apps import AppBook
from horae.core.bidding import Bidding
from horae.core.cluster import Cluster, Span
from horae.core.commands import Decided, Evidence, GivenUp, Launch, Placed, Stop, StopWhy
from horae.core.events import (
    AgentChanged,
    BidReceived,
    Event,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobsRetired,
    JobStarted,
    JobStopped,
    JobSubmitted,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.core.gpu_ledger import GpuLedger
from horae.core.job_table import JobTable
from horae.core.memory import Memory
from horae.core.plan import Placement, PlacementRule, Plan
from horae.core.policy import Policy
from horae.core.queues import Queue, QueueTree, QueueUse
from horae.core.reasons import Reason
from horae.core.retired_jobs import RetiredJobs
from horae.core.retirement import Retirement
from horae.core.snapshot import Snapshot
from horae.core.speed_learning import LEAST_MEASURED_S, SpeedLearner
from horae.core.states import (
    ALIVE,
    CANCELLED,
    CANCELLING,
    ENDED,
    HELD,
    HOLDING,
    LAUNCHING,
    PLACED,
    RUNNING,
    STATES,
    STOPPING,
    WAITING,
    Move,
    State,
    after,
)
from horae.core.status import ClusterStatus, shown_columns
from horae.core.throughputs import Setting, Speeds, Throughputs
from horae.core.wishes import Wishes

#: What failed is tried again after 1, 2, 4, ... seconds, at most this many.
LONGEST_BACKOFF_S = 300.0

_PLACE, _WITHDRAW, _LAUNCH, _STOP = Move.PLACE, Move.WITHDRAW, Move.LAUNCH, Move.STOP
_START, _FINISH, _STOPPED, _RETRY, _FAIL = Move.START, Move.FINISH, Move.STOPPED, Move.RETRY, Move.FAIL
_NOT_WAITING = int(Reason.NONE)
_STRAY = StopWhy.STRAY
_BY_POLICY = _PREEMPTED, _MOVED = (StopWhy.PREEMPTED, StopWhy.MOVED)

PolicyMaker = Callable[[str, Mapping[str, str]], Policy]
Report = JobStarted | LaunchFailed | JobProgressed | JobStopped | JobFinished | JobFailed


class Engine:
    """State, policy and placement. Two verbs: `apply` and `decide`."""

    def __init__(
        self,
        cluster: Cluster,
        make_policy: PolicyMaker,
        policy: str,
        settings: Mapping[str, str],
        placement: PlacementRule,
        throughputs: Throughputs | None = None,
        queues: Iterable[Queue] = (),
        learn: bool = False,
        least_measured_s: float = LEAST_MEASURED_S,
    ) -> None:
        self._make_policy = make_policy
        self._placement = placement
        #: Speeds that were known before anything happened, whether others are learnt, and over how long at least.
        self._given, self._learning = throughputs or Throughputs(), (learn, least_measured_s)
        self._begin(cluster, queues)
        self._choose_policy(policy, settings)

    def _begin(self, cluster: Cluster, queues: Iterable[Queue]) -> None:
        """Have no jobs, and nothing known of any."""
        self.now_s = 0.0
        self.wake_s = np.inf
        self.gpus = GpuLedger(cluster)
        self.queues = QueueTree(queues)
        self._speeds = Speeds(self._given.copy() if self._learning[0] else self._given)
        self.jobs = JobTable(cluster.gpu_types, self._speeds, self.queues)
        self.apps = AppBook(self.jobs)
        self.talk = Bidding()
        #: Speeds that jobs show replace what was estimated, where that is wanted.
        self._lessons = SpeedLearner(self.jobs, *self._learning)
        self.evidence: Evidence | None = None
        #: Reports that came from an older attempt, or twice, and were ignored.
        self.dropped_reports = 0
        #: Rows with GPUs set aside that are not free yet, and the span they will have.
        self._pending: dict[int, Span] = {}
        #: Rows whose attempt has to go whatever the policy says.
        self.evicted: dict[int, StopWhy] = {}
        #: Attempts seen alive that should not be.
        self._strays: list[tuple[str, int]] = []
        #: Rows that failed or whose launch did, and when to try again.
        self._backoff: dict[int, float] = {}
        #: What rows that sit on GPUs were commanded last.
        self._launched: dict[int, Launch] = {}
        self._stopped: dict[int, Stop] = {}
        self._must_plan = False
        #: Whether the policy wants to be asked when a job begins to work.
        self._heed_starts = False
        self._vacated = False

    # ---------------------------------------------------------------- events

    def apply(self, event: Event | Decided) -> None:
        """Fold one event, or a recorded decision, into the state."""
        if event.at_s > self.now_s:
            self.now_s = event.at_s
        match event:
            case JobSubmitted():
                self._submit(event)
            case JobStarted() | LaunchFailed() | JobProgressed() | JobStopped() | JobFinished() | JobFailed():
                self._report(event)
            case Decided():
                self._fold_apps(event.given_up, event.turns)
                self._fold(event)
            case JobCancelled() | JobHeld() | JobReleased():
                self._request(event)
            case NodeJoined() | NodeLost() | NodeDraining() | NodeObserved():
                self._node(event)
            case SettingsChanged():
                self._settings(event)
            case AgentChanged():
                self._change_agent(event.app, event.present)
            case BidReceived():
                self._hear_bid(event)
            case JobsRetired():
                self._retire(event.before_s)
            case _:
                assert_never(event)

    def _submit(self, event: JobSubmitted) -> None:
        if event.spec.id in self.jobs.rows:
            self.dropped_reports += 1
            return
        self.apps.add(self.jobs.add(event.spec, self.now_s))
        self._must_plan = True

    def heeds(self, report: Report) -> bool:
        """Whether a report would change anything: it is about an attempt that lives, and says what is not known yet."""
        row = self._row_of(report)
        return row >= 0 and not (isinstance(report, JobStarted) and after(STATES[self.jobs.state[row]], _START) is None)

    def _row_of(self, report: Report) -> int:
        """Row of the job that a report is about, -1 if not of its living attempt: the number fences off older ones."""
        row = self.jobs.rows.get(report.job, -1)
        if row < 0 or self.jobs.attempt[row] != report.attempt or STATES[self.jobs.state[row]] not in ALIVE:
            return -1
        return row

    def _report(self, event: Report) -> None:
        """What a backend says of an attempt."""
        row = self._row_of(event)
        if row < 0:
            self.dropped_reports += 1
            return
        match event:
            case JobStarted():
                self._started(row, event.up_s)
            case JobFinished():
                self._ended(row, _FINISH, work_done=float(self.jobs.work[row]))
            case JobStopped():
                self._ended(row, _STOPPED, event.work_done)
            case JobFailed():
                self._failed(row, event)
            case LaunchFailed():
                self._launch_failed(row)
            case JobProgressed():
                self._progressed(row, event.work_done)
                self._hear_loss(row, event)
            case _:
                assert_never(event)

    def _started(self, row: int, up_s: float) -> None:
        jobs, state = self.jobs, STATES[self.jobs.state[row]]
        running = after(state, _START)
        if running is None:
            self.dropped_reports += 1
            return
        jobs.state[row] = int(running)
        since_s = max(float(jobs.launched_s[row]), self.now_s - max(0.0, up_s))
        self._works_from(row, since_s)
        jobs.launch_failures[row] = 0
        # A job works at least as long as it took to load; else loading could be all that ever happens.
        least_s = max(jobs.min_runtime_s[row], since_s - jobs.launched_s[row])
        jobs.protected_until_s[row] = max(jobs.lease_until_s[row], self.now_s + least_s)
        self._must_plan = self._must_plan or self._heed_starts

    def _works_from(self, row: int, at_s: float) -> None:
        self.jobs.first_started_s[row] = min(self.jobs.first_started_s[row], at_s)
        self._set_speed(row, at_s)
        self._lessons.measure_from(row, at_s, float(self.jobs.work[row] - self.jobs.work_left[row]))
        self._set_speed_beside(row)

    def _set_speed(self, row: int, at_s: float) -> None:
        """The job works from now on, at the speed of where it is and beside whom."""
        launch, gpu_type = self._launched[row], int(self.jobs.last_type[row])
        other = self.gpus.companion(row)
        neighbour = other if other >= 0 and self.jobs.executing[other] else -1
        gpus = len(launch.gpu_ids)
        rate = self.jobs.rate_on(row, gpu_type, gpus, launch.span, neighbour)
        # Of GPUs on which two jobs work each has had half, so that no GPU is had for more than itself.
        self.jobs.execute(row, at_s, rate, gpus if neighbour < 0 else gpus / 2)

    def _set_speed_beside(self, row: int) -> None:
        """A job began or ended its work: whoever shares its GPUs is slower or faster from now on."""
        other = self.gpus.companion(row)
        if other >= 0 and self.jobs.executing[other]:
            self._set_speed(other, self.now_s)
            # What it has done by now is only believed.
            self._lessons.lose_track(other)

    def _ended(self, row: int, move: Move, work_done: float) -> None:
        """An attempt is gone: its GPUs are free, and the job waits again or has ended."""
        jobs, state = self.jobs, STATES[self.jobs.state[row]]
        to = after(state, move)
        assert to is not None, f"{move} from {state} of row {row}"
        if state is LAUNCHING and move is _FINISH:
            # The report that it started is late, but it must have.
            self._works_from(row, float(jobs.launched_s[row]))
        # A checkpoint says how far back the job is, not how fast it was; and one that said that all is done only left.
        if move is _FINISH and jobs.reported[row] < jobs.work[row]:
            self._note_speed(row, work_done)
        jobs.settle(row, self.now_s)
        self._set_speed_beside(row)
        jobs.reported[row] = self._sane(row, work_done)
        jobs.work_left[row] = jobs.work[row] - jobs.reported[row]
        self._launched.pop(row, None)
        self._stopped.pop(row, None)
        self._lessons.lose_track(row)
        self.evicted.pop(row, None)
        self.gpus.vacate(row)
        self._vacated = True
        if to is WAITING:
            self._wait_again(row, state)
        else:
            self._leave(row, state, to)

    def _sane(self, row: int, work_done: float) -> float:
        """Work done as reported, within what is possible; nonsense counts as what the attempt began with."""
        if not work_done >= 0:
            work_done = self._launched[row].work_done
        return min(float(self.jobs.work[row]), work_done)

    def _wait_again(self, row: int, before: State) -> None:
        """Back among those that wait, with GPUs set aside already if the job was moved."""
        self.jobs.waiting_since_s[row] = self.now_s
        self.jobs.state[row] = int(PLACED if row in self._pending else WAITING)
        if before is not STOPPING:
            # Nobody has looked at it since: what it was told before holds no more.
            self.jobs.reason[row] = int(self._reason_to_wait(row))
            self._must_plan = True

    def _reason_to_wait(self, row: int) -> Reason:
        """Why a job that is back among those that wait does so, before a decision has looked at it."""
        return Reason.AT_RUNG if self.jobs.turn[row] < 0 else Reason.NOT_YET_CONSIDERED

    def _leave(self, row: int, before: State, to: State) -> None:
        """Held, or over: the job wants nothing more."""
        jobs = self.jobs
        if row in self._pending:
            self._withdraw(row)
        jobs.state[row] = int(to)
        jobs.reason[row] = int(self._reason_to_rest(row, to))
        if to is not HELD:
            jobs.ended_s[row] = self.now_s
            self.apps.tell(row)
            self._forget_agent(row)
        if before not in (HOLDING, CANCELLING, HELD):
            jobs.deactivate(row)
        self._must_plan = True

    def _reason_to_rest(self, row: int, to: State) -> Reason:
        """Why a job that wants nothing more does not."""
        if to in (HELD, HOLDING):
            return Reason.HELD
        gone = to in (CANCELLING, CANCELLED) and row in self.apps.given_up
        return Reason.GIVEN_UP if gone else Reason.NONE

    def _may_retry(self, row: int, exit_code: int) -> bool:
        spec = self.jobs.specs[row]
        self.jobs.failures[row] += 1
        worth = not spec.retry_exit_codes or exit_code in spec.retry_exit_codes
        return worth and int(self.jobs.failures[row]) <= spec.max_restarts

    def _failed(self, row: int, event: JobFailed) -> None:
        self._ended(row, _RETRY if self._may_retry(row, event.exit_code) else _FAIL, event.work_done)
        self._back_off(row, int(self.jobs.failures[row]))

    def _launch_failed(self, row: int) -> None:
        work_done = float(self.jobs.work[row] - self.jobs.work_left[row])
        self.jobs.launch_failures[row] += 1
        self._ended(row, _RETRY, work_done)
        self._back_off(row, int(self.jobs.launch_failures[row]))

    def _back_off(self, row: int, failures: int) -> None:
        """A job that waits again because it failed does so for a while, longer each time."""
        if STATES[self.jobs.state[row]] is WAITING:
            delay_s = min(2.0 ** min(failures - 1, 30), LONGEST_BACKOFF_S)
            self._backoff[row] = self.now_s + delay_s
            self.jobs.reason[row] = int(Reason.BACKING_OFF)
            self._must_plan = True

    def _progressed(self, row: int, work_done: float) -> None:
        """The truth replaces the straight line; the speed is what it is now believed to be."""
        jobs = self.jobs
        if not work_done >= 0:
            self.dropped_reports += 1
            return
        executing = bool(jobs.executing[row])
        self._note_speed(row, work_done)
        jobs.settle(row, self.now_s)
        jobs.reported[row] = self._sane(row, work_done)
        jobs.work_left[row] = jobs.work[row] - jobs.reported[row]
        if executing:
            self._set_speed(row, self.now_s)

    def _hear_loss(self, row: int, event: JobProgressed) -> None:
        """A loss that is a number is kept, for policies and for the app."""
        if event.loss is None or not (isfinite(event.loss) and event.work_done >= 0):
            return
        if self.jobs.note_loss(row, self._sane(row, event.work_done), event.loss):
            self.apps.heard(row, event.work_done, event.loss)

    def _hear_bid(self, event: BidReceived) -> None:
        """The last answer that was waited for, not the deadline, is when to go on."""
        if not self.talk.hear(event.answer, event.at_s):
            self.dropped_reports += 1
        elif self.talk.complete:
            self._must_plan = True

    def _change_agent(self, app: str, present: bool) -> None:
        """An app's own agent comes, or goes; whoever waited for nobody but it goes on."""
        if present:
            self.talk.register(app)
        elif self.talk.dismiss(app):
            self._must_plan = True

    def _forget_agent(self, row: int) -> None:
        """An app of which nothing is left needs no agent: who comes later under its name is another."""
        app = self.jobs.specs[row].app_id
        if app in self.talk.agents and not self.jobs.app_goes_on(int(self.jobs.app[row])):
            self._change_agent(app, present=False)

    def _note_speed(self, row: int, work_done: float) -> None:
        """Learn how fast a job really was."""
        if not self._lessons.wanted or not self.jobs.executing[row]:
            return
        stands, began = self._sane(row, work_done), self._launched[row].work_done
        steps_per_s = self._lessons.speed_since(row, self.now_s, work_done, stands, began)
        if steps_per_s is not None:
            self._lessons.learn(row, self._setting(row), steps_per_s)

    def _setting(self, row: int) -> Setting:
        """What a running job's speed is measured under."""
        jobs, launch, other = self.jobs, self._launched[row], self.gpus.companion(row)
        beside = jobs.specs[other].job_class if other >= 0 and jobs.executing[other] else ""
        gpu_type = jobs.gpu_types[int(jobs.last_type[row])]
        return Setting(jobs.specs[row].job_class, gpu_type, len(launch.gpu_ids), launch.span, beside)

    def _request(self, event: JobCancelled | JobHeld | JobReleased) -> None:
        """What a user wants of a job of theirs. Running attempts are stopped by the next decision."""
        row = self.jobs.rows.get(event.job, -1)
        move = {JobCancelled: Move.CANCEL, JobHeld: Move.HOLD, JobReleased: Move.RELEASE}[type(event)]
        state = STATES[self.jobs.state[row]] if row >= 0 else None
        to = after(state, move) if state is not None else None
        if state is None or to is None:
            self.dropped_reports += 1
            return
        if move is Move.RELEASE:
            self.jobs.state[row] = int(to)
            self.jobs.reason[row] = int(self._reason_to_wait(row))
            self.jobs.waiting_since_s[row] = self.now_s
            self.jobs.activate(row)
            self._must_plan = True
        else:
            self._rest(row, state, to, StopWhy.HELD if move is Move.HOLD else StopWhy.CANCELLED)

    def _rest(self, row: int, state: State, to: State, why: StopWhy) -> None:
        """A job is held, cancelled or given up: at once, or by way of a stop if it is alive."""
        if to in (HELD, CANCELLED):
            self._backoff.pop(row, None)
            self._leave(row, state, to)
            return
        if row in self._pending:
            self._withdraw(row)
        if state in (LAUNCHING, RUNNING):
            self.evicted[row] = why
        if state not in (HOLDING, CANCELLING):
            self.jobs.deactivate(row)
        self.jobs.state[row] = int(to)
        self.jobs.reason[row] = int(self._reason_to_rest(row, to))
        self.apps.tell(row)
        self._must_plan = True

    # ----------------------------------------------------------------- nodes

    def _node(self, event: NodeJoined | NodeLost | NodeDraining | NodeObserved) -> None:
        if isinstance(event, NodeJoined):
            if not self.gpus.join(event.node):
                self.dropped_reports += 1
                return
            self.jobs.know_types(self.gpus.cluster.gpu_types)
            self._must_plan = True
            return
        if event.node not in self.gpus.cluster.node_numbers:
            self.dropped_reports += 1
            return
        if isinstance(event, NodeObserved):
            self._observe(event)
            return
        lost = isinstance(event, NodeLost)
        rows = self.gpus.close(event.node, lost)
        for row in rows:
            if row in self._pending:
                self._withdraw(row)
            elif lost or (isinstance(event, NodeDraining) and event.evict):
                self._evict(row, StopWhy.NODE_LOST if lost else StopWhy.DRAINED)
        self._must_plan = True

    def _observe(self, event: NodeObserved) -> None:
        """Compare what runs on a node with what should; both kinds of difference are stopped."""
        for job, attempt in event.alive:
            row = self.jobs.rows.get(job, -1)
            if row < 0 or self.jobs.attempt[row] != attempt or STATES[self.jobs.state[row]] not in ALIVE:
                self._strays.append((job, attempt))
        alive = set(event.alive)
        for row in self.gpus.on_node(event.node):
            known = (self.jobs.specs[row].id, int(self.jobs.attempt[row]))
            # An attempt that is still coming up need not be there yet.
            if STATES[self.jobs.state[row]] is RUNNING and known not in alive:
                self._evict(row, StopWhy.NODE_LOST)
                self._must_plan = True

    def _evict(self, row: int, why: StopWhy) -> None:
        if STATES[self.jobs.state[row]] in (LAUNCHING, RUNNING) and row not in self.evicted:
            self.evicted[row] = why

    def _withdraw(self, row: int) -> None:
        """GPUs that were set aside for a job are not, any more."""
        del self._pending[row]
        self.gpus.drop(row)
        if STATES[self.jobs.state[row]] is PLACED:
            self._move(row, _WITHDRAW)

    # -------------------------------------------------------------- settings

    def _settings(self, event: SettingsChanged) -> None:
        if event.policy is not None:
            self._choose_policy(event.policy, event.settings)
        elif event.settings:
            self._choose_policy(self.policy_name, {**self.policy_settings, **event.settings})
        self.queues.configure(event.queues)
        self._must_plan = True

    def _choose_policy(self, name: str, settings: Mapping[str, str]) -> None:
        self.policy = self._make_policy(name, settings)
        self.policy_name, self.policy_settings = name, dict(settings)
        self._remember({"scalars": {}})

    def _remember(self, contents: Mapping[str, Any]) -> None:
        """Give the policy a memory that holds this."""
        self.memory = Memory(self.policy.memory, len(self.gpus.cluster.gpu_types))
        self.memory.restore(contents)

    # ------------------------------------------------------------- retirement

    def retires(self, before_s: float) -> bool:
        """Whether any job would leave, of those that ended before a moment."""
        return len(self.jobs.long_over(before_s)) > 0

    def _retire(self, before_s: float) -> None:
        """Go on as an engine that never had those jobs, but for what policies learnt from them."""
        gone = self.jobs.long_over(before_s)
        if not len(gone):
            return
        past = self.jobs.past.joined_by(self.jobs, gone)
        state = Retirement.of(self.jobs, gone).without(self.state(), self.policy.memory)
        self._begin(self.gpus.cluster, ())
        self._stand({**state, "past": past.state()})
        # The policy itself is as it was: it might not be made again, if a file of its settings is gone.
        self._remember(state["memory"])

    # -------------------------------------------------------------- decisions

    def due(self, now_s: float) -> bool:
        """Whether a decision at this time could change anything."""
        if self._must_plan or now_s >= self.wake_s or self.evicted or self._strays or self.apps.has_news:
            return True
        return self._vacated and bool(self._pending)

    def decide(self, now_s: float) -> Decided:
        """Plan if there is reason to, and say what has to be done. The record comes before the deed."""
        self.now_s = max(self.now_s, now_s)
        given_up, turns = self.apps.ask(self.now_s) if self.apps.has_news else ((), ())
        self._fold_apps(given_up, turns)
        evictions = self._evictions()
        for stop in evictions:
            self._fold_stop(stop)
        if self._must_plan or self.now_s >= self.wake_s:
            record = self._plan(evictions)
        else:
            record = Decided(self.now_s, False, stops=evictions, launches=self._launches((), ()), wake_s=self.wake_s)
        if given_up or turns:
            record = replace(record, given_up=given_up, turns=turns)
        self._fold(record, skip_stops=len(evictions))
        return record

    def _evictions(self) -> tuple[Stop, ...]:
        if not self.evicted and not self._strays:
            return ()
        strays = tuple(Stop(job, attempt, StopWhy.STRAY) for job, attempt in self._strays)
        return tuple(self._stop(row, why) for row, why in self.evicted.items()) + strays

    def _stop(self, row: int, why: StopWhy, by: int = -1, reason: int = _NOT_WAITING) -> Stop:
        taker = self.jobs.specs[by].id if by >= 0 else ""
        return Stop(self.jobs.specs[row].id, int(self.jobs.attempt[row]), why, taker, reason)

    def _plan(self, evictions: tuple[Stop, ...]) -> Decided:
        """Ask the policy, place its wishes, and write the difference down as a record."""
        jobs = self.jobs
        self.memory.fit(len(jobs), len(jobs.gpu_types))
        snapshot = self.snapshot()
        wishes = self.policy.plan(snapshot, self.memory)
        writes = self.memory.drain()
        plan = self._placement.fit(snapshot, wishes)
        moved = {placement.row for placement in plan.placed} if plan.stopped else set()
        withdrawn = tuple(row for row, _ in plan.stopped if row in self._pending)
        reasons = dict(zip(plan.reason_rows.tolist(), plan.reason_codes.tolist(), strict=True)) if plan.stopped else {}
        stops = tuple(
            self._stop(row, _MOVED if row in moved else _PREEMPTED, by, reasons.get(row, _NOT_WAITING))
            for row, by in plan.stopped
            if row not in self._pending
        )
        leased = (*plan.renewed, *(placement.row for placement in plan.placed))
        wake_s = self._next_wake(wishes, plan)
        return Decided(
            at_s=self.now_s,
            planned=True,
            stops=evictions + stops,
            withdrawn=tuple(jobs.specs[row].id for row in withdrawn),
            placed=tuple(Placed(jobs.specs[one.row].id, one.gpu_ids, one.span) for one in plan.placed if not one.ready),
            launches=self._launches(plan.placed, withdrawn),
            leased=leased if wishes.lease_until_s > self.now_s else (),
            lease_until_s=wishes.lease_until_s if wishes.lease_until_s > self.now_s else 0.0,
            reason_rows=plan.reason_rows,
            reason_codes=plan.reason_codes,
            evidence=self._evidence(snapshot, wishes, plan, wake_s),
            memory=writes,
            asks=wishes.asks,
            unanswered=self.talk.unanswered(self.now_s),
            wake_s=wake_s,
            heed_starts=wishes.heed_starts,
        )

    def _evidence(self, now: Snapshot, wishes: Wishes, plan: Plan, wake_s: float) -> Evidence:
        """What the reasons of those that wait rest on."""
        cluster, gone = self.gpus.cluster, {row for row, _ in plan.stopped}
        has = {row: gpu_ids for row, gpu_ids in self.gpus.held.items() if row not in gone}
        has |= {one.row: one.gpu_ids for one in plan.placed}
        if len(has) >= len(self.jobs.active):
            # Nobody waits: there is nothing to be told.
            return Evidence(self.now_s, plan.node_free)
        rows = np.array(list(has), np.int64)
        kind = cluster.gpu_type[[gpu_ids[0] for gpu_ids in has.values()]] if has else rows
        gpus = np.array([len(gpu_ids) for gpu_ids in has.values()], np.int64)
        taken = list({gpu for gpu_ids in has.values() for gpu in gpu_ids})
        kinds = len(cluster.gpu_types)
        measured = np.bincount(kind, now.measured(wishes.measure, rows), kinds) if wishes.measure else np.empty(0)
        return Evidence(
            at_s=self.now_s,
            node_free=plan.node_free,
            head=self.jobs.specs[plan.head].id if plan.head >= 0 else "",
            jobs_by_type=tuple(np.bincount(kind, minlength=kinds).tolist()),
            gpus_by_type=tuple(np.bincount(cluster.gpu_type[taken], minlength=kinds).tolist()),
            measure=wishes.measure,
            measured_by_type=tuple(measured.tolist()),
            queue_used=self._queue_use(rows, gpus) if self.queues.has_maximum else (),
            again_s=wake_s,
            unprotected_s=plan.unprotected_s,
        )

    def _queue_use(self, rows: Any, gpus: Any) -> tuple[int, ...]:
        """GPUs of each queue and all below it, if these rows have so many."""
        use = QueueUse(self.queues)
        for row, count in zip(rows.tolist(), gpus.tolist(), strict=True):
            use.add(int(self.jobs.queue[row]), count)
        return use.used

    def snapshot(self) -> Snapshot:
        """What a policy is shown_columns; valid until the next event or decision."""
        rows, flat = self._candidates(), self._placement.flat
        return Snapshot(self.now_s, rows, self.jobs, self.gpus, self.queues, flat, self.talk)

    def fork(self) -> Engine:
        """An engine of its own that stands where this one does, to ask what it would decide if things were otherwise.

        What never changes is shared; so are speeds, unless they are learnt.
        """
        shared: list[object] = [self.gpus.cluster, self._given, *self.jobs.specs]
        if not self._lessons.wanted:
            shared.append(self._speeds)
        return deepcopy(self, {id(one): one for one in shared})

    def _candidates(self) -> Any:
        """Active rows, less those that their apps pause and those whose launch failed a moment ago."""
        active = self.apps.less_paused(self.jobs.active)
        if not self._backoff:
            return active
        later = [row for row, until_s in self._backoff.items() if until_s > self.now_s]
        return active[~np.isin(active, later)] if later else active

    def _next_wake(self, wishes: Wishes, plan: Plan) -> float:
        retries = [until_s for until_s in self._backoff.values() if until_s > self.now_s]
        wake_s = (
            min(float(wishes.wake_s), plan.unprotected_s, *retries)
            if retries
            else min(float(wishes.wake_s), plan.unprotected_s)
        )
        if plan.stopped and len(wishes.wake_if_stopped_s):
            stopped = np.isin(wishes.job, [row for row, _ in plan.stopped])
            wake_s = min(wake_s, float(np.min(wishes.wake_if_stopped_s, where=stopped, initial=np.inf)))
        assert wake_s > self.now_s, f"{self.policy_name} wants to be woken at {wake_s}, now is {self.now_s}"
        return wake_s

    def _launches(self, placed: tuple[Placement, ...], withdrawn: tuple[int, ...]) -> tuple[Launch, ...]:
        """Launches that can go out now: those just placed, and those whose last GPU came free."""
        ready = [self._launch(one.row, one.gpu_ids, one.span) for one in placed if one.ready]
        for row, span in self._pending.items():
            if row not in withdrawn and STATES[self.jobs.state[row]] is PLACED and self.gpus.vacant(row):
                ready.append(self._launch(row, self.gpus.held[row], span))
        return tuple(ready)

    def _launch(self, row: int, gpu_ids: tuple[int, ...], span: Span) -> Launch:
        jobs = self.jobs
        done = float(jobs.work[row] - jobs.work_left[row])
        report_at = self.apps.report_at(row, done)
        return Launch(jobs.specs[row].id, int(jobs.attempt[row]) + 1, gpu_ids, span, done, report_at)

    # ---------------------------------------------------------------- folding

    def _fold_apps(self, given_up: tuple[GivenUp, ...], turns: tuple[tuple[int, int], ...]) -> None:
        """Trials that their apps gave up are cancelled before anything else is decided."""
        for one in given_up:
            row = self.jobs.rows[one.job]
            self.apps.given_up[row] = one.why
            state = STATES[self.jobs.state[row]]
            to = after(state, Move.CANCEL)
            assert to is not None, f"row {row}, which is {state.name}, is given up"
            self._rest(row, state, to, StopWhy.GIVEN_UP)
        for row, turn in turns:
            self._fold_turn(row, turn)

    def _fold_turn(self, row: int, turn: int) -> None:
        """A trial that its app pauses loses its GPUs, or its claim to some, and is no candidate until it may go on."""
        jobs, before = self.jobs, int(self.jobs.turn[row])
        jobs.turn[row] = turn
        if (turn < 0) == (before < 0) or STATES[jobs.state[row]] in (*ENDED, CANCELLING):
            return
        self._must_plan = True
        if STATES[jobs.state[row]] not in (HELD, HOLDING):
            jobs.reason[row] = int(self._reason_to_wait(row))
        if turn < 0 and row in self._pending:
            self._withdraw(row)
        if turn < 0:
            self._evict(row, StopWhy.PAUSED)

    def _fold(self, record: Decided, skip_stops: int = 0) -> None:
        """Make a decision true. Live, simulated and recovering engines all pass through here."""
        jobs = self.jobs
        for stop in record.stops[skip_stops:]:
            self._fold_stop(stop)
        for job in record.withdrawn:
            self._withdraw(jobs.rows[job])
        for placed in record.placed:
            self._fold_placed(placed)
        for launch in record.launches:
            self._fold_launch(launch)
        for row in record.leased:
            jobs.lease_until_s[row] = record.lease_until_s
            jobs.protected_until_s[row] = max(jobs.protected_until_s[row], record.lease_until_s)
        self.evicted.clear()
        self._strays.clear()
        self._vacated = False
        self.apps.settle()
        self.wake_s = record.wake_s
        if record.planned:
            self._fold_planned(record)

    def _fold_planned(self, record: Decided) -> None:
        self._must_plan = False
        self._heed_starts = record.heed_starts
        self.talk.settle(record.asks)
        if self._backoff:
            self._backoff = {row: until_s for row, until_s in self._backoff.items() if until_s > record.at_s}
        self.jobs.reason[record.reason_rows] = record.reason_codes
        self.evidence = record.evidence
        if record.memory:
            self.memory.fit(len(self.jobs), len(self.jobs.gpu_types))
            for write in record.memory:
                self.memory.apply(write)
            self.memory.drain()

    def _move(self, row: int, move: Move) -> None:
        """A move that the engine itself makes; the table of legal moves must have it."""
        state = STATES[self.jobs.state[row]]
        to = after(state, move)
        assert to is not None, f"{move.name} is not legal for row {row}, which is {state.name}"
        self.jobs.state[row] = int(to)

    def _fold_stop(self, stop: Stop) -> None:
        if stop.why is _STRAY:
            return
        jobs, row = self.jobs, self.jobs.rows[stop.job]
        state = STATES[jobs.state[row]]
        jobs.settle(row, self.now_s)
        if state in ALIVE:
            self._set_speed_beside(row)
        if state in (LAUNCHING, RUNNING):
            self._move(row, _STOP)
            jobs.waiting_since_s[row] = self.now_s
            jobs.preemptions[row] += stop.why in _BY_POLICY
        self._stopped[row] = stop
        self.gpus.drop(row)

    def _fold_placed(self, placed: Placed) -> None:
        row = self.jobs.rows[placed.job]
        self.gpus.hold(row, placed.gpu_ids)
        self._pending[row] = placed.span
        if STATES[self.jobs.state[row]] is WAITING:
            self._move(row, _PLACE)

    def _fold_launch(self, launch: Launch) -> None:
        jobs, row = self.jobs, self.jobs.rows[launch.job]
        if self._pending.pop(row, None) is None:
            self.gpus.hold(row, launch.gpu_ids)
        self.gpus.occupy(row)
        self._move(row, _LAUNCH)
        jobs.reason[row] = _NOT_WAITING
        jobs.attempt[row] = launch.attempt
        jobs.last_type[row] = self.gpus.cluster.gpu_type[launch.gpu_ids[0]]
        jobs.launched_s[row] = self.now_s
        jobs.protected_until_s[row] = max(jobs.lease_until_s[row], self.now_s + jobs.min_runtime_s[row])
        self._launched[row] = launch

    def standing(self) -> ClusterStatus:
        """Where everything stands, for people to look at while the engine goes on."""
        gpus, queues = self.gpus, self.queues
        return ClusterStatus(
            now_s=self.now_s,
            columns=shown_columns(self.jobs),
            rates=self.jobs.rates[: len(self.jobs)].copy(),
            cluster=gpus.cluster,
            open_by_type=gpus.open_by_type,
            nodes=gpus.nodes(),
            node_up=tuple(gpus.node_up),
            node_draining=tuple(gpus.node_draining),
            occupied=dict(gpus.occupied),
            held=dict(gpus.held),
            evidence=self.evidence,
            retry_s=dict(self._backoff),
            given_up=dict(self.apps.given_up),
            queue_paths=tuple(queues.paths),
            queue_parents=tuple(queues.columns()[0].tolist()),
            queues={queue.path: queue for queue in queues.configured},
            agents=tuple(self.talk.agents),
            asks=tuple(ask for ask in self.talk.asked.values() if ask.app not in self.talk.answers),
            policy=self.policy_name,
            settings=self.policy_settings,
            _specs=self.jobs.specs,
            _rows=self.jobs.rows,
        )

    @property
    def learnt(self) -> dict[Setting, float]:
        """Steps/s that running jobs have taught."""
        return self._lessons.learnt

    @property
    def retries(self) -> bool:
        """Whether a job that failed is to be tried again."""
        return bool(self._backoff)

    # ------------------------------------------------------------ restarting

    def outstanding(self) -> tuple[Stop | Launch, ...]:
        """Commands that were decided and not yet answered: a driver that restarts performs them again.

        Performing a command twice must be harmless; the attempt number tells a backend
        that it has done so already.
        """
        again: list[Stop | Launch] = []
        for row in sorted(self.gpus.occupied):
            if row in self._stopped:
                again.append(self._stopped[row])
            elif row not in self.evicted:
                again.append(self._launched[row])
        return tuple(again)

    def state(self) -> dict[str, Any]:
        """Everything the engine knows, as plain values and columns: for checkpoints and comparison."""
        return {
            "now_s": self.now_s,
            "wake_s": self.wake_s,
            "policy": (self.policy_name, self.policy_settings),
            "specs": tuple(self.jobs.specs),
            "jobs": self.jobs.columns(),
            "active": self.jobs.active.copy(),
            "gpus": self.gpus.state(),
            "pending": dict(self._pending),
            "evicted": dict(self.evicted),
            "strays": list(self._strays),
            "backoff": dict(self._backoff),
            "launched": dict(self._launched),
            "stopped": dict(self._stopped),
            "must_plan": self._must_plan,
            "heed_starts": self._heed_starts,
            "vacated": self._vacated,
            "dropped_reports": self.dropped_reports,
            "past": self.jobs.past.state(),
            "learnt": tuple(self.learnt.items()),
            "measured_from": dict(self._lessons.measured_from),
            "queue_paths": tuple(self.queues.paths),
            "queues": self.queues.configured,
            "apps": self.apps.state(),
            "talk": self.talk.state(),
            "memory": self.memory.contents(len(self.jobs)),
            "evidence": self.evidence and asdict(self.evidence),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Stand where the engine stood whose `state` this is; only for an engine to which nothing has happened.

        What is not part of the state comes from this engine's own start: placement, speeds that were
        given or estimated, and how policies are made.
        """
        assert not self.jobs.specs, f"an engine with {len(self.jobs)} jobs cannot take another's state"
        self._stand(state)
        self._choose_policy(*state["policy"])
        self._remember(state["memory"])

    def _stand(self, state: Mapping[str, Any]) -> None:
        """Take over everything but the policy and its memory."""
        self.now_s, self.wake_s = state["now_s"], state["wake_s"]
        self.queues.restore(state["queue_paths"], state["queues"])
        self.gpus.restore(state["gpus"])
        self._lessons.restore(state["learnt"], state["measured_from"])
        self.jobs.restore(self.gpus.cluster.gpu_types, state["specs"], state["jobs"], state["active"])
        self.apps.restore(state["apps"])
        if "past" in state:
            self.jobs.past = RetiredJobs.restored(state["past"])
        if "talk" in state:
            self.talk.restore(state["talk"])
        self._pending, self._backoff = dict(state["pending"]), dict(state["backoff"])
        self.evicted, self._strays = dict(state["evicted"]), list(state["strays"])
        self._launched, self._stopped = dict(state["launched"]), dict(state["stopped"])
        self._must_plan, self._heed_starts = state["must_plan"], state["heed_starts"]
        self._vacated, self.dropped_reports = state["vacated"], state["dropped_reports"]
        self.evidence = Evidence(**state["evidence"]) if state.get("evidence") else None
