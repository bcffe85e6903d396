"""`horae settings`: policy, its parameters and queues of a running service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.live.rendering import UrlOption, answer, pass_down, visible
from horae.cli.options import OutputOption
from horae.cli.output import Output, note, table
from horae.cli.setup.inputs import read_pairs, read_queue_file
from horae.cli.usage_errors import PlainUsage
from horae.client.service_client import service
from horae.core.errors import UserError
from horae.core.queues import UnknownQueues

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(help="Show or change the policy and the queues.", rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def _default(ctx: typer.Context, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show or change the policy and the queues."""
    pass_down(ctx, url, output)
    if ctx.invoked_subcommand is None:
        show(url, output)


@app.command("show", cls=PlainUsage)
def show(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the policy, its parameters and the configured queues."""
    with service(url) as client:
        response = client.get("/v1/settings")
    answer(output, response, [response], lambda: _overview(response))


@app.command("set", cls=PlainUsage)
def change(
    policy: Annotated[
        str | None,
        typer.Argument(metavar="POLICY", help="The new policy; `horae policies` lists them.", show_default=False),
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the policy; repeatable.")
    ] = None,
    queues: Annotated[
        Path | None, typer.Option("--queues", metavar="FILE", help="Queues to add or replace (YAML, section `queues`).")
    ] = None,
    unknown_queues: Annotated[
        UnknownQueues | None,
        typer.Option(
            "--unknown-queues",
            help="What becomes of jobs for queues that nobody configured: refuse them; users: put them into "
            "users/NAME/QUEUE; open: let everybody make queues.",
        ),
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the policy, its parameters or queues, at once (admins only). What is not named stays.

    A new policy starts with its own defaults.
    """
    if policy is None and not setting and queues is None and unknown_queues is None:
        raise UserError(
            "There is nothing to change: name a policy, --set KEY=VALUE, --queues FILE or --unknown-queues refuse."
        )
    body = {
        "policy": policy,
        "settings": read_pairs("--set round=60", setting or ()),
        "queues": [asdict(queue) for queue in read_queue_file(queues)] if queues else [],
        **({} if unknown_queues is None else {"unknown_queues": unknown_queues.value}),
    }
    with service(url) as client:
        sentence = client.put("/v1/settings", body).get("note")
        response = client.get("/v1/settings")
    answer(output, response, [response], lambda: _overview(response))
    if sentence:
        note(visible(sentence))


def _overview(response: Mapping[str, Any]) -> list[RenderableType]:
    settings = response.get("settings") or {}
    rows = [(visible(key), visible(value)) for key, value in settings.items()]
    shown: list[RenderableType] = [table(("policy", visible(response.get("policy", ""))), rows)]
    queues = [queue for queue in response.get("queues") or () if isinstance(queue, Mapping)]
    if queues:
        columns = list(dict.fromkeys(key for queue in queues for key in queue))
        shown.append(
            table(columns, [["" if row.get(key) is None else _value(row[key]) for key in columns] for row in queues])
        )
    if response.get("unknown_queues"):
        shown.append(f"Queues that are not listed: {visible(response['unknown_queues'])}.")
    return shown


def _value(value: object) -> str:
    return visible(", ".join(map(str, value)) if isinstance(value, list) else value)
