"""Live views: what happens and what jobs print, as it comes.

Tests service/api/event_hub.py, service/api/streams.py and service/recent_records.py.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from horae.backends.fake import FakeJob
from horae.core.cluster import Node
from horae.core.limits import Limits
from horae.service.api import event_hub, limits
from horae.service.api.limits import ADMIN_LIMITS, USER_LIMITS, caller_limits
from horae.service.recent_records import RecentRecords
from horae.service.roles import Caller, Role, Scope
from horae.service.views.event_sentences import EventSentences
from tests.service.listener import Listener
from tests.service.live import PATIENCE_S, Live, eventually, in_state, live, submit


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path) as running:
        yield running


def test_a_stream_tells_what_happens_to_whom_it_may_concern(service: Live) -> None:
    alice, bob, admin = service.person("alice"), service.person("bob"), service.person("root", Role.ADMIN)
    ears = {name: Listener(client, "/v1/stream") for name, client in (("alice", alice), ("bob", bob), ("root", admin))}
    (job,) = submit(alice)
    admin.post("/v1/nodes/k80/drain", json={})
    for name in ("alice", "root"):
        eventually(lambda name=name: {"started", "node-draining"} <= {said["kind"] for _, said in ears[name].heard})
        kinds = [said["kind"] for _, said in ears[name].heard if said["job"] == job]
        assert kinds == ["submitted", "launched", "started"]
        numbers = [said["seq"] for _, said in ears[name].heard]
        assert numbers == sorted(numbers)
    eventually(lambda: ears["bob"].heard)
    assert [said["kind"] for _, said in ears["bob"].heard] == ["node-draining"]


def test_a_stream_can_begin_in_the_past(service: Live) -> None:
    alice = service.person("alice")
    (job,) = submit(alice)
    in_state(alice, job, "running")
    listener = Listener(alice, "/v1/stream?after=0")
    eventually(lambda: len(listener.heard) >= 3)
    assert [said["kind"] for _, said in listener.heard] == ["submitted", "launched", "started"]


def test_streams_end_when_the_service_leaves(tmp_path: Path) -> None:
    with live(tmp_path) as running:
        listener = Listener(running.person("alice"), "/v1/stream")
        running.app.state.service.leaving.set()
        assert listener.over.wait(PATIENCE_S), "a stream that nobody ends goes on for ever"


def test_nobody_may_have_too_many_streams(service: Live) -> None:
    alice = service.person("alice")
    service.app.state.service.streams.by_user["alice"] = USER_LIMITS.streams
    submit(alice, {"app": "own"})
    assert alice.get("/v1/stream").status_code == 429
    assert alice.get("/v1/apps/own/offer", params={"wait": 1}).status_code == 429
    service.app.state.service.streams.by_user["alice"] = 0
    Listener(alice, "/v1/stream")


def test_limits_that_an_admin_has_set_go_before_those_of_the_role(service: Live) -> None:
    alice, admin = service.person("alice"), service.person("root", Role.ADMIN)
    (job,) = submit(alice, {"app": "own"})
    in_state(alice, job, "running")
    changed = {"whom": "user:alice", "streams": 1, "log_reads": 0}
    assert admin.put("/v1/limits", json=changed).status_code == 200
    Listener(alice, "/v1/stream")
    assert "You have 1 streams open" in alice.get("/v1/stream").json()["error"]
    assert "no reads of logs" in alice.get(f"/v1/jobs/{job}/logs").json()["error"]
    assert admin.put("/v1/limits", json={"whom": "user:alice", "requests_per_s": 0}).status_code == 200
    refused = alice.get("/v1/jobs")
    assert (refused.status_code, "Retry-After" in refused.headers) == (429, False)
    assert admin.get("/v1/jobs").status_code == 200


def test_limits_are_those_of_the_role_where_none_are_set() -> None:
    alice, root = Caller("alice", Role.MEMBER), Caller("root", Role.ADMIN)
    assert caller_limits(alice, Limits()) == USER_LIMITS
    assert caller_limits(root, Limits()) == ADMIN_LIMITS
    assert caller_limits(Caller("root", Role.ADMIN, Scope("research")), Limits()) == USER_LIMITS
    few = caller_limits(alice, Limits(requests_per_s=2.0, log_reads=1))
    assert (few.requests_per_s, few.burst, few.streams, few.log_reads) == (2.0, 10, USER_LIMITS.streams, 1)


def test_streams_that_come_at_once_are_counted_before_they_begin(service: Live) -> None:
    """All requests are sent before any answer is read."""
    token = service.token("alice")
    ask = f"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with ExitStack() as ending:
        count = USER_LIMITS.streams + 70
        wires = [
            ending.enter_context(socket.create_connection(service.listener.getsockname(), timeout=PATIENCE_S))
            for _ in range(count)
        ]
        for wire in wires:
            wire.sendall(ask)
        statuses = Counter(wire.recv(12)[-3:] for wire in wires)
        assert statuses == {b"200": USER_LIMITS.streams, b"429": 70}
        assert service.person("bob").get("/v1/jobs").status_code == 200
    eventually(lambda: not service.app.state.service.streams.by_user, "all streams closed")


def test_all_streams_together_have_a_limit(service: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = limits.Streams(most=2)
    with ExitStack() as ending:
        for user in ("alice", "bob"):
            ending.enter_context(streams.opened(user, USER_LIMITS))
        with pytest.raises(HTTPException), streams.opened("carol", USER_LIMITS):
            pass
    with streams.opened("carol", USER_LIMITS):
        assert streams.by_user == {"carol": 1}


def test_each_record_is_told_once_for_all_listeners(service: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    sentences_of = EventSentences.sentences_of

    def counted(self: EventSentences, record: Any) -> Any:
        told.append(id(record))
        return sentences_of(self, record)

    monkeypatch.setattr(EventSentences, "sentences_of", counted)
    monkeypatch.setattr(service.store, "tail", None)
    alice = service.person("alice")
    ears = [Listener(service.client(service.token("alice")), "/v1/stream") for _ in range(5)]
    before = service.daemon.published_seq
    submit(alice)
    for one in ears:
        eventually(lambda one=one: len(one.heard) == 3)
    assert len(told) == service.daemon.published_seq - before, "nothing is read from the journal, or told twice"


def test_a_listener_that_falls_behind_misses_nothing(service: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub forgets at once, and the journal is read in its place."""
    monkeypatch.setattr(event_hub, "_KEPT", 2)
    monkeypatch.setattr(event_hub, "_PAGE", 3)
    service.daemon.recent = RecentRecords(most=1)
    alice = service.person("alice")
    first, second = Listener(alice, "/v1/stream"), Listener(alice, "/v1/stream?after=0")
    jobs = submit(alice, *[{} for _ in range(12)])
    for job in jobs[:8]:
        in_state(alice, job, "running")
    for one in (first, second):
        eventually(lambda one=one: len(one.heard) >= 12 + 8 + 8)
        numbers = [said["seq"] for _, said in one.heard]
        assert numbers == sorted(numbers)
        assert len({json.dumps(said) for _, said in one.heard}) == len(one.heard), "each is heard once"


