"""What can go wrong in the simulated world, from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from horae.core.errors import UserError


class BadFault(UserError):
    """A fault setting that makes no sense."""


@dataclass(frozen=True)
class Faults:
    """How often things go wrong; all zero is a perfect world. Probabilities are for each attempt or report."""

    #: Losses of each node a day, and how long one stays away on average.
    node_losses_per_day: float = 0.0
    node_repair_s: float = 1800.0
    #: Share of attempts that run slow, and how fast the slowest is.
    stragglers: float = 0.0
    straggler_speed: float = 0.5
    #: Share of launches that fail, and how long a failing one takes.
    launch_failures: float = 0.0
    launch_failure_s: float = 5.0
    #: Share of reports that come late (by up to `late_s`) or twice.
    late_reports: float = 0.0
    late_s: float = 60.0
    duplicated_reports: float = 0.0
    #: Seconds between progress reports of a running job; 0 sends none.
    progress_every_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise BadFault(f"Fault setting {field.name}={value} must be a finite number of at least 0.")
        for name in ("stragglers", "launch_failures", "late_reports", "duplicated_reports"):
            if getattr(self, name) > 1:
                raise BadFault(f"Fault setting {name} is a share; use a number from 0 to 1.")
        if self.launch_failures >= 1:
            raise BadFault("Fault setting launch_failures=1 lets no job ever start; use less than 1.")
        if not 0 < self.straggler_speed <= 1:
            raise BadFault("Fault setting straggler_speed must be above 0 and at most 1.")
