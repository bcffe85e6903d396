"""What one part of the benchmarks gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

Row = dict[str, object]


@dataclass(frozen=True)
class Part:
    """A table, what to know when reading it, and the limits that were missed."""

    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