def test_jobs_of_others_are_not_named_in_events(tmp_path: Path) -> None:
    with live(tmp_path, "srtf", nodes=(Node("v100", "v100", 1),)) as running:
        alice, bob, admin = running.person("alice"), running.person("bob"), running.person("root", Role.ADMIN)
        ears = {"alice": Listener(alice, "/v1/stream"), "root": Listener(admin, "/v1/stream")}
        (long,) = submit(alice, {"name": "long", "estimate": {"duration": "10h"}})
        in_state(alice, long, "running")
        (secret,) = submit(bob, {"name": "bobsecretproject", "estimate": {"duration": "1h"}})
        in_state(bob, secret, "running")
        told = [one["what"] for one in alice.get(f"/v1/jobs/{long}/events").json()["events"]]
        assert any("preempted by another user's job, which gets its GPUs" in what for what in told), told
        assert secret not in str(told)
        told = [one["what"] for one in admin.get(f"/v1/jobs/{long}/events").json()["events"]]
        assert any(f"preempted by job {secret} of bob" in what for what in told), told
        for one, is_named in (("alice", False), ("root", True)):
            whats = eventually(
                lambda one=one: [said["what"] for _, said in ears[one].heard if said["kind"] == "preempted"]
            )
            assert (secret in whats[0]) == is_named


