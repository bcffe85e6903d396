"""One Kubernetes for all tests of a worker: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horae.testing.kubernetes_cluster import KubernetesCluster
from tests.backends.kubernetes.stage import running_cluster, sweep


@pytest.fixture(scope="session")
def lasting_cluster() -> Iterator[KubernetesCluster]:
    with running_cluster() as made:
        yield made


@pytest.fixture
def cluster(lasting_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    yield lasting_cluster
    sweep(lasting_cluster)
