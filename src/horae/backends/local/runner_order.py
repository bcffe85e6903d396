"""The order for a runner: programs, folders and the environment of every process.

A job starts from an allow-list of the daemon's own environment, so that nothing the daemon
knows leaks into it. `CUDA_VISIBLE_DEVICES` tells a job which GPUs are its own; it is a
convention and no isolation: a job that ignores it reaches the others.
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

#: What a job gets of the daemon's own environment, and all of LC_*.
ALLOWED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH")
#: Set for every process of an attempt: the folder that tells its processes from all others.
MARK = "HORAE_ATTEMPT_DIR"


class BadTask(UserError):
    """A task that cannot be started as it is."""


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that jobs may see."""
    return {name: value for name, value in environment.items() if name in ALLOWED or name.startswith("LC_")}


def make_order(
    start: Start, folder: Path, devices: Mapping[str, tuple[int, ...]], secrets: Path | None
) -> dict[str, Any]:
    """All that a runner has to know. Secret values are not in it, only their files."""
    task = start.task
    workdir = Path(task.workdir) if task.workdir else folder / "work"
    checkpoint_dir = checkpoint_folder(task, folder)
    return {
        "version": 1,
        "job": start.job,
        "attempt": start.attempt,
        "nodes": [place.node for place in start.places],
        "task": asdict(task),
        "workdir": str(workdir),
        "checkpoint_dir": str(checkpoint_dir),
        "stop_signal": _signal_number(task),
        "secrets": _secret_files(task, secrets),
        "env": _environment(start, folder, checkpoint_dir),
        "ranks": _ranks(start.places, devices, each_gpu=task.processes == "gpu"),
    }


def checkpoint_folder(task: Task, folder: Path) -> Path:
    """Where a job's checkpoints lie, in all its attempts: beside these, or where it says.

    That is seen from its working folder; one that each attempt has for itself would hide what the last one saved.
    """
    own = folder.parent / "checkpoint"
    if not task.checkpoint_dir:
        return own
    return (Path(task.workdir) if task.workdir else own) / task.checkpoint_dir


def task_of(order: Mapping[str, Any]) -> Task:
    """The task an order was made for; what a later release has added to it says nothing to this one."""
    said = {one.name: order["task"][one.name] for one in fields(Task) if one.name in order["task"]}
    return Task(**{**said, "run": tuple(said["run"]), "secrets": tuple(said["secrets"])})


def _environment(start: Start, folder: Path, checkpoint_dir: Path) -> dict[str, str]:
    """What all processes of an attempt see; what Horae sets wins over what the task sets."""
    return {
        **allowed(os.environ),
        **start.task.env,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        # NVML counts GPUs by their bus; CUDA would count the fastest first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HORAE_JOB_ID": start.job,
        "HORAE_ATTEMPT": str(start.attempt),
        "HORAE_RESTART_COUNT": str(start.attempt - 1),
        "HORAE_CHECKPOINT_DIR": str(checkpoint_dir),
        "HORAE_GPU_TYPE": start.gpu_type,
        "HORAE_STOP_SIGNAL": start.task.stop_signal,
        "HORAE_REPORT_AT": ",".join(f"{step:.15g}" for step in start.report_at),
        MARK: str(folder),
        **start.env,
    }


def _ranks(places: tuple[Place, ...], devices: Mapping[str, tuple[int, ...]], each_gpu: bool) -> list[dict[str, str]]:
    """The variables in which the processes differ, as torchrun sets them: one process a GPU, or one a node."""
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
        }
        for rank, (group, local) in enumerate(ranks)
    ]


def _visible(place: Place, devices: Mapping[str, tuple[int, ...]]) -> str:
    """The GPUs of a place by their numbers on the machine; virtual ones keep those on their node."""
    physical = devices.get(place.node)
    return ",".join(str(physical[number] if physical else number) for number in place.gpus)


def _signal_number(task: Task) -> int:
    known = {one.name: int(one) for one in signal.Signals}
    if task.stop_signal not in known:
        raise BadTask(f"No signal is called {task.stop_signal!r}.{did_you_mean(task.stop_signal, known)}")
    return known[task.stop_signal]


def _secret_files(task: Task, secrets: Path | None) -> dict[str, str]:
    if task.secrets and secrets is None:
        raise BadTask(f"The job needs the secret {task.secrets[0]!r}, but this service has no folder of secrets.")
    for name in task.secrets:
        if not name.isidentifier():
            raise BadTask(f"{name!r} cannot be a secret's name: it must be that of an environment variable.")
    return {name: str(secrets / name) for name in task.secrets} if secrets else {}


def _free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
