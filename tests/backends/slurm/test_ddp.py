"""Real PyTorch over two Slurm nodes, preempted three times: the weights are the same to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.service.server import ServeOptions, Server
from horae.testing.slurm_cluster import PARTITION, MadeUpNode, SlurmCluster, why_not
from tests.engine_folder import engine_folder
from tests.service.ddp_jobs import check_preempted_training, serving_two_nodes

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}"),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A service on two Slurm nodes with one GPU each; shorter jobs go first."""
    nodes = [MadeUpNode(name, "v100", "rack1", gpus=1) for name in ("v1", "v2")]
    with engine_folder("slurm") as folder, SlurmCluster(folder / "slurm", nodes) as slurm:
        for variable in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(variable, slurm.environment[variable])
        shared = folder / "shared"
        asked = ServeOptions(
            tmp_path / "state", port=0, policy="srtf", backend="slurm", partition=PARTITION, shared=shared
        )
        with serving_two_nodes(asked) as started:
            yield started


@pytest.mark.parametrize("launcher", ["torchrun", "plain"])
def test_a_gang_over_two_nodes_ends_with_the_same_weights(server: Server, tmp_path: Path, launcher: str) -> None:
    check_preempted_training(server, tmp_path / "alone", launcher)
