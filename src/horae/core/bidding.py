"""What policies ask of those outside, and what these answer: auctions in which apps bid for themselves.

An app whose agent lives elsewhere is asked for its bid and has until a deadline to answer. Questions are part of a
decision's record and answers are events, so that a journal holds the whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from horae.core.declared import Stored

#: GPUs by machine.
Piece = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ask:
    """An offer to one app: bid for these GPUs before the deadline."""

    app: str
    #: Number of the auction; a bid names it.
    auction: int
    deadline_s: float
    #: Free GPUs by machine, with their type.
    offer: tuple[tuple[str, int, str], ...]
    #: The app's gangs are of so many GPUs, and it can use so many of them.
    gang: int
    gangs: int
    #: Its rho if it wins nothing, as the built-in agent sees it.
    rho: float
    #: What rho is made of: (time since the app came + time until it is done) / its finish time alone on its share.
    elapsed_s: float = 0.0
    alone_s: float = 0.0
    #: GPUs that the app has for sure, whatever it wins now.
    holds: int = 0
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BidRow:
    """One line of a bid: with these GPUs, the app's rho would be so."""

    gpus: tuple[Piece, ...]
    rho: float


@dataclass(frozen=True, slots=True)
class BidAnswer:
    """A bid as an app's own agent gave it; one with a problem counts as an answer, not as a bid."""

    app: str
    auction: int
    rho: float | None = None
    table: tuple[BidRow, ...] = ()
    problem: str = ""


class Bidding:
    """Who has an agent of their own, what was asked, and what was answered so far."""

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
        """An app's own agent came; it is asked from the next auction on."""
        self.agents[app] = None

    def dismiss(self, app: str) -> bool:
        """An app's own agent went, and nobody waits for it any more; True if nobody else is waited for, either."""
        self.agents.pop(app, None)
        waited_for = self.asked.pop(app, None) is not None and self.answers.pop(app, None) is None
        return waited_for and self.complete

    def hear(self, answer: BidAnswer, at_s: float) -> bool:
        """Take an answer; False if it is not wanted: see `refusal`."""
        if self.refusal(answer, at_s):
            return False
        self.answers[answer.app] = answer
        return True

    def refusal(self, answer: BidAnswer, at_s: float) -> str:
        """Why an answer is not wanted at a moment, in one sentence; nothing, if it is."""
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
        """Whether everybody who was asked has answered."""
        return len(self.answers) == len(self.asked)

    def unanswered(self, now_s: float) -> tuple[str, ...]:
        """Apps that were asked, have not answered, and have no more time to."""
        if not self.asked:
            return ()
        return tuple(app for app, ask in self.asked.items() if app not in self.answers and now_s >= ask.deadline_s)

    def set_open(self, asks: Iterable[Ask]) -> None:
        """Make these the open questions; drop the answers to others."""
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
