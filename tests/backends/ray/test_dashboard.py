"""Requests to Ray's dashboard, against a fake one on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from horae.backends.driver import OutOfSight
from horae.backends.ray.dashboard import Answer, BadRayAddress, Dashboard, job_path
from tests.backends.ray.fake_dashboard import FakeDashboard, serving, state_of


@pytest.fixture
def fake() -> Iterator[FakeDashboard]:
    with serving(FakeDashboard()) as dashboard:
        yield dashboard


@pytest.mark.parametrize("address", ["head:8265", "ftp://head", "http://", "http://head:many", ""])
def test_an_address_that_cannot_be_a_dashboards_is_refused(address: str) -> None:
    with pytest.raises(BadRayAddress, match="write it like http://head:8265"):
        Dashboard(address)


def test_the_state_is_asked_for_whole_and_filtered(fake: FakeDashboard) -> None:
    fake.replies["GET /api/v0/actors"] = state_of({"actor_id": "a"})
    assert Dashboard(fake.address).read_state("actors", {"state": "ALIVE"}) == [{"actor_id": "a"}]
    query = "detail=1&limit=10000&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"
    assert fake.asked == [(f"GET /api/v0/actors?{query}", None)]


def test_a_form_that_is_not_known_is_no_answer(fake: FakeDashboard) -> None:
    fake.replies["GET /api/v0/nodes"] = (200, {"result": False})
    fake.replies["GET /api/jobs/"] = (200, "<html>")
    with pytest.raises(OutOfSight, match="does not list nodes"):
        Dashboard(fake.address).read_state("nodes")
    with pytest.raises(OutOfSight, match="cannot be read"):
        Dashboard(fake.address).read("/api/jobs/")


def test_a_bad_answer_is_no_answer(fake: FakeDashboard) -> None:
    fake.replies["GET /api/jobs/"] = (500, "Traceback\n  File x\nRpcError: GCS is away\n.\n")
    with pytest.raises(OutOfSight, match="cannot answer now: RpcError: GCS is away"):
        Dashboard(fake.address).read("/api/jobs/")


def test_nobody_there_is_out_of_sight_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OutOfSight, match="does not answer"):
        Dashboard(f"http://127.0.0.1:{port}").read("/api/jobs/")


def test_a_dashboard_that_hangs_is_out_of_sight_in_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(OutOfSight, match="TimeoutError"):
        Dashboard(f"http://127.0.0.1:{deaf.getsockname()[1]}", limit_s=0.1).read("/api/jobs/")


def test_the_token_of_the_environment_is_sent_and_a_refusal_names_it(
    fake: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "ours")
    fake.replies["GET /api/jobs/"] = (401, "no")
    with pytest.raises(OutOfSight, match="RAY_AUTH_TOKEN") as told:
        Dashboard(fake.address).read("/api/jobs/")
    assert fake.headers[0]["Authorization"] == "Bearer ours"
    assert "ours" not in str(told.value)


def test_names_are_quoted_in_paths() -> None:
    assert job_path("a/b?c", "/stop") == "/api/jobs/a%2Fb%3Fc/stop"


def test_an_empty_answer_is_told_by_its_status() -> None:
    assert Answer(503, "\n.\n").last_line == "HTTP status 503"
