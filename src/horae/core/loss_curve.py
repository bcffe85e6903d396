"""Loss of a training job by work done, as the simulator makes it up."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossCurve:
    """`last + (first - last) / (1 + work / halves_at)`: the distance to `last` halves by `halves_at`.

    First-order methods converge like this on convex problems, and SLAQ (SoCC '17, section 3) fits this curve.
    The loss approaches `last` and never reaches it. Only the simulator reads the curve: a policy sees the
    losses that jobs report.
    """

    first: float
    last: float
    halves_at: float

    def at(self, work_done: float) -> float:
        """The loss after `work_done`."""
        return self.last + (self.first - self.last) / (1.0 + work_done / self.halves_at)

    @property
    def problem(self) -> str:
        """What is wrong with the curve, or an empty string."""
        if not all(math.isfinite(value) for value in (self.first, self.last, self.halves_at)):
            return "its loss needs finite numbers"
        if self.last > self.first:
            return f"its loss would rise from {self.first} to {self.last}; it must not"
        if self.halves_at <= 0:
            return f"its loss halves at {self.halves_at}; give an amount of work above 0"
        return ""
