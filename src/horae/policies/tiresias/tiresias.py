"""Tiresias: the least served first, or the likeliest to end soon, in queues."""

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
from horae.policies.tiresias.attained_service import NORMALISE, attained, pace
from horae.policies.tiresias.feedback_queues import COLUMNS, Queues, stand
from horae.policies.tiresias.learnt_service import SCALARS as EXPERIENCE
from horae.policies.tiresias.learnt_service import LearntService
from horae.policies.tiresias.queue_bounds import AUTO, choose_bounds, read_bounds
from horae.policies.tiresias.queue_bounds import SCALARS as BOUNDS
from horae.policies.tiresias.service_samples import COLUMN, read_samples
from horae.solve.gittins import ServiceDistribution

_HISTORY = "history"
#: Stands for an index of 0 among logarithms.
_NEXT_TO_NOTHING = 1e-300
#: Who holds GPUs gives way inside a queue only to an index this many times its own: a restart has a price.
_HOLD = 2.0


@dataclass(frozen=True)
class FeedbackPolicy(ABC):
    """What both policies share: the queues, and what is remembered of them."""

    unit: ClassVar = "GPU-s"
    #: Whether promotion applies in the first queue, too.
    anywhere: ClassVar[bool] = False
    memory: ClassVar[MemorySpec] = MemorySpec(columns=COLUMNS, scalars=BOUNDS)
    thresholds: str = setting(
        AUTO, "GPU-seconds after which a job leaves each queue, such as 3250,7200; auto chooses by what jobs have had"
    )
    promote_knob: float = setting(
        8.0, "a job that waits this many times as long as it worked is promoted; off for never", least=0.01, off=True
    )
    patience: float = setting(
        3600.0,
        "seconds after which a job that never ran goes before those that begin later; off for never",
        0,
        off=True,
    )
    normalise: bool = setting(False, NORMALISE)
    reserve: float = setting(math.inf, RESERVE, least=0)

    def __post_init__(self) -> None:
        _ = self._given_bounds

    @abstractmethod
    def order(self, now: Snapshot, memory: Memory, queues: Queues) -> Floats:
        """Who goes first inside a queue: the lowest number."""

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """By queue, then by order; to be asked again when the queues next change."""
        service = attained(now, now.rows, self.normalise)
        bounds = choose_bounds(now, memory, self.normalise) if self._given_bounds is None else self._given_bounds
        growth = pace(now, self.normalise)
        queues = stand(now, memory, service, growth, bounds, self.promote_knob, self.patience, self.anywhere)
        return Wishes(
            now.rows,
            queues.key(self.order(now, memory, queues)),
            reserve_after_s=self.reserve,
            waiting=Reason.BEHIND_LESS_SERVED,
            measure=ComparedBy.SERVICE,
            wake_s=queues.next_change_s,
            heed_starts=queues.heed_starts,
            wake_if_stopped_s=queues.promotion_s,
        )

    @cached_property
    def _given_bounds(self) -> Floats | None:
        return None if self.thresholds.lower() == AUTO else read_bounds(self.thresholds)


@dataclass(frozen=True)
class Tiresias(FeedbackPolicy):
    """Run the jobs that have had the least GPU time, compared by queue; inside a queue, those that started first.

    Discretised 2D-LAS (Tiresias, NSDI '19, section 3): nothing about durations is known. A job of a
    queue keeps its GPUs while it stays there, so that equal jobs do not take turns.
    """

    objective: ClassVar = "queue by attained GPU time, then first start"
    paper: ClassVar = "Tiresias, NSDI '19, section 3"

    def order(self, now: Snapshot, memory: Memory, queues: Queues) -> Floats:
        """By first start."""
        return by_first_start(queues)


def by_first_start(queues: Queues) -> Floats:
    """Those that began first go first; those that never did come last, by arrival."""
    ago_s = queues.now.now_s - queues.begun_s
    return np.where(np.isinf(ago_s), 1.0, -ago_s)


@dataclass(frozen=True)
class TiresiasGittins(FeedbackPolicy):
    """Run the jobs that are likeliest to end for the GPU time they need, by what is known of others, in queues.

    Discretised 2D-Gittins (Tiresias, NSDI '19, section 3): inside a queue the highest Gittins index
    goes first. The distribution of total GPU time comes from a file or from the jobs that finished here;
    before 100 have, those that started first go first. `index=quantum` asks who ends before it leaves its queue,
    `index=supremum` who ends soonest for any quantum. A job's age in the index is what it has had since its
    last promotion: a job that is old for all that is known would else stay behind every new one.
    """

    objective: ClassVar = "queue by attained GPU time, then Gittins index"
    anywhere: ClassVar[bool] = True
    paper: ClassVar = "Tiresias, NSDI '19, section 3.3"
    memory: ClassVar[MemorySpec] = MemorySpec(columns=COLUMNS, scalars={**BOUNDS, **EXPERIENCE})
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

    def order(self, now: Snapshot, memory: Memory, queues: Queues) -> Floats:
        """Those that waited too long, the longest owed first; then by Gittins index, highest first."""
        known = self._given or self._experience.so_far(now, memory)
        if known is None:
            return by_first_start(queues)
        age = queues.service
        index = known.best_index(age) if self.index.lower() == "supremum" else known.index(age, queues.left)
        index = np.where(now.launched, _HOLD * index, index)
        # Logarithms leave the same number of digits to small and large indices beside the number of the queue.
        order = -np.log(np.maximum(index, _NEXT_TO_NOTHING))
        owed_s = queues.owed_s
        return np.where(np.isinf(owed_s), order, order.min(initial=0.0) - 2.0 + owed_s / (1.0 + now.now_s))

    @cached_property
    def _given(self) -> ServiceDistribution | None:
        return None if self.samples.lower() == _HISTORY else ServiceDistribution(read_samples(self.samples))

    @cached_property
    def _experience(self) -> LearntService:
        return LearntService(self.normalise)
