"""The bounds of feedback queues: given, or chosen from what the cluster has done.

Chosen bounds cut all the service that jobs of this cluster have had so far, finished or not, into five
equal parts: a fifth was had by jobs before they came to the first bound, and so on. So every queue matters,
whether jobs take hours or months. What is chosen is remembered, and chosen anew whenever half as many
jobs again have finished.

Whoever leaves a queue may lose its GPUs, and a restart costs tens of seconds on each. So bounds are chosen no
lower than those of Tiresias' published simulator, and each at least twice the one before it, or it is left out:
what a job has had when it is stopped is then many times what stopping it costs.
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
from horae.policies.tiresias.feedback_queues import LEAST_BOUND
from horae.solve.gittins import ServiceDistribution

AUTO = "auto"
#: The bounds of Tiresias' published simulator, and how many times the bound before it a chosen one is at least.
_PUBLISHED, _APART = (3250.0, 7200.0), 2.0
#: Bounds are chosen when so many jobs have finished, and again whenever so many times as many have.
_ENOUGH, _MORE = 30, 1.5

#: Where chosen bounds are remembered; the first are the published ones.
_CHOSEN = dict(zip(("bound_1", "bound_2", "bound_3", "bound_4"), (*_PUBLISHED, math.inf, math.inf), strict=True))
SCALARS = {**_CHOSEN, "chosen_from": 0.0}


def read_bounds(text: str) -> Floats:
    """Bounds that the user gave, with that of the last queue, which is infinite."""
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
    """Bounds by what jobs of this cluster have had, with that of the last queue, which is infinite."""
    if now.has_finished(max(_ENOUGH, _MORE * memory.scalar("chosen_from"))):
        memory.put_scalar("chosen_from", now.finished)
        so_far = ServiceDistribution(attained_by_all(now, normalise))
        for name, bound in zip(_CHOSEN, _worthwhile(so_far.equal_parts(len(_CHOSEN) + 1).tolist()), strict=True):
            memory.put_scalar(name, bound)
    return np.array([*(memory.scalar(name) for name in _CHOSEN), math.inf])


def _worthwhile(parts: Sequence[float]) -> list[float]:
    """As many bounds, none lower than the published ones, each well above the one before; infinite where left out."""
    bounds = [max(parts[0], _PUBLISHED[0])]
    bounds.append(max(parts[1], _PUBLISHED[1], _APART * bounds[0]))
    for part in parts[2:]:
        if part >= _APART * bounds[-1]:
            bounds.append(part)
    return [*bounds, *[math.inf] * (len(parts) - len(bounds))]
