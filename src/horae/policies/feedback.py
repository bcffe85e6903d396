"""The multi-level feedback queue of Tiresias (NSDI '19, section 3.4).

Queues have bounds in GPU-seconds. A job stands in the first queue until the service it has had since
its last promotion reaches the first bound, then in the second, and so on; a higher queue goes first.
A job that has run, stands below the first queue and waits is promoted to the first when its wait since
the last promotion (since its first start, before there was any) reaches `knob` times the time it worked
since then. All time in which a job does no work is wait.

Both are exact. A running job leaves its queue at the moment it reaches the bound, for the policy asks to
be woken then, if anybody waits who could gain by it. And a job is promoted as of the moment it was due.

One thing is ours. A running job may have waited so long that it would be promoted as soon as it lost its
GPUs. To take them away and give them back would help nobody, so it goes with the first queue until it has
worked off its wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Memory, Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: What is remembered of each job: when it was last promoted, and the service and the time worked it had then.
COLUMNS = {"promoted_s": 0, "promoted_service": 0, "promoted_ran_s": 0}

#: Moments this close are one: rounding must not keep a job from a bound, nor the policy from sleep.
_INSTANT_S = 1e-6


@dataclass(frozen=True)
class Queues:
    """Where the jobs of a snapshot stand. The first queue is 0."""

    now: Snapshot
    #: Upper bounds of the queues; that of the last is infinite.
    bounds: Floats
    knob: float
    #: Service since the last promotion, and the most that a second can add.
    service: Floats
    pace: Floats
    #: The queue of each job by its service.
    queue: Ints
    #: When each job is due for promotion if it does no work until then.
    due_s: Floats

    @property
    def left(self) -> Floats:
        """Service that each job can have before it leaves its queue."""
        return self.bounds[self.queue] - self.service

    @cached_property
    def spared(self) -> Bools:
        """Who runs below the first queue and would be promoted at once if it did not."""
        return self.now.launched & (self.queue > 0) & (self.now.now_s - self.due_s > self.knob * _INSTANT_S)

    @cached_property
    def rank(self) -> Ints:
        """The queue that each job goes with."""
        return np.where(self.spared, 0, self.queue)

    def key(self, order: Floats) -> Floats:
        """Keys by queue, and by a given order inside each."""
        spread = float(order.max() - order.min()) if len(order) else 0.0
        return self.rank * (2 * spread or 1.0) + order

    @cached_property
    def _highest(self) -> int:
        """The highest queue that somebody waits in; beyond the last, if nobody waits.

        Jobs lose GPUs only to others of their own queue or a higher one. So whoever waits when this
        moment's plan is done stands no higher, and what happens above that queue is of no interest.
        """
        return int(np.min(self.rank, where=~self.now.launched, initial=len(self.bounds)))

    @cached_property
    def next_change_s(self) -> float:
        """When the order may next change so that somebody who waits could run; never, if nobody waits."""
        if self._highest == len(self.bounds):
            return np.inf
        works = self.now.working_gpus > 0
        demotion_s = _first(self._demotion_s, works & ~self.spared)
        return min(demotion_s, self._first_promotion_s(), self._first_worked_off_s())

    @property
    def heed_starts(self) -> bool:
        """Whether a job that does no work yet could, once it does, leave its queue before the next change."""
        idle = (self.now.working_gpus == 0) & ~self.spared
        return self._highest < len(self.bounds) and _first(self._demotion_s, idle) < self.next_change_s

    def _first_promotion_s(self) -> float:
        """When the first job is promoted, of those that wait or may lose their GPUs now."""
        if self.knob == np.inf:
            return np.inf
        soon_s = self.now.now_s + _INSTANT_S
        # Of those that run some are due within an instant, give or take; to wake before would be for nothing.
        when_s = np.where(self.due_s > self.now.now_s, self.due_s, soon_s)
        return _first(when_s, ~self.spared & (self.queue >= max(self._highest, 1)))

    def _first_worked_off_s(self) -> float:
        """When the first of those that are spared has worked off its wait."""
        if not self.spared.any():
            return np.inf
        now_s = self.now.now_s
        return _first(now_s + (now_s - self.due_s) / self.knob, self.spared & (self.queue >= self._highest))

    @cached_property
    def _demotion_s(self) -> Floats:
        """When each job comes to stand behind others that wait, if it works from now on."""
        bound = self.bounds[np.maximum(self.queue, self._highest - 1)]
        return self.now.now_s + (bound - self.service) / self.pace


def _first(when_s: Floats, whom: Bools) -> float:
    """The first moment of some jobs; never, if there are none."""
    return float(np.min(when_s, where=whom, initial=np.inf))


def stand(now: Snapshot, memory: Memory, attained: Floats, pace: Floats, bounds: Floats, knob: float) -> Queues:
    """Put the jobs of a snapshot into queues, and promote those that are due."""
    rows = now.rows
    service = attained - memory.column("promoted_service", rows)
    queue = np.searchsorted(bounds, service + pace * _INSTANT_S, side="right")
    due_s = _due_s(now, memory, knob)
    starved = np.flatnonzero(~now.launched & (queue > 0) & (due_s <= now.now_s))
    if len(starved):
        memory.put("promoted_s", rows[starved], np.maximum(due_s[starved], now.waiting_since_s[starved]))
        memory.put("promoted_service", rows[starved], attained[starved])
        memory.put("promoted_ran_s", rows[starved], now.executed_s[starved])
        queue[starved], service[starved] = 0, 0.0
    return Queues(now, bounds, knob, service, pace, queue, due_s)


def _due_s(now: Snapshot, memory: Memory, knob: float) -> Floats:
    """When each job has waited `knob` times as long as it worked since its promotion, if it does no work until then."""
    if knob == np.inf:
        return np.full(len(now), np.inf)
    since_s = np.maximum(now.first_started_s, memory.column("promoted_s", now.rows))
    return since_s + (1.0 + knob) * (now.executed_s - memory.column("promoted_ran_s", now.rows))
