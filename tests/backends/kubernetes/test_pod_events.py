"""What users are told about their pods: once while nothing changes."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from horae.backends.kubernetes import pod_events
from horae.backends.kubernetes.pod_events import PodEvents
from tests.backends.kubernetes.fake_server import Answer, api, status


class Posted:
    """An API server that keeps what is posted, or refuses it."""

    def __init__(self, refuses: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self._refuses = refuses

    def __call__(self, request: httpx.Request) -> Answer:
        assert (request.method, request.url.path) == ("POST", "/api/v1/namespaces/team/events")
        self.events.append(json.loads(request.content))
        return status(403) if self._refuses else httpx.Response(201, json={})


def tell(events: PodEvents, text: str, uid: str = "u") -> None:
    events.tell("team", "a", uid, "Waiting", text)


def test_an_event_names_the_pod_and_is_written_once() -> None:
    posted = Posted()
    events = PodEvents(api(posted))
    for _ in range(3):
        tell(events, "No GPUs are free.")
    (event,) = posted.events
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "a",
        "namespace": "team",
        "uid": "u",
    }
    assert (event["reason"], event["message"], event["source"]) == (
        "Waiting",
        "No GPUs are free.",
        {"component": "horae"},
    )
    tell(events, "Others go first.")
    assert [event["message"] for event in posted.events] == ["No GPUs are free.", "Others go first."]


def test_it_is_told_again_before_kubernetes_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    posted = Posted()
    events = PodEvents(api(posted))
    tell(events, "No GPUs are free.")
    monkeypatch.setattr(pod_events, "_AGAIN_S", 0.0)
    tell(events, "No GPUs are free.")
    assert len(posted.events) == 2


def test_a_round_has_an_end_and_the_next_one_goes_on() -> None:
    posted = Posted()
    events = PodEvents(api(posted))
    uids = [f"u{number}" for number in range(60)]
    for _ in range(2):
        events.begin_round(uids)
        for uid in uids:
            tell(events, "No GPUs are free.", uid)
    assert len(posted.events) == 60


def test_a_refusal_is_no_harm_and_is_not_repeated() -> None:
    posted = Posted(refuses=True)
    events = PodEvents(api(posted))
    tell(events, "No GPUs are free.")
    tell(events, "No GPUs are free.")
    assert len(posted.events) == 1
