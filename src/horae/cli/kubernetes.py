"""`horae kubernetes`: what a cluster needs before Horae runs jobs there."""

from __future__ import annotations

from typing import Annotated

import typer

from horae.cli.usage_errors import PlainUsage

app = typer.Typer(help="Prepare a Kubernetes cluster for Horae.", no_args_is_help=True, rich_markup_mode=None)


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
        str, typer.Option("--volume", metavar="CLAIM:PATH", help="The shared folder, as for `horae serve`.")
    ] = "horae:/mnt/horae",
    storage: Annotated[
        str, typer.Option("--storage", metavar="SIZE", help="Size of the shared folder's claim.")
    ] = "100Gi",
    tls_secret: Annotated[
        str,
        typer.Option(
            "--tls-secret",
            metavar="NAME",
            help="Serve HTTPS with tls.crt, tls.key and ca.crt of this Secret (default: plain HTTP in the cluster).",
        ),
    ] = "",
) -> None:
    """Print the rights that Horae needs, for `kubectl apply -f -`; with --image also the service and its folder.

    Without --image the service runs outside the cluster, with the rights of the account `horae` or of a user who has
    the same ones.
    """
    from horae.backends.kubernetes.manifests import as_yaml, rights_objects, service_objects
    from horae.backends.kubernetes.shared_volume import read_volume

    objects = rights_objects(namespace)
    if image:
        objects += service_objects(namespace, image, read_volume(volume), storage, tls_secret)
    typer.echo(as_yaml(objects), nl=False)
