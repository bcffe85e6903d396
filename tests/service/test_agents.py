"""Apps that bid for themselves, over HTTP and over a crash.

Tests service/app_owners.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horae.core.bidding import BidAnswer, BidRow
from horae.core.commands import Decided
from horae.core.events import BidReceived
from horae.service.api.event_hub import EventHub
from horae.service.roles import Caller, Forbidden, NotFound, Role
from horae.service.views.event_sentences import EventSentences
from tests.service.live import Live, eventually, in_state, live, submit
from tests.service.stepped_service import ADMIN, ANN, BOB, SteppedService

THEMIS = {"lease": "100", "f": "0", "answer": "10"}


def streamed(service: Live, person: Caller) -> list[dict[str, Any]]:
    """What a stream from the beginning says to somebody."""
    hub = EventHub(service.app.state.service)
    events, _ = hub._page(0, service.daemon.published_seq)
    return [json.loads(text.partition("data: ")[2]) for text in hub._visible(person, events)]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Live]:
    """A service that auctions eight GPUs and waits long for bids."""
    with live(tmp_path, "themis", THEMIS) as service:
        yield service


def offered(client: httpx.Client, app: str, wait_s: float = 10.0) -> dict[str, Any]:
    """The offer that an app has, once it has one."""
    answer = client.get(f"/v1/apps/{app}/offer", params={"wait": wait_s})
    assert answer.status_code == 200, answer.text
    offer: dict[str, Any] = answer.json()["offer"]
    assert offer is not None
    return offer


def asked(service: Live, client: httpx.Client, app: str = "own") -> dict[str, Any]:
    """Register the agent of an app that has jobs, and give it an offer: its jobs run, and one more wants GPUs."""
    submit(client, {"app": app, "name": "first"})
    assert client.put(f"/v1/apps/{app}/agent").json() == {"app": app, "agent": "its own"}
    submit(client, {"app": app, "name": "second"})
    return offered(client, app)


def heard(service: Live) -> list[BidAnswer]:
    """All answers in the journal."""
    return [record.answer for _, record in service.store.tail() if isinstance(record, BidReceived)]


def test_an_offer_is_answered_and_the_app_gets_what_it_bid_for(market: Live) -> None:
    ann = market.person("ann")
    offer = asked(market, ann)
    assert offer["gang"] == offer["gangs"] == 1
    assert 0 < offer["answer_in_s"] <= 10
    machine = "k80"
    assert offer["machines"][machine] == {"gpus": 4, "type": "k80"}
    answer = ann.post(
        "/v1/apps/own/bids",
        json={"auction": offer["auction"], "rho": 100.0, "table": [{"gpus": {machine: 1}, "rho": 1.0}]},
    )
    assert (answer.status_code, answer.json()) == (200, {"auction": offer["auction"], "bid": "taken"})
    assert heard(market)[-1].problem == ""
    (job,) = [one["id"] for one in ann.get("/v1/jobs").json()["jobs"] if one["name"] == "second"]
    assert in_state(ann, job, "running", "launching")["on"] == ["k80[0]"], "and not a GPU of the type it has"
    assert ann.get("/v1/apps/own/offer").json() == {"offer": None}


def test_a_second_answer_a_wrong_one_and_a_late_one_are_refused_and_recorded(market: Live) -> None:
    ann = market.person("ann")
    offer = asked(market, ann)
    number = offer["auction"]
    rows = [{"gpus": {"v100": 1}, "rho": 1.0}]
    wrong = ann.post("/v1/apps/own/bids", json={"auction": number, "table": [{"gpus": {"mars": 1}, "rho": 1.0}]})
    assert (wrong.status_code, "'mars' is not in the offer" in wrong.json()["error"]) == (409, True)
    again = ann.post("/v1/apps/own/bids", json={"auction": number, "table": rows})
    assert again.status_code == 409
    late = ann.post("/v1/apps/own/bids", json={"auction": number + 7, "table": rows})
    assert (late.status_code, "Nobody asks" in late.json()["error"]) == (409, True)
    problems = [one.problem for one in heard(market)]
    assert len(problems) == 3
    assert all(problems)
    assert all(one.table == () for one in heard(market)), "the journal keeps that they came, not all that they said"
    for one in ann.get("/v1/jobs").json()["jobs"]:
        in_state(ann, one["id"], "running")


def test_silence_is_recorded_and_told_to_those_concerned(tmp_path: Path) -> None:
    with live(tmp_path, "themis", {**THEMIS, "answer": "0.2"}) as service:
        asked(service, service.person("ann"))
        eventually(lambda: any(isinstance(one, Decided) and one.unanswered for _, one in service.store.tail()))
        teller = EventSentences(service.daemon.status, service.daemon.tasks)
        told = [one.what for _, record in service.store.tail() for one in teller.sentences_of(record) if one.app]
        assert told == [
            "App own bids for itself now by ann.",
            "App own is asked for its bid in auction 1: 7 GPUs are on offer.",
            "App own did not bid in time: the built-in agent does.",
        ]
        for person, hears in ((ANN, True), (ADMIN, True), (BOB, False)):
            assert any("bids for itself" in one["what"] for one in streamed(service, person)) is hears


def test_what_an_app_was_offered_and_answered_is_among_the_events_of_its_jobs_while_they_live(tmp_path: Path) -> None:
    with live(tmp_path, "themis", {**THEMIS, "answer": "0.2"}) as service:
        ann = service.person("ann")
        asked(service, ann)
        first, second = (one["id"] for one in ann.get("/v1/jobs").json()["jobs"])
        eventually(lambda: any(isinstance(one, Decided) and one.unanswered for _, one in service.store.tail()))
        ann.post("/v1/apps/own/bids", json={"auction": 1, "table": []})
        whole = [(one["kind"], one["job"]) for one in ann.get(f"/v1/jobs/{first}/events").json()["events"]]
        assert [kind for kind, job in whole if not job] == ["agent", "offer", "bid", "bid"]
        later = ann.get(f"/v1/jobs/{second}/events").json()["events"]
        assert [one["kind"] for one in later if not one["job"]] == ["offer", "bid", "bid"], (
            "not what was before it came"
        )
        assert later[-1]["what"].startswith("App own gave a bid that cannot be used: Nobody asks")
        other = submit(ann, {"app": "another"})[0]
        assert all(one["job"] for one in ann.get(f"/v1/jobs/{other}/events").json()["events"])


def test_who_had_an_app_before_hears_no_more_of_it_and_who_has_it_now_not_of_before(market: Live) -> None:
    ann, bob = market.person("ann"), market.person("bob")
    mine = submit(ann, {"app": "own"})[0]
    assert ann.put("/v1/apps/own/agent").status_code == 200
    ann.post(f"/v1/jobs/{mine}/cancel")
    in_state(ann, mine, "cancelled")
    submit(bob, {"app": "own"})
    assert bob.put("/v1/apps/own/agent").status_code == 200
    assert (ann.get("/v1/apps/own/offer").status_code, bob.get("/v1/apps/own/offer").status_code) == (404, 200)

    def hears(person: Caller) -> list[str]:
        return [one["what"] for one in streamed(market, person) if one["kind"] == "agent"]

    assert hears(ANN) == ["App own bids for itself now by ann."]
    assert hears(BOB) == ["App own bids for itself now by bob."]
    assert len(hears(ADMIN)) == 2


def test_only_who_owns_an_app_may_speak_for_it(market: Live) -> None:
    ann, bob = market.person("ann"), market.person("bob")
    viewer, admin = market.person("eye", Role.VIEWER), market.person("root", Role.ADMIN)
    assert ann.put("/v1/apps/own/agent").status_code == 404
    submit(ann, {"app": "own"})
    assert bob.put("/v1/apps/own/agent").status_code == bob.get("/v1/apps/own/offer").status_code == 404
    assert bob.post("/v1/apps/own/bids", json={"auction": 0, "table": []}).status_code == 404
    assert viewer.put("/v1/apps/own/agent").status_code == 403
    assert viewer.get("/v1/apps/own/offer").status_code == 200
    for client in (ann, admin):
        assert client.put("/v1/apps/own/agent").status_code == client.delete("/v1/apps/own/agent").status_code == 200
    joining = bob.post("/v1/jobs", json=[{"run": "true", "app": "own"}])
    assert (joining.status_code, "belongs to another user" in joining.json()["error"]) == (403, True)
    assert admin.put("/v1/apps/own/agent").status_code == 200
    acts = [act["action"] for act in admin.get("/v1/audit").json()["acts"]]
    assert acts.count("register agent") == 3


def test_a_job_without_an_app_may_have_an_agent_by_its_id(market: Live) -> None:
    ann = market.person("ann")
    (job,) = submit(ann, {})
    assert ann.put(f"/v1/apps/{job}/agent").status_code == 200


def test_an_offer_is_waited_for_and_no_longer_than_asked(market: Live) -> None:
    ann = market.person("ann")
    submit(ann, {"app": "own"})
    began = time.monotonic()
    assert ann.get("/v1/apps/own/offer", params={"wait": 0.5}).json() == {"offer": None}
    assert time.monotonic() - began > 0.4, "the client itself gives up long before a minute"
    assert ann.get("/v1/apps/own/offer", params={"wait": 61}).status_code == 422


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_BIDS = st.fixed_dictionaries(
    {"auction": st.integers(-1, 3) | _JSON},
    optional={
        "rho": st.none() | st.floats() | st.sampled_from([1e-300, 1e11]),
        "table": st.lists(
            st.fixed_dictionaries(
                {
                    "gpus": st.dictionaries(
                        st.sampled_from(["v100", "k80", "", "mars"]), st.integers(-1, 9), max_size=3
                    ),
                    "rho": st.floats() | st.sampled_from([5e-324, 1e-300, 1e11]),
                }
            ),
            max_size=3,
        )
        | _JSON,
        "more": _JSON,
    },
)


def test_whatever_an_agent_says_the_service_lives_on(tmp_path: Path) -> None:
    with live(tmp_path, "themis", {**THEMIS, "answer": "0.05", "lease": "1"}) as service:
        ann = service.person("ann")
        submit(ann, *({"app": "own"} for _ in range(12)), *({"app": f"a{k}"} for k in range(4)))
        ann.put("/v1/apps/own/agent")

        @given(_BIDS | _JSON)
        @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
        def say(said: Any) -> None:
            offer = ann.get("/v1/apps/own/offer").json()["offer"]
            if offer and isinstance(said, dict) and said.get("auction") == 0:
                said = {**said, "auction": offer["auction"]}
            body = json.dumps(said)
            answer = ann.post("/v1/apps/own/bids", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 400, 409, 422), answer.text
            assert service.daemon.crashed is None

        say()


# ------------------------------------------------------------------- over a crash


def cell(folder: Path) -> SteppedService:
    return SteppedService(folder, "themis", gpus=2, lease="100", f="0", answer="5")


def in_the_middle(at: SteppedService) -> None:
    """An agent has been asked, and has not answered."""
    at.submit(app="other", name="first", resources={"gpus": 2})
    at.submit(app="own", name="own")
    at.ask(lambda: at.operations.register_agent(ANN, "own", present=True))
    at.ask(lambda: at.operations.request(ADMIN, "cancel", ["first-1"]))
    at.to(2)
    assert at.operations.offer("own") is not None


@pytest.mark.parametrize("saved", [False, True])
def test_a_crash_in_the_middle_of_a_conversation_ends_neither(saved: bool, tmp_path: Path) -> None:
    at = cell(tmp_path)
    in_the_middle(at)
    if saved:
        at.daemon._save_checkpoint()
    at.crash()
    at.reopen()
    ask = at.operations.offer("own")
    assert ask is not None
    assert at.state("own-2") == "waiting"
    problems: list[str] = []
    answer = BidAnswer("own", ask.auction, 50.0, (BidRow((("v100", 1),), 1.0),))
    at.ask(lambda: problems.append(at.operations.bid(ANN, answer)))
    at.to(at.now_s + 0.5)
    assert (problems, at.state("own-2")) == ([""], "running")


def test_after_a_crash_the_deadline_is_what_it_was(tmp_path: Path) -> None:
    at = cell(tmp_path)
    in_the_middle(at)
    ask = at.operations.offer("own")
    assert ask is not None
    at.crash()
    at.now_s = ask.deadline_s + 1
    at.reopen()
    problems: list[str] = []
    answer = BidAnswer("own", ask.auction, 50.0, (BidRow((("v100", 1),), 1.0),))
    at.daemon._decide = lambda: False  # type: ignore[method-assign]
    at.ask(lambda: problems.append(at.operations.bid(ANN, answer)))
    assert "1.000 s too late" in problems[0]
    del at.daemon._decide
    at.to(at.now_s + 1)
    assert at.state("own-2") == "running"
    records = [record for _, record in at.store.tail()]
    assert any(isinstance(one, Decided) and one.unanswered == ("own",) for one in records)


def test_who_is_refused_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    at = cell(tmp_path)
    in_the_middle(at)
    before = at.daemon.seq
    with pytest.raises(NotFound):
        at.ask(lambda: at.operations.bid(BOB, BidAnswer("own", 0)))
    with pytest.raises(NotFound):
        at.ask(lambda: at.operations.register_agent(BOB, "own", present=False))
    with pytest.raises(Forbidden, match="belongs to another user"):
        at.submit(BOB, app="own", name="theirs")
    assert before == at.daemon.seq
