"""The multi-level feedback queue of Tiresias (NSDI '19, section 3.4).

Queues have bounds in GPU-seconds; queue 0 goes first. A job is in the first queue until its service since its last
promotion reaches the first bound, then in the second, and so on. A waiting job below the first queue that has run
before is promoted to the first queue when its wait reaches `knob` times the time it worked. Both times count from
the last promotion, or from the first start if there was no promotion. All time without work is wait.

Both moments are exact. A running job leaves its queue when it reaches the bound: the policy asks to be woken then,
if a waiting job could gain. A job is promoted when promotion is due.

Two choices are ours.
- Promotion does nothing for a job that has never run, and a large gang may never find enough GPUs free at once
  while small jobs keep coming. So a job that has not started within `patience_s` of its submission counts as
  started then, and goes before all jobs that start later.
- A running job may have waited so long before that it would be promoted as soon as it lost its GPUs. To take the
  GPUs away and give them back would help no job, so such a job is promoted while it runs.

Where jobs inside a queue are not ordered by start, a job may wait for ever in the first queue, too. With `anywhere`
promotion applies to all queues, and the promoted jobs go first, the longest owed before others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot

#: Memory (stored), by job: when the job was last promoted, and its service and its time worked at that moment.
COLUMNS = {"promoted_s": 0, "promoted_service": 0, "promoted_ran_s": 0}

#: Lowest bound, in GPU-seconds. Reaching it takes real work, or a job could be promoted and demoted without end.
LEAST_BOUND = 1.0

#: Moments closer than this are the same: rounding must not keep a job below its bound, nor wake the policy for ever.
_INSTANT_S = 1e-6


@dataclass(frozen=True)
class FeedbackQueues:
    """The queue of each job of a snapshot; the first queue is 0."""

    now: Snapshot
    #: Upper bounds of the queues; that of the last is infinite.
    bounds: Floats
    #: GPU-seconds since the last promotion, and GPU-seconds that a second adds, or could add at most.
    service: Floats
    service_rate: Floats
    #: Number of each job's queue.
    queue: Ints
    #: When each job was last promoted; 0 if it never was.
    promoted_s: Floats
    #: When each job is due for promotion if it does no work until then.
    due_s: Floats
    #: The first queue with a waiting job; the number of queues, if no job waits.
    first_waiting: int
    #: Jobs that are promoted once promotion is due.
    promotable: Bools
    patience_s: float

    @property
    def left(self) -> Floats:
        """GPU-seconds until each job leaves its queue."""
        return self.bounds[self.queue] - self.service

    def key(self, order: Floats) -> Floats:
        """Sort keys: by queue, then by the given order inside a queue."""
        spread = float(order.max() - order.min()) if len(order) else 0.0
        return self.queue * (2 * spread or 1.0) + order

    @cached_property
    def begun_s(self) -> Floats:
        """When each job first started, or ran out of patience; infinite before either."""
        late_s = np.where(self._late_s <= self.now.now_s + _INSTANT_S, self._late_s, np.inf)
        return np.minimum(self.now.first_started_s, late_s)

    @cached_property
    def owed_s(self) -> Floats:
        """Since when each job of the first queue is owed precedence (promoted or out of patience); infinite if not."""
        late_s = np.where(self.begun_s < self.now.first_started_s, self.begun_s, np.inf)
        owed_s = np.where(self.promoted_s > 0, self.promoted_s, late_s)
        return np.where(self.queue == 0, owed_s, np.inf)

    @property
    def _late_s(self) -> Floats:
        """When each job runs out of patience, if it has not started."""
        return self.now.submit_s + self.patience_s

    @cached_property
    def next_change_s(self) -> float:
        """When the order may next change so that a waiting job could run; infinite if no job waits.

        Jobs lose GPUs only to jobs of the same queue or an earlier one. So after this plan no job waits in a queue
        before `first_waiting`, and changes before that queue do not matter. A job that loses its GPUs by this plan
        may be promoted sooner; `Wishes.wake_if_stopped_s` tells the engine when.
        """
        if self.first_waiting == len(self.bounds):
            return np.inf
        promotion_s = _earliest(self.promotion_s, ~self.now.launched)
        demotion_s = _earliest(self._demotion_s, self.now.working_gpus > 0)
        new = ~self.now.launched & np.isinf(self.begun_s)
        return min(promotion_s, demotion_s, _earliest(self._late_s, new))

    @property
    def promotion_s(self) -> Floats:
        """When each promotable job is promoted, if it does no work from now on; infinite for others."""
        return np.where(self.promotable, np.maximum(self.due_s, self.now.now_s + _INSTANT_S), np.inf)

    @property
    def wake_on_start(self) -> bool:
        """Whether a job that does no work yet could, once it works, leave its queue before the next change."""
        idle = self.now.working_gpus == 0
        return self.first_waiting < len(self.bounds) and _earliest(self._demotion_s, idle) < self.next_change_s

    @cached_property
    def _demotion_s(self) -> Floats:
        """When each job falls behind a waiting job, if it works from now on."""
        bound = self.bounds[np.maximum(self.queue, self.first_waiting - 1)]
        return self.now.now_s + (bound - self.service) / self.service_rate


def _earliest(when_s: Floats, chosen: Bools) -> float:
    """The earliest moment of the chosen jobs; infinite if no job is chosen."""
    return float(np.min(when_s, where=chosen, initial=np.inf))


def assign_queues(
    now: Snapshot,
    memory: Memory,
    attained: Floats,
    service_rate: Floats,
    bounds: Floats,
    knob: float,
    patience_s: float = np.inf,
    anywhere: bool = False,
) -> FeedbackQueues:
    """Assign the jobs of a snapshot to queues. Promote jobs that are due: waiting, or running and due once stopped."""
    service = attained - memory.column("promoted_service", now.rows)
    queue = np.searchsorted(bounds, service + service_rate * _INSTANT_S, side="right")
    due_s, waits = _due_s(now, memory, knob), ~now.launched
    # Some work must lie between two promotions, or promotions would never end.
    promotable = (queue > 0) | (anywhere & (service >= LEAST_BOUND))
    due = promotable & (due_s <= now.now_s + _INSTANT_S)
    queue[due & waits] = 0
    first_waiting = int(np.min(queue, where=waits, initial=len(bounds)))
    promoted = np.flatnonzero(due & (waits | ((queue > 0) & (queue >= first_waiting))))
    if len(promoted):
        rows = now.rows[promoted]
        memory.put("promoted_s", rows, np.full(len(rows), now.now_s))
        memory.put("promoted_service", rows, attained[promoted])
        memory.put("promoted_ran_s", rows, now.executed_s[promoted])
        queue[promoted], service[promoted], promotable[promoted] = 0, 0.0, False
    promoted_s = memory.column("promoted_s", now.rows)
    return FeedbackQueues(
        now, bounds, service, service_rate, queue, promoted_s, due_s, first_waiting, promotable, patience_s
    )


def _due_s(now: Snapshot, memory: Memory, knob: float) -> Floats:
    """When promotion of each job is due, if it does no work until then: wait = `knob` * time worked."""
    if knob == np.inf:
        return np.full(len(now), np.inf)
    since_s = np.maximum(now.first_started_s, memory.column("promoted_s", now.rows))
    return since_s + (1.0 + knob) * (now.executed_s - memory.column("promoted_ran_s", now.rows))
