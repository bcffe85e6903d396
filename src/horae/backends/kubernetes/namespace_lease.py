"""Which service orders the pods of a namespace: two would bind and delete each other's gangs.

A Lease named `horae` in the namespace names its service. It does not run out: to take over after a machine has died,
an operator deletes it. Should the old service come back, it finds another's Lease and does nothing.
"""

from __future__ import annotations

import socket
import time

from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease

from horae.backends.kubernetes.api import CONFLICT, NOT_FOUND, ApiRefusal, KubernetesApi

NAME = "horae"
#: Seconds from one check to the next.
_EVERY_S = 10.0


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
            holder = self._holder_of(namespace) or self._create(namespace)
        except ApiRefusal as why:
            return f"The Lease of namespace {namespace} cannot be read or made: {why}."
        if holder.partition("@")[0] == self._service:
            return ""
        return (
            f"Namespace {namespace} belongs to another Horae service ({holder}). If that is gone for good: "
            f"`kubectl delete lease {NAME} -n {namespace}`."
        )

    def _holder_of(self, namespace: str) -> str:
        """Who holds a Lease; empty if there is none."""
        try:
            found = self._api.call("get", Lease, NAME, namespace=namespace)
        except ApiRefusal as why:
            if why.code != NOT_FOUND:
                raise
            return ""
        return str((found.get("spec") or {}).get("holderIdentity") or "")

    def _create(self, namespace: str) -> str:
        """Make a Lease; returns who holds it."""
        lease = Lease(metadata=ObjectMeta(name=NAME, namespace=namespace), spec=LeaseSpec(holderIdentity=self._holder))
        try:
            self._api.call("post", Lease, content=lease, namespace=namespace)
        except ApiRefusal as why:
            if why.code != CONFLICT:
                raise
            return self._holder_of(namespace)
        return self._holder
