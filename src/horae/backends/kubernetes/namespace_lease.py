"""Which service orders the pods of a namespace: two would bind and delete each other's gangs.

A Lease named `horae` in the namespace names its service. It does not run out: to take over after a machine has died,
an operator deletes it. Should the old service come back, it finds another's Lease and does nothing. A service that runs
renews its Leases every few seconds, so that others can tell without comparing clocks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease

from horae.backends.kubernetes.api import CONFLICT, NOT_FOUND, STRATEGIC_PATCH, ApiRefusal, KubernetesApi

NAME = "horae"
#: Seconds from one check to the next, and for which a Lease that is not renewed belongs to no service that runs.
_EVERY_S, WATCH_S = 5.0, 20.0


class NamespaceLeases:
    """The Leases of the namespaces that a service adopts."""

    def __init__(self, api: KubernetesApi, namespaces: tuple[str, ...], service: str) -> None:
        self._api, self._namespaces, self._holder = api, namespaces, f"{service}@{socket.gethostname()}"
        self._service = service
        self._checked_s = float("-inf")
        self._lost: dict[str, str] = {}

    def claim(self) -> dict[str, str]:
        """Make the Leases this service's own; returns by namespace why that cannot be."""
        whys = {namespace: self._claim(namespace) for namespace in self._namespaces}
        return {namespace: why for namespace, why in whys.items() if why}

    def check(self) -> dict[str, str]:
        """Look now and then whether the Leases are still this service's; returns by namespace why one is not."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= _EVERY_S:
            self._lost, self._checked_s = self.claim(), now_s
        return self._lost

    def _claim(self, namespace: str) -> str:
        try:
            holder = holder_of(lease_of(self._api, namespace)) or self._create(namespace)
            if holder.partition("@")[0] == self._service:
                self._renew(namespace)
                return ""
        except ApiRefusal as why:
            return f"The Lease of namespace {namespace} cannot be read, made or renewed: {why}."
        return (
            f"Namespace {namespace} belongs to another Horae service ({holder}). If that is gone for good: "
            f"`kubectl delete lease {NAME} -n {namespace}`."
        )

    def _renew(self, namespace: str) -> None:
        renewed = {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
        self._api.call("patch", Lease, NAME, renewed, namespace=namespace, content_type=STRATEGIC_PATCH)

    def _create(self, namespace: str) -> str:
        """Make a Lease; returns who holds it."""
        lease = Lease(metadata=ObjectMeta(name=NAME, namespace=namespace), spec=LeaseSpec(holderIdentity=self._holder))
        try:
            self._api.call("post", Lease, content=lease, namespace=namespace)
        except ApiRefusal as why:
            if why.code != CONFLICT:
                raise
            return holder_of(lease_of(self._api, namespace))
        return self._holder


def lease_of(api: KubernetesApi, namespace: str) -> Mapping[str, Any]:
    """What the Lease of a namespace says; empty if there is none."""
    try:
        found = api.call("get", Lease, NAME, namespace=namespace)
    except ApiRefusal as why:
        if why.code != NOT_FOUND:
            raise
        return {}
    return found.get("spec") or {}


def holder_of(lease: Mapping[str, Any]) -> str:
    """Which service has a Lease; empty if none has."""
    return str(lease.get("holderIdentity") or "")


def running_service(api: KubernetesApi, namespaces: tuple[str, ...], watch_s: float = WATCH_S) -> str:
    """Which service renews a Lease of these namespaces while it is watched; empty if none does."""
    before = {name: lease_of(api, name) for name in namespaces}
    # A Lease that was never renewed is that of an earlier release, which does not renew any.
    renewed = {name: lease for name, lease in before.items() if lease.get("renewTime")}
    end_s = time.monotonic() + watch_s
    while renewed and time.monotonic() < end_s:
        time.sleep(min(1.0, watch_s))
        for name, lease in renewed.items():
            now = lease_of(api, name)
            if now.get("renewTime") and now["renewTime"] != lease["renewTime"]:
                return holder_of(now)
    return ""
