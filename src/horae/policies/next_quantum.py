"""The time grid: multiples of a quantum, at which policies with time slices, leases or rounds decide again."""

from __future__ import annotations

import math


def next_quantum_s(now_s: float, quantum_s: float) -> float:
    """The first multiple of the quantum after now."""
    after_s = (math.floor(now_s / quantum_s) + 1) * quantum_s
    return after_s if after_s > now_s else after_s + quantum_s
