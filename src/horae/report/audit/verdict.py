"""What an audit says about one property of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """Whether a property held, in numbers, and what shows that it did not."""

    #: The property, as programs name it.
    name: str
    #: What it says, for people.
    claim: str
    holds: bool
    #: The numbers in a few words.
    summary: str
    numbers: dict[str, Any]
    #: A sentence; empty where the property holds.
    counter_example: str = ""

    def __post_init__(self) -> None:
        assert self.holds == (not self.counter_example), f"{self.name} holds: {self.holds}, {self.counter_example!r}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def count(many: int, one: str, more: str = "") -> str:
    """A number and what is counted: 1 app, 2 apps."""
    return f"{many:,} {one if many == 1 else more or one + 's'}"
