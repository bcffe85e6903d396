"""The bounds of feedback queues: given, or chosen from what the cluster has done.

Chosen bounds cut all the service that jobs of this cluster have had so far, finished or not, into five
equal parts: a fifth was had by jobs before they came to the first bound, and so on. So every queue matters,
whether jobs take minutes or months. What is chosen is remembered, and chosen anew whenever half as many
jobs again have left.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from horae.core.plan import Memory, Snapshot
from horae.policies.service import attained
from horae.policies.settings import BadSetting
from horae.solve.gittins import ServiceDistribution

Floats = NDArray[np.float64]

AUTO = "auto"
#: A bound must be reached by real work, or a job could be promoted and demoted without end.
_LEAST = 1.0
#: Bounds are chosen when so many jobs have left, and again whenever so many times as many have.
_ENOUGH, _MORE = 30, 1.5

#: Where chosen bounds are remembered; the first are those of Tiresias' published simulator.
_CHOSEN = {"bound_1": 3250.0, "bound_2": 7200.0, "bound_3": math.inf, "bound_4": math.inf}
SCALARS = {**_CHOSEN, "chosen_from": 0.0}


def read_bounds(text: str) -> Floats:
    """Bounds that the user gave, with that of the last queue, which is infinite."""
    try:
        bounds = np.array([float(word) for word in text.split(",")])
    except ValueError:
        bounds = np.zeros(1)
    if not (np.diff(bounds, prepend=0.0) > 0).all() or bounds[-1] == math.inf:
        raise BadSetting(f"thresholds={text} are not rising GPU-seconds such as 3250,7200: correct them, or use auto.")
    if bounds[0] < _LEAST:
        raise BadSetting(f"thresholds={text} begin too low: use at least {_LEAST:g} GPU-second.")
    return np.append(bounds, math.inf)


def choose_bounds(now: Snapshot, memory: Memory, normalise: bool) -> Floats:
    """Bounds by what jobs of this cluster have had, with that of the last queue, which is infinite."""
    if now.departed >= max(_ENOUGH, _MORE * memory.scalar("chosen_from")):
        memory.put_scalar("chosen_from", now.departed)
        so_far = ServiceDistribution(attained(now, np.arange(len(now.table)), normalise))
        for name, bound in zip(_CHOSEN, so_far.equal_parts(len(_CHOSEN) + 1), strict=True):
            memory.put_scalar(name, max(float(bound), _LEAST))
    return np.array([*(memory.scalar(name) for name in _CHOSEN), math.inf])
