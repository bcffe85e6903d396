"""One service for a namespace."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from horae.backends.kubernetes.namespace_lease import NamespaceLeases
from tests.backends.kubernetes.fake_server import Answer, api, status


class Leases:
    """An API server that keeps Leases by namespace."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}

    def __call__(self, request: httpx.Request) -> Answer:
        space = request.url.path.split("/")[5]
        if request.method == "POST":
            if space in self.held:
                return status(409)
            self.held[space] = json.loads(request.content)
            return httpx.Response(201, json={})
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
    assert lost == {"a": "The Lease of namespace a cannot be read or made: no."}
