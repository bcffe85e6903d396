"""The scheduler as a deterministic state machine: events in, commands out.

`apply` folds one event into the state; `decide` plans, once for all the events of
an instant. The engine does no I/O, reads no clock and cannot tell a simulation
from a live cluster. A decision is a record (`Decided`); folding a journal of events
and decisions gives the same state again, without asking any policy.

The cycle of a decision:

1. Apps with news are asked: trials that they give up or pause leave the line.
2. Attempts that must go whatever the policy says are stopped. Jobs whose GPUs are yet to be vacated start on others
   that came free sooner.
3. If there is reason to plan: the policy sees a snapshot and says its wishes,
4. the placement rule turns the wishes into GPUs,
5. and the difference to what is becomes the record.
6. The record is folded into the state, like one read from a journal.

What events do to jobs and attempts is in `lifecycle.py`; what the engine knows is declared in `state.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from horae.core.apps import AppBook
from horae.core.arrays import Ints
from horae.core.bidding import Bidding
from horae.core.cluster import Cluster, Span
from horae.core.commands import BY_POLICY, Decided, Evidence, GivenUp, Launch, Placed, Stop, StopWhy
from horae.core.events import (
    BY_ORPHANS,
    AgentChanged,
    AttemptReport,
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
    JobTimedOut,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    NumbersRaised,
    SettingsChanged,
)
from horae.core.evidence import EvidenceBasis
from horae.core.gpu_ledger import GpuLedger
from horae.core.job_table import JobTable
from horae.core.lifecycle import Lifecycle
from horae.core.memory import Memory
from horae.core.node_room import LaunchRoom, NodeRoom, could_run_out, gpus_with_room, room_of
from horae.core.plan import Placement, PlacementRule, Plan
from horae.core.policy import Policy
from horae.core.queues import Queue, QueueTree
from horae.core.reasons import Reason
from horae.core.retirement import Retirement
from horae.core.snapshot import Snapshot
from horae.core.speed_learning import LEAST_MEASURED_S, SpeedLearner
from horae.core.state import EngineState
from horae.core.states import (
    ALIVE,
    ENDED,
    ENDING,
    HELD,
    HOLDING,
    LAUNCHING,
    PLACED,
    RUNNING,
    STATES,
    WAITING,
    Move,
    after,
)
from horae.core.status import ClusterStatus
from horae.core.throughputs import Setting, Speeds, Throughputs
from horae.core.wishes import Wishes

_NOT_WAITING, _OVER_QUOTA = int(Reason.NONE), int(Reason.OVER_QUOTA)
_PREEMPTED, _MOVED = BY_POLICY

PolicyMaker = Callable[[str, Mapping[str, str]], Policy]


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
        #: Speeds known before anything happened, whether others are learnt, and over how many seconds at least.
        self._given, self._learning = throughputs or Throughputs(), (learn, least_measured_s)
        self._set_state(self._empty_state(cluster, queues))
        self._choose_policy(policy, settings)

    def _empty_state(self, cluster: Cluster, queues: Iterable[Queue]) -> EngineState:
        """No jobs, and nothing known of any."""
        tree = QueueTree(queues)
        self._speeds = Speeds(self._given.copy() if self._learning[0] else self._given)
        jobs = JobTable(cluster.gpu_types, self._speeds, tree)
        return EngineState(
            jobs, GpuLedger(cluster), tree, AppBook(jobs), Bidding(), SpeedLearner(jobs, *self._learning)
        )

    def _set_state(self, state: EngineState) -> None:
        self._state = state
        self._life = Lifecycle(state)

    # ------------------------------------------------------ what is known now

    @property
    def now_s(self) -> float:
        """The engine's time, which never runs backwards."""
        return self._state.now_s

    @property
    def wake_s(self) -> float:
        """When the next decision is due even if nothing happens."""
        return self._state.wake_s

    @property
    def jobs(self) -> JobTable:
        """The jobs, as columns."""
        return self._state.jobs

    @property
    def gpus(self) -> GpuLedger:
        """Who has which GPU."""
        return self._state.gpus

    @property
    def queues(self) -> QueueTree:
        """The queue tree."""
        return self._state.queues

    @property
    def apps(self) -> AppBook:
        """Apps with a scheduler of their own."""
        return self._state.apps

    @property
    def bidding(self) -> Bidding:
        """Apps with an agent of their own, and the bids asked for and given."""
        return self._state.bidding

    @property
    def memory(self) -> Memory:
        """What the policy remembers."""
        return self._state.memory

    @property
    def evicted(self) -> dict[int, StopWhy]:
        """Rows whose attempt must stop whatever the policy says."""
        return self._state.evicted

    @property
    def dropped_reports(self) -> int:
        """Reports that came from an older attempt, or twice, and were ignored."""
        return self._state.dropped_reports

    @property
    def flat(self) -> bool:
        """Whether the placement rule goes by the GPU count alone."""
        return self._placement.flat

    @property
    def policy_name(self) -> str:
        """Name of the policy that decides."""
        return self._state.policy[0]

    @property
    def policy_settings(self) -> dict[str, str]:
        """Its settings, as they were given."""
        return self._state.policy[1]

    @property
    def evidence(self) -> Evidence | None:
        """What the reasons of the last decision rest on; derived when it is first asked for."""
        return self._state.resolve_evidence()

    @property
    def learnt(self) -> dict[Setting, float]:
        """Steps/s that running jobs have taught."""
        return self._state.learner.learnt

    @property
    def job_number_floor(self) -> int:
        """The next job has a number above this one."""
        return self._state.job_number_floor

    @property
    def attempt_floors(self) -> dict[int, int]:
        """Rows of which the journal may have lost attempts, and the highest number that these can have."""
        return self._state.attempt_floors

    @property
    def retries(self) -> bool:
        """Whether a job that failed is to be tried again."""
        return bool(self._state.backoff)

    # ---------------------------------------------------------------- events

    def apply(self, event: Event | Decided) -> None:
        """Fold one event, or a recorded decision, into the state."""
        if event.at_s > self._state.now_s:
            self._state.now_s = event.at_s
        match event:
            case JobSubmitted():
                self._life.submit(event)
            case JobStarted() | LaunchFailed() | JobProgressed() | JobStopped() | JobFinished() | JobFailed():
                self._life.report(event)
            case Decided():
                self._fold_apps(event.given_up, event.turns)
                self._fold(event)
                if event.planned:
                    self._state.evidence, self._state.evidence_basis = event.evidence, None
            case JobCancelled() | JobHeld() | JobReleased() | JobTimedOut():
                self._life.request(event)
            case NodeJoined() | NodeLost() | NodeDraining() | NodeObserved():
                self._life.node(event)
            case SettingsChanged():
                self._change_settings(event)
            case AgentChanged():
                self._life.change_agent(event.app, event.present)
            case BidReceived():
                self._life.receive_bid(event)
            case JobsRetired():
                self._retire(event.before_s)
            case NumbersRaised():
                self._raise_numbers(event)
            case _:
                assert_never(event)

    def _raise_numbers(self, event: NumbersRaised) -> None:
        """Numbers that may have been used are not given again, and nodes that may be in use take no jobs."""
        state, jobs = self._state, self._state.jobs
        state.job_number_floor = max(state.job_number_floor, event.job_number)
        for row in range(len(jobs)):
            if STATES[jobs.state[row]] not in ENDED:
                state.attempt_floors[row] = max(state.attempt_floors.get(row, 0), event.attempt)
        for node in self.gpus.cluster.nodes:
            if node.name not in self.gpus.closed_by:
                self._life.node(NodeDraining(event.at_s, node.name, by=BY_ORPHANS))

    def would_change(self, report: AttemptReport) -> bool:
        """Whether a report would change anything: it is of a living attempt, and says what is not known yet."""
        row = self._life.row_of(report)
        return row >= 0 and (not isinstance(report, JobStarted) or self._life.starts(row, report))

    def advance(self, now_s: float) -> None:
        """Let time pass without an event; never backwards."""
        self._state.now_s = max(self._state.now_s, now_s)

    def _change_settings(self, event: SettingsChanged) -> None:
        if event.policy is not None:
            self._choose_policy(event.policy, event.settings)
        elif event.settings:
            self._choose_policy(self.policy_name, {**self.policy_settings, **event.settings})
        self.queues.configure(event.queues, event.limits)
        if event.limits:
            self.jobs.find_quotas()
        if event.unknown_queues is not None:
            self._state.unknown_queues = event.unknown_queues
        self._state.must_plan = True

    def _choose_policy(self, name: str, settings: Mapping[str, str]) -> None:
        self.policy = self._make_policy(name, settings)
        self._state.policy = (name, dict(settings))
        self._remember({"scalars": {}})

    def _remember(self, contents: Mapping[str, Any]) -> None:
        """Give the policy a memory that holds this."""
        self._state.memory = Memory(self.policy.memory, len(self.gpus.cluster.gpu_types))
        self._state.memory.restore(contents)

    def retires(self, before_s: float) -> bool:
        """Whether any job would leave that ended before a moment."""
        return len(self.jobs.long_over(before_s)) > 0

    def _retire(self, before_s: float) -> None:
        """Go on as an engine that never had these jobs, but for what policies learnt from them."""
        gone = self.jobs.long_over(before_s)
        if not len(gone):
            return
        past = self.jobs.past.joined_by(self.jobs, gone)
        contents = Retirement.of(self.jobs, gone).without(self.contents(), self.policy.memory)
        self._set_state(self._empty_state(self.gpus.cluster, ()))
        self._state.restore({**contents, "past": past.contents()})
        # The policy itself stays as it is.
        self._remember(contents["memory"])

    # -------------------------------------------------------------- decisions

    def due(self, now_s: float) -> bool:
        """Whether a decision at this time could change anything."""
        state = self._state
        if not state.gpus.cluster.nodes:
            return False
        if state.must_plan or now_s >= state.wake_s or state.evicted or state.strays or state.apps.has_news:
            return True
        return state.vacated and bool(state.pending)

    def decide(self, now_s: float) -> Decided:
        """Plan if there is reason to, and say what has to be done. The record comes before the deed.

        The record carries no evidence: `with_evidence` adds it for a journal.
        """
        state = self._state
        state.now_s = now_s = max(state.now_s, now_s)
        # 1. Apps with news.
        given_up, turns = state.apps.ask(now_s) if state.apps.has_news else ((), ())
        self._fold_apps(given_up, turns)
        # 2. Attempts that must go.
        evictions = self._evictions()
        for stop in evictions:
            self._fold_stop(stop)
        # 3 to 5. The plan.
        basis: EvidenceBasis | None = None
        elsewhere = self._launches_elsewhere() if state.pending else ()
        if elsewhere:
            # What these jobs leave is planned with in the next decision.
            launches, withdrawn = self._launches((), ()), tuple([launch.job for launch in elsewhere])
            record = Decided(
                now_s, False, (), (), evictions, withdrawn, launches=(*elsewhere, *launches), wake_s=state.wake_s
            )
        elif state.must_plan or now_s >= state.wake_s:
            record, basis = self._plan(evictions)
        else:
            record = Decided(now_s, False, stops=evictions, launches=self._launches((), ()), wake_s=state.wake_s)
        if given_up or turns:
            record = replace(record, given_up=given_up, turns=turns)
        # 6. The record becomes the state.
        self._fold(record, skip_stops=len(evictions))
        if basis is not None:
            state.evidence, state.evidence_basis = None, basis
        return record

    def with_evidence(self, record: Decided) -> Decided:
        """The last decision's record with its evidence, as a journal stores it; before anything else happens."""
        return replace(record, evidence=self.evidence) if record.planned else record

    def _evictions(self) -> tuple[Stop, ...]:
        state = self._state
        if not state.evicted and not state.strays:
            return ()
        strays = tuple(Stop(job, attempt, StopWhy.STRAY) for job, attempt in state.strays)
        return tuple(self._stop(row, why) for row, why in state.evicted.items()) + strays

    def _stop(self, row: int, why: StopWhy, by: int = -1, reason: int = _NOT_WAITING) -> Stop:
        specs = self.jobs.specs
        return Stop(specs[row].id, int(self.jobs.attempt[row]), why, specs[by].id if by >= 0 else "", reason)

    def _plan(self, evictions: tuple[Stop, ...]) -> tuple[Decided, EvidenceBasis]:
        """Ask the policy, place its wishes, and write the difference down as a record."""
        state, jobs, now_s = self._state, self._state.jobs, self._state.now_s
        # 3. The policy's wishes.
        state.memory.fit(len(jobs), len(jobs.gpu_types))
        snapshot = self.snapshot()
        wishes = self.policy.plan(snapshot, state.memory)
        wishes.check_lengths()
        writes = state.memory.drain()
        # 4. GPUs for the wishes.
        plan = self._placement.fit(snapshot, wishes)
        # 5. The difference, as a record.
        withdrawn = tuple([row for row, _ in plan.stopped if row in state.pending])
        leased = wishes.lease_until_s > now_s
        wake_s = self._next_wake(wishes, plan)
        record = Decided(
            at_s=now_s,
            planned=True,
            stops=evictions + self._stops(plan) if plan.stopped else evictions,
            withdrawn=tuple([jobs.specs[row].id for row in withdrawn]),
            placed=tuple(
                [Placed(jobs.specs[new.row].id, new.gpu_ids, new.span) for new in plan.placed if not new.ready]
            ),
            launches=self._launches(plan.placed, tuple([row for row, _ in plan.stopped])),
            leased=(*plan.renewed, *(new.row for new in plan.placed)) if leased else (),
            lease_until_s=wishes.lease_until_s if leased else 0.0,
            reason_rows=plan.reason_rows,
            reason_codes=plan.reason_codes,
            memory=writes,
            asks=wishes.asks,
            unanswered=state.bidding.unanswered(now_s),
            wake_s=wake_s,
            heed_starts=wishes.wake_on_start,
        )
        return record, self._basis(wishes, plan, wake_s)

    def _stops(self, plan: Plan) -> tuple[Stop, ...]:
        """Stops of the rows that lose their GPUs, with the reason why each then waits."""
        moved = {placement.row for placement in plan.placed}
        reasons = dict(zip(plan.reason_rows.tolist(), plan.reason_codes.tolist(), strict=True))
        stops = []
        for row, by in plan.stopped:
            if row not in self._state.pending:
                reason = reasons.get(row, _NOT_WAITING)
                taker = self._quota_taker(row, plan) if by < 0 and reason == _OVER_QUOTA else by
                stops.append(self._stop(row, _MOVED if row in moved else _PREEMPTED, taker, reason))
        return tuple(stops)

    def _quota_taker(self, row: int, plan: Plan) -> int:
        """The job that gets GPUs which the queue or user of another may no longer have; -1 if none does."""
        quota = self.jobs.quota
        for new in plan.placed:
            if new.row != row and self.queues.share_maximum(int(quota[row]), int(quota[new.row])):
                return new.row
        return -1

    def _basis(self, wishes: Wishes, plan: Plan, wake_s: float) -> EvidenceBasis:
        """What the decision knows that the state will not hold."""
        state = self._state
        holders = len(state.gpus.held) - len(plan.stopped) + len(plan.placed)
        head = state.jobs.specs[plan.head].id if plan.head >= 0 else ""
        some_wait = holders < len(state.jobs.active)
        reserve_after_s = 0.0 if wishes.blocking else wishes.reserve_after_s
        return EvidenceBasis(
            state.now_s,
            some_wait,
            head,
            wishes.compared_by,
            wake_s,
            plan.unprotected_s,
            reserve_after_s,
            plan.kept,
        )

    def snapshot(self) -> Snapshot:
        """What a policy is shown; valid until the next event or decision."""
        state = self._state
        return Snapshot(
            state.now_s, self._candidates(), state.jobs, state.gpus, state.queues, self._placement.flat, state.bidding
        )

    def fork(self) -> Engine:
        """An independent engine in the same state, to ask what it would decide if things were otherwise.

        What never changes is shared; so are speeds, unless they are learnt.
        """
        shared: list[object] = [self.gpus.cluster, self._given, *self.jobs.specs]
        if not self._state.learner.wanted:
            shared.append(self._speeds)
        return deepcopy(self, {id(thing): thing for thing in shared})

    def _candidates(self) -> Ints:
        """Active rows without trials that their apps pause and jobs that back off after a failure."""
        state = self._state
        active = state.apps.less_paused(state.jobs.active)
        if not state.backoff:
            return active
        later = [row for row, until_s in state.backoff.items() if until_s > state.now_s]
        return active[~np.isin(active, later)] if later else active

    def _next_wake(self, wishes: Wishes, plan: Plan) -> float:
        now_s, wake_s = self._state.now_s, min(float(wishes.wake_s), plan.unprotected_s)
        if self._state.backoff:
            wake_s = min([wake_s, *(until_s for until_s in self._state.backoff.values() if until_s > now_s)])
        if plan.stopped and len(wishes.wake_if_stopped_s):
            stopped = np.isin(wishes.job, [row for row, _ in plan.stopped])
            wake_s = min(wake_s, float(np.min(wishes.wake_if_stopped_s, where=stopped, initial=np.inf)))
        assert wake_s > now_s, f"{self.policy_name} wants to be woken at {wake_s}, now is {now_s}"
        return wake_s

    def _launches(self, placed: tuple[Placement, ...], stopped: tuple[int, ...]) -> tuple[Launch, ...]:
        """Launches that can go out now: of jobs just placed, and of jobs whose last GPU came free.

        A job that is stopped in this decision sits on its GPUs until it has ended, even if another shared them.
        """
        state = self._state
        ready = [self._launch(new.row, new.gpu_ids, new.span) for new in placed if new.ready]
        room = self._launch_room(placed) if state.pending else None
        for row, span in state.pending.items():
            if row in stopped or STATES[state.jobs.state[row]] is not PLACED or not state.gpus.vacant(row):
                continue
            if stopped and state.gpus.has_occupant(row, stopped):
                continue
            if room is None or room.take(row, state.gpus.held[row]):
                ready.append(self._launch(row, state.gpus.held[row], span))
        return tuple(ready)

    def _launch_room(self, placed: tuple[Placement, ...]) -> LaunchRoom | None:
        """CPUs and memory that no process uses, beside the jobs that are launched now; None if they cannot run out."""
        if not could_run_out(self.jobs, self.gpus):
            return None
        room = LaunchRoom(self.jobs, self.gpus)
        for new in placed:
            if new.ready:
                room.take(new.row, new.gpu_ids)
        return room

    def _launches_elsewhere(self) -> tuple[Launch, ...]:
        """Launches of jobs whose GPUs are yet to be vacated on others that came free sooner and are as good."""
        state, machines = self._state, self.gpus.cluster.machines(self._placement.flat)
        launches: list[Launch] = []
        taken: list[int] = []
        room = room_of(state.jobs, state.gpus)
        for row, span in state.pending.items():
            if STATES[state.jobs.state[row]] is PLACED and not state.gpus.vacant(row):
                limit = None if room is None else self._gpus_with_idle_room(row, room)
                gpu_ids = state.gpus.idle_like(row, span, machines, taken, int(state.jobs.nodes[row]), limit)
                if gpu_ids:
                    launches.append(self._launch(row, gpu_ids, machines.span(gpu_ids)))
                    taken += gpu_ids
                    if room is not None:
                        # What is left beside this job is counted anew in the next decision.
                        break
        return tuple(launches)

    def _gpus_with_idle_room(self, row: int, room: NodeRoom) -> Ints:
        """For how many GPUs of a job each node has CPUs and memory that no job has or uses."""
        cpus, memory_mb = room.asks[:, row].tolist()
        return gpus_with_room(room.idle, cpus, memory_mb, self.gpus.cluster.room_share)

    def _launch(self, row: int, gpu_ids: tuple[int, ...], span: Span) -> Launch:
        jobs = self.jobs
        done = float(jobs.work[row] - jobs.work_left[row])
        report_at = self.apps.report_at(row, done)
        before = max(int(jobs.attempt[row]), self._state.attempt_floors.get(row, 0))
        return Launch(jobs.specs[row].id, before + 1, gpu_ids, span, done, report_at)

    # ---------------------------------------------------------------- folding

    def _fold_apps(self, given_up: tuple[GivenUp, ...], turns: tuple[tuple[int, int], ...]) -> None:
        """Trials that their apps gave up are cancelled before anything else is decided."""
        for trial in given_up:
            row = self.jobs.rows[trial.job]
            self.apps.given_up[row] = trial.why
            before = STATES[self.jobs.state[row]]
            to = after(before, Move.CANCEL)
            assert to is not None, f"row {row}, which is {before.name}, is given up"
            self._life.withdraw_from_line(row, before, to, StopWhy.GIVEN_UP)
        for row, turn in turns:
            self._fold_turn(row, turn)

    def _fold_turn(self, row: int, turn: int) -> None:
        """A trial that its app pauses loses its GPUs, or its claim to some, and is no candidate until it may go on."""
        state, jobs, before = self._state, self._state.jobs, int(self._state.jobs.turn[row])
        jobs.turn[row] = turn
        if (turn < 0) == (before < 0) or STATES[jobs.state[row]] in (*ENDED, *ENDING):
            return
        state.must_plan = True
        if STATES[jobs.state[row]] not in (HELD, HOLDING):
            jobs.reason[row] = int(self._life.reason_to_wait(row))
        if turn < 0 and row in state.pending:
            self._life.withdraw_gpus(row)
        if turn < 0:
            self._life.evict(row, StopWhy.PAUSED)

    def _fold(self, record: Decided, skip_stops: int = 0) -> None:
        """Make a decision true. Live, simulated and recovering engines all pass through here."""
        state, jobs = self._state, self._state.jobs
        for stop in record.stops[skip_stops:]:
            self._fold_stop(stop)
        for job in record.withdrawn:
            self._life.withdraw_gpus(jobs.rows[job])
            # A decision without a plan leaves it to the next what becomes of the GPUs.
            state.must_plan = True
        for placed in record.placed:
            self._fold_placed(placed)
        for launch in record.launches:
            self._fold_launch(launch)
        for row in record.leased:
            jobs.lease_until_s[row] = record.lease_until_s
            jobs.promised_until_s[row] = max(jobs.promised_until_s[row], record.lease_until_s)
            jobs.protected_until_s[row] = max(jobs.protected_until_s[row], record.lease_until_s)
        state.evicted.clear()
        state.strays.clear()
        state.vacated = False
        state.apps.clear_news()
        state.wake_s = record.wake_s
        if record.planned:
            self._fold_planned(record)

    def _fold_planned(self, record: Decided) -> None:
        state = self._state
        state.must_plan = False
        state.wake_on_start = record.heed_starts
        state.bidding.set_open(record.asks)
        if state.backoff:
            state.backoff = {row: until_s for row, until_s in state.backoff.items() if until_s > record.at_s}
        state.jobs.reason[record.reason_rows] = record.reason_codes
        state.jobs.reason_since_s[record.reason_rows] = record.at_s
        if record.memory:
            state.memory.fit(len(state.jobs), len(state.jobs.gpu_types))
            for write in record.memory:
                state.memory.apply(write)
            state.memory.drain()

    def _fold_stop(self, stop: Stop) -> None:
        if stop.why is StopWhy.STRAY:
            return
        state, jobs = self._state, self._state.jobs
        row = jobs.rows[stop.job]
        before = STATES[jobs.state[row]]
        jobs.stop_accruing(row, state.now_s)
        if before in ALIVE:
            self._life.set_speed_of_companion(row)
        if before in (LAUNCHING, RUNNING):
            self._life.move(row, Move.STOP)
            jobs.waiting_since_s[row] = state.now_s
            if stop.why in BY_POLICY:
                jobs.preemptions[row] += 1
                if before is RUNNING:
                    self._life.lengthen_slice(row, state.now_s)
        state.stopped[row] = stop
        state.gpus.drop(row)

    def _fold_placed(self, placed: Placed) -> None:
        state, row = self._state, self._state.jobs.rows[placed.job]
        state.gpus.hold(row, placed.gpu_ids)
        state.pending[row] = placed.span
        if STATES[state.jobs.state[row]] is WAITING:
            self._life.move(row, Move.PLACE)

    def _fold_launch(self, launch: Launch) -> None:
        state, jobs = self._state, self._state.jobs
        row = jobs.rows[launch.job]
        if state.pending.pop(row, None) is None:
            state.gpus.hold(row, launch.gpu_ids)
        state.gpus.occupy(row)
        self._life.move(row, Move.LAUNCH)
        jobs.reason[row] = _NOT_WAITING
        jobs.attempt[row] = launch.attempt
        state.attempt_floors.pop(row, None)
        jobs.last_type[row] = state.gpus.cluster.gpu_type[launch.gpu_ids[0]]
        self._life.launch(row)
        state.launched[row] = launch

    # ------------------------------------------------------ looking, restarting

    def status(self) -> ClusterStatus:
        """Everything at this moment, for people to look at while the engine goes on."""
        return ClusterStatus.of(self._state)

    def outstanding(self) -> tuple[Stop | Launch, ...]:
        """Commands that were decided and not yet answered: a driver that restarts performs them again.

        Performing a command twice must be harmless; the attempt number tells a backend
        that it has done so already.
        """
        state = self._state
        again: list[Stop | Launch] = []
        for row in sorted(state.gpus.occupied):
            if row in state.stopped:
                again.append(state.stopped[row])
            elif row not in state.evicted:
                again.append(state.launched[row])
        return tuple(again)

    def contents(self) -> dict[str, Any]:
        """Everything the engine knows, as plain values and columns: for checkpoints and comparison."""
        return self._state.contents()

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what another engine's `contents` gave; only for an engine to which nothing has happened.

        What is not part of it comes from this engine's own start: placement, speeds that were
        given or estimated, and how policies are made.
        """
        assert not self.jobs.specs, f"an engine with {len(self.jobs)} jobs cannot take another's state"
        self._state.restore(contents)
        self._choose_policy(*contents["policy"])
        self._remember(contents["memory"])
