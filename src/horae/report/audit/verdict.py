"""What an audit says about one property of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """Whether a property held, in numbers, and what shows that it did not."""

    #: The property, as programs name it.
    name: str
    #: What it says, for people.
    claim: str
    #: None where there was nothing to judge by.
    holds: bool | None
    #: The numbers in a few words.
    summary: str
    numbers: dict[str, Any]
    #: A sentence; empty where nothing shows that the property does not hold.
    counter_example: str = ""

    def __post_init__(self) -> None:
        shown = (self.holds is False) == bool(self.counter_example)
        assert shown, f"{self.name} holds: {self.holds}, {self.counter_example!r}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def held(judged: int, offences: int) -> bool | None:
    """Whether a property held, by how many cases were judged and in how many of them it did not."""
    return not offences if judged else None


def all_held(verdicts: Iterable[Verdict]) -> bool | None:
    """Whether all that could be judged held; None if nothing could."""
    found = [verdict.holds for verdict in verdicts if verdict.holds is not None]
    return all(found) if found else None


def count(many: int, one: str, more: str = "") -> str:
    """A number and what is counted: 1 app, 2 apps."""
    return f"{many:,} {one if many == 1 else more or one + 's'}"
