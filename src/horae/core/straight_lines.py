"""Amounts that grow or shrink at a constant rate from a moment on: work left, GPU time. Compiled."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import FLOAT, FLOATS, INTS, compiled


@compiled(FLOATS, FLOAT, INTS, FLOATS, FLOATS, FLOATS, FLOAT)
def along(
    now_s: float,
    rows: Ints,
    base: Floats,
    slope: Floats,
    since_s: Floats,
    sign: float,
) -> Floats:
    """Value of each row's straight line at `now_s`: base + sign * slope * (now_s - since_s)."""
    out = np.empty(len(rows))
    for i in range(len(rows)):
        row = rows[i]
        out[i] = base[row] + sign * slope[row] * (now_s - since_s[row])
    return out
