"""A real Kubernetes for tests, swept between them, and drivers for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from horae.backends.kubernetes.api import KubernetesApi, load_config
from horae.backends.kubernetes.driver import KubernetesDriver, settings_of_this_process
from horae.backends.kubernetes.manifests import rights_objects
from horae.backends.kubernetes.shared_volume import SharedVolume
from horae.testing.kubernetes_cluster import (
    HORAE_USER,
    NAMESPACE,
    KubernetesCluster,
    KubernetesTrouble,
    MadeUpKubeNode,
    why_not,
)
from tests.backends.real import until
from tests.engine_folder import engine_folder

#: These tests take minutes, so that `make test` leaves them out even where Kubernetes is built.
_WHY_NOT = why_not() or ("" if os.environ.get("HORAE_KUBERNETES") else "only when asked, by `make test-kubernetes`")
needs_kubernetes = [pytest.mark.engine, pytest.mark.skipif(bool(_WHY_NOT), reason=f"needs Kubernetes: {_WHY_NOT}")]

#: The nodes of the contract of backends, and one more of the first type for gangs.
NODES = (
    MadeUpKubeNode("v100", "Tesla-V100-SXM2-16GB", "rack-0"),
    MadeUpKubeNode("k80", "Tesla-K80", "rack-0"),
)
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_MERGE = "application/merge-patch+json"
_services = itertools.count(1)


@contextmanager
def running_cluster(
    nodes: tuple[MadeUpKubeNode, ...] = NODES, controllers: bool = True, adopt: Sequence[str] = ()
) -> Iterator[KubernetesCluster]:
    """A Kubernetes with the rights that `horae kubernetes manifests` prints, and no more."""
    with (
        engine_folder("kube") as folder,
        KubernetesCluster(folder / "k", nodes, controllers) as made,
    ):
        made.create([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in adopt])
        made.create(rights_objects(NAMESPACE, adopt))
        yield made


def api_of(cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch | None = None) -> KubernetesApi:
    """The API server as the service's account sees it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig(HORAE_USER)))
        return KubernetesApi(load_config())


def driver_of(cluster: KubernetesCluster, shared: Path, service: str) -> KubernetesDriver:
    settings = settings_of_this_process(service, "none", SharedVolume("", shared))
    return KubernetesDriver(settings, api_of(cluster))


def new_service() -> str:
    """An id that no earlier test has used."""
    return f"s{next(_services)}"


def pods(cluster: KubernetesCluster, namespace: str = NAMESPACE) -> dict[str, dict[str, Any]]:
    """All pods of a namespace by name."""
    listed = cluster.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {pod["metadata"]["name"]: pod for pod in listed}


def sweep(cluster: KubernetesCluster) -> None:
    """Delete all pods and wait until their processes are gone: the next test has a service of its own."""
    until(lambda: not _sweep(cluster), "for pods to go")
    until(lambda: not cluster.living_pods(), "for processes of pods to end")


def _sweep(cluster: KubernetesCluster) -> int:
    found = cluster.ask("GET", "/api/v1/pods")["items"]
    for pod in found:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        try:
            cluster.ask("PATCH", path, {"metadata": {"finalizers": None}}, _MERGE)
            cluster.ask("DELETE", path, {"gracePeriodSeconds": 1})
        except KubernetesTrouble:
            continue  # just gone
    return len(found)
