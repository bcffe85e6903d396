"""`horae token`: make, list and revoke tokens."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from horae.cli.live.relative_time import ago, until
from horae.cli.live.rendering import UrlOption, answer, visible
from horae.cli.options import OutputOption
from horae.cli.output import Output, note, table
from horae.cli.setup.duration_options import read_span
from horae.cli.usage_errors import PlainUsage
from horae.client.service_client import Strange, part, records_of, service

app = typer.Typer(help="Make, list and revoke tokens (admins only).", no_args_is_help=True, rich_markup_mode=None)


class TokenRole(StrEnum):
    """What the bearer of a token may do."""

    ADMIN = "admin"
    MEMBER = "member"
    USER = "user"
    VIEWER = "viewer"


@app.command("create", cls=PlainUsage)
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="User of the token.", show_default=False)],
    role: Annotated[
        TokenRole,
        typer.Option(
            "--role",
            help="admin: everything; member: act on their own jobs, see names and states of others; user: see their "
            "own only; viewer: only read, all jobs.",
        ),
    ] = TokenRole.MEMBER,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="Narrow the token: queue=PATH (and the queues below), app=NAME, or submit-only; repeatable.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Lifetime of the token, such as 30d (default: no end)."),
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token. It is shown only now: the service keeps only its hash."""
    if expires is not None:
        read_span("--expires", expires)
    with service(url) as client:
        asked = {"user": user, "role": role.value, "expires": expires, "scope": ",".join(scope or ())}
        response = client.post("/v1/tokens", asked)
    if not isinstance(response.get("token"), str):
        raise Strange("The service did not return the token: check that service and command have the same version.")
    answer(output, response, [response], lambda: [response["token"]])
    if output is Output.TABLE:
        note(
            f"This is {visible(user)}'s token. It is not shown again. Put it into ~/.config/horae/token with mode 600, "
            f"or into HORAE_TOKEN; `horae token revoke {visible(response.get('id'))}` revokes it."
        )


@app.command("list", cls=PlainUsage)
def list_tokens(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the tokens: user, role, scope and expiry; never the tokens themselves."""
    with service(url) as client:
        response = client.get("/v1/tokens")
    records = records_of(response, "tokens")
    answer(output, response, records, lambda: [table(_COLUMNS, [_row(record) for record in records])])


@app.command("revoke", cls=PlainUsage)
def revoke(
    token: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the token, from `horae token list`.", show_default=False)
    ],
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a token at once."""
    with service(url) as client:
        client.delete(f"/v1/tokens/{part(token)}")
    record = {"id": token, "revoked": True}
    answer(output, record, [record], lambda: [f"Token {visible(token)} is revoked."])


_COLUMNS = ("id", "user", "role", "scope", "created", "expires", "")


def _row(record: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        visible(record.get("id", "")),
        visible(record.get("user", "")),
        visible(record.get("role", "")),
        visible(record.get("scope", "")),
        ago(record.get("created")),
        until(record["expires"]) if record.get("expires") else "never",
        "revoked" if record.get("revoked") else "",
    )
