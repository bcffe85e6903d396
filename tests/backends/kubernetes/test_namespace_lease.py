"""One service for a namespace."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from horae.backends.kubernetes.namespace_lease import NamespaceLeases, running_service
from tests.backends.kubernetes.fake_server import Answer, api, status


class Leases:
    """An API server that keeps Leases by namespace."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}
        self.renewals = 0

    def __call__(self, request: httpx.Request) -> Answer:
        space = request.url.path.split("/")[5]
        if request.method == "POST":
            if space in self.held:
                return status(409)
            self.held[space] = json.loads(request.content)
            return httpx.Response(201, json={})
        if request.method == "PATCH":
            self.held[space]["spec"] |= json.loads(request.content)["spec"]
            self.renewals += 1
        return httpx.Response(200, json=self.held[space]) if space in self.held else status(404)


def test_the_first_service_has_it_and_has_it_again_after_a_restart() -> None:
    server = Leases()
    assert NamespaceLeases(api(server), ("a", "b"), "s1").claim() == {}
    assert {*server.held} == {"a", "b"}
    assert NamespaceLeases(api(server), ("a", "b"), "s1").claim() == {}


def test_another_service_is_told_whose_it_is_and_how_to_take_over() -> None:
    server = Leases()
    NamespaceLeases(api(server), ("b",), "s1").claim()
    (lost,) = NamespaceLeases(api(server), ("a", "b"), "s2").claim().values()
    assert lost.startswith("Namespace b belongs to another Horae service (s1@")
    assert "kubectl delete lease horae -n b" in lost


def test_a_service_that_was_replaced_sees_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Leases()
    old = NamespaceLeases(api(server), ("a",), "s1")
    old.check()
    server.held.clear()
    NamespaceLeases(api(server), ("a",), "s2").claim()
    assert old.check() == {}, "it is looked at now and then only"
    monkeypatch.setattr("horae.backends.kubernetes.namespace_lease._EVERY_S", 0.0)
    assert "another Horae service" in old.check()["a"]


def test_a_lease_that_may_not_be_read_is_trouble_of_its_namespace() -> None:
    lost = NamespaceLeases(api(lambda request: status(403 if "/a/" in request.url.path else 404)), ("a",), "s1").claim()
    assert lost == {"a": "The Lease of namespace a cannot be read, made or renewed: no."}


def test_a_service_that_runs_renews_its_lease_and_is_seen_from_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horae.backends.kubernetes.namespace_lease._EVERY_S", 0.0)
    server = Leases()
    service = NamespaceLeases(api(server), ("a", "b"), "s1")
    service.check()
    watcher = _Watcher(server, service)
    assert running_service(api(watcher), ("a", "b"), 0.2) == service._holder
    assert server.renewals > 2


class _Watcher:
    """The same server, on which a service goes on while somebody else reads."""

    def __init__(self, server: Leases, service: NamespaceLeases) -> None:
        self._server, self._service = server, service

    def __call__(self, request: httpx.Request) -> Answer:
        answer = self._server(request)
        self._service.check()
        return answer


@pytest.mark.parametrize("spec", [None, {"holderIdentity": "s1@h"}, {"holderIdentity": "s1@h", "renewTime": "then"}])
def test_a_lease_that_nobody_renews_belongs_to_no_service_that_runs(spec: dict[str, str] | None) -> None:
    server = Leases()
    if spec:
        server.held["a"] = {"spec": spec}
    assert running_service(api(server), ("a",), 0.05) == ""
