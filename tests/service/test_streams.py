"""Live views: what happens and what jobs print, as it comes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from horae.backends.fake import FakeJob
from horae.service.api import limits
from horae.service.api.auth import MOST_STREAMS
from horae.service.roles import Role
from tests.service.live import PATIENCE_S, Live, eventually, in_state, live, submit


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path) as running:
        yield running


class Listener:
    """Somebody who listens to a stream in a thread of their own."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.open, self.over = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, args=(client, path), daemon=True).start()
        assert self.open.wait(20)

    def _listen(self, client: httpx.Client, path: str) -> None:
        with suppress(httpx.TransportError), client.stream("GET", path) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            kind = "message"
            for line in answer.iter_lines():
                self.open.set()
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.heard.append((kind, json.loads(line.removeprefix("data: "))))
                    kind = "message"
        self.over.set()

    @property
    def lines(self) -> list[str]:
        return [said["line"] for kind, said in self.heard if kind == "message"]


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
    service.app.state.service.streams["alice"] = MOST_STREAMS
    submit(alice, {"app": "own"})
    assert alice.get("/v1/stream").status_code == 429
    assert alice.get("/v1/apps/own/offer", params={"wait": 1}).status_code == 429
    service.app.state.service.streams["alice"] = 0
    Listener(alice, "/v1/stream")


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
    eventually(lambda: service.app.state.service.streams["alice"] == 1)


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
