"""Real PyTorch over two nodes of a cluster, preempted by shorter jobs, beside the same training undisturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from horae.core.states import State
from horae.service.job_file import read_job
from horae.service.operations import Operations
from horae.service.roles import Caller, Role
from horae.service.server import ServeOptions, Server
from tests.backends.real import until

SOURCE = Path(__file__).parents[2]
SCRIPT = SOURCE / "examples" / "train_torch_ddp.py"
STEPS, PREEMPTIONS = 300, 3
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE / "src")}


@contextmanager
def serving_two_nodes(asked: ServeOptions) -> Iterator[Server]:
    """A service, as soon as its two nodes are up."""
    started = Server(asked)
    try:
        until(lambda: sum(started.daemon.status.node_up) == 2, "for the nodes")
        yield started
    finally:
        started.close()


def check_preempted_training(server: Server, alone: Path, launcher: str) -> None:
    """Train on two GPUs, `PREEMPTIONS` times interrupted by a shorter job: the weights are those of `alone`."""
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
    assert json.loads((folder / "result.json").read_text()) == undisturbed(alone)


def submit(server: Server, **said: Any) -> str:
    """Submit a job on two GPUs."""
    job = read_job({"resources": {"gpus": 2}, "envs": ENV, **said})
    return Operations(server.daemon).submit(Caller("ann", Role.USER), [job])[0]


def state(server: Server, job: str) -> State:
    """The state of a job."""
    status = server.daemon.status
    row = status.row(job)
    assert row is not None, job
    return status.state(row)


def step_in(folder: Path) -> int:
    """The last step that was saved."""
    saved = folder / "saved.json"
    return int(json.loads(saved.read_text())["step"]) if saved.exists() else 0


def undisturbed(folder: Path) -> Any:
    """The result of the same training on this machine, with nobody to disturb it."""
    folder.mkdir(exist_ok=True)
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *two, str(SCRIPT), "--steps", str(STEPS), "--folder", str(folder)]
    subprocess.run(command, env={**os.environ, **ENV}, check=True, capture_output=True, timeout=180)
    return json.loads((folder / "result.json").read_text())
