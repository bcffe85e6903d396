"""The bounds of feedback queues, in GPU-seconds: given by the user, or chosen from the service of this cluster's jobs.

A job that passes a bound gives way to jobs that have not. That helps if it has more left than they have. So a bound is
chosen where the mean service left, of jobs that pass it, is well above that of jobs that pass the bound before. Where
many jobs are short and few are very long, the mean grows from bound to bound, and there are many queues. Where jobs
are alike, it falls: those that have had much are nearly done, there is no bound, and jobs run in the order they came.

Each bound is four times the one before, or sixteen times, and so on: whether jobs take minutes or months, some are
right. Until some jobs have finished, nothing is known, and the first eight are all in use. Chosen bounds
are remembered, and chosen anew when the number of finished jobs has grown by half.
"""

from __future__ import annotations

import math

import numpy as np

from horae.core.arrays import Floats
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.settings import BadSetting
from horae.policies.tiresias.attained_service import attained_by_all, attained_by_finished
from horae.policies.tiresias.queue_columns import LEAST_BOUND

AUTO = "auto"
#: The bounds to choose from: 2,000 GPU-seconds, many times what a restart costs, up to more than any job takes.
_CANDIDATES: Floats = np.array([2000.0 * 4.0**step for step in range(12)])
#: Bounds until some are chosen.
_FIRST: Floats = np.append(_CANDIDATES[:8], math.inf)
#: The mean service left must be this many times that at the bound before.
_MORE_LEFT = 1.25
#: Bounds are chosen when this many jobs have finished, and again when that number has grown by this factor.
_ENOUGH, _GROWTH = 30, 1.5

#: Memory (stored): the chosen bounds, then infinity, and the number of jobs they were chosen from.
_CHOSEN = {f"bound_{number}": math.inf for number in range(1, len(_CANDIDATES) + 1)}
SCALARS = {**_CHOSEN, "chosen_from": 0.0}


def read_bounds(text: str) -> Floats:
    """The bounds that the user gave, in GPU-seconds, and infinity for the last queue."""
    try:
        bounds = np.array([float(word) for word in text.split(",")])
    except ValueError:
        bounds = np.zeros(1)
    if not (np.diff(bounds, prepend=0.0) > 0).all() or bounds[-1] == math.inf:
        raise BadSetting(f"thresholds={text} are not rising GPU-seconds such as 3250,7200: correct them, or use auto.")
    if bounds[0] < LEAST_BOUND:
        raise BadSetting(f"thresholds={text} begin too low: use at least {LEAST_BOUND:g} GPU-second.")
    return np.append(bounds, math.inf)


def choose_bounds(now: Snapshot, memory: Memory, normalise: bool) -> Floats:
    """Bounds from the service of this cluster's jobs, and infinity for the last queue."""
    if now.has_finished(max(_ENOUGH, _GROWTH * memory.scalar("chosen_from"))):
        memory.put_scalar("chosen_from", now.finished)
        chosen = worthwhile_bounds(attained_by_all(now, normalise), attained_by_finished(now, math.inf, normalise))
        for name, bound in zip(_CHOSEN, [*chosen, *[math.inf] * (len(_CHOSEN) - len(chosen))], strict=True):
            memory.put_scalar(name, bound)
    if memory.scalar("chosen_from") == 0:
        return _FIRST
    chosen = [memory.scalar(name) for name in _CHOSEN]
    return np.array([*(bound for bound in chosen if bound < math.inf), math.inf])


def worthwhile_bounds(attained: Floats, finished: Floats) -> list[float]:
    """The candidates that are worthwhile by the service that all jobs have had, and that of finished jobs.

    The mean service left at an age is the service that jobs have had beyond it over the number of jobs that ended
    beyond it. So what unfinished jobs have had counts, though not as if they had ended.
    """
    chosen: list[float] = []
    before = _mean_left(0.0, attained, finished)
    for bound in _CANDIDATES[attained.max(initial=0.0) > _CANDIDATES].tolist():
        left = _mean_left(bound, attained, finished)
        if left >= _MORE_LEFT * before:
            chosen.append(bound)
            before = left
        if left == math.inf:
            break
    return chosen


def _mean_left(age: float, attained: Floats, finished: Floats) -> float:
    """Mean service that jobs of this age still take; infinite if no job has ended beyond it."""
    ended = np.count_nonzero(finished > age)
    return float(np.maximum(attained - age, 0.0).sum()) / ended if ended else math.inf
