"""Who comes in: hosts, floods, bodies made to keep the service busy, and the log of all that.

Tests service/api/access_log.py, service/api/admission.py and service/api/limits.py.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from horae.service.api import ApiOptions, make_app
from horae.service.api.access_log import AccessLog
from horae.service.api.limits import ADMIN_LIMITS, REPORT_LIMITS, USER_LIMITS, CallerLimits, RequestRates
from horae.service.listening import Listener, listen
from horae.service.roles import Role
from horae.service.server import Http
from horae.service.views.views import ServiceViews
from tests.service.live import PATIENCE_S, Live, eventually, in_state, live, submit

SLOW = CallerLimits(requests_per_s=0.5, burst=5, at_once=8, streams=1, log_reads=4)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture
def service(shared: Live) -> Iterator[Live]:
    yield shared
    shared.app.state.service.limits_of = lambda caller: USER_LIMITS


def limit(service: Live, limits: dict[str, CallerLimits]) -> None:
    service.app.state.service.limits_of = lambda caller: limits.get(caller.user, USER_LIMITS)


# ------------------------------------------------------------------------- rates


def test_a_bucket_fills_again() -> None:
    now_s = 0.0
    rates = RequestRates(lambda: now_s)
    assert [rates.count("a", SLOW) for _ in range(5)] == [0.0] * 5
    assert rates.count("a", SLOW) == 2.0
    assert rates.count("b", SLOW) == 0.0, "others are not concerned"
    now_s = 2.0
    assert rates.count("a", SLOW) == 0.0
    assert rates.count("a", SLOW) == 2.0


def test_who_asks_too_often_has_to_wait_and_nobody_else(service: Live) -> None:
    limit(service, {"greedy": SLOW})
    greedy, other = service.person("greedy"), service.person("greedy2")
    answers = [greedy.get("/v1/jobs") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert int(answers[-1].headers["Retry-After"]) >= 2
    assert "more than 0.5 a second" in answers[-1].json()["error"]
    assert other.get("/v1/jobs").status_code == 200
    again = service.client(service.token("greedy"))
    assert again.get("/v1/jobs").status_code == 429, "a second token is no second allowance"


def test_admins_have_limits_too_and_higher_ones() -> None:
    assert USER_LIMITS.requests_per_s < ADMIN_LIMITS.requests_per_s < 1000
    assert USER_LIMITS.at_once < ADMIN_LIMITS.at_once < 40, "which is the number of threads"


def test_a_job_that_floods_the_service_with_reports_is_held_back(service: Live) -> None:
    alice = service.person("alice")
    (job,) = submit(alice)
    in_state(alice, job, "running")
    own = service.client(service.tokens.of_job(job, 1))
    path = f"/v1/attempts/{job}/1/progress"
    codes = [own.post(path, json={"step": number}).status_code for number in range(REPORT_LIMITS.burst + 40)]
    assert 10 < codes.count(429) <= 40
    assert set(codes) == {200, 429}
    alice.post(f"/v1/jobs/{job}/cancel")


def test_slow_requests_of_one_user_leave_threads_to_others(service: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, shares = threading.Event(), ServiceViews.shares

    def slow(views: ServiceViews) -> object:
        assert go_on.wait(PATIENCE_S)
        return shares(views)

    monkeypatch.setattr(ServiceViews, "shares", slow)
    client = service.client(service.token("slow"), connections=60)
    with ThreadPoolExecutor(60) as pool:
        asked = [pool.submit(client.get, "/v1/share") for _ in range(60)]
        try:
            assert service.person("alice").get("/v1/jobs").status_code == 200
            assert service.person("alice").get("/healthz").status_code == 200
        finally:
            go_on.set()
        assert [one.result().status_code for one in asked] == [200] * 60


def test_health_is_asked_through_the_threads(service: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = CallerLimits(requests_per_s=1000, burst=1000, at_once=100, streams=1, log_reads=4)
    limit(service, {"slow": limits})
    go_on, shares = threading.Event(), ServiceViews.shares

    def stuck(views: ServiceViews) -> object:
        assert go_on.wait(PATIENCE_S)
        return shares(views)

    monkeypatch.setattr(ServiceViews, "shares", stuck)
    client, nobody = service.client(service.token("slow"), connections=60), service.client(None)
    with ThreadPoolExecutor(60) as pool:
        asked = [pool.submit(client.get, "/v1/share") for _ in range(45)]
        try:
            answer = eventually(lambda: (said := nobody.get("/healthz")).status_code == 503 and said)
            assert answer.json()["error"] == "All threads for requests have been busy for 2 s."
        finally:
            go_on.set()
        assert {one.result().status_code for one in asked} == {200}
    assert nobody.get("/healthz").status_code == 200


# ------------------------------------------------------------------------- hosts


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8642", "127.0.0.1:1", "[::1]:5", "10.1.2.3", "localhost."])
def test_own_names_and_addresses_are_served(service: Live, host: str) -> None:
    assert service.client(None).get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:8642", "localhost.evil.org", "1.2.3.4.nip.io"])
def test_a_name_that_was_rebound_is_refused(service: Live, host: str) -> None:
    for path in ("/healthz", "/openapi.json", "/v1/jobs"):
        answer = service.client(None).get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert "--server-name" in answer.json()["error"]


# ------------------------------------------------------------------------ bodies


def test_a_body_is_not_read_before_the_token(service: Live) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n"
    with socket.create_connection(service.listener.getsockname(), timeout=PATIENCE_S) as wire:
        wire.sendall(head)
        assert wire.recv(12) == b"HTTP/1.1 401"


JOB = '"run": "true"'
TERRIBLE = {
    "a long key": f'[{{{JOB}, "{"k" * 3_900_000}": 1}}]',
    "a key too long to compare": f'[{{{JOB}, "{"k" * 60_000}": 1}}]',
    "a long time": f'[{{{JOB}, "max_duration": "{"1s" * 1_900_000}"}}]',
    "a long memory": f'[{{{JOB}, "resources": {{"memory_per_gpu": "{"9" * 60_000}GiB"}}}}]',
    "many keys": "[{" + ",".join(f'"{number:x}":1' for number in range(350_000)) + "}]",
    "many jobs": "[" + ",".join(["0"] * 2_000_000) + "]",
    "many words": f'[{{"run": [{",".join(["0"] * 1_900_000)}]}}]',
    "many wrong jobs": "[" + ",".join(['{"a":0,"b":0,"c":0}'] * 10_000) + "]",
}


@pytest.mark.parametrize("what", TERRIBLE)
def test_no_body_keeps_the_service_busy(service: Live, what: str) -> None:
    alice = service.person("alice")
    before_s = time.process_time()
    answer = alice.post("/v1/jobs", content=TERRIBLE[what].encode(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert len(answer.text) < 1000
    assert time.process_time() - before_s < 1.0, "seconds of CPU, 1.7 and more without caps"


def test_a_large_body_of_good_form_is_taken(service: Live) -> None:
    alice = service.person("alice")
    jobs = [{"run": ["true", "x" * 2000], "envs": {"A": "b"}} for _ in range(100)]
    ids = alice.post("/v1/jobs", json=jobs).json()["ids"]
    assert len(ids) == 100
    assert set(alice.post("/v1/jobs/cancel", json={"ids": ids}).json()["jobs"].values()) == {"done"}


# -------------------------------------------------------------------- access log


def test_the_access_log_has_every_request_and_no_secret(service: Live, tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log")
    listener = listen("127.0.0.1", 0, allow_remote=False)
    app = make_app(service.daemon, service.tokens, ApiOptions(access_log=log))
    http = Http(app, Listener(listener))
    http.start()
    url, token = f"http://127.0.0.1:{listener.getsockname()[1]}", service.token("eve", Role.VIEWER)
    for sent, path in (("hor_wrong", "/v1/jobs?user=secret"), (token, "/v1/jobs"), (token, "/v1/tokens")):
        httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {sent}"}, trust_env=False)
    http.close()
    log.close()
    text = (tmp_path / "access.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["user"], line["path"], line["status"]) for line in lines] == [
        ("", "/v1/jobs", 401),
        ("eve", "/v1/jobs", 200),
        ("eve", "/v1/tokens", 403),
    ]
    assert {line["peer"] for line in lines} == {"127.0.0.1"}
    assert not any(secret in text for secret in ("hor_", "secret", token))
    assert (tmp_path / "access.log").stat().st_mode & 0o077 == 0
