"""Auctions in which apps bid for themselves: what is asked, what is heard, and what happens to the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core import checkpoint
from horae.core.bidding import Ask, BidAnswer, Bidding, BidRow
from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import AgentChanged, BidReceived, JobCancelled, JobFinished, JobHeld, NodeDraining
from horae.core.policy import CountsEvents
from horae.core.reasons import Reason
from horae.placement.rules import make_placement
from horae.policies import make_policy
from tests.builders import Cell, job
from tests.simulation.trouble import difference, same

ANSWER_S = 5.0
SETTINGS = {"lease": "100", "f": "0", "answer": f"{ANSWER_S:g}"}


def market(*agents: str, gpus: int = 2, **more: str) -> Cell:
    """Two apps of two jobs each that want all the GPUs there are; some have agents of their own."""
    cell = Cell(f"1x{gpus}", "themis", {**SETTINGS, **more})
    for app in agents:
        cell.tell(AgentChanged(0, app, present=True))
    cell.submit(0, *(job(f"{app}{k}", work=1000, app=app) for app in ("own", "other") for k in range(2)))
    return cell


def ask_of(cell: Cell, app: str = "own") -> Ask:
    return cell.engine.bidding.asked[app]


def bid(ask: Ask, *rhos: float, nothing: float = 100.0, **more: Any) -> BidAnswer:
    """A bid for 1, 2, ... GPUs of the first machine offered."""
    machine = ask.offer[0][0]
    table = tuple(BidRow(((machine, count),), rho) for count, rho in enumerate(rhos, start=1))
    return BidAnswer(ask.app, ask.auction, nothing, table, **more)


def counters(cell: Cell) -> dict[str, int]:
    policy = cell.engine.policy
    assert isinstance(policy, CountsEvents)
    return policy.counters(cell.engine.memory)


def won(cell: Cell) -> dict[str, int]:
    """Jobs of each app that run."""
    return {app: sum(name.startswith(app) for name in cell.running) for app in ("own", "other")}


# --------------------------------------------------------------- nobody is asked


def test_without_agents_nothing_is_asked_and_nothing_changes() -> None:
    alone, beside = market(), market("somebody-else")
    for cell in (alone, beside):
        cell.at(40, JobFinished(40, cell.running[0], 1))
        cell.at(101)
    assert [encode(one) for one in alone.decisions] == [encode(one) for one in beside.decisions]
    assert not any(one.asks or one.unanswered for one in alone.decisions)
    assert "bids_asked" not in counters(alone)


def test_an_agent_that_says_what_the_built_in_one_would_changes_nothing_but_the_time() -> None:
    plain, asked = market(), market("own")
    assert asked.running == []
    asked.at(ANSWER_S)
    assert sorted(asked.running) == sorted(plain.running)


# ----------------------------------------------------------------- who is asked


def test_an_auction_waits_for_the_answer_and_says_so() -> None:
    cell = market("own")
    ask = ask_of(cell)
    assert (cell.running, cell.engine.wake_s) == ([], ANSWER_S)
    assert (ask.auction, ask.deadline_s, ask.gang, ask.gangs, ask.holds) == (0, ANSWER_S, 1, 2, 0)
    assert [(count, kind) for _, count, kind in ask.offer] == [(2, cell.engine.gpus.cluster.gpu_types[0])]
    assert ask.alone_s > 0
    assert {cell.reason(f"{app}{k}") for app in ("own", "other") for k in range(2)} == {Reason.AWAITING_BIDS}


def test_it_is_asked_once_whatever_happens_meanwhile() -> None:
    cell = market("own")
    first = ask_of(cell)
    cell.submit(2, job("other2", work=1000, app="other"))
    assert ask_of(cell) == first, "neither a new question nor a new deadline"
    assert cell.decisions[-1].asks == (first,), "every decision's record has what is open"


@pytest.mark.parametrize(("rhos", "jobs"), [((20.0, 10.0), 1), ((100.0, 100.0), 0)])
def test_a_bid_in_time_decides_what_its_app_wins_at_once(rhos: tuple[float, float], jobs: int) -> None:
    assert won(market()) == {"own": 0, "other": 2}, "as the built-in agents have it"
    cell = market("own")
    cell.at(1, BidReceived(1, bid(ask_of(cell), *rhos)))
    assert won(cell) == {"own": jobs, "other": 2 - jobs}, "who gains nothing wins nothing"
    assert counters(cell)["bids_asked"] == counters(cell)["bids_heard"] == 1
    assert cell.engine.bidding.asked == {}


def test_all_that_were_asked_are_waited_for_but_not_beyond_the_deadline() -> None:
    cell = market("own", "other")
    cell.at(1, BidReceived(1, bid(ask_of(cell, "other"), 100.0, 100.0)))
    assert cell.running == []
    cell.at(2, BidReceived(2, bid(ask_of(cell, "own"), 2.0, 1.0)))
    assert won(cell) == {"own": 2, "other": 0}
    late = market("own", "other")
    late.at(1, BidReceived(1, bid(ask_of(late, "other"), 100.0, 100.0)))
    late.at(ANSWER_S)
    assert won(late) == {"own": 2, "other": 0}, "the built-in agent bids for the silent one"
    assert counters(late) | {"bids_asked": 2, "bids_heard": 1} == counters(late)
    assert late.decisions[-1].unanswered == ("own",)


# ------------------------------------------------------------- what is not heard


@pytest.mark.parametrize("wrong", ["late", "again", "other auction", "nobody asked", "problem"])
def test_what_is_no_answer_in_time_is_left_to_the_built_in_agent(wrong: str) -> None:
    cell, plain = market("own"), market()
    ask = ask_of(cell)
    good = bid(ask, 2.0, 1.0)
    match wrong:
        case "late":
            cell.tell(BidReceived(ANSWER_S, good))
        case "again":
            cell.tell(BidReceived(1, good))
            cell.tell(BidReceived(1, bid(ask, 100.0, 100.0)))
        case "other auction":
            cell.tell(BidReceived(1, BidAnswer("own", 7, 1.0, good.table)))
        case "nobody asked":
            cell.tell(BidReceived(1, BidAnswer("other", 0, 1.0, good.table)))
        case "problem":
            cell.tell(BidReceived(1, BidAnswer("own", 0, problem="it is nonsense")))
    dropped = 0 if wrong == "problem" else 1
    assert cell.engine.dropped_reports == dropped
    cell.at(ANSWER_S)
    if wrong == "again":
        assert won(cell)["own"] == 1, "the first answer counts"
    else:
        assert won(cell) == won(plain)
        assert counters(cell)["bids_heard"] == 0
    assert cell.engine.bidding.asked == {}


def test_rows_that_are_not_on_offer_any_more_are_left_out() -> None:
    cell = Cell("2x1", "themis", SETTINGS)
    cell.tell(AgentChanged(0, "own", present=True))
    cell.submit(0, job("own0", work=1000, app="own"), job("own1", work=1000, app="own"))
    ask = ask_of(cell)
    machines = [name for name, _, _ in ask.offer]
    rows = (BidRow(((machines[0], 1),), 5.0), BidRow(((machines[0], 1), (machines[1], 1)), 1.0))
    cell.at(1, NodeDraining(1, machines[0]), BidReceived(1, BidAnswer("own", 0, 50.0, rows)))
    assert len(cell.running) == 1, "of the machine that is left the built-in agent has got one"
    assert counters(cell)["bids_heard"] == 0


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["n", "m", ""]), st.integers(-3, 9), max_size=3),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=5,
    ),
    st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
)
@settings(max_examples=60, deadline=None)
def test_no_answer_can_break_an_auction(said: list[tuple[dict[str, int], float]], nothing: float | None) -> None:
    """The service refuses most of these; a journal of another release may hold them all the same."""
    cell = market("own")
    machine = ask_of(cell).offer[0][0]
    rows = tuple(BidRow(tuple((machine if n == "n" else n, c) for n, c in gpus.items()), rho) for gpus, rho in said)
    cell.at(1, BidReceived(1, BidAnswer("own", 0, nothing, rows)))
    cell.at(ANSWER_S)
    assert sum(won(cell).values()) == 2


# ------------------------------------------------------------- agents and apps go


def test_nobody_waits_for_an_agent_that_was_dismissed() -> None:
    cell = market("own")
    cell.at(1, AgentChanged(1, "own", present=False))
    assert len(cell.running) == 2
    both = market("own", "other")
    both.at(1, AgentChanged(1, "own", present=False))
    assert both.running == []
    both.at(2, BidReceived(2, bid(ask_of(both, "other"), 100.0, 100.0)))
    assert won(both) == {"own": 2, "other": 0}


def test_an_app_that_ends_takes_its_agent_with_it() -> None:
    cell = market("own")
    cell.at(1, JobCancelled(1, "own0"))
    assert "own" in cell.engine.bidding.agents
    cell.at(2, JobHeld(2, "own1"))
    assert "own" in cell.engine.bidding.agents, "one that is held may come back"
    cell.at(3, JobCancelled(3, "own1"))
    assert cell.engine.bidding.agents == {}
    assert won(cell) == {"own": 0, "other": 2}
    cell.submit(4, job("own2", work=10, app="own"))
    assert cell.engine.bidding.asked == {}, "who comes later under its name is another"


def test_a_policy_without_auctions_asks_nobody() -> None:
    cell = Cell("1x2", "fifo")
    cell.tell(AgentChanged(0, "own", present=True))
    cell.submit(0, job("own0", app="own"))
    assert cell.running == ["own0"]


# ------------------------------------------------------------------ what is kept


def recovered(cell: Cell, upto: int, records: list[Any]) -> Any:
    engine = Engine(cell.engine.gpus.cluster, make_policy, "themis", cell.engine.policy_settings,
                    make_placement("best-effort"))  # fmt: skip
    for record in records[:upto]:
        engine.apply(decode(encode(record)))
    return engine


def test_a_journal_and_a_checkpoint_hold_the_conversation() -> None:
    records: list[Any] = []
    cell = Cell("1x2", "themis", SETTINGS)
    apply, decide = cell.engine.apply, cell.engine.decide
    cell.engine.apply = lambda event: (records.append(event), apply(event))[1]  # type: ignore[method-assign]
    cell.engine.decide = lambda now_s: _kept(records, cell.engine.with_evidence(decide(now_s)))  # type: ignore[method-assign]
    cell.tell(AgentChanged(0, "own", present=True))
    cell.tell(AgentChanged(0, "other", present=True))
    cell.submit(0, *(job(f"{app}{k}", work=1000, app=app) for app in ("own", "other") for k in range(2)))
    cell.at(1, BidReceived(1, bid(ask_of(cell), 2.0, 1.0)))
    middle = recovered(cell, len(records), records)
    assert same(middle.contents(), cell.engine.contents()), difference(middle.contents(), cell.engine.contents())
    loaded = recovered(cell, 0, records)
    checkpoint.load(loaded, checkpoint.save(cell.engine))
    assert same(loaded.contents(), cell.engine.contents()), difference(loaded.contents(), cell.engine.contents())
    assert loaded.bidding.contents() == cell.engine.bidding.contents()
    for engine in (middle, loaded):
        assert not engine.due(2.0)
        engine.apply(BidReceived(2, bid(ask_of(cell, "other"), 100.0, 100.0)))
        assert engine.due(2.0)
        assert sorted(launch.job for launch in engine.decide(2.0).launches) == ["own0", "own1"]


def _kept(records: list[Any], record: Decided) -> Decided:
    records.append(record)
    return record


def test_records_of_before_there_were_agents_are_read() -> None:
    old = {name: value for name, value in encode(Decided(1.0, True)).items() if name not in ("asks", "unanswered")}
    read = decode(old)
    assert isinstance(read, Decided)
    assert (read.asks, read.unanswered) == ((), ())
    older = encode(market().decisions[-1])
    older["evidence"] = {name: older["evidence"][name] for name in ("at_s", "node_free", "head")}
    again = decode(older)
    assert isinstance(again, Decided)
    assert again.evidence is not None
    assert (again.evidence.jobs_by_type, again.evidence.again_s) == ((), np.inf)


def test_an_answer_says_why_it_is_not_wanted() -> None:
    talk = Bidding()
    ask = Ask("own", 3, 10.0, (("m", 2, "v100"),), 1, 2, 5.0)
    assert "Nobody asks" in talk.refusal(BidAnswer("own", 3), 1.0)
    talk.set_open([ask])
    assert "Nobody asks" in talk.refusal(BidAnswer("own", 2), 1.0)
    assert "0.500 s too late" in talk.refusal(BidAnswer("own", 3), 10.5)
    assert talk.hear(BidAnswer("own", 3), 9.9)
    assert "already" in talk.refusal(BidAnswer("own", 3), 9.9)
    talk.set_open([])
    assert (talk.asked, talk.answers) == ({}, {})
