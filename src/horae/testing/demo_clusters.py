"""Small real clusters for `horae demo --on NAME`: started in a folder, and ended with the demonstration."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horae.testing.slurm_cluster import SlurmCluster


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
    with SlurmCluster(folder / "slurm", nodes) as slurm, slurm_environment(slurm):
        options = {"backend": "slurm", "partition": PARTITION, "shared": shared}
        yield DemoCluster(options, shared / "jobs", f"a Slurm of {len(nodes)} nodes")


@contextmanager
def _ray(folder: Path) -> Iterator[DemoCluster]:
    from horae.testing.ray_cluster import MadeUpRayNode, RayCluster

    shared = folder / "shared"
    types = {"v1": "v100", "v2": "v100", "p1": "p100", "p2": "p100"}
    nodes = [MadeUpRayNode(name, gpu_type, _GPUS) for name, gpu_type in types.items()]
    with RayCluster(folder / "ray", nodes) as ray:
        port = _free_port()
        ray.let_in(port)
        url = f"http://127.0.0.1:{port}"
        options = {"backend": "ray", "address": ray.address, "shared": shared, "port": port, "url": url}
        yield DemoCluster(options, shared / "jobs", f"a Ray of {len(nodes)} nodes")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _kubernetes(folder: Path) -> Iterator[DemoCluster]:
    from horae.backends.kubernetes.manifests import rights_objects
    from horae.testing.kubernetes_cluster import KUBE_NODES, NAMESPACE, KubernetesCluster

    shared, nodes = (folder / "shared").resolve(), [replace(node, gpus=_GPUS) for node in KUBE_NODES]
    shared.mkdir(mode=0o700)
    options = {"backend": "kubernetes", "namespace": NAMESPACE, "image": "none", "volume": f"host:{shared}"}
    words = f"a Kubernetes of {len(nodes)} nodes, whose pods are processes"
    with KubernetesCluster(folder / "kubernetes", nodes, controllers=True) as cluster:
        cluster.create(rights_objects(NAMESPACE))
        with environment({"KUBECONFIG": str(cluster.kubeconfig())}):
            yield DemoCluster({**options, "backend_settings": {"python": sys.executable}}, shared / "jobs", words)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Give this process some variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def slurm_environment(slurm: SlurmCluster) -> AbstractContextManager[None]:
    """Let this process use a Slurm for a while."""
    return environment({name: slurm.environment[name] for name in ("SLURM_CONF", "PATH")})


#: What starts each kind of cluster in a folder.
DEMO_CLUSTERS: dict[str, Callable[[Path], AbstractContextManager[DemoCluster]]] = {
    "slurm": _slurm,
    "ray": _ray,
    "kubernetes": _kubernetes,
}
