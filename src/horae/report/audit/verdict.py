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
    #: None if there was nothing to judge.
    holds: bool | None
    #: The numbers in a few words.
    summary: str
    numbers: dict[str, Any]
    #: A sentence; empty unless the property does not hold.
    counter_example: str = ""

    def __post_init__(self) -> None:
        shown = (self.holds is False) == bool(self.counter_example)
        assert shown, f"{self.name} holds: {self.holds}, {self.counter_example!r}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def held(judged: int, offences: int) -> bool | None:
    """Whether a property held in all judged cases; None if no case was judged."""
    return not offences if judged else None


def all_held(verdicts: Iterable[Verdict]) -> bool | None:
    """Whether every property that could be judged held; None if none could be judged."""
    judged = [verdict.holds for verdict in verdicts if verdict.holds is not None]
    return all(judged) if judged else None
