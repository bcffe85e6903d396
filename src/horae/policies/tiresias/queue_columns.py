"""The queues of all jobs in one pass over the job table. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Bools, Bytes, Floats, Ints
from horae.core.jit import lean, lean_when_called
from horae.core.states import State

#: Moments closer than this are the same: rounding must not keep a job below its bound, nor wake the policy for ever.
INSTANT_S = 1e-6
#: Lowest bound, in GPU-seconds. Reaching it takes real work, or a job could be promoted and demoted without end.
LEAST_BOUND = 1.0

_LAUNCHING, _RUNNING = int(State.LAUNCHING), int(State.RUNNING)


class Rule(NamedTuple):
    """When jobs change their queue."""

    knob: float
    patience_s: float
    #: Whether promotion applies to jobs of the first queue, too.
    anywhere: bool
    #: Upper bounds of the queues; that of the last is infinite.
    bounds: Floats


class ServiceColumns(NamedTuple):
    """What the job table and the policy's memory say of each row."""

    state: Bytes
    gpus_max: Ints
    submit_s: Floats
    first_started_s: Floats
    #: Straight lines: attained service, its rate now, time worked, whether the job works, and since when.
    service: Floats
    service_rate: Floats
    executed_s: Floats
    executing: Floats
    since_s: Floats
    working_gpus: Floats
    promoted_s: Floats
    promoted_service: Floats
    promoted_ran_s: Floats


class QueueColumns(NamedTuple):
    """The queue of each job of a snapshot, and what its next change follows from."""

    #: Number of the job's queue; the first is 0.
    queue: Ints
    #: GPU-seconds since the last promotion, and GPU-seconds that a second adds, or could add at most.
    service: Floats
    service_rate: Floats
    #: When the job was last promoted, 0 if never; when promotion is due if it does no work until then.
    promoted_s: Floats
    due_s: Floats
    #: When the job first started, or ran out of patience; infinite before either.
    begun_s: Floats
    #: When the job is promoted, if it does no work from now on; infinite for jobs that are not.
    promotion_s: Floats
    #: Whether the job has not been launched; whether it is promoted now.
    waits: Bools
    promoted: Bools

    @staticmethod
    def empty(jobs: int) -> QueueColumns:
        """Room for this number of jobs."""
        service, rate, promoted_s, due_s, begun_s, promotion_s = np.empty((6, jobs))
        waits, promoted = np.empty((2, jobs), np.bool_)
        queue = np.empty(jobs, np.int64)
        return QueueColumns(queue, service, rate, promoted_s, due_s, begun_s, promotion_s, waits, promoted)


class NextChange(NamedTuple):
    """When the order may next change, and when a job that does no work yet could leave its queue."""

    change_s: float
    idle_demotion_s: float


@lean
def _queue_of(service: float, bounds: Floats) -> int:
    queue = 0
    while bounds[queue] <= service:
        queue += 1
    return queue


@lean
def _due_s(row: int, executed_s: float, knob: float, jobs: ServiceColumns) -> float:
    """When promotion is due, if the job does no work until then: wait = `knob` * time worked."""
    if knob == np.inf:
        return np.inf
    since_s = max(jobs.first_started_s[row], jobs.promoted_s[row])
    return since_s + (1.0 + knob) * (executed_s - jobs.promoted_ran_s[row])


@lean_when_called
def fill_queues(now_s: float, rows: Ints, rule: Rule, jobs: ServiceColumns, to: QueueColumns) -> int:
    """Fill the columns for these rows; gives the first queue with a waiting job (the number of queues if none waits).

    Jobs that are due are promoted: waiting jobs, and running jobs that would be promoted as soon as they were stopped.
    """
    first_waiting, soon_s = len(rule.bounds), now_s + INSTANT_S
    for i in range(len(rows)):
        row = rows[i]
        elapsed_s = now_s - jobs.since_s[row]
        attained = jobs.service[row] + jobs.service_rate[row] * elapsed_s
        rate = jobs.service_rate[row] if jobs.working_gpus[row] > 0 else float(jobs.gpus_max[row])
        service = attained - jobs.promoted_service[row]
        queue = _queue_of(service + rate * INSTANT_S, rule.bounds)
        due_s = _due_s(row, jobs.executed_s[row] + jobs.executing[row] * elapsed_s, rule.knob, jobs)
        # Some work must lie between two promotions, or promotions would never end.
        promotable = queue > 0 or (rule.anywhere and service >= LEAST_BOUND)
        waits = jobs.state[row] != _LAUNCHING and jobs.state[row] != _RUNNING
        due = promotable and due_s <= soon_s
        if due and waits:
            queue = 0
        if waits:
            first_waiting = min(first_waiting, queue)
        late_s = jobs.submit_s[row] + rule.patience_s
        to.queue[i], to.service[i], to.service_rate[i] = queue, service, rate
        to.promoted_s[i], to.due_s[i], to.waits[i], to.promoted[i] = jobs.promoted_s[row], due_s, waits, due
        to.begun_s[i] = min(jobs.first_started_s[row], late_s if late_s <= soon_s else np.inf)
        to.promotion_s[i] = max(due_s, soon_s) if promotable else np.inf
    for i in range(len(rows)):
        queue = to.queue[i]
        to.promoted[i] = to.promoted[i] and (to.waits[i] or (queue > 0 and queue >= first_waiting))
        if to.promoted[i]:
            to.queue[i], to.service[i], to.promoted_s[i], to.promotion_s[i] = 0, 0.0, now_s, np.inf
    return first_waiting


@lean_when_called
def next_change(
    now_s: float, rows: Ints, first_waiting: int, rule: Rule, jobs: ServiceColumns, of: QueueColumns
) -> NextChange:
    """When the order may next change so that a waiting job could run; infinite if no job waits.

    Jobs lose GPUs only to jobs of the same queue or an earlier one. So after a plan no job waits in a queue
    before `first_waiting`, and changes before that queue do not matter.
    """
    change_s, idle_s = np.inf, np.inf
    if first_waiting == len(rule.bounds):
        return NextChange(change_s, idle_s)
    for i in range(len(rows)):
        row = rows[i]
        bound = rule.bounds[max(of.queue[i], first_waiting - 1)]
        demotion_s = now_s + (bound - of.service[i]) / of.service_rate[i]
        if jobs.working_gpus[row] > 0:
            change_s = min(change_s, demotion_s)
        if jobs.working_gpus[row] == 0:
            idle_s = min(idle_s, demotion_s)
        if of.waits[i]:
            change_s = min(change_s, of.promotion_s[i])
            if of.begun_s[i] == np.inf:
                change_s = min(change_s, jobs.submit_s[row] + rule.patience_s)
    return NextChange(change_s, idle_s)


@lean_when_called
def key_by_first_start(now_s: float, begun_s: Floats, key: Floats) -> None:
    """Jobs that started first go first; jobs that never started come last, by arrival."""
    for i in range(len(begun_s)):
        ago_s = now_s - begun_s[i]
        key[i] = 1.0 if np.isinf(ago_s) else -ago_s


@lean_when_called
def add_queues(queue: Ints, key: Floats) -> None:
    """Make keys inside a queue to keys over all queues."""
    lowest, highest = np.inf, -np.inf
    for i in range(len(key)):
        lowest, highest = min(lowest, key[i]), max(highest, key[i])
    spread = highest - lowest if len(key) > 0 else 0.0
    step = 2 * spread if spread != 0.0 else 1.0
    for i in range(len(key)):
        key[i] = queue[i] * step + key[i]
