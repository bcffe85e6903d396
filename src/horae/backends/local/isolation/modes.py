"""Isolation: what keeps a job from the service's files and from the jobs of others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from horae.backends.protocol import Start
from horae.core.errors import UserError

#: Values of `horae serve --isolation`.
ACCOUNT, SANDBOX, NONE = "account", "sandbox", "none"
MODES = (ACCOUNT, SANDBOX, NONE)

#: Devices that all programs with a GPU open, beside the GPU's own.
_SHARED_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")

#: Where the kernel's control groups are.
CONTROL_GROUPS = "/sys/fs/cgroup/"

#: Paths of devices, by the numbers of GPUs as `CUDA_VISIBLE_DEVICES` names them.
DeviceFiles = Callable[[Sequence[int]], list[str]]


class CannotIsolate(UserError):
    """A way to keep jobs apart that does not work on this machine."""


def nvidia_devices(numbers: Sequence[int], minors: Mapping[int, int] | None = None) -> list[str]:
    """The device files of these GPUs. `minors`: the driver's minor numbers where they differ from GPU numbers."""
    return [*(f"/dev/nvidia{(minors or {}).get(number, number)}" for number in numbers), *_SHARED_GPU_DEVICES]


class Isolation(Protocol):
    """Adapts orders, so that the runner starts a job apart from others, and cleans up after runners that died."""

    @property
    def mode(self) -> str:
        """One of `MODES`."""

    @property
    def honours(self) -> frozenset[str]:
        """What else than GPUs is divided among jobs, as in `Backend.honours`."""

    def refusal(self, user: str) -> str:
        """Why jobs of a user cannot run, in a sentence; empty if they can."""

    def job_folder(self, start: Start) -> Path | None:
        """Folder for the working folders and checkpoints of a job; None: beside the records of its attempts."""

    @property
    def job_folders(self) -> str:
        """How paths to the folders of jobs go on before a job's name; empty if they are in the state folder."""

    def adapt(self, order: dict[str, Any], start: Start, gpus: Sequence[int]) -> dict[str, Any]:
        """The order with what the runner has to know. `gpus`: their numbers in `CUDA_VISIBLE_DEVICES`."""

    def open(self, order: Mapping[str, Any]) -> int | None:
        """A descriptor that the runner needs as `runner.CONTROL`, closed by the caller; None if it needs none."""

    def left(self, control_group: str) -> list[int]:
        """Processes that are left in the control group of an attempt whose runner died. They are being killed."""

    def remove(self, order: Mapping[str, Any]) -> None:
        """Delete the folder of a job that lies outside the state folder. Waits."""

    @property
    def trouble(self) -> str:
        """Why no job can be started, in a sentence; empty if nothing is wrong."""


class NoIsolation:
    """Jobs run under the service's own account, and can do all that it can."""

    mode = NONE
    honours: frozenset[str] = frozenset()
    trouble = job_folders = ""

    def refusal(self, user: str) -> str:
        """Nobody is refused."""
        return ""

    def job_folder(self, start: Start) -> Path | None:
        """Beside the records."""
        return None

    def adapt(self, order: dict[str, Any], start: Start, gpus: Sequence[int]) -> dict[str, Any]:
        """The order as it is."""
        return order

    def open(self, order: Mapping[str, Any]) -> int | None:
        """The runner needs nothing."""
        return None

    def left(self, control_group: str) -> list[int]:
        """There are no control groups: a job may have written the name of one that is not its own."""
        return []

    def remove(self, order: Mapping[str, Any]) -> None:
        """All folders are in the state folder."""


def processes_in(control_group: str) -> list[int]:
    """Ids of the processes in a control group; nothing if it is gone, or that is no control group."""
    path = os.path.normpath(control_group)
    try:
        text = Path(path, "cgroup.procs").read_text(encoding="ascii") if path.startswith(CONTROL_GROUPS) else ""
    except OSError:
        return []
    return [int(pid) for pid in text.split() if pid != str(os.getpid())]
