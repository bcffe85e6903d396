"""Real PyTorch over two Kubernetes pods on two nodes, preempted three times: the same weights to the last bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.service.server import ServeOptions, Server
from horae.testing.kubernetes_cluster import HORAE_USER, NAMESPACE, MadeUpKubeNode
from tests.backends.kubernetes.stage import needs_kubernetes, running_cluster
from tests.service.ddp_jobs import check_preempted_training, serving_two_nodes

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytestmark = [*needs_kubernetes, pytest.mark.long]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A service on two nodes with one GPU each; shorter jobs go first."""
    nodes = tuple(MadeUpKubeNode(name, "Tesla-V100-SXM2-16GB", "rack1", gpus=1) for name in ("v1", "v2"))
    with running_cluster(nodes) as kubernetes:
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig(HORAE_USER)))
        shared = kubernetes.folder.parent / "shared"
        shared.mkdir()
        asked = ServeOptions(
            tmp_path / "state",
            port=0,
            policy="srtf",
            backend="kubernetes",
            namespace=NAMESPACE,
            image="none",
            volume=f"host:{shared.resolve()}",
            backend_settings={"python": sys.executable},
        )
        with serving_two_nodes(asked) as started:
            yield started


@pytest.mark.parametrize("launcher", ["torchrun", "plain"])
def test_a_gang_over_two_pods_ends_with_the_same_weights(server: Server, tmp_path: Path, launcher: str) -> None:
    check_preempted_training(server, tmp_path / "alone", launcher)
