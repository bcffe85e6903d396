"""The life of an attempt: what events do to a job, its GPUs and its place in line.

`Engine` decides; this module folds in what happened: an attempt started, reported, ended or failed, a user asked
for something, a node came or went. Legal moves are in `states.MOVES`.
"""

from __future__ import annotations

from math import isfinite
from typing import assert_never

import numpy as np

from horae.core.commands import BY_POLICY, StopWhy
from horae.core.events import (
    AttemptReport,
    BidReceived,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobTimedOut,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
)
from horae.core.node_room import could_run_out
from horae.core.reasons import Reason
from horae.core.state import EngineState
from horae.core.states import (
    ALIVE,
    CANCELLED,
    CANCELLING,
    ENDING,
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
from horae.core.throughputs import Setting

#: A failed job is tried again after 1, 2, 4, ... seconds, at most this many.
LONGEST_BACKOFF_S = 300.0

#: An attempt that loads is not preempted before it works, for at most so many seconds.
LONGEST_LOAD_S = 600.0

_START, _FINISH, _STOPPED, _RETRY, _FAIL = Move.START, Move.FINISH, Move.STOPPED, Move.RETRY, Move.FAIL
_REQUESTS = {
    JobCancelled: Move.CANCEL,
    JobHeld: Move.HOLD,
    JobReleased: Move.RELEASE,
    JobTimedOut: Move.TIME_OUT,
}
_WHY = {Move.HOLD: StopWhy.HELD, Move.CANCEL: StopWhy.CANCELLED, Move.TIME_OUT: StopWhy.TIMEOUT}


class Lifecycle:
    """Folds events about jobs, attempts and nodes into the state."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    # ------------------------------------------------------------------ jobs

    def submit(self, event: JobSubmitted) -> None:
        """A job arrives; a second one of the same name is ignored."""
        state = self._state
        if event.spec.id in state.jobs.rows:
            state.dropped_reports += 1
            return
        state.apps.add(state.jobs.add(event.spec, state.now_s))
        state.must_plan = True

    def request(self, event: JobCancelled | JobHeld | JobReleased | JobTimedOut) -> None:
        """What a user, or a time limit, wants of a job. A running attempt is stopped by the next decision."""
        state, jobs = self._state, self._state.jobs
        row = jobs.rows.get(event.job, -1)
        move = _REQUESTS[type(event)]
        before = STATES[jobs.state[row]] if row >= 0 else None
        to = after(before, move) if before is not None else None
        if before is None or to is None:
            state.dropped_reports += 1
        elif move is Move.RELEASE:
            jobs.state[row] = int(to)
            jobs.reason[row] = int(self.reason_to_wait(row))
            jobs.waiting_since_s[row] = state.now_s
            jobs.activate(row)
            state.must_plan = True
        else:
            self.withdraw_from_line(row, before, to, _WHY[move])

    def withdraw_from_line(self, row: int, before: State, to: State, why: StopWhy) -> None:
        """A job is held, cancelled or given up: at once, or by way of a stop if its attempt is alive."""
        state, jobs = self._state, self._state.jobs
        if to in (HELD, CANCELLED):
            state.backoff.pop(row, None)
            self._leave(row, before, to)
            return
        if row in state.pending:
            self.withdraw_gpus(row)
        if before in (LAUNCHING, RUNNING):
            state.evicted[row] = why
        if before not in (HOLDING, *ENDING):
            jobs.deactivate(row)
        jobs.state[row] = int(to)
        jobs.reason[row] = int(self._reason_to_rest(row, to))
        state.apps.notice(row)
        state.must_plan = True

    def reason_to_wait(self, row: int) -> Reason:
        """Why a job waits before a decision has looked at it."""
        return Reason.AT_RUNG if self._state.jobs.turn[row] < 0 else Reason.NOT_YET_CONSIDERED

    def _reason_to_rest(self, row: int, to: State) -> Reason:
        """The reason of a job that wants no GPUs."""
        if to in (HELD, HOLDING):
            return Reason.HELD
        given_up = to in (CANCELLING, CANCELLED) and row in self._state.apps.given_up
        return Reason.GIVEN_UP if given_up else Reason.NONE

    # -------------------------------------------------------------- attempts

    def row_of(self, report: AttemptReport) -> int:
        """Row of the job if the report is of its living attempt, else -1: attempt numbers fence off older ones."""
        jobs = self._state.jobs
        row = jobs.rows.get(report.job, -1)
        if row < 0 or jobs.attempt[row] != report.attempt or STATES[jobs.state[row]] not in ALIVE:
            return -1
        return row

    def report(self, event: AttemptReport) -> None:
        """What a backend says of an attempt."""
        row = self.row_of(event)
        if row < 0:
            self._state.dropped_reports += 1
            return
        match event:
            case JobStarted():
                self._started(row, event)
            case JobFinished():
                self._ended(row, _FINISH, work_done=float(self._state.jobs.work[row]))
            case JobStopped():
                self._ended(row, _STOPPED, event.work_done)
            case JobFailed():
                self._failed(row, event)
            case LaunchFailed():
                self._launch_failed(row)
            case JobProgressed():
                self._progressed(row, event.work_done)
                self._note_loss(row, event)
            case _:
                assert_never(event)

    def starts(self, row: int, event: JobStarted) -> bool:
        """Whether the report of a start says something new.

        GPU time counts from the start of work: from the moment that an attempt reports, or, for an attempt that never
        reports, from the start of its process. A backend may learn of the latter only when the attempt has ended, and
        so after its stop. An attempt that was stopped while it was loading has had no GPU time.
        """
        jobs = self._state.jobs
        if after(STATES[jobs.state[row]], _START) is not None:
            return True
        return jobs.works_since_s[row] == np.inf and self._since_s(row, event) < self._stopped_s(row)

    def _since_s(self, row: int, event: JobStarted) -> float:
        """Start of work by this report: `up_s` before it, but not before the launch."""
        now_s = max(self._state.now_s, event.at_s)
        return max(float(self._state.jobs.launched_s[row]), now_s - max(0.0, event.up_s))

    def _stopped_s(self, row: int) -> float:
        """When the stop of an attempt was decided; now if that is yet to come."""
        state = self._state
        return float(state.jobs.since_s[row]) if row in state.stopped else state.now_s

    def _started(self, row: int, event: JobStarted) -> None:
        """The attempt works, since `up_s` seconds ago or since its launch, whichever is later."""
        state, jobs = self._state, self._state.jobs
        if not self.starts(row, event):
            state.dropped_reports += 1
            return
        since_s, running = self._since_s(row, event), after(STATES[jobs.state[row]], _START)
        if running is None:
            self._worked_before_stop(row, since_s)
            return
        jobs.state[row] = int(running)
        launched_s = float(jobs.launched_s[row])
        self._works_from(row, since_s)
        jobs.launch_failures[row] = 0
        # A job works at least as long as it took to load; else loading could be all that ever happens.
        self._protect(row, since_s - launched_s)
        state.must_plan = state.must_plan or state.wake_on_start

    def _protect(self, row: int, least_s: float) -> None:
        """The attempt keeps its GPUs for so many seconds at least; longer by a lease, a minimum or a slice.

        A job that waits for them is looked at as soon as they can be taken: loading may have taken less than it could.
        """
        state, jobs = self._state, self._state.jobs
        before_s = float(jobs.protected_until_s[row])
        promised_s = max(float(jobs.min_runtime_s[row]), float(jobs.slice_s[row]))
        jobs.promised_until_s[row] = max(float(jobs.lease_until_s[row]), state.now_s + promised_s)
        jobs.protected_until_s[row] = until_s = max(float(jobs.promised_until_s[row]), state.now_s + least_s)
        if until_s < before_s and state.unprotected_s <= before_s:
            state.wake_s = min(state.wake_s, until_s)

    def launch(self, row: int) -> None:
        """The attempt begins to load; it is not preempted before it works, or loading could be all that happens."""
        jobs = self._state.jobs
        jobs.launched_s[row], jobs.works_since_s[row] = self._state.now_s, np.inf
        self._protect(row, LONGEST_LOAD_S)

    def _worked_before_stop(self, row: int, since_s: float) -> None:
        """The attempt that is being stopped had worked until its stop, as is known only now."""
        state, jobs, stopped_s = self._state, self._state.jobs, self._stopped_s(row)
        jobs.works_since_s[row] = since_s
        jobs.first_started_s[row] = min(float(jobs.first_started_s[row]), since_s)
        self._set_speed(row, since_s)
        jobs.stop_accruing(row, stopped_s)
        stop = state.stopped.get(row)
        if stop is not None and stop.why in BY_POLICY:
            self.lengthen_slice(row, stopped_s)

    def lengthen_slice(self, row: int, stopped_s: float) -> None:
        """An attempt that worked is preempted: if it turns out to have saved nothing, the next may work twice as long.

        Else a job that never saves would never end.
        """
        jobs = self._state.jobs
        jobs.slice_s[row] = 2.0 * (stopped_s - jobs.launched_s[row])

    def _works_from(self, row: int, at_s: float) -> None:
        """The attempt does work from this moment on."""
        state, jobs = self._state, self._state.jobs
        jobs.works_since_s[row] = at_s
        jobs.first_started_s[row] = min(float(jobs.first_started_s[row]), at_s)
        self._set_speed(row, at_s)
        state.learner.measure_from(row, at_s, float(jobs.work[row] - jobs.work_left[row]))
        self.set_speed_of_companion(row)

    def _set_speed(self, row: int, at_s: float) -> None:
        """The job works from this moment on at the speed of its GPUs, alone or beside another job."""
        state, jobs = self._state, self._state.jobs
        launch, gpu_type = state.launched[row], int(jobs.last_type[row])
        companion = state.gpus.companion(row)
        neighbour = companion if companion >= 0 and jobs.executing[companion] else -1
        gpus = len(launch.gpu_ids)
        rate = jobs.rate_on(row, gpu_type, gpus, launch.span, neighbour)
        # Of GPUs on which two jobs work, each job is charged half.
        jobs.execute(row, at_s, rate, gpus if neighbour < 0 else gpus / 2)

    def set_speed_of_companion(self, row: int) -> None:
        """The job began or ended its work: the job on the same GPUs is slower or faster from now on."""
        state = self._state
        companion = state.gpus.companion(row)
        if companion >= 0 and state.jobs.executing[companion]:
            self._set_speed(companion, state.now_s)
            # Its work done by now is only an estimate.
            state.learner.lose_track(companion)

    def _ended(self, row: int, move: Move, work_done: float) -> None:
        """The attempt is gone: its GPUs are free, and the job waits again or has ended."""
        state, jobs = self._state, self._state.jobs
        before = STATES[jobs.state[row]]
        to = after(before, move)
        assert to is not None, f"{move} from {before} of row {row}"
        if before is LAUNCHING and move is _FINISH:
            # The report that it started is late, but it must have.
            self._works_from(row, float(jobs.launched_s[row]))
        # Only a finish is a speed sample. After a 100 % report the rest of the time was shutdown, not work.
        if move is _FINISH and jobs.reported[row] < jobs.work[row]:
            self._note_speed(row, work_done)
        jobs.stop_accruing(row, state.now_s)
        self.set_speed_of_companion(row)
        began_with = state.launched[row].work_done
        if work_done > began_with:
            jobs.slice_s[row] = 0.0
        elif jobs.slice_s[row] > 0:
            jobs.lost_work[row] += max(0.0, float(jobs.work[row] - jobs.work_left[row]) - began_with)
        self._set_work_done(row, work_done)
        state.launched.pop(row, None)
        state.stopped.pop(row, None)
        state.learner.lose_track(row)
        state.evicted.pop(row, None)
        state.gpus.vacate(row)
        state.vacated = True
        if to is WAITING:
            self._wait_again(row, before)
        else:
            self._leave(row, before, to)

    def _set_work_done(self, row: int, work_done: float) -> None:
        """Take the reported work, within what is possible, as the truth."""
        jobs, done = self._state.jobs, self._possible(row, work_done)
        jobs.reported[row] = done
        jobs.work_left[row] = jobs.work[row] - done

    def _possible(self, row: int, work_done: float) -> float:
        """Reported work, at most the job's work; what is no number counts as the work that the attempt began with."""
        if not work_done >= 0:
            work_done = self._state.launched[row].work_done
        return min(float(self._state.jobs.work[row]), work_done)

    def _wait_again(self, row: int, before: State) -> None:
        """Back in line, with GPUs set aside already if the job was moved."""
        state, jobs = self._state, self._state.jobs
        jobs.waiting_since_s[row] = state.now_s
        jobs.state[row] = int(PLACED if row in state.pending else WAITING)
        if before is not STOPPING:
            # No decision has looked at the job since: its last reason holds no more.
            jobs.reason[row] = int(self.reason_to_wait(row))
            state.must_plan = True

    def _leave(self, row: int, before: State, to: State) -> None:
        """The job is held or has ended: it wants no GPUs."""
        state, jobs = self._state, self._state.jobs
        if row in state.pending:
            self.withdraw_gpus(row)
        jobs.state[row] = int(to)
        jobs.reason[row] = int(self._reason_to_rest(row, to))
        if to is not HELD:
            jobs.ended_s[row] = state.now_s
            state.apps.notice(row)
            self._dismiss_agent(row)
        if before not in (HOLDING, *ENDING, HELD):
            jobs.deactivate(row)
        state.must_plan = True

    def _failed(self, row: int, event: JobFailed) -> None:
        self._ended(row, _RETRY if self._may_retry(row, event.exit_code) else _FAIL, event.work_done)
        self._back_off(row, int(self._state.jobs.failures[row]))

    def _may_retry(self, row: int, exit_code: int) -> bool:
        jobs, spec = self._state.jobs, self._state.jobs.specs[row]
        jobs.failures[row] += 1
        worth = not spec.retry_exit_codes or exit_code in spec.retry_exit_codes
        return worth and int(jobs.failures[row]) <= spec.max_restarts

    def _launch_failed(self, row: int) -> None:
        jobs = self._state.jobs
        work_done = float(jobs.work[row] - jobs.work_left[row])
        jobs.launch_failures[row] += 1
        self._ended(row, _RETRY, work_done)
        self._back_off(row, int(jobs.launch_failures[row]))

    def _back_off(self, row: int, failures: int) -> None:
        """A job that failed and waits again does so for a while, longer each time."""
        state = self._state
        if STATES[state.jobs.state[row]] is WAITING:
            delay_s = min(2.0 ** min(failures - 1, 30), LONGEST_BACKOFF_S)
            state.backoff[row] = state.now_s + delay_s
            state.jobs.reason[row] = int(Reason.BACKING_OFF)
            state.must_plan = True

    def _progressed(self, row: int, work_done: float) -> None:
        """The report replaces the straight line; the speed is what it is now believed to be."""
        state, jobs = self._state, self._state.jobs
        if not work_done >= 0:
            state.dropped_reports += 1
            return
        executing = bool(jobs.executing[row])
        self._note_speed(row, work_done)
        if executing:
            jobs.stop_accruing(row, state.now_s)
        self._set_work_done(row, work_done)
        if executing:
            self._set_speed(row, state.now_s)

    def _note_loss(self, row: int, event: JobProgressed) -> None:
        """Keep a loss that is a number, for policies and for the app."""
        if event.loss is None or not (isfinite(event.loss) and event.work_done >= 0):
            return
        if self._state.jobs.note_loss(row, self._possible(row, event.work_done), event.loss):
            self._state.apps.heard(row, event.work_done, event.loss)

    def _note_speed(self, row: int, work_done: float) -> None:
        """Learn how fast the job really was."""
        state, learner = self._state, self._state.learner
        if not learner.wanted or not state.jobs.executing[row]:
            return
        possible, began_with = self._possible(row, work_done), state.launched[row].work_done
        steps_per_s = learner.speed_since(row, state.now_s, work_done, possible, began_with)
        if steps_per_s is not None:
            learner.learn(row, self._setting(row), steps_per_s)

    def _setting(self, row: int) -> Setting:
        """The setting that a running job's speed is measured under."""
        state, jobs = self._state, self._state.jobs
        launch, companion = state.launched[row], state.gpus.companion(row)
        neighbour = jobs.specs[companion].job_class if companion >= 0 and jobs.executing[companion] else ""
        gpu_type = jobs.gpu_types[int(jobs.last_type[row])]
        return Setting(jobs.specs[row].job_class, gpu_type, len(launch.gpu_ids), launch.span, neighbour)

    # ------------------------------------------------------------------ bids

    def receive_bid(self, event: BidReceived) -> None:
        """Take an app's bid; the last bid that was waited for is a reason to plan."""
        state = self._state
        if not state.bidding.hear(event.answer, event.at_s):
            state.dropped_reports += 1
        elif state.bidding.complete:
            state.must_plan = True

    def change_agent(self, app: str, present: bool) -> None:
        """An app's own agent comes or goes; an auction that waited for this agent alone goes on."""
        state = self._state
        if present:
            state.bidding.register(app)
        elif state.bidding.dismiss(app):
            state.must_plan = True

    def _dismiss_agent(self, row: int) -> None:
        """An app whose jobs have all ended needs no agent: a later app of that name is another."""
        state = self._state
        app = state.jobs.specs[row].app_id
        if app in state.bidding.agents and not state.jobs.app_goes_on(int(state.jobs.app[row])):
            self.change_agent(app, present=False)

    # ----------------------------------------------------------------- nodes

    def node(self, event: NodeJoined | NodeLost | NodeDraining | NodeObserved) -> None:
        """A node comes, goes, drains, or says what runs there."""
        state = self._state
        if isinstance(event, NodeJoined):
            self._join(event)
        elif event.node not in state.gpus.cluster.node_numbers:
            state.dropped_reports += 1
        elif isinstance(event, NodeObserved):
            self._observe(event)
        else:
            self._close(event)

    def _join(self, event: NodeJoined) -> None:
        state = self._state
        if not state.gpus.join(event.node):
            state.dropped_reports += 1
            return
        if state.pending and could_run_out(state.jobs, state.gpus):
            # The node may have fewer CPUs than before: jobs that would wait for them for ever are placed anew.
            for row in [row for row in state.gpus.on_node(event.node.name) if row in state.pending]:
                self.withdraw_gpus(row)
        state.jobs.know_types(state.gpus.cluster.gpu_types)
        state.must_plan = True

    def _close(self, event: NodeLost | NodeDraining) -> None:
        """The node takes no more jobs; attempts on a lost or evicting node must go."""
        state, lost = self._state, isinstance(event, NodeLost)
        for row in state.gpus.close(event.node, lost, "" if isinstance(event, NodeLost) else event.by):
            if row in state.pending:
                self.withdraw_gpus(row)
            elif lost or (isinstance(event, NodeDraining) and event.evict):
                self.evict(row, StopWhy.NODE_LOST if lost else StopWhy.DRAINED)
        state.must_plan = True

    def _observe(self, event: NodeObserved) -> None:
        """Compare what runs on a node with what should; differences of both kinds are stopped."""
        state, jobs = self._state, self._state.jobs
        for job, attempt in event.alive:
            row = jobs.rows.get(job, -1)
            if row < 0 or jobs.attempt[row] != attempt or STATES[jobs.state[row]] not in ALIVE:
                state.strays.append((job, attempt))
        alive = set(event.alive)
        for row in state.gpus.on_node(event.node):
            attempt_here = (jobs.specs[row].id, int(jobs.attempt[row]))
            # An attempt that is still starting need not be there yet.
            if STATES[jobs.state[row]] is RUNNING and attempt_here not in alive:
                self.evict(row, StopWhy.NODE_LOST)
                state.must_plan = True

    # ------------------------------------------------------------------ GPUs

    def evict(self, row: int, why: StopWhy) -> None:
        """The attempt must stop at the next decision, whatever the policy says."""
        state = self._state
        if STATES[state.jobs.state[row]] in (LAUNCHING, RUNNING) and row not in state.evicted:
            state.evicted[row] = why

    def withdraw_gpus(self, row: int) -> None:
        """GPUs that were set aside for a job are so no more."""
        state = self._state
        del state.pending[row]
        state.gpus.drop(row)
        if STATES[state.jobs.state[row]] is PLACED:
            self.move(row, Move.WITHDRAW)

    def move(self, row: int, move: Move) -> None:
        """A move of the engine's own; the table of legal moves must have it."""
        jobs = self._state.jobs
        before = STATES[jobs.state[row]]
        to = after(before, move)
        assert to is not None, f"{move.name} is not legal for row {row}, which is {before.name}"
        jobs.state[row] = int(to)
