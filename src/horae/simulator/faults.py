"""Faults: trouble that the simulator makes on purpose, drawn from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from horae.core.errors import UserError


class BadFault(UserError):
    """A fault setting that is not allowed."""


@dataclass(frozen=True)
class Faults:
    """How often faults happen; 0 means never. Shares are probabilities for each attempt, launch or report."""

    #: Losses of each node a day, and the mean seconds until a lost node returns.
    node_losses_per_day: float = 0.0
    node_repair_s: float = 1800.0
    #: Share of attempts that are stragglers, and the lowest speed of a straggler relative to normal.
    stragglers: float = 0.0
    straggler_speed: float = 0.5
    #: Share of launches that fail, and the seconds from such a launch to its failure.
    launch_failures: float = 0.0
    launch_failure_s: float = 5.0
    #: Share of reports that come late (by up to `late_s`), and share that come twice (`duplicated_reports`).
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
