"""`horae kubernetes`: what a cluster needs before Horae runs jobs there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from horae.cli.running_service import check_stopped
from horae.cli.usage_errors import PlainUsage
from horae.client.address import default_state
from horae.core.errors import UserError

app = typer.Typer(help="Prepare a Kubernetes cluster for Horae.", no_args_is_help=True, rich_markup_mode=None)
#: The shared folder's claim and path, and its size.
_VOLUME, _STORAGE = "horae:/mnt/horae", "100Gi"


@app.callback()
def _group() -> None:
    """Prepare a Kubernetes cluster for Horae."""


@app.command("manifests", cls=PlainUsage)
def manifests(
    namespace: Annotated[str, typer.Option("--namespace", metavar="NAME", help="Namespace of the service.")] = "horae",
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", help="Image with Horae, to run the service inside the cluster."),
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(
            "--volume",
            metavar="CLAIM:PATH",
            help=f"The shared folder, as for `horae serve` (default: {_VOLUME}); not with --adopt.",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="SIZE", help=f"Size of the shared folder's claim (default: {_STORAGE})."),
    ] = None,
    tls_secret: Annotated[
        str,
        typer.Option(
            "--tls-secret",
            metavar="NAME",
            help="Serve HTTPS with tls.crt, tls.key and ca.crt of this Secret (default: plain HTTP in the cluster).",
        ),
    ] = "",
    adopt: Annotated[
        str,
        typer.Option(
            "--adopt",
            metavar="NAMESPACE,...",
            help="Rights to order users' pods in these namespaces, as for `horae serve --adopt`, and no others.",
        ),
    ] = "",
) -> None:
    """Print the rights that Horae needs, for `kubectl apply -f -`; with --image also the service and its folder.

    Without --image the service runs outside the cluster, with the rights of the account `horae` or of a user who has
    the same ones.
    """
    from horae.backends.kubernetes.manifests import as_yaml, rights_objects, service_objects
    from horae.backends.kubernetes.shared_volume import read_volume

    if adopt and (volume or storage):
        raise UserError("A service that adopts pods needs no shared folder: leave out --volume and --storage.")
    objects = rights_objects(namespace, _namespaces(adopt) if adopt else [])
    if image:
        folder = None if adopt else read_volume(volume or _VOLUME)
        objects += service_objects(namespace, image, folder, storage or _STORAGE, tls_secret, adopt)
    typer.echo(as_yaml(objects), nl=False)


@app.command("release", cls=PlainUsage)
def release(
    adopt: Annotated[
        str, typer.Option("--adopt", metavar="NAMESPACE,...", help="The namespaces that a service has adopted.")
    ],
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="State folder of the service that adopted them.")
    ] = None,
    context: Annotated[str, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig file.")] = "",
    sure: Annotated[
        bool, typer.Option("--sure", help="Do not look whether a service runs on another machine: nothing runs.")
    ] = False,
) -> None:
    """Take Horae's marks off users' pods, for the day on which Horae leaves. Running pods run on.

    Stop the service first: its Leases are watched for some seconds, and if one is renewed, nothing is done. Pods that
    wait name Horae as their scheduler, which nobody can change: they wait until they are deleted, and made again with
    another schedulerName.
    """
    from horae.backends.driver import OutOfSight
    from horae.backends.kubernetes.api import ApiRefusal, KubernetesApi, load_config
    from horae.backends.kubernetes.namespace_lease import running_service
    from horae.backends.kubernetes.release import release_pods

    check_stopped(state or default_state())
    namespaces = tuple(_namespaces(adopt))
    api = KubernetesApi(load_config(context), namespaces[0])
    try:
        if not sure:
            typer.echo(
                "Looking for some seconds whether a service renews its Lease (--sure leaves that out).", err=True
            )
        if not sure and (service := running_service(api, namespaces)):
            raise UserError(f"The service {service} still runs, for it renews its Lease: stop it first.")
        freed, waiting = release_pods(api, namespaces)
    except ApiRefusal as why:
        raise UserError(f"The Lease cannot be read: {why}. If no service runs any more, say --sure.") from None
    except OutOfSight as why:
        raise UserError(f"{why} Try again: nothing is lost.") from None
    typer.echo(f"{freed} pods are free of Horae's finalizer; those that run, run on.")
    if waiting:
        typer.echo(f"{waiting} pods wait for Horae: delete them, and make them again with another schedulerName.")


def _namespaces(adopt: str) -> list[str]:
    """The namespaces that `--adopt` names."""
    names = [name.strip() for name in adopt.split(",") if name.strip()]
    if not names:
        raise UserError("--adopt names no namespace: write it like --adopt team-a,team-b.")
    return names
