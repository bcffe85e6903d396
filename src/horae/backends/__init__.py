"""The backends: what really starts and stops processes. The registry is a dictionary, open for additions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horae.core.cluster import Node
from horae.core.errors import UserError, did_you_mean
from horae.plugins.installed import BACKENDS_GROUP, add_installed

if TYPE_CHECKING:
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
    #: Folder that the service and all nodes share, at the same path.
    shared: Path | None = None


BackendFactory = Callable[[BackendOptions], "Backend"]


def _local(options: BackendOptions) -> Backend:
    from horae.backends.local.backend import LocalBackend

    return LocalBackend(options.state, options.nodes, options.secrets, options.devices)


class CannotUseSlurm(UserError):
    """A Slurm cluster, or options, with which the backend cannot work."""


def _slurm(options: BackendOptions) -> Backend:
    from horae.backends.driver import OutOfSight
    from horae.backends.reconcile import Reconciler
    from horae.backends.shared_folder import service_id
    from horae.backends.slurm.batch_job import SlurmSettings
    from horae.backends.slurm.commands import SlurmCommands
    from horae.backends.slurm.driver import SlurmDriver

    if not options.partition or not options.shared:
        raise CannotUseSlurm("The backend slurm needs a partition and a shared folder: --partition gpu --shared DIR.")
    shared = options.shared.resolve()
    driver = SlurmDriver(SlurmSettings(service_id(shared), options.partition, shared), SlurmCommands())
    with suppress(OutOfSight):  # a controller that is away must not keep the service from starting
        if errors := driver.check_site().errors:
            raise CannotUseSlurm(errors[0])
    return Reconciler(driver, shared, options.secrets)


#: What makes each backend, by name.
BACKENDS: dict[str, BackendFactory] = {"local": _local, "slurm": _slurm}


class UnknownBackend(UserError):
    """A backend that does not exist."""


def open_backend(name: str, options: BackendOptions) -> Backend:
    """The backend of a name; installed packages are looked at if it is not known."""
    if name not in BACKENDS:
        add_installed(BACKENDS_GROUP, BACKENDS, _checked, name)
    if name not in BACKENDS:
        names = ", ".join(BACKENDS)
        raise UnknownBackend(f"No backend is called {name!r}.{did_you_mean(name, BACKENDS)} There are: {names}.")
    return BACKENDS[name](options)


def _checked(name: str, factory: Any) -> BackendFactory:
    if not callable(factory):
        raise UserError(f"The backend {name!r} of an installed package cannot be called with BackendOptions.")
    made: BackendFactory = factory
    return made
