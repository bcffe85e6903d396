"""A service and its standby are one for clients, and no other address ever gets a token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from horae.client import failover
from horae.client.address import Address, NoService, find_address
from horae.client.service_client import Refused, service_at
from tests.proof import proof


class Answers:
    """A service that is active or not, and what it was asked."""

    def __init__(self) -> None:
        self.active, self.asked = True, list[str]()
        #: Tokens that it knows.
        self.tokens = ["t"]
        self.url = ""
        #: Address that it names as the active one.
        self.names = ""


@contextmanager
def answering() -> Iterator[Answers]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            text = json.dumps({"proof": proof(answers.tokens, self.path)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answers.asked.append(self.headers["Authorization"])
            body = {"ok": True} if answers.active else {"error": f"the active one is at {answers.names}"}
            text = json.dumps(body).encode()
            self.send_response(200 if answers.active else 503)
            if not answers.active:
                self.send_header("Horae-Standby", "1")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    answers.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_AGAIN_S", 0.05)


def test_a_request_goes_to_the_one_that_is_active_and_the_next_one_goes_there_first() -> None:
    with answering() as first, answering() as second:
        first.active = False
        with service_at(Address(first.url, True, "t", others=(second.url,))) as client:
            client.post("/v1/jobs", [])
            client.post("/v1/jobs", [])
        assert (len(first.asked), len(second.asked)) == (1, 2)


def test_one_that_is_gone_is_passed_over() -> None:
    with answering() as there, service_at(Address("http://127.0.0.1:9", True, "t", others=(there.url,))) as client:
        assert client.post("/v1/jobs", []) == {"ok": True}


def test_one_that_does_not_know_the_token_is_passed_over_and_does_not_get_it() -> None:
    with answering() as new, answering() as active:
        new.tokens.clear()
        with service_at(Address(new.url, True, "t", others=(active.url,))) as client:
            assert client.post("/v1/jobs", []) == {"ok": True}
        active.tokens.clear()
        both = Address(new.url, True, "t", others=(active.url,))
        with service_at(both) as client, pytest.raises(NoService, match="did not prove"):
            client.post("/v1/jobs", [])
        assert (new.asked, active.asked) == ([], ["Bearer t"])


def test_a_take_over_is_waited_for() -> None:
    with answering() as first, service_at(Address("http://127.0.0.1:9", True, "t", others=(first.url,))) as client:
        first.active = False
        timer = threading.Timer(0.3, lambda: setattr(first, "active", True))
        timer.start()
        assert client.post("/v1/jobs", []) == {"ok": True}
        timer.join()
        assert len(first.asked) > 1


def test_no_token_goes_to_an_address_that_an_answer_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering() as standby, answering() as stranger:
        standby.active, standby.names = False, stranger.url
        with service_at(Address(standby.url, True, "t")) as client, pytest.raises(Refused, match="active one is at"):
            client.post("/v1/jobs", [])
        monkeypatch.setattr(failover.FailoverConnection.__init__, "__defaults__", (0.2,))
        both = Address(standby.url, True, "t", others=("http://127.0.0.1:9",))
        with service_at(both) as client, pytest.raises(Refused, match="active one is at"):
            client.post("/v1/jobs", [])
        assert stranger.asked == []


def test_several_addresses_are_each_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORAE_TOKEN", "t")
    monkeypatch.setenv("HORAE_URL", "https://a:8642/, https://b:8642")
    found = find_address(None)
    assert (found.url, found.others, found.local) == ("https://a:8642", ("https://b:8642",), False)
    monkeypatch.setenv("HORAE_URL", "http://127.0.0.1:8642")
    monkeypatch.setenv("HORAE_STANDBY_URL", "http://b:8642")
    with pytest.raises(NoService, match="without encryption"):
        find_address(None)
    monkeypatch.setenv("HORAE_STANDBY_URL", "http://127.0.0.1:8643")
    found = find_address(None)
    assert (found.others, found.local) == (("http://127.0.0.1:8643",), True)
