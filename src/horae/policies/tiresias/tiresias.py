"""Tiresias: queues by attained service; inside a queue running jobs first (2D-LAS) or by Gittins index (2D-Gittins)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats
from horae.core.compared_by import ComparedBy
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.settings import RESERVE, BadSetting, setting
from horae.policies.tiresias.attained_service import NORMALISE
from horae.policies.tiresias.feedback_queues import COLUMNS, FeedbackQueues, assign_queues
from horae.policies.tiresias.learnt_service import SCALARS as LEARNT
from horae.policies.tiresias.learnt_service import LearntService
from horae.policies.tiresias.queue_bounds import AUTO, choose_bounds, read_bounds
from horae.policies.tiresias.queue_bounds import SCALARS as BOUNDS
from horae.policies.tiresias.queue_columns import Rule
from horae.policies.tiresias.service_samples import COLUMN, read_samples
from horae.solve.gittins import ServiceDistribution

_HISTORY = "history"
#: Replaces an index of 0 before its logarithm is taken.
_TINY_INDEX = 1e-300
#: Factor on the index of a launched job: a restart costs time, so the job gives way to clearly higher indices only.
_STAY_FACTOR = 2.0


@dataclass(frozen=True)
class FeedbackPolicy(ABC):
    """Base of both policies: the feedback queues, their settings and their memory."""

    unit: ClassVar = "GPU-s"
    #: Whether jobs preempt one another inside a queue.
    inside: ClassVar[bool] = False
    type_aware: ClassVar = False
    memory: ClassVar[MemorySpec] = MemorySpec(columns=COLUMNS, scalars=BOUNDS)
    thresholds: str = setting(
        AUTO, "GPU-seconds after which a job leaves each queue, such as 3250,7200; auto chooses by what jobs have had"
    )
    promote_knob: float = setting(
        64.0, "a job that waits this many times as long as it worked is promoted; off for never", least=0.01, off=True
    )
    patience: float = setting(
        3600.0,
        "seconds after which a job that waits in the first queue goes before jobs that run there; off for never",
        0,
        off=True,
    )
    normalise: bool = setting(False, NORMALISE)
    reserve: float = setting(math.inf, RESERVE, least=0)

    def __post_init__(self) -> None:
        _ = self._given_bounds

    @abstractmethod
    def order(self, now: Snapshot, memory: Memory, queues: FeedbackQueues) -> Floats:
        """A number for each job; inside a queue the job with the lowest goes first."""

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By queue, then by `order`. The policy is woken when the queues next change."""
        bounds = choose_bounds(now, memory, self.normalise) if self._given_bounds is None else self._given_bounds
        rule = Rule(self.promote_knob, self.patience, self.inside, bounds)
        queues = assign_queues(now, memory, rule, self.normalise)
        return Wishes(
            now.rows,
            queues.key(self.order(now, memory, queues)),
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_QUEUE,
            compared_by=ComparedBy.SERVICE,
            wake_s=queues.next_change_s,
            wake_on_start=queues.wake_on_start,
            wake_if_stopped_s=queues.promotion_s,
        )

    @cached_property
    def _given_bounds(self) -> Floats | None:
        return None if self.thresholds.lower() == AUTO else read_bounds(self.thresholds)


@dataclass(frozen=True)
class Tiresias(FeedbackPolicy):
    """Run the jobs that have had the least GPU time, compared by queue; inside a queue, those that run already.

    Discretised 2D-LAS (Tiresias, NSDI '19, section 3): durations need not be known. Attained service is compared
    by queue, not by the second, so two jobs a little apart do not take turns preempting each other.
    """

    objective: ClassVar = "queue by attained GPU time, then who runs, then first start"
    paper: ClassVar = "Tiresias, NSDI '19, section 3"

    def order(self, now: Snapshot, memory: Memory, queues: FeedbackQueues) -> Floats:
        """Jobs that have GPUs keep them; then by first start."""
        return queues.by_start()


@dataclass(frozen=True)
class TiresiasGittins(FeedbackPolicy):
    """Run the jobs that are likeliest to end for the GPU time they need, by what is known of others, in queues.

    Discretised 2D-Gittins (Tiresias, NSDI '19, section 3): inside a queue the highest Gittins index
    goes first. The distribution of total GPU time comes from a file or from the jobs that finished here; until
    100 jobs have finished, the job that started first goes first. `index=quantum` is the index for the service
    that is left in the job's queue; `index=supremum` is the highest index for any service.
    The choice that is ours: a job's age in the index is its service since its last promotion. Otherwise a job older
    than all finished jobs would stay behind every new job.
    """

    objective: ClassVar = "queue by attained GPU time, then Gittins index"
    inside: ClassVar[bool] = True
    paper: ClassVar = "Tiresias, NSDI '19, section 3.3"
    memory: ClassVar[MemorySpec] = MemorySpec(columns=COLUMNS, scalars={**BOUNDS, **LEARNT})
    samples: str = setting(
        _HISTORY,
        "CSV file with the GPU-seconds that jobs took in all; history takes the jobs that finished here",
        column=COLUMN,
    )
    index: str = setting("quantum", "quantum, for the index up to the bound of the queue, or supremum, for the best")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.index.lower() not in ("quantum", "supremum"):
            raise BadSetting(f"index={self.index} is not known: choose quantum or supremum.")
        _ = self._given

    def order(self, now: Snapshot, memory: Memory, queues: FeedbackQueues) -> Floats:
        """Jobs owed precedence, the longest owed first; then by Gittins index, highest first."""
        distribution = self._given or self._learnt.distribution(now, memory)
        if distribution is None:
            return queues.by_start()
        age, supremum = queues.service, self.index.lower() == "supremum"
        index = distribution.best_index(age) if supremum else distribution.index(age, queues.left)
        index = np.where(now.launched, _STAY_FACTOR * index, index)
        # The key adds the queue's number. Logarithms keep as many digits of a small index as of a large one.
        order = -np.log(np.maximum(index, _TINY_INDEX))
        owed_s = queues.owed_s
        return np.where(np.isinf(owed_s), order, order.min(initial=0.0) - 2.0 + owed_s / (1.0 + now.now_s))

    @cached_property
    def _given(self) -> ServiceDistribution | None:
        return None if self.samples.lower() == _HISTORY else ServiceDistribution(read_samples(self.samples))

    @cached_property
    def _learnt(self) -> LearntService:
        return LearntService(self.normalise)
