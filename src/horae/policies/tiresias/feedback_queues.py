"""The multi-level feedback queue of Tiresias (NSDI '19, section 3.4).

Queues have bounds in GPU-seconds. A job stands in the first queue until the service it has had since
its last promotion reaches the first bound, then in the second, and so on; a higher queue goes first.
A job that has run, stands below the first queue and waits is promoted to the first when its wait since
the last promotion (since its first start, before there was any) reaches `knob` times the time it worked
since then. All time in which a job does no work is wait.

Both are exact. A running job leaves its queue at the moment it reaches the bound, for the policy asks to
be woken then, if anybody waits who could gain by it. And a job is promoted at the moment it is due.

Two things are ours. A job that has never run is owed nothing by promotion, and a large gang may never find enough
GPUs free at once while small jobs keep coming. So one that has not begun within `patience_s` of its submission
counts as begun then, and goes before all that begin later. And a running job may have waited so long before that
it would be promoted as soon as it lost its GPUs. To take them away and give them back would help nobody, so it is
promoted without losing them.

Where jobs of a queue are ordered by something other than their start, one may wait in the first queue for ever, too.
There `anywhere` lets promotion apply to all queues, and jobs that are owed it go first, the longest owed before others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot

#: What is remembered of each job: when it was last promoted, and the service and the time worked it had then.
COLUMNS = {"promoted_s": 0, "promoted_service": 0, "promoted_ran_s": 0}

#: GPU-seconds. A bound must be reached by real work, or a job could be promoted and demoted without end.
LEAST_BOUND = 1.0

#: Moments this close are one: rounding must not keep a job from a bound, nor the policy from sleep.
_INSTANT_S = 1e-6


@dataclass(frozen=True)
class Queues:
    """Where the jobs of a snapshot stand. The first queue is 0."""

    now: Snapshot
    #: Upper bounds of the queues; that of the last is infinite.
    bounds: Floats
    #: Service since the last promotion, and the most that a second can add.
    service: Floats
    pace: Floats
    #: The queue of each job by its service.
    queue: Ints
    #: When each job was last promoted; 0 if it never was.
    promoted_s: Floats
    #: When each job is due for promotion if it does no work until then.
    due_s: Floats
    #: The highest queue that somebody waits in; beyond the last, if nobody waits.
    highest: int
    #: Which jobs are promoted where they stand once they are due.
    promotable: Bools
    patience_s: float

    @property
    def left(self) -> Floats:
        """Service that each job can have before it leaves its queue."""
        return self.bounds[self.queue] - self.service

    def key(self, order: Floats) -> Floats:
        """Keys by queue, and by a given order inside each."""
        spread = float(order.max() - order.min()) if len(order) else 0.0
        return self.queue * (2 * spread or 1.0) + order

    @cached_property
    def begun_s(self) -> Floats:
        """When each job began, or was late to; infinite if neither is so yet."""
        late_s = np.where(self._late_s <= self.now.now_s + _INSTANT_S, self._late_s, np.inf)
        return np.minimum(self.now.first_started_s, late_s)

    @cached_property
    def owed_s(self) -> Floats:
        """Since when each job of the first queue has been there as one that waited too long; infinite for others."""
        late_s = np.where(self.begun_s < self.now.first_started_s, self.begun_s, np.inf)
        owed_s = np.where(self.promoted_s > 0, self.promoted_s, late_s)
        return np.where(self.queue == 0, owed_s, np.inf)

    @property
    def _late_s(self) -> Floats:
        """When each job is late, if it has not begun."""
        return self.now.submit_s + self.patience_s

    @cached_property
    def next_change_s(self) -> float:
        """When the order may next change so that somebody who waits could run; never, if nobody waits.

        Jobs lose GPUs only to others of their own queue or a higher one. So whoever waits when this moment's
        plan is done stands no higher than the highest who waits now, and what happens above is of no interest.
        Those who lose their GPUs by this plan may be promoted sooner; the wishes tell the engine when.
        """
        if self.highest == len(self.bounds):
            return np.inf
        promotion_s = _first(self.promotion_s, ~self.now.launched)
        new = ~self.now.launched & np.isinf(self.begun_s)
        return min(promotion_s, _first(self._demotion_s, self.now.working_gpus > 0), _first(self._late_s, new))

    @property
    def promotion_s(self) -> Floats:
        """When each job that can be is promoted, if it does no work from now on."""
        return np.where(self.promotable, np.maximum(self.due_s, self.now.now_s + _INSTANT_S), np.inf)

    @property
    def heed_starts(self) -> bool:
        """Whether a job that does no work yet could, once it does, leave its queue before the next change."""
        idle = self.now.working_gpus == 0
        return self.highest < len(self.bounds) and _first(self._demotion_s, idle) < self.next_change_s

    @cached_property
    def _demotion_s(self) -> Floats:
        """When each job comes to stand behind others that wait, if it works from now on."""
        bound = self.bounds[np.maximum(self.queue, self.highest - 1)]
        return self.now.now_s + (bound - self.service) / self.pace


def _first(when_s: Floats, whom: Bools) -> float:
    """The first moment of some jobs; never, if there are none."""
    return float(np.min(when_s, where=whom, initial=np.inf))


def stand(
    now: Snapshot,
    memory: Memory,
    attained: Floats,
    pace: Floats,
    bounds: Floats,
    knob: float,
    patience_s: float = np.inf,
    anywhere: bool = False,
) -> Queues:
    """Put the jobs of a snapshot into queues, and promote who is due and waits, or is due as soon as it does."""
    service = attained - memory.column("promoted_service", now.rows)
    queue = np.searchsorted(bounds, service + pace * _INSTANT_S, side="right")
    due_s, waits = _due_s(now, memory, knob), ~now.launched
    # Some work must lie between two promotions, or there would be no end to them.
    promotable = (queue > 0) | (anywhere & (service >= LEAST_BOUND))
    due = promotable & (due_s <= now.now_s + _INSTANT_S)
    queue[due & waits] = 0
    highest = int(np.min(queue, where=waits, initial=len(bounds)))
    promoted = np.flatnonzero(due & (waits | ((queue > 0) & (queue >= highest))))
    if len(promoted):
        rows = now.rows[promoted]
        memory.put("promoted_s", rows, np.full(len(rows), now.now_s))
        memory.put("promoted_service", rows, attained[promoted])
        memory.put("promoted_ran_s", rows, now.executed_s[promoted])
        queue[promoted], service[promoted], promotable[promoted] = 0, 0.0, False
    promoted_s = memory.column("promoted_s", now.rows)
    return Queues(now, bounds, service, pace, queue, promoted_s, due_s, highest, promotable, patience_s)


def _due_s(now: Snapshot, memory: Memory, knob: float) -> Floats:
    """When each job has waited `knob` times as long as it worked since its promotion, if it does no work until then."""
    if knob == np.inf:
        return np.full(len(now), np.inf)
    since_s = np.maximum(now.first_started_s, memory.column("promoted_s", now.rows))
    return since_s + (1.0 + knob) * (now.executed_s - memory.column("promoted_ran_s", now.rows))
