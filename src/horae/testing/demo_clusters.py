"""Small real clusters for `horae demo --on NAME`: started in a folder, and ended with the demonstration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DemoCluster:
    """Where the demonstration runs its jobs."""

    #: Options of the service (`ServeOptions`).
    options: Mapping[str, Any]
    #: Folder with the folders of the jobs.
    jobs: Path
    #: What it is, in words.
    words: str


#: GPUs of each of the four nodes: few, so that the jobs have to take turns.
_GPUS = 2


@contextmanager
def _slurm(folder: Path) -> Iterator[DemoCluster]:
    from horae.testing.slurm_cluster import NODES, PARTITION, SlurmCluster

    shared, nodes = folder / "shared", [replace(node, gpus=_GPUS) for node in NODES]
    with SlurmCluster(folder / "slurm", nodes) as slurm, _environment(slurm.environment, "SLURM_CONF", "PATH"):
        options = {"backend": "slurm", "partition": PARTITION, "shared": shared}
        yield DemoCluster(options, shared / "jobs", f"a Slurm of {len(nodes)} nodes")


@contextmanager
def _environment(values: Mapping[str, str], *names: str) -> Iterator[None]:
    """Give this process some variables for a while."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: values[name] for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


#: What starts each kind of cluster in a folder.
DEMO_CLUSTERS: dict[str, Callable[[Path], AbstractContextManager[DemoCluster]]] = {"slurm": _slurm}
