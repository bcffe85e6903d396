"""Tiresias' two policies for when nobody knows how long jobs take."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Memory, MemorySpec, Snapshot, Wishes
from horae.core.reasons import Reason
from horae.policies.experience import SCALARS
from horae.policies.feedback import COLUMNS, Queues, Service
from horae.policies.service import NORMALISE, attained, growth
from horae.policies.settings import RESERVE, setting

Floats = NDArray[np.float64]
_DEFAULT = "3250,7200"


@dataclass(frozen=True)
class FeedbackPolicy(ABC):
    objective: ClassVar[str]
    unit: ClassVar = "GPU-s"
    paper: ClassVar = "Tiresias, NSDI '19, section 3"
    memory: ClassVar = MemorySpec(columns=COLUMNS, scalars=SCALARS)
    thresholds: str = setting(_DEFAULT, "bounds")
    promote_knob: float = setting(8.0, "knob", least=0.01, off=True)
    normalise: bool = setting(False, NORMALISE)
    reserve: float = setting(math.inf, RESERVE, least=0)

    @abstractmethod
    def order(self, now: Snapshot, memory: Memory, queues: Queues, service: Floats) -> Floats:
        ...

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        service = Service(attained(now, self.normalise), growth(now, self.normalise))
        queues = Queues.of(now, memory, service, self._bounds, self.promote_knob)
        queues.promote(memory, service.attained)
        order = self.order(now, memory, queues, service.attained)
        span = float(np.ptp(order)) if len(order) else 0.0
        return Wishes(
            now.rows,
            queues.rank * (2 * span or 1.0) + order,
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_LESS_SERVED,
            wake_s=queues.next_change_s(),
        )

    @cached_property
    def _bounds(self) -> Floats:
        return np.array([float(x) for x in self.thresholds.split(",")])

@dataclass(frozen=True)
class Tiresias(FeedbackPolicy):
    """LAS."""
    objective: ClassVar = "queue"
    def order(self, now: Snapshot, memory: Memory, queues: Queues, service: Floats) -> Floats:
        started = now.first_started_s < np.inf
        return np.where(started, now.first_started_s - now.now_s, 1.0)