def test_many_streams_keep_no_request_waiting(service: Live) -> None:
    """A stream that waits holds no thread: there are more of them here than threads."""
    for user in ("a", "b"):
        client = service.client(service.token(user), connections=100)
        for _ in range(30):
            Listener(client, "/v1/stream")
    assert service.person("alice").get("/v1/jobs").status_code == 200


def test_a_log_is_read_whole_or_from_its_end(service: Live) -> None:
    alice = service.person("alice")
    (job,) = submit(alice)
    assert alice.get("/v1/jobs/job-1/logs").text == ""
    in_state(alice, job, "running")
    service.backend.print(job, "".join(f"line {n}\n" for n in range(1000)))
    assert alice.get(f"/v1/jobs/{job}/logs").text.count("\n") == 1000
    answer = alice.get(f"/v1/jobs/{job}/logs", params={"tail": 2})
    assert answer.text == "line 998\nline 999\n"
    assert answer.headers["content-type"].startswith("text/plain")
    assert alice.get(f"/v1/jobs/{job}/logs", params={"attempt": 2}).status_code == 404
    assert alice.get(f"/v1/jobs/{job}/logs", params={"attempt": 0}).status_code == 422


def test_a_log_is_followed_over_attempts_to_the_end(service: Live) -> None:
    alice = service.person("alice")
    (job,) = submit(alice)
    in_state(alice, job, "running")
    service.backend.print(job, "one\ntwo\n")
    listener = Listener(alice, f"/v1/jobs/{job}/logs?follow=true&tail=1")
    eventually(lambda: listener.lines == ["two"])
    service.backend.print(job, "thr")
    service.backend.print(job, "ee\nlast words")
    eventually(lambda: "three" in listener.lines)
    alice.post(f"/v1/jobs/{job}/hold")
    eventually(lambda: "last words" in listener.lines)
    alice.post(f"/v1/jobs/{job}/release")
    in_state(alice, job, "running")
    service.backend.print(job, "again\n", attempt=2)
    eventually(lambda: "again" in listener.lines)
    alice.post(f"/v1/jobs/{job}/cancel")
    assert listener.over.wait(20)
    assert listener.lines == ["two", "three", "last words", "again"]
    assert listener.heard[-1] == ("end", {"state": "cancelled"})


def test_one_attempt_is_followed_to_its_own_end(service: Live) -> None:
    alice = service.person("alice")
    (job,) = submit(alice)
    in_state(alice, job, "running")
    service.backend.print(job, "hello\n")
    listener = Listener(alice, f"/v1/jobs/{job}/logs?follow=true&attempt=1")
    alice.post(f"/v1/jobs/{job}/hold")
    assert listener.over.wait(20)
    assert listener.lines == ["hello"]
    assert listener.heard[-1][0] == "end"


def test_a_job_that_never_ran_has_a_log_that_ends(tmp_path: Path) -> None:
    with live(tmp_path, script=FakeJob(launch_fails="no disk")) as running:
        alice = running.person("alice")
        (job,) = submit(alice)
        alice.post(f"/v1/jobs/{job}/hold")
        alice.post(f"/v1/jobs/{job}/cancel")
        in_state(alice, job, "cancelled")
        listener = Listener(alice, f"/v1/jobs/{job}/logs?follow=true")
        assert listener.over.wait(20)
        assert listener.heard == [("end", {"state": "cancelled"})]


