"""Real PyTorch over two Slurm nodes, preempted three times: the weights are the same to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horae.core.states import State
from horae.service.job_file import read_job
from horae.service.operations import Operations
from horae.service.roles import Caller, Role
from horae.service.server import ServeOptions, Server
from horae.testing.slurm_cluster import PARTITION, MadeUpNode, SlurmCluster, why_not
from tests.backends.real import until
from tests.engine_folder import engine_folder

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}"),
]

SOURCE = Path(__file__).parents[3]
SCRIPT = SOURCE / "examples" / "train_torch_ddp.py"
STEPS, PREEMPTIONS = 300, 3
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE / "src")}


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
        started = Server(asked)
        try:
            until(lambda: sum(started.daemon.status.node_up) == 2, "for the nodes")
            yield started
        finally:
            started.close()


def submit(server: Server, **said: Any) -> str:
    job = read_job({"resources": {"gpus": 2}, "envs": ENV, **said})
    return Operations(server.daemon).submit(Caller("ann", Role.USER), [job])[0]


def state(server: Server, job: str) -> State:
    status = server.daemon.status
    return status.state(status.row(job))


def step_in(folder: Path) -> int:
    saved = folder / "saved.json"
    return int(json.loads(saved.read_text())["step"]) if saved.exists() else 0


def undisturbed(folder: Path) -> Any:
    """The same training on this machine, with nobody to disturb it."""
    folder.mkdir()
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *two, str(SCRIPT), "--steps", str(STEPS), "--folder", str(folder)]
    subprocess.run(command, env={**os.environ, **ENV}, check=True, capture_output=True, timeout=180)
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("launcher", ["torchrun", "plain"])
def test_a_gang_over_two_nodes_ends_with_the_same_weights(server: Server, tmp_path: Path, launcher: str) -> None:
    torchrun = ["-m", "torch.distributed.run"] if launcher == "torchrun" else []
    run = [sys.executable, *torchrun, str(SCRIPT), "--steps", str(STEPS), "--step-ms", "60", "--every-s", "0.3"]
    processes = "node" if torchrun else "gpu"
    long = submit(server, run=run, processes=processes, estimate={"steps": STEPS, "duration": "1h"})
    folder = server.daemon.backend.log(long, 1).parents[1] / "checkpoint"
    for _ in range(PREEMPTIONS):
        reached = step_in(folder)
        until(lambda: step_in(folder) > reached, "for steps", patience_s=120.0)  # noqa: B023
        short = submit(server, run=["sleep", "0.2"], estimate={"steps": 1, "duration": "1s"})
        until(lambda: state(server, short) is State.FINISHED, "for the short job", patience_s=120.0)  # noqa: B023
        assert step_in(folder) < STEPS, "the long job was to be interrupted before its end"
    until(lambda: state(server, long) in (State.FINISHED, State.FAILED), "for the end", patience_s=180.0)
    status = server.daemon.status
    assert (state(server, long), int(status.columns["preemptions"][status.row(long)])) == (State.FINISHED, PREEMPTIONS)
    assert json.loads((folder / "result.json").read_text()) == undisturbed(tmp_path / "alone")
