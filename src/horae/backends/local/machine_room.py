"""CPUs and memory of this machine, as far as this service may use them, divided among its nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from horae.core.cluster import Node

_MEMINFO, _CGROUPS, _OWN_CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


#: Part of the memory that is left to the system and the service: the rest is divided among jobs.
KEPT_MEMORY = 1 / 16


def with_machine_room(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of this machine with its CPUs and memory, divided by their GPU counts."""
    total = sum(node.gpus for node in nodes)
    cpus, memory_mb = machine_cpus(), int(machine_memory_mb() * (1 - KEPT_MEMORY))
    return tuple(
        replace(node, cpus=_part(cpus, node.gpus, total), memory_mb=_part(memory_mb, node.gpus, total))
        for node in nodes
    )


def _part(room: int, gpus: int, total: int) -> int:
    """The part for some of all GPUs; at least 1, for 0 would mean that it is not counted."""
    return max(1, room * gpus // total) if room else 0


def machine_cpus(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """CPUs that this process may use: by its affinity, and by the quotas of its cgroups."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    for limit in _limits("cpu.max", cgroups, own):
        quota, _, period = limit.partition(" ")
        with suppress(ValueError, ZeroDivisionError):
            usable = min(usable, max(1, int(quota) // int(period)))
    return usable


def machine_memory_mb(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP, meminfo: Path = _MEMINFO) -> int:
    """MiB of memory that this process may use: all there is, or the limits of its cgroups; 0 if it is not known."""
    usable = 0
    with suppress(OSError, ValueError, IndexError):
        found = [line.split() for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:")]
        usable = int(found[0][1]) // 1024
    for limit in _limits("memory.max", cgroups, own):
        with suppress(ValueError):
            usable = min(usable, int(limit) // 2**20) if usable else int(limit) // 2**20
    return usable


def _limits(name: str, cgroups: Path, own: Path) -> list[str]:
    """What a file of cgroup v2 holds in the group of this process and in all groups above it."""
    with suppress(OSError):
        lines = [line for line in own.read_text().splitlines() if line.startswith("0::/")]
        group = cgroups / lines[0].removeprefix("0::/") if lines else cgroups
        found = []
        while True:
            with suppress(OSError):
                found.append((group / name).read_text().strip())
            if group == cgroups or cgroups not in group.parents:
                return found
            group = group.parent
    return []
