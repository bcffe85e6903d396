"""The bounds of feedback queues, in GPU-seconds: given by the user, or chosen from the service of this cluster's jobs.

Chosen bounds cut all service attained so far, by finished and unfinished jobs, into five equal parts: jobs attained
a fifth of it before they reached the first bound, and so on. So every queue matters, whether jobs take hours or
months. Chosen bounds are remembered, and chosen anew when the number of finished jobs has grown by half.

A job that leaves a queue may lose its GPUs, and a restart costs tens of seconds on each GPU. So bounds are no
lower than those of Tiresias' published simulator, and a bound less than twice the one before is left out: the
service of a job that is stopped is then many times the cost of stopping it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from horae.core.arrays import Floats
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.settings import BadSetting
from horae.policies.tiresias.attained_service import attained_by_all
from horae.policies.tiresias.queue_columns import LEAST_BOUND
from horae.solve.gittins import ServiceDistribution

AUTO = "auto"
#: The bounds of Tiresias' published simulator, and the least ratio of a chosen bound to the one before it.
_PUBLISHED, _LEAST_RATIO = (3250.0, 7200.0), 2.0
#: Bounds are chosen when this many jobs have finished, and again when that number has grown by this factor.
_ENOUGH, _GROWTH = 30, 1.5

#: Memory (stored): the chosen bounds, at first the published ones, and the number of jobs they were chosen from.
_CHOSEN = dict(zip(("bound_1", "bound_2", "bound_3", "bound_4"), (*_PUBLISHED, math.inf, math.inf), strict=True))
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
        distribution = ServiceDistribution(attained_by_all(now, normalise))
        for name, bound in zip(
            _CHOSEN, _spaced_bounds(distribution.equal_parts(len(_CHOSEN) + 1).tolist()), strict=True
        ):
            memory.put_scalar(name, bound)
    return np.array([*(memory.scalar(name) for name in _CHOSEN), math.inf])


def _spaced_bounds(cuts: Sequence[float]) -> list[float]:
    """As many bounds as cuts: none below the published ones, each well above the one before, infinite if left out."""
    bounds = [max(cuts[0], _PUBLISHED[0])]
    bounds.append(max(cuts[1], _PUBLISHED[1], _LEAST_RATIO * bounds[0]))
    for cut in cuts[2:]:
        if cut >= _LEAST_RATIO * bounds[-1]:
            bounds.append(cut)
    return [*bounds, *[math.inf] * (len(cuts) - len(bounds))]
