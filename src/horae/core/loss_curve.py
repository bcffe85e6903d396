"""How the loss of a training job falls with the work it does: the truth of a simulated world."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossCurve:
    """`last + (first - last) / (1 + work / halves_at)`: the distance to `last` halves by `halves_at`.

    It is what first-order methods promise for convex problems, and what SLAQ (SoCC '17, section 3)
    fits; it comes near `last` and never there. Only the simulated world reads it: a scheduler
    knows what jobs report.
    """

    first: float
    last: float
    halves_at: float

    def at(self, work_done: float) -> float:
        """The loss after so much work."""
        return self.last + (self.first - self.last) / (1.0 + work_done / self.halves_at)

    @property
    def problem(self) -> str:
        """What is wrong with it, or an empty string."""
        if not all(math.isfinite(value) for value in (self.first, self.last, self.halves_at)):
            return "its loss needs finite numbers"
        if self.last > self.first:
            return f"its loss would rise from {self.first} to {self.last}; it must not"
        if self.halves_at <= 0:
            return f"its loss halves at {self.halves_at}; give an amount of work above 0"
        return ""
