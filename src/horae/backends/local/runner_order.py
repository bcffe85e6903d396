"""The order of an attempt (`order.json`): commands, folders and the environment of every process.

A job gets an allow-list of the daemon's environment, so that the daemon's secrets do not leak into it.
`CUDA_VISIBLE_DEVICES` tells a job which GPUs it may use. Without isolation this is a convention: a job that
ignores it can use the other GPUs. Stored: change by addition.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from horae.backends.protocol import Place, Start
from horae.backends.task import Task
from horae.core.errors import UserError, did_you_mean

#: Variables that a job gets from the daemon's environment, besides all of LC_*.
ALLOWED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH")
#: Variable set for every process of an attempt, with the attempt's folder: it identifies the processes.
ATTEMPT_VARIABLE = "HORAE_ATTEMPT_DIR"


class BadTask(UserError):
    """A task that cannot be started."""


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that jobs may see."""
    return {name: value for name, value in environment.items() if name in ALLOWED or name.startswith("LC_")}


def make_order(
    start: Start,
    folder: Path,
    devices: Mapping[str, tuple[int, ...]],
    secrets: Path | None,
    job_folder: Path | None = None,
) -> dict[str, Any]:
    """The content of `order.json`. It names the files of secrets, never their values.

    `job_folder`: where working folders and checkpoints of the job are; None: beside its attempts' records.
    """
    task = start.task
    own_work = job_folder / str(start.attempt) if job_folder else folder / "work"
    workdir = Path(task.workdir) if task.workdir else own_work
    checkpoint_dir = checkpoint_folder(task, own_work if job_folder else folder)
    return {
        "version": 1,
        "job": start.job,
        "attempt": start.attempt,
        "term": start.term,
        "nodes": [place.node for place in start.places],
        "task": asdict(task),
        "workdir": str(workdir),
        "checkpoint_dir": str(checkpoint_dir),
        "stop_signal": _signal_number(task),
        "secrets": _secret_files(task, secrets),
        "env": _environment(start, folder, checkpoint_dir),
        **({"job_folder": str(job_folder)} if job_folder else {}),
        "ranks": _ranks(start.places, devices, each_gpu=task.processes == "gpu"),
    }


def checkpoint_folder(task: Task, folder: Path) -> Path:
    """The checkpoint folder of a job, the same for all its attempts.

    A relative `checkpoint_dir` starts from the task's `workdir`, or else from the job's checkpoint folder: the working
    folder of a single attempt would hide the checkpoint from the next attempt.
    """
    own = folder.parent / "checkpoint"
    if not task.checkpoint_dir:
        return own
    return (Path(task.workdir) if task.workdir else own) / task.checkpoint_dir


def task_of(order: Mapping[str, Any]) -> Task:
    """The task in an order. Fields that a later release added are ignored."""
    values = {item.name: order["task"][item.name] for item in fields(Task) if item.name in order["task"]}
    return Task(**{**values, "run": tuple(values["run"]), "secrets": tuple(values["secrets"])})


def _environment(start: Start, folder: Path, checkpoint_dir: Path) -> dict[str, str]:
    """Environment shared by all processes of an attempt. Horae's variables override those of the task."""
    return {
        **allowed(os.environ),
        **start.task.env,
        **master_variables("127.0.0.1", _free_port()),
        # NVML numbers GPUs by bus id; CUDA's default puts the fastest first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HORAE_JOB_ID": start.job,
        "HORAE_ATTEMPT": str(start.attempt),
        "HORAE_RESTART_COUNT": str(start.attempt - 1),
        "HORAE_CHECKPOINT_DIR": str(checkpoint_dir),
        "HORAE_GPU_TYPE": start.gpu_type,
        "HORAE_STOP_SIGNAL": start.task.stop_signal,
        # torchrun keeps its workers out of its process group, and passes on what it is told to.
        "PET_SIGNALS_TO_HANDLE": f"SIGTERM,SIGINT,SIGHUP,SIGQUIT,{start.task.stop_signal}",
        "HORAE_REPORT_AT": ",".join(f"{step:.15g}" for step in start.report_at),
        ATTEMPT_VARIABLE: str(folder),
        **start.env,
    }


def master_variables(address: str, port: int) -> dict[str, str]:
    """Where rank 0 listens, as PyTorch's processes and torchrun read it."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(port),
    }


def _ranks(places: tuple[Place, ...], devices: Mapping[str, tuple[int, ...]], each_gpu: bool) -> list[dict[str, str]]:
    """Variables of each process, named as torchrun names them: one process per GPU, or one per node.

    A job with one process per node may be torchrun itself, which finds its options in `PET_...`.
    """
    local_sizes = [len(place.gpus) if each_gpu else 1 for place in places]
    ranks = [(group, local) for group, size in enumerate(local_sizes) for local in range(size)]
    return [
        {
            "WORLD_SIZE": str(len(ranks)),
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(local_sizes[group]),
            "GROUP_RANK": str(group),
            "CUDA_VISIBLE_DEVICES": _visible(places[group], devices),
            **({} if each_gpu else _torchrun_variables(places, group)),
        }
        for rank, (group, local) in enumerate(ranks)
    ]


def _torchrun_variables(places: tuple[Place, ...], group: int) -> dict[str, str]:
    """Options of torchrun on one node of a gang."""
    return {
        "PET_NNODES": str(len(places)),
        "PET_NODE_RANK": str(group),
        "PET_NPROC_PER_NODE": str(len(places[group].gpus)),
    }


def _visible(place: Place, devices: Mapping[str, tuple[int, ...]]) -> str:
    return ",".join(map(str, driver_numbers(place, devices)))


def driver_numbers(place: Place, devices: Mapping[str, tuple[int, ...]]) -> list[int]:
    """The driver's numbers of the GPUs of a place; virtual GPUs keep their numbers on the node."""
    physical = devices.get(place.node)
    return [physical[number] if physical else number for number in place.gpus]


def _signal_number(task: Task) -> int:
    numbers = {item.name: int(item) for item in signal.Signals}
    if task.stop_signal not in numbers:
        raise BadTask(f"No signal is called {task.stop_signal!r}.{did_you_mean(task.stop_signal, numbers)}")
    return numbers[task.stop_signal]


def _secret_files(task: Task, secrets: Path | None) -> dict[str, str]:
    if task.secrets and secrets is None:
        raise BadTask(f"The job needs the secret {task.secrets[0]!r}, but the service was started without --secrets.")
    for name in task.secrets:
        if not name.isidentifier():
            raise BadTask(f"{name!r} cannot be the name of a secret: use the name of an environment variable.")
    return {name: str(secrets / task.secret_file(name)) for name in task.secrets} if secrets else {}


def _free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
