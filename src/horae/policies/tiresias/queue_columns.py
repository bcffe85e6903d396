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

_PLACED, _LAUNCHING, _RUNNING = int(State.PLACED), int(State.LAUNCHING), int(State.RUNNING)


class Rule(NamedTuple):
    """When jobs change their queue."""

    knob: float
    patience_s: float
    #: Whether jobs preempt one another inside a queue. Promotion then applies to jobs of the first queue, too.
    inside: bool
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
    #: When the job is owed precedence in the first queue; infinite for jobs of other queues.
    owed_s: Floats
    #: When the job is promoted, if it does no work from now on; infinite for jobs that are not.
    promotion_s: Floats
    #: Whether the job has GPUs, or some are set aside; whether it has not been launched; whether it is promoted now.
    has_gpus: Bools
    waits: Bools
    promoted: Bools

    @staticmethod
    def empty(jobs: int) -> QueueColumns:
        """Room for this number of jobs."""
        service, rate, promoted_s, due_s, owed_s, promotion_s = np.empty((6, jobs))
        has_gpus, waits, promoted = np.empty((3, jobs), np.bool_)
        queue = np.empty(jobs, np.int64)
        return QueueColumns(queue, service, rate, promoted_s, due_s, owed_s, promotion_s, has_gpus, waits, promoted)


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
        promotable = queue > 0 or (rule.inside and service >= LEAST_BOUND)
        waits = jobs.state[row] != _LAUNCHING and jobs.state[row] != _RUNNING
        due = promotable and due_s <= soon_s
        if due and waits:
            queue = 0
        if waits:
            first_waiting = min(first_waiting, queue)
        to.queue[i], to.service[i], to.service_rate[i] = queue, service, rate
        to.promoted_s[i], to.due_s[i], to.waits[i], to.promoted[i] = jobs.promoted_s[row], due_s, waits, due
        to.has_gpus[i] = _PLACED <= jobs.state[row] <= _RUNNING
        to.promotion_s[i] = max(due_s, soon_s) if promotable else np.inf
    contested = first_waiting - 1 if rule.inside else first_waiting
    for i in range(len(rows)):
        queue = to.queue[i]
        to.promoted[i] = to.promoted[i] and (to.waits[i] or (queue > 0 and queue > contested))
        if to.promoted[i]:
            to.queue[i], to.service[i], to.promoted_s[i], to.promotion_s[i] = 0, 0.0, now_s, np.inf
        to.owed_s[i] = _owed_s(rows[i], to.promoted_s[i], rule, jobs) if to.queue[i] == 0 else np.inf
    return first_waiting


@lean
def _owed_s(row: int, promoted_s: float, rule: Rule, jobs: ServiceColumns) -> float:
    """When a job of the first queue is owed precedence there: some time after it came there, new or promoted.

    Where jobs preempt one another inside a queue: when it is promoted, or at last if it has not started.
    """
    late_s = jobs.submit_s[row] + rule.patience_s
    if rule.inside:
        return promoted_s if promoted_s > 0 else (late_s if late_s < jobs.first_started_s[row] else np.inf)
    return promoted_s + rule.patience_s if promoted_s > 0 else late_s


@lean_when_called
def next_change(
    now_s: float, rows: Ints, first_waiting: int, rule: Rule, jobs: ServiceColumns, of: QueueColumns
) -> NextChange:
    """When the order may next change so that a waiting job could run; infinite if no job waits.

    Jobs lose GPUs only to jobs of an earlier queue, to jobs that are owed precedence, and, where jobs preempt one
    another inside a queue, to jobs of the same queue. So after a plan no job waits in a queue before `first_waiting`,
    and changes before that queue do not matter.
    """
    change_s, idle_s, soon_s = np.inf, np.inf, now_s + INSTANT_S
    if first_waiting == len(rule.bounds):
        return NextChange(change_s, idle_s)
    contested = first_waiting - 1 if rule.inside else first_waiting
    for i in range(len(rows)):
        row = rows[i]
        bound = rule.bounds[max(of.queue[i], contested)]
        demotion_s = now_s + (bound - of.service[i]) / of.service_rate[i]
        if jobs.working_gpus[row] > 0:
            change_s = min(change_s, demotion_s)
        if jobs.working_gpus[row] == 0:
            idle_s = min(idle_s, demotion_s)
        if of.waits[i]:
            change_s = min(change_s, of.promotion_s[i])
            if of.owed_s[i] > soon_s:
                change_s = min(change_s, of.owed_s[i])
    return NextChange(change_s, idle_s)


@lean_when_called
def key_by_start(now_s: float, rows: Ints, jobs: ServiceColumns, of: QueueColumns, key: Floats) -> None:
    """Jobs that are owed precedence go first, the longest owed before others; then jobs that have GPUs; then the rest.

    The last two by first start; jobs that never started come last, by arrival.
    """
    longest_s = 0.0
    for i in range(len(rows)):
        ago_s = now_s - jobs.first_started_s[rows[i]]
        key[i] = 1.0 if np.isinf(ago_s) else -ago_s
        longest_s = max(longest_s, ago_s)
    step = longest_s + 2.0
    for i in range(len(rows)):
        if of.owed_s[i] <= now_s + INSTANT_S:
            key[i] = -2.0 * step - (now_s - of.owed_s[i])
        elif of.has_gpus[i]:
            key[i] -= step


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
