"""The multi-level feedback queue of Tiresias (NSDI '19, section 3.4).

Queues have bounds in GPU-seconds; queue 0 goes first. A job is in the first queue until its service since its last
promotion reaches the first bound, then in the second, and so on. A waiting job below the first queue that has run
before is promoted to the first queue when its wait reaches `knob` times the time it worked. Both times count from
the last promotion, or from the first start if there was no promotion. All time without work is wait.

Both moments are exact. A running job leaves its queue when it reaches the bound: the policy asks to be woken then,
if a waiting job could gain. A job is promoted when promotion is due.

Inside a queue jobs that have GPUs keep them: they lose GPUs only to jobs of an earlier queue. Otherwise large jobs
that started early would evict small ones again and again.

Two choices are ours.
- A large gang may never find enough GPUs free at once while small jobs keep coming. So a job that has waited in the
  first queue for `patience_s`, since its submission or its promotion, is owed precedence: it goes before the
  jobs that run there, the longest owed first. It leaves the first queue like any other, so all get their turn.
- A running job may have waited so long before that it would be promoted as soon as it lost its GPUs. To take the
  GPUs away and give them back would help no job, so such a job is promoted while it runs.

Where jobs preempt one another `inside` a queue, by something else than their start, promotion applies to all queues,
and a promoted job is owed precedence at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.tiresias.queue_columns import (
    INSTANT_S,
    NextChange,
    QueueColumns,
    Rule,
    ServiceColumns,
    add_queues,
    fill_queues,
    key_by_start,
    next_change,
)

#: Memory (stored), by job: when the job was last promoted, and its service and its time worked at that moment.
COLUMNS = {"promoted_s": 0, "promoted_service": 0, "promoted_ran_s": 0}


@dataclass(frozen=True)
class FeedbackQueues:
    """The queue of each job of a snapshot; the first queue is 0."""

    now: Snapshot
    #: The first queue with a waiting job; the number of queues, if no job waits.
    first_waiting: int
    _rule: Rule
    _jobs: ServiceColumns
    _columns: QueueColumns

    @property
    def queue(self) -> Ints:
        """Number of each job's queue."""
        return self._columns.queue

    @property
    def service(self) -> Floats:
        """GPU-seconds of each job since its last promotion."""
        return self._columns.service

    @property
    def left(self) -> Floats:
        """GPU-seconds until each job leaves its queue."""
        return self._rule.bounds[self.queue] - self.service

    def key(self, order: Floats) -> Floats:
        """Sort keys: by queue, then by the given order inside a queue."""
        key = order.copy()
        add_queues(self.queue, key)
        return key

    def by_start(self) -> Floats:
        """Jobs owed precedence, jobs that have GPUs, jobs that ran before by first start, the rest by arrival."""
        order = np.empty(len(self.now))
        key_by_start(self.now.now_s, self.now.rows, self._jobs, self._columns, order)
        return order

    @cached_property
    def owed_s(self) -> Floats:
        """Since when each job of the first queue is owed precedence (promoted or out of patience); infinite if not."""
        owed_s = self._columns.owed_s
        return np.where(owed_s <= self.now.now_s + INSTANT_S, owed_s, np.inf)

    @property
    def promotion_s(self) -> Floats:
        """When each promotable job is promoted, if it does no work from now on; infinite for others."""
        return self._columns.promotion_s

    @property
    def next_change_s(self) -> float:
        """When the order may next change so that a waiting job could run; infinite if no job waits.

        A job that loses its GPUs by this plan may be promoted sooner; `Wishes.wake_if_stopped_s` tells the engine.
        """
        return self._next.change_s

    @property
    def wake_on_start(self) -> bool:
        """Whether a job that does no work yet could, once it works, leave its queue before the next change."""
        return self._next.idle_demotion_s < self._next.change_s

    @cached_property
    def _next(self) -> NextChange:
        now = self.now
        found: NextChange = next_change(now.now_s, now.rows, self.first_waiting, self._rule, self._jobs, self._columns)
        return found


def assign_queues(now: Snapshot, memory: Memory, rule: Rule, normalise: bool) -> FeedbackQueues:
    """Assign the jobs of a snapshot to queues. Promote jobs that are due: waiting, or running and due once stopped."""
    jobs, columns = _service_columns(now, memory, normalise), QueueColumns.empty(len(now))
    first_waiting = fill_queues(now.now_s, now.rows, rule, jobs, columns)
    _promote(now, memory, jobs, columns.promoted)
    return FeedbackQueues(now, first_waiting, rule, jobs, columns)


def _service_columns(now: Snapshot, memory: Memory, normalise: bool) -> ServiceColumns:
    table = now.table
    return ServiceColumns(
        state=table.state,
        gpus_max=table.gpus_max,
        submit_s=table.submit_s,
        first_started_s=table.first_started_s,
        service=table.fastest_gpu_seconds if normalise else table.gpu_seconds,
        service_rate=table.executing_fastest if normalise else table.executing_gpus,
        executed_s=table.executed_s,
        executing=table.executing,
        since_s=table.since_s,
        working_gpus=table.executing_gpus,
        promoted_s=memory.whole_column("promoted_s"),
        promoted_service=memory.whole_column("promoted_service"),
        promoted_ran_s=memory.whole_column("promoted_ran_s"),
    )


def _promote(now: Snapshot, memory: Memory, jobs: ServiceColumns, promoted: Bools) -> None:
    """Remember the promotions."""
    if not promoted.any():
        return
    rows, elapsed_s = now.rows[promoted], now.now_s - jobs.since_s[now.rows[promoted]]
    memory.put("promoted_s", rows, np.full(len(rows), now.now_s))
    memory.put("promoted_service", rows, jobs.service[rows] + jobs.service_rate[rows] * elapsed_s)
    memory.put("promoted_ran_s", rows, now.table.executed_s_at(now.now_s, rows))