def test_a_stream_ends_soon_after_its_token(service: Live) -> None:
    token, record = service.tokens.draft("alice", Role.USER, None)
    service.tokens.add(record)
    (job,) = submit(service.client(token))
    ears = [Listener(service.client(token), path) for path in ("/v1/stream", f"/v1/jobs/{job}/logs?follow=true")]
    other = Listener(service.person("alice"), "/v1/stream")
    service.tokens.revoke(record)
    assert all(one.over.wait(5) for one in ears)
    assert not other.over.is_set()
    eventually(lambda: service.app.state.service.streams.by_user["alice"] == 1)


def test_secrets_that_a_job_prints_are_hidden(service: Live) -> None:
    alice = service.person("alice")
    job, other = submit(alice, {"secrets": ["hunter22", "abc"]}, {})
    for one in (job, other):
        in_state(alice, one, "running")
        service.backend.print(one, "key hunter22, abc\nhunter22\n")
    assert alice.get(f"/v1/jobs/{job}/logs").text == "key [hidden], abc\n[hidden]\n"
    assert "hunter22" in alice.get(f"/v1/jobs/{other}/logs").text, "which has no secrets"
    follower = Listener(alice, f"/v1/jobs/{job}/logs?follow=true")
    eventually(lambda: len(follower.lines) == 2)
    assert follower.lines == ["key [hidden], abc", "[hidden]"]


@pytest.mark.parametrize("follow", [False, True])
def test_nobody_waits_while_a_log_is_fetched(
    service: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, follow: bool
) -> None:
    """A backend may have to fetch a log from afar."""
    fetching, fetched = threading.Event(), threading.Event()

    def fetch(job: str, attempt: int, piece: int = 0) -> Path:
        fetching.set()
        assert fetched.wait(PATIENCE_S)
        return tmp_path / "fetched.txt"

    (tmp_path / "fetched.txt").write_text("from afar\n")
    monkeypatch.setattr(service.backend, "log", fetch)
    alice = service.person("alice")
    (job,) = submit(alice)
    in_state(alice, job, "running")
    found: list[str] = []

    def read() -> None:
        with alice.stream("GET", f"/v1/jobs/{job}/logs", params={"follow": follow}) as answer:
            found.append(next(text for text in answer.iter_text() if "afar" in text))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert fetching.wait(PATIENCE_S)
    assert alice.get("/healthz").status_code == 200
    fetched.set()
    reader.join(PATIENCE_S)
    assert "from afar" in found[0]


def test_many_slow_reads_of_logs_hold_up_neither_other_requests_nor_other_users(
    service: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As many as took all threads of the API; more than a user may have waiting are refused."""
    alice, bob = service.person("alice"), service.person("bob")
    (job,), (other,) = submit(alice), submit(bob)
    in_state(alice, job, "running")
    in_state(bob, other, "running")
    answers = threading.Event()

    def fetch(of: str, attempt: int, piece: int = 0) -> Path:
        assert of == other or answers.wait(PATIENCE_S)
        return tmp_path / "log.txt"

    (tmp_path / "log.txt").write_text("here\n")
    monkeypatch.setattr(service.backend, "log", fetch)
    codes: list[int] = []

    def read(client: httpx.Client) -> None:
        codes.append(client.get(f"/v1/jobs/{job}/logs").status_code)

    clients = [service.person("alice") for _ in range(9)]
    readers = [threading.Thread(target=read, args=(client,), daemon=True) for client in clients for _ in range(5)]
    monkeypatch.setattr(limits, "WAITING_A_USER", 40)
    for reader in readers:
        reader.start()
    eventually(lambda: codes == [429] * 5)
    assert bob.get(f"/v1/jobs/{other}/logs").text == "here\n"
    assert alice.get("/v1/jobs").status_code == 200
    assert alice.get("/healthz").status_code == 200
    answers.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert sorted(codes) == [200] * 40 + [429] * 5
