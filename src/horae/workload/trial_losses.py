"""How the losses of generated trials fall: an app's trials begin alike and end apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.loss_curve import LossCurve

#: Loss of an untrained model, as of a guess among 7 to 1,100 classes, and the part of it that training leaves.
FIRST = (2.0, 7.0)
LEFT = (0.05, 0.9)
#: Share of its work by which a trial has come half the way: median, and spread of its logarithm.
HALF_WAY, HALF_WAY_SIGMA = 0.1, 0.5
#: Reports of a trial whose workload names no number.
REPORTS = 20
_DIGITS = 6


def draw_curves(rng: np.random.Generator, app: NDArray[np.int64], work: NDArray[np.float64]) -> list[LossCurve]:
    """A curve for each job, given its app and its work.

    Trials of an app share the loss they begin with. Who is ahead early does not always end ahead, because
    some come down faster to a worse end: otherwise the first rung would tell everything.
    """
    first = np.round(rng.uniform(*FIRST, int(app.max(initial=-1)) + 1), _DIGITS)[app]
    last = np.round(first * rng.uniform(*LEFT, app.size), _DIGITS)
    half_way = work * HALF_WAY * rng.lognormal(0.0, HALF_WAY_SIGMA, app.size)
    # At least a millionth: rounding must not leave a curve that falls at once.
    halves_at = np.maximum(np.round(half_way, _DIGITS), 10.0**-_DIGITS)
    return [LossCurve(*curve) for curve in zip(first.tolist(), last.tolist(), halves_at.tolist(), strict=True)]
