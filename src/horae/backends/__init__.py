"""The backends: what really starts and stops processes. The registry is a dictionary, open for additions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horae.core.cluster import Node
from horae.core.errors import UserError, did_you_mean
from horae.plugins.installed import BACKENDS_GROUP, add_installed

_LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from horae.backends.local.isolation.modes import Isolation
    from horae.backends.protocol import Backend


@dataclass(frozen=True)
class BackendOptions:
    """What a service tells the backend that it starts."""

    #: Folder of the service, for whatever the backend must remember.
    state: Path
    #: Virtual nodes, as `horae serve --gpus` declares them; nothing where the backend finds its machines itself.
    nodes: tuple[Node, ...] = ()
    #: Folder with the secrets' files.
    secrets: Path | None = None
    #: Numbers of real GPUs on this machine, by node.
    devices: Mapping[Node, tuple[int, ...]] = field(default_factory=dict)
    #: Partition of a Slurm cluster.
    partition: str = ""
    #: Address of a Ray cluster's dashboard.
    address: str = ""
    #: Folder that the service and all nodes share, at the same path.
    shared: Path | None = None
    #: Partition of a Slurm cluster whose users go on with `sbatch`; or namespaces of a Kubernetes cluster, with commas
    #: between them, whose users go on with `kubectl apply`.
    adopt: str = ""
    #: For Kubernetes: context of the kubeconfig file, namespace and image of pods, and the shared folder as a volume.
    context: str = ""
    namespace: str = ""
    image: str = ""
    volume: str = ""
    #: What keeps jobs apart on this machine; None: nothing does.
    isolation: Isolation | None = None
    #: Id of the service's journal; and the term, which each service that takes that journal over has higher than the
    #: one before. 0 if no other can.
    journal: str = ""
    term: int = 0
    #: Most bytes that are kept of what an attempt prints on one node; backends of users' own jobs keep no output.
    max_log_bytes: int = 100_000_000
    #: Further settings of the backend, by name (`horae serve --with`).
    settings: Mapping[str, str] = field(default_factory=dict)

    def check_settings(self, names: Collection[str]) -> None:
        """Refuse settings that the backend does not know."""
        for name in self.settings:
            if name not in names:
                raise UserError(
                    f"--with {name}=... is not known to this backend.{did_you_mean(name, names)} "
                    f"There are: {', '.join(names) or 'none'}."
                )


#: Options of `BackendOptions` that say which cluster runs the jobs, and how; and the backends that know them. Backends
#: from outside may use any.
CLUSTER_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "partition": ("slurm",),
    "adopt": ("slurm", "kubernetes"),
    "address": ("ray",),
    "shared": ("slurm", "ray", "kubernetes"),
    "context": ("kubernetes",),
    "namespace": ("kubernetes",),
    "image": ("kubernetes",),
    "volume": ("kubernetes",),
}

BackendFactory = Callable[[BackendOptions], "Backend"]


def _local(options: BackendOptions) -> Backend:
    from horae.backends.local.backend import LocalBackend

    options.check_settings(())
    return LocalBackend(
        options.state,
        options.nodes,
        options.secrets,
        options.devices,
        options.max_log_bytes,
        isolation=options.isolation,
    )


class CannotUseSlurm(UserError):
    """A Slurm cluster, or options, with which the backend cannot work."""


def _slurm(options: BackendOptions) -> Backend:
    from horae.backends.cluster_options import CLUSTER_SETTINGS, reconciler
    from horae.backends.driver import OutOfSight
    from horae.backends.folder_owner import own_folder
    from horae.backends.slurm.batch_job import SlurmSettings
    from horae.backends.slurm.commands import SlurmCommands
    from horae.backends.slurm.driver import SlurmDriver
    from horae.backends.slurm.partition_flag import PartitionFlag

    if options.adopt:
        return _adopting(options)
    if not options.partition or not options.shared:
        raise CannotUseSlurm("The backend slurm needs a partition and a shared folder: --partition gpu --shared DIR.")
    options.check_settings((*CLUSTER_SETTINGS, "account", "python", "qos"))
    shared, more = options.shared.resolve(), options.settings
    service = own_folder(shared, options.state, options.journal)
    settings = SlurmSettings(service, options.partition, shared, more.get("account", ""), more.get("qos", ""))
    commands = SlurmCommands()
    flag = PartitionFlag(commands, options.partition, settings.service, settings.account, settings.qos)
    driver = SlurmDriver(settings, commands, flag)
    with suppress(OutOfSight):  # a controller that is away must not keep the service from starting
        report = driver.check_site()
        if report.errors:
            raise CannotUseSlurm(report.errors[0])
        flag.raise_flag()
        for sentence in report.warnings:
            _LOG.warning(sentence)
    return reconciler(driver, shared, options, more.get("python") or sys.executable)


def _adopting(options: BackendOptions) -> Backend:
    from horae.backends.driver import OutOfSight
    from horae.backends.shared_folder import service_id
    from horae.backends.slurm.adoption import SlurmAdoption
    from horae.backends.slurm.adoption_checks import check_adoption
    from horae.backends.slurm.commands import SlurmCommands
    from horae.backends.slurm.partition_flag import PartitionFlag

    if options.partition and options.partition != options.adopt:
        raise CannotUseSlurm("A service adopts one partition: give --adopt alone, without --partition.")
    options.check_settings(("fence",))
    commands = SlurmCommands()
    flag = PartitionFlag(commands, options.adopt, service_id(options.state))
    with suppress(OutOfSight):
        report = check_adoption(commands, options.adopt)
        if report.errors:
            raise CannotUseSlurm(report.errors[0])
        flag.raise_flag()
        for sentence in report.warnings:
            _LOG.warning(sentence)
    return SlurmAdoption(options.state, options.adopt, commands, flag, fence=options.settings.get("fence", ""))


class CannotUseRay(UserError):
    """Options with which the backend cannot work on a Ray cluster."""


def _ray(options: BackendOptions) -> Backend:
    from horae.backends.cluster_options import CLUSTER_SETTINGS, reconciler
    from horae.backends.folder_owner import own_folder
    from horae.backends.ray.dashboard import Dashboard
    from horae.backends.ray.driver import RayDriver
    from horae.backends.ray.gang_job import RaySettings

    if not options.address or not options.shared:
        raise CannotUseRay(
            "The backend ray needs the dashboard and a shared folder: --address http://head:8265 --shared DIR."
        )
    options.check_settings(CLUSTER_SETTINGS)
    shared, dashboard = options.shared.resolve(), Dashboard(options.address)
    driver = RayDriver(RaySettings(own_folder(shared, options.state, options.journal), shared), dashboard)
    # Nodes need not have the service's Python at the same path.
    return reconciler(driver, shared, options, python="python3")


class CannotUseKubernetes(UserError):
    """A Kubernetes cluster, or options, with which the backend cannot work."""


def _kubernetes(options: BackendOptions) -> Backend:
    from horae.backends.cluster_options import CLUSTER_SETTINGS, reconciler
    from horae.backends.driver import OutOfSight
    from horae.backends.folder_owner import own_folder

    if options.adopt:
        return _adopting_pods(options)
    if not options.image or not options.volume:
        raise CannotUseKubernetes(
            "The backend kubernetes needs an image and a shared folder: --image IMAGE --volume CLAIM:/mnt/horae."
        )
    options.check_settings((*CLUSTER_SETTINGS, "python"))
    # The library that it needs may be missing, and says so.
    from horae.backends.kubernetes.api import KubernetesApi, load_config
    from horae.backends.kubernetes.driver import KubernetesDriver, settings_of_this_process
    from horae.backends.kubernetes.shared_volume import read_volume
    from horae.backends.kubernetes.site_checks import check_rights

    volume = read_volume(options.volume)
    shared = (options.shared or volume.path).resolve()
    if not shared.is_relative_to(volume.path):
        raise CannotUseKubernetes(f"The shared folder {shared} is not on the volume {volume.path}, and pods miss it.")
    api = KubernetesApi(load_config(options.context), options.namespace)
    with suppress(OutOfSight):  # an API server that is away must not keep the service from starting
        report = check_rights(api, volume)
        if report.errors:
            raise CannotUseKubernetes(report.errors[0])
        for sentence in report.warnings:
            _LOG.warning(sentence)
    service = own_folder(shared, options.state, options.journal)
    driver = KubernetesDriver(settings_of_this_process(service, options.image, volume), api)
    return reconciler(driver, shared, options, options.settings.get("python", "python3"))


def _adopting_pods(options: BackendOptions) -> Backend:
    from horae.backends.cluster_options import is_on, span_s
    from horae.backends.driver import OutOfSight

    namespaces = tuple(name for name in options.adopt.split(",") if name)
    if not namespaces or options.image or options.volume or options.namespace or options.shared:
        raise CannotUseKubernetes(
            "A service adopts users' pods, or makes pods of its own: give --adopt NAMESPACE without --image, --volume, "
            "--shared and --namespace."
        )
    options.check_settings(("fence", "launch-limit", "trust-annotations"))
    trusts = is_on("trust-annotations", options.settings)
    limit = {"launch_limit_s": span_s("launch-limit", options.settings)} if "launch-limit" in options.settings else {}
    # The library that it needs may be missing, and says so.
    from horae.backends.kubernetes.adoption import KubernetesAdoption
    from horae.backends.kubernetes.api import KubernetesApi, load_config
    from horae.backends.kubernetes.gang_steps import GangPatience
    from horae.backends.kubernetes.namespace_lease import NamespaceLeases
    from horae.backends.kubernetes.site_checks import check_adoption
    from horae.backends.shared_folder import service_id

    api = KubernetesApi(load_config(options.context), namespaces[0])
    leases = NamespaceLeases(api, namespaces, service_id(options.state))
    with suppress(OutOfSight):  # an API server that is away must not keep the service from starting
        report = check_adoption(api, namespaces)
        if errors := report.errors or tuple(leases.claim().values()):
            raise CannotUseKubernetes(errors[0])
        for sentence in report.warnings:
            _LOG.warning(sentence)
    fence = options.settings.get("fence", "")
    return KubernetesAdoption(options.state, namespaces, api, leases, GangPatience(**limit), fence, trusts)


#: What makes each backend, by name.
BACKENDS: dict[str, BackendFactory] = {"local": _local, "slurm": _slurm, "ray": _ray, "kubernetes": _kubernetes}


class UnknownBackend(UserError):
    """A backend that does not exist."""


def open_backend(name: str, options: BackendOptions) -> Backend:
    """The backend of a name; installed packages are looked at if it is not known."""
    if name not in BACKENDS:
        add_installed(BACKENDS_GROUP, BACKENDS, _checked, name)
    if name not in BACKENDS:
        names = ", ".join(BACKENDS)
        raise UnknownBackend(f"No backend is called {name!r}.{did_you_mean(name, BACKENDS)} There are: {names}.")
    from horae.backends.terms import Term

    term = Term(options.state, options.journal, options.term)
    term.claim()
    backend = BACKENDS[name](options)
    # Backends from outside may do without.
    if act_under := getattr(backend, "act_under", None):
        act_under(term)
    return backend


def _checked(name: str, factory: Any) -> BackendFactory:
    if not callable(factory):
        raise UserError(f"The backend {name!r} of an installed package cannot be called with BackendOptions.")
    made: BackendFactory = factory
    return made
