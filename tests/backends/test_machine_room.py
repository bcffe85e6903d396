"""CPUs and memory of this machine, for its nodes."""

from __future__ import annotations

import os
from pathlib import Path

from horae.backends.local.machine_room import machine_cpus, machine_memory_mb, with_machine_room
from horae.core.cluster import Node


def test_nodes_of_one_machine_divide_its_room_by_their_gpus_and_leave_some_memory_to_the_system() -> None:
    three, one = with_machine_room((Node("v100", "v100", 3), Node("k80", "k80", 1)))
    cpus, memory_mb = machine_cpus(), machine_memory_mb() * 15 // 16
    assert (three.cpus, one.cpus) == (max(1, cpus * 3 // 4), max(1, cpus // 4))
    assert (three.memory_mb, one.memory_mb) == (memory_mb * 3 // 4, memory_mb // 4)
    assert memory_mb > 0
    assert 0 < cpus <= len(os.sched_getaffinity(0))


def test_limits_of_all_cgroups_above_hold(tmp_path: Path) -> None:
    own, meminfo, inner = tmp_path / "own", tmp_path / "meminfo", tmp_path / "groups" / "outer" / "inner"
    inner.mkdir(parents=True)
    own.write_text("0::/outer/inner\n")
    meminfo.write_text("MemFree: 5 kB\nMemTotal:  8388608 kB\n")
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "memory.max").write_text("max\n")
    groups = tmp_path / "groups"
    free = len(os.sched_getaffinity(0))
    assert (machine_cpus(groups, own), machine_memory_mb(groups, own, meminfo)) == (free, 8192)
    (inner.parent / "cpu.max").write_text("100000 100000\n")
    (inner.parent / "memory.max").write_text(f"{2**30}\n")
    assert (machine_cpus(groups, own), machine_memory_mb(groups, own, meminfo)) == (1, 1024)


def test_what_cannot_be_read_is_not_counted(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert machine_memory_mb(nowhere, nowhere, nowhere) == 0
    assert machine_cpus(nowhere, nowhere) == len(os.sched_getaffinity(0))
