"""The multi-level feedback queue of Tiresias (NSDI '19, section 3.4).

Queues have bounds in GPU-seconds. A job stands in the first queue until the service it has had since
its last promotion reaches the first bound, then in the second, and so on; a higher queue goes first.
A job that has run, stands below the first queue and waits is promoted to the first when its wait since
the last promotion (its first start, before there was any) reaches `knob` times the time it worked since
then: nobody gets less than one part in 1 + knob of its time for ever. All time in which a job does no
work is wait.

Two things are to the second. A running job leaves its queue at the very moment it reaches the bound, for
that is when the policy asks to be woken. And a job is promoted at the moment its limit is reached, even if
nobody looks just then: what is remembered is when it was due.

One thing is ours. A running job may have waited so long before that it would be promoted as soon as it
lost its GPUs. To take them from it and give them back would help nobody, so it goes with the first queue
until it has worked off its wait.
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

#: Moments this close are one: a bound that is not reached for want of a rounding error is reached.
_INSTANT_S = 1e-6


@dataclass(frozen=True)
class Service:
    """Service of the jobs of a snapshot, and how much of it a second adds."""

    attained: Floats
    growth: Floats


@dataclass(frozen=True)
class Queues:
    """Where the jobs of a snapshot stand. The first queue is 0."""

    now: Snapshot
    #: Upper bounds of the queues; that of the last is infinite.
    bounds: Floats
    knob: float
    #: Service since the last promotion.
    service: Service
    #: The queue of each job by its service.
    queue: Ints
    #: When each job is due for promotion if it does not work until then.
    due_s: Floats

    @classmethod
    def of(cls, now: Snapshot, memory: Memory, service: Service, bounds: Floats, knob: float) -> Queues:
        """The queues of this moment, by what is remembered."""
        rows, due_s = now.rows, np.full(len(now), np.inf)
        since = Service(service.attained - memory.column("promoted_service", rows), service.growth)
        if knob < np.inf:
            since_s = np.maximum(now.first_started_s, memory.column("promoted_s", rows))
            due_s = since_s + (1.0 + knob) * (now.executed_s - memory.column("promoted_ran_s", rows))
        queue = np.searchsorted(bounds, since.attained + since.growth * _INSTANT_S, side="right")
        return cls(now, np.append(bounds, np.inf), knob, since, queue, due_s)

    @cached_property
    def starved(self) -> Bools:
        """Who is promoted now: those that wait below the first queue and are due."""
        return ~self.now.launched & (self.queue > 0) & (self.due_s <= self.now.now_s)

    @cached_property
    def spared(self) -> Bools:
        """Who runs below the first queue and would be promoted at once if it did not."""
        return self.now.launched & (self.queue > 0) & (self.now.now_s - self.due_s > self.knob * _INSTANT_S)

    @cached_property
    def rank(self) -> Ints:
        """The queue that each job goes with."""
        return np.where(self.starved | self.spared, 0, self.queue)

    @property
    def left(self) -> Floats:
        """Service that each job may get before it leaves its queue."""
        left = self.bounds[self.queue] - self.service.attained
        return np.where(self.starved, self.bounds[0], left)

    def promote(self, memory: Memory, attained: Floats) -> None:
        """Remember who is promoted, as of the moment it was due, or stopped if that was later."""
        starved = np.flatnonzero(self.starved)
        if len(starved) == 0:
            return
        rows = self.now.rows[starved]
        memory.put("promoted_s", rows, np.maximum(self.due_s[starved], self.now.waiting_since_s[starved]))
        memory.put("promoted_service", rows, attained[starved])
        memory.put("promoted_ran_s", rows, self.now.executed_s[starved])

    def next_change_s(self) -> float:
        """When the order may next change so that somebody who waits could run; never, if nobody waits.

        Nobody loses GPUs but to jobs of its own queue or a higher one. So whoever waits after this moment
        stands no higher than the highest who waits now, and changes above that queue are of no interest.
        """
        waits = ~self.now.launched
        if not waits.any():
            return np.inf
        highest = int(self.rank[waits].min())
        return min(
            self._first(waits & (self.rank > 0), self.due_s),
            self._first(self._losing(highest), np.maximum(self.due_s, self.now.now_s + _INSTANT_S)),
            self._first(*self._worked_off(highest)),
            self._first(*self._demoted(highest)),
        )

    def _first(self, whom: Bools, when_s: Floats) -> float:
        return float(np.min(when_s, where=whom, initial=np.inf))

    def _losing(self, highest: int) -> Bools:
        """Who may lose its GPUs now, and so wait until it is due."""
        return self.now.launched & ~self.spared & (self.queue >= max(highest, 1))

    def _worked_off(self, highest: int) -> tuple[Bools, Floats]:
        """Who is spared until it has worked off its wait, and when."""
        whom = self.spared & (self.now.working_gpus > 0) & (self.queue >= highest)
        return whom, self.now.now_s + (self.now.now_s - self.due_s) / self.knob

    def _demoted(self, highest: int) -> tuple[Bools, Floats]:
        """Who comes to stand behind others that wait, and when."""
        bound = self.bounds[np.maximum(self.queue, highest - 1)]
        whom = ~self.spared & (self.service.growth > 0)
        way = bound - self.service.attained
        return whom, self.now.now_s + np.divide(way, self.service.growth, out=np.full(len(way), np.inf), where=whom)
