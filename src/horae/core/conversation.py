"""What policies ask of those outside, and what these answer: auctions in which apps bid for themselves.

An app whose agent lives elsewhere is asked for its bid and has until a deadline to answer. Questions are part of a
decision's record and answers are events, so that a journal holds the whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a bid: with these GPUs, the app's rho would be so."""

    gpus: tuple[Piece, ...]
    rho: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A bid as an app's own agent gave it; one with a problem counts as an answer, not as a bid."""

    app: str
    auction: int
    rho: float | None = None
    table: tuple[Row, ...] = ()
    problem: str = ""


class Conversation:
    """Who has an agent of their own, what was asked, and what was answered so far."""

    def __init__(self) -> None:
        self.agents: dict[str, None] = {}
        self.asked: dict[str, Ask] = {}
        self.answers: dict[str, Answer] = {}

    def register(self, app: str, present: bool) -> None:
        """An app's own agent came, or went."""
        if present:
            self.agents[app] = None
        else:
            self.agents.pop(app, None)

    def hear(self, answer: Answer) -> bool:
        """Take an answer; False if nobody asked, it was given before, or it comes too late."""
        ask = self.asked.get(answer.app)
        if ask is None or ask.auction != answer.auction or answer.app in self.answers:
            return False
        self.answers[answer.app] = answer
        return True

    @property
    def complete(self) -> bool:
        """Whether everybody who was asked has answered."""
        return bool(self.asked) and len(self.answers) == len(self.asked)

    def settle(self, asks: Iterable[Ask]) -> None:
        """These questions are open now; answers to others are of no more use."""
        self.asked = {ask.app: ask for ask in asks}
        known = self.answers.items()
        self.answers = {app: one for app, one in known if app in self.asked and self.asked[app].auction == one.auction}

    def state(self) -> dict[str, Any]:
        """Everything, for checkpoints and comparison."""
        return {
            "agents": list(self.agents),
            "asked": tuple(self.asked.values()),
            "answers": tuple(self.answers.values()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where the conversation stood whose `state` this is."""
        self.agents = dict.fromkeys(state["agents"])
        self.asked = {ask.app: ask for ask in state["asked"]}
        self.answers = {answer.app: answer for answer in state["answers"]}
