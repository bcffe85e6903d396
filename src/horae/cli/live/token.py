"""`horae token`: who may do what."""

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

app = typer.Typer(help="Make, list and revoke tokens (for admins).", no_args_is_help=True, rich_markup_mode=None)


class TokenRole(StrEnum):
    """What the bearer of a token may do."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"


@app.command("create", cls=PlainUsage)
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose token it is.", show_default=False)],
    role: Annotated[
        TokenRole,
        typer.Option(
            "--role", help="An admin may do everything, a user what concerns their own jobs, a viewer look at all."
        ),
    ] = TokenRole.USER,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="How long it is good for, such as 30d; else for ever."),
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token. It is shown this once: only its hash is kept."""
    if expires is not None:
        read_span("--expires", expires)
    with service(url) as at:
        said = at.post("/v1/tokens", {"user": user, "role": role.value, "expires": expires})
    if not isinstance(said.get("token"), str):
        raise Strange("The service did not say what the token is: see whether it has this command's version.")
    answer(output, said, [said], lambda: [said["token"]])
    if output is Output.TABLE:
        note(
            f"This is {visible(user)}'s token, shown this once. Put it into ~/.config/horae/token with mode 600, "
            f"or into HORAE_TOKEN; `horae token revoke {visible(said.get('id'))}` ends it."
        )


@app.command("list", cls=PlainUsage)
def list_tokens(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the tokens: whose, what for, and until when; never the tokens themselves."""
    with service(url) as at:
        said = at.get("/v1/tokens")
    records = records_of(said, "tokens")
    answer(output, said, records, lambda: [table(_COLUMNS, [_row(record) for record in records])])


@app.command("revoke", cls=PlainUsage)
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Its id, from `horae token list`.", show_default=False)],
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a token at once."""
    with service(url) as at:
        at.delete(f"/v1/tokens/{part(token)}")
    record = {"id": token, "revoked": True}
    answer(output, record, [record], lambda: [f"Token {visible(token)} is revoked."])


_COLUMNS = ("id", "user", "role", "created", "expires", "")


def _row(record: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        visible(record.get("id", "")),
        visible(record.get("user", "")),
        visible(record.get("role", "")),
        ago(record.get("created")),
        until(record["expires"]) if record.get("expires") else "never",
        "revoked" if record.get("revoked") else "",
    )
