"""`horae limits`: limits of users and queues of a running service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.live.rendering import UrlOption, answer, pass_down, visible
from horae.cli.options import OutputOption
from horae.cli.output import Output, table
from horae.cli.setup.duration_options import read_span
from horae.cli.usage_errors import PlainUsage
from horae.client.service_client import records_of, service
from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    help="Show or set the limits of users and queues.", rich_markup_mode=None, invoke_without_command=True
)
#: Written instead of a number to drop a limit.
_NONE = "none"


@app.callback()
def _default(ctx: typer.Context, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show or set the limits of users and queues."""
    pass_down(ctx, url, output)
    if ctx.invoked_subcommand is None:
        show(url, output)


@app.command("show", cls=PlainUsage)
def show(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the limits, and those that hold for you."""
    with service(url) as client:
        response = client.get("/v1/limits")
    _tell(output, response)


@app.command("set", cls=PlainUsage)
def change(
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="For this user.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="PATH", help="For this queue and the queues below it, together.")
    ] = None,
    together: Annotated[bool, typer.Option("--all", help="For all users together.")] = False,
    queued_jobs: Annotated[
        str | None, typer.Option("--queued-jobs", metavar="N", help="Most jobs that have not ended.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N", help="Most GPUs of running jobs, over all queues.")
    ] = None,
    non_preemptible_gpus: Annotated[
        str | None,
        typer.Option("--non-preemptible-gpus", metavar="N", help="Most GPUs of running jobs that are never preempted."),
    ] = None,
    min_runtime: Annotated[
        str | None, typer.Option("--min-runtime", metavar="TIME", help="Longest min_runtime of a job, such as 1h.")
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", metavar="TIME", help="Longest grace period of a job, such as 10m.")
    ] = None,
    max_duration: Annotated[
        str | None, typer.Option("--max-duration", metavar="TIME", help="Longest max_duration of a job, such as 7d.")
    ] = None,
    default_duration: Annotated[
        str | None, typer.Option("--default-duration", metavar="TIME", help="max_duration of jobs that name none.")
    ] = None,
    requests: Annotated[
        str | None, typer.Option("--requests", metavar="N", help="Most requests in a second of a user.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option("--streams", metavar="N", help="Most streams of a user that are open at a time.")
    ] = None,
    log_reads: Annotated[
        str | None, typer.Option("--log-reads", metavar="N", help="Most logs that a user reads at a time.")
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set limits, at once: of each user, unless --user, --queue or --all is given. `none` drops a limit.

    Admins only; admins of a queue set limits of the queues below it. Example: horae limits set --gpus 8 --grace 10m
    """
    if sum((user is not None, queue is not None, together)) > 1:
        raise UserError("Limits are for one user, one queue, or all: give one of --user, --queue and --all.")
    numbers = {
        "queued_jobs": queued_jobs,
        "gpus": gpus,
        "non_preemptible_gpus": non_preemptible_gpus,
        "requests_per_s": requests,
        "streams": streams,
        "log_reads": log_reads,
    }
    spans = {
        "min_runtime_s": min_runtime,
        "grace_s": grace,
        "max_duration_s": max_duration,
        "default_duration_s": default_duration,
    }
    asked = {name: _number(name, text) for name, text in numbers.items() if text is not None}
    asked |= {name: _seconds(name, text) for name, text in spans.items() if text is not None}
    if not asked:
        raise UserError("There is nothing to set: name a limit, such as --gpus 8; `horae limits` shows them.")
    whom = f"user:{user}" if user is not None else f"queue:{queue}" if queue is not None else ""
    with service(url) as client:
        response = client.put("/v1/limits", {"whom": whom or ("all" if together else "each-user"), **asked})
    _tell(output, response)


def _number(name: str, text: str) -> float | None:
    if text == _NONE:
        return None
    try:
        return float(text) if name == "requests_per_s" else int(text)
    except ValueError:
        option = {"requests_per_s": "requests"}.get(name, name).replace("_", "-")
        raise UserError(f"--{option}: {text!r} is not a number; write a number such as 8, or {_NONE}.") from None


def _seconds(name: str, text: str) -> float | None:
    return None if text == _NONE else read_span(f"--{name.removesuffix('_s').replace('_', '-')}", text)


def _tell(output: Output, response: Mapping[str, Any]) -> None:
    records = records_of(response, "limits")
    answer(output, response, records, lambda: _overview(response, records))


def _overview(response: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    yours = response.get("yours")
    found: list[tuple[Mapping[str, Any], str]] = [(record, visible(record.get("whom", ""))) for record in records]
    if isinstance(yours, Mapping):
        found.append((yours, "yours"))
    names = list(dict.fromkeys(name for record, _ in found for name, value in record.items() if value is not None))
    names = [name for name in names if name != "whom"]
    if not names:
        return ["There are no limits; `horae limits set --gpus 8` sets one for each user."]
    rows = [[whom, *(_shown(record.get(name)) for name in names)] for record, whom in found]
    return [table(["", *(visible(name) for name in names)], rows)]


def _shown(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else visible(value)
