"""Bidding with agents outside: the offers made to them, their deadlines, and their answers. Stored: change by addition.

An app with an agent of its own is asked for its bid and has until a deadline to answer. Asks are part of a
decision's record and answers are events, so that a journal holds all of the bidding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from horae.core.declared import Stored

#: Machine and GPU count.
Piece = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ask:
    """An offer to one app: bid for these GPUs before the deadline."""

    app: str
    #: Number of the auction; a bid names it.
    auction: int
    deadline_s: float
    #: Machine, free GPU count and GPU type.
    offer: tuple[tuple[str, int, str], ...]
    #: GPU count of one gang of the app, and the number of gangs it can use.
    gang: int
    gangs: int
    #: The app's rho if it wins nothing, as the built-in agent computes it.
    rho: float
    #: Parts of rho = (elapsed_s + seconds until the app is done) / alone_s. `elapsed_s`: since the app's submission;
    #: `alone_s`: the app's finish time alone on its fair share.
    elapsed_s: float = 0.0
    alone_s: float = 0.0
    #: GPUs that the app keeps whatever it wins now.
    holds: int = 0
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BidRow:
    """One row of a bid: GPUs by machine, and the rho that the app would have with them."""

    gpus: tuple[Piece, ...]
    rho: float


@dataclass(frozen=True, slots=True)
class BidAnswer:
    """A bid as an app's own agent gave it. An answer with a problem ends the wait but is no bid."""

    app: str
    auction: int
    rho: float | None = None
    table: tuple[BidRow, ...] = ()
    problem: str = ""


class Bidding:
    """Apps with an agent of their own, the asks that are open, and the answers so far."""

    STORED: ClassVar[dict[str, Stored]] = {
        "agents": Stored(list[str]),
        "asked": Stored(tuple[Ask, ...]),
        "answers": Stored(tuple[BidAnswer, ...]),
    }

    def __init__(self) -> None:
        self.agents: dict[str, None] = {}
        self.asked: dict[str, Ask] = {}
        self.answers: dict[str, BidAnswer] = {}

    def register(self, app: str) -> None:
        """Add an app's own agent; it is asked from the next auction on."""
        self.agents[app] = None

    def dismiss(self, app: str) -> bool:
        """Remove an app's own agent and its ask; True if its answer was the last one missing."""
        self.agents.pop(app, None)
        waited_for = self.asked.pop(app, None) is not None and self.answers.pop(app, None) is None
        return waited_for and self.complete

    def hear(self, answer: BidAnswer, at_s: float) -> bool:
        """Take an answer; False if it is refused: see `refusal`."""
        if self.refusal(answer, at_s):
            return False
        self.answers[answer.app] = answer
        return True

    def refusal(self, answer: BidAnswer, at_s: float) -> str:
        """Why an answer is refused at `at_s`, in one sentence; empty if it is taken."""
        ask = self.asked.get(answer.app)
        if ask is None or ask.auction != answer.auction:
            return f"Nobody asks app {answer.app!r} for a bid in auction {answer.auction} now: wait for the next offer."
        if answer.app in self.answers:
            return f"App {answer.app!r} has bid in auction {answer.auction} already: the first answer counts."
        if at_s >= ask.deadline_s:
            late_s = at_s - ask.deadline_s
            return f"The bid of app {answer.app!r} in auction {answer.auction} came {late_s:.3f} s too late."
        return ""

    @property
    def complete(self) -> bool:
        """Whether every ask has an answer."""
        return len(self.answers) == len(self.asked)

    def unanswered(self, now_s: float) -> tuple[str, ...]:
        """Apps that have not answered before the deadline of their ask."""
        if not self.asked:
            return ()
        return tuple(app for app, ask in self.asked.items() if app not in self.answers and now_s >= ask.deadline_s)

    def set_open(self, asks: Iterable[Ask]) -> None:
        """Make these the open asks; drop the answers to other asks."""
        if not asks and not self.asked and not self.answers:
            return
        self.asked = {ask.app: ask for ask in asks}
        answers = self.answers.items()
        self.answers = {
            app: answer for app, answer in answers if app in self.asked and self.asked[app].auction == answer.auction
        }

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values."""
        return {
            "agents": list(self.agents),
            "asked": tuple(self.asked.values()),
            "answers": tuple(self.answers.values()),
        }

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave."""
        self.agents = dict.fromkeys(contents["agents"])
        self.asked = {ask.app: ask for ask in contents["asked"]}
        self.answers = {answer.app: answer for answer in contents["answers"]}
