"""The nodes of a real cluster, read once through its driver, for simulations (`--cluster slurm:PARTITION`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from horae.backends.driver import ClusterDriver, OutOfSight
from horae.core.cluster import BadCluster, Node


def _slurm(partition: str) -> ClusterDriver:
    from horae.backends.slurm.batch_job import SlurmSettings
    from horae.backends.slurm.commands import SlurmCommands
    from horae.backends.slurm.driver import SlurmDriver

    # Nothing is submitted: neither the id of a service nor a folder matters.
    return SlurmDriver(SlurmSettings("reader", partition, Path("/")), SlurmCommands())


def _ray(address: str) -> ClusterDriver:
    from horae.backends.ray.dashboard import Dashboard
    from horae.backends.ray.driver import RayDriver
    from horae.backends.ray.gang_job import RaySettings

    return RayDriver(RaySettings("reader", Path("/")), Dashboard(address))


def _kubernetes(context: str) -> ClusterDriver:
    from horae.backends.kubernetes.api import KubernetesApi, load_config
    from horae.backends.kubernetes.driver import KubernetesDriver, settings_of_this_process
    from horae.backends.kubernetes.shared_volume import SharedVolume

    settings = settings_of_this_process("reader", "none", SharedVolume("", Path("/")))
    return KubernetesDriver(settings, KubernetesApi(load_config(context)))


#: Makes a driver that will only look, by cluster manager, from what is written after the colon.
READERS: dict[str, Callable[[str], ClusterDriver]] = {"slurm": _slurm, "ray": _ray, "kubernetes": _kubernetes}


def read_nodes(engine: str, part: str) -> tuple[Node, ...]:
    """The nodes that a cluster manager shows now, closed ones included, lost ones not."""
    try:
        look = READERS[engine](part).look()
    except OutOfSight as why:
        raise BadCluster(f"The cluster {engine}:{part} cannot be read. {why}") from None
    nodes = tuple(
        Node(seen.name, seen.gpu_type, seen.gpus, seen.rack or "rack-0", seen.cpus, seen.memory_mb)
        for seen in look.nodes.values()
        if not seen.is_lost
    )
    if not nodes:
        raise BadCluster(
            f"The cluster {engine}:{part} has no nodes with GPUs that are up: check its name and its state."
        )
    return nodes
