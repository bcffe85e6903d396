"""A real PyTorch job of two processes runs under the service, is preempted twice by others, and ends as if alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from horae.core.states import State
from horae.service.job_file import read_job
from horae.service.operations import Operations
from horae.service.roles import Caller, Role
from horae.service.server import ServeOptions, Server

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytestmark = pytest.mark.long

SOURCE = Path(__file__).parents[2]
SCRIPT = SOURCE / "examples" / "train_torch_ddp.py"
ANN = Caller("ann", Role.USER)
STEPS = 300
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE / "src")}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A service with two GPUs, on which shorter jobs go first."""
    started = Server(ServeOptions(state=tmp_path / "state", port=0, gpus="v100:2", policy="srtf"))
    try:
        yield started
    finally:
        started.close()


def wait(until: Callable[[], Any], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)


def submit(server: Server, **said: Any) -> str:
    job = read_job({"resources": {"gpus": 2}, "envs": ENV, **said})
    return Operations(server.daemon).submit(ANN, [job])[0]


def state(server: Server, job: str) -> State:
    at = server.daemon.status
    return at.state(at.row(job))


def step_in(folder: Path) -> int:
    saved = folder / "saved.json"
    return int(json.loads(saved.read_text())["step"]) if saved.exists() else 0


def undisturbed(folder: Path) -> Any:
    """The same training under torchrun, with nobody to disturb it."""
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *two, str(SCRIPT), "--steps", str(STEPS), "--folder", str(folder)]
    subprocess.run(command, env={**os.environ, **ENV}, check=True, capture_output=True, timeout=180)
    return json.loads((folder / "result.json").read_text())


def test_preempted_twice_by_shorter_jobs_it_ends_with_the_same_weights_and_loss(server: Server, tmp_path: Path) -> None:
    run = [sys.executable, str(SCRIPT), "--steps", str(STEPS), "--step-ms", "60", "--every-s", "0.3"]
    long = submit(server, run=run, processes="gpu", estimate={"steps": STEPS, "duration": "1h"})
    folder = server.state / "jobs" / long / "checkpoint"
    for _ in range(2):
        reached = step_in(folder)
        wait(lambda: step_in(folder) > reached)  # noqa: B023
        short = submit(server, run=["sleep", "0.2"], estimate={"steps": 1, "duration": "1s"})
        wait(lambda: state(server, short) is State.FINISHED)  # noqa: B023
        assert step_in(folder) < STEPS, "the long job was to be interrupted before its end"
    wait(lambda: state(server, long) in (State.FINISHED, State.FAILED))
    at = server.daemon.status
    assert state(server, long) is State.FINISHED
    assert int(at.columns["preemptions"][at.row(long)]) == 2
    alone = tmp_path / "alone"
    alone.mkdir()
    assert json.loads((folder / "result.json").read_text()) == undisturbed(alone)
