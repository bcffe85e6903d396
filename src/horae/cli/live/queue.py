"""`horae queue`: which jobs run, which wait, and why."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.live.exit_codes import ENDED
from horae.cli.live.relative_time import seconds_since, short
from horae.cli.live.rendering import UrlOption, answer, visible
from horae.cli.live.share_bars import bar
from horae.cli.live.status_why import gpus_text
from horae.cli.options import OutputOption
from horae.cli.output import Output, filled, is_wide
from horae.cli.setup.duration_options import read_span
from horae.client.address import NoService
from horae.client.service_client import ServiceClient, records_of, service
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rich.console import RenderableType

_POLL_S = 1.0
#: Terminal width that has space for bars.
_WIDE = 110
_COLUMNS = ("id", "user", "queue", "state", "gpus", "on", "ahead", "progress", "time", "reason")


def command(
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also list jobs that have ended.")] = False,
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="Only jobs of this user.")] = None,
    state: Annotated[
        list[str] | None, typer.Option("-s", "--state", metavar="STATE", help="Only jobs in this state; repeatable.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="PATH", help="Only jobs of this queue and the queues below it.")
    ] = None,
    app: Annotated[str | None, typer.Option("--app", metavar="NAME", help="Only jobs of this app.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only jobs submitted within this time, such as 30m or 7d."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", min=0, help="At most N jobs, those that run and wait; 0 for all."),
    ] = 100,
    fields: Annotated[
        str | None, typer.Option("--fields", metavar="NAME,NAME", help="Only these fields (with -o json or -o csv).")
    ] = None,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Show the list again every second, until Ctrl-C.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs: where each job runs, or why it waits and how many jobs are ahead of it."""
    wanted = {
        "all": everything,
        "user": user,
        "state": _states(state or ()),
        "queue": queue,
        "app": app,
        "since": since,
        "limit": limit,
        "fields": fields,
    }
    if since is not None:
        read_span("--since", since)
    _check_use(fields, watch, output)
    with service(url) as client:
        if watch:
            _watch(client, wanted)
            return
        response = client.get("/v1/jobs", wanted)
    records = records_of(response, "jobs")
    answer(output, response, records, lambda: overview(records, response.get("states")))


def _check_use(fields: str | None, watch: bool, output: Output) -> None:
    if fields and output is Output.TABLE:
        raise UserError("--fields needs -o json or -o csv.")
    if watch and (output is not Output.TABLE or not sys.stdout.isatty()):
        raise UserError("--watch needs a terminal and a table; in a script, repeat the command with -o json.")


def _states(names: Sequence[str]) -> str | None:
    from horae.core.states import State

    known = [state.name.lower() for state in State]
    for name in names:
        if name.lower() not in known:
            raise UserError(f"No state is called {name!r}.{did_you_mean(name, known)} There are {', '.join(known)}.")
    return ",".join(names).lower() or None


def overview(records: list[dict[str, Any]], by_state: Mapping[str, int] | None = None) -> list[RenderableType]:
    """Jobs as a table, and the number of all jobs in each state, listed or not."""
    if not records:
        return ["No jobs. `horae queue --all` also lists ended jobs; `horae submit` submits a job."]
    counts = by_state or Counter(str(record.get("state")) for record in records)
    summary = ", ".join(f"{number:,} {state}" for state, number in counts.items())
    left_out = sum(counts.values()) - len(records)
    more = f"; {left_out:,} of them are not listed (--limit)" if left_out > 0 else ""
    return [filled(_COLUMNS, [_row(record) for record in records]), f"{summary}{more}"]


def _row(record: Mapping[str, Any]) -> tuple[object, ...]:
    reason = record.get("reason")
    state = str(record.get("state", ""))
    return (
        visible(record.get("id", "")),
        visible(record.get("user", "")),
        visible(record.get("queue", "")),
        state,
        gpus_text(record),
        ", ".join(record.get("on") or ()),
        record["ahead"] if record.get("ahead") is not None and state in ("waiting", "placed") else "",
        _progress(record),
        _time(record, state),
        "" if reason == "None" else visible(reason or ""),
    )


def _progress(record: Mapping[str, Any]) -> str:
    share = float(record.get("progress") or 0)
    return f"{bar(share, 8)} {100 * share:3.0f}%" if is_wide(_WIDE) else f"{100 * share:.0f}%"


def _time(record: Mapping[str, Any], state: str) -> str:
    """How long a job has run and how long it will still run, if known; or how long it has waited."""
    ran_s, left_s = float(record.get("ran_s") or 0), record.get("left_s")
    if state in ENDED or ran_s:
        return f"ran {short(ran_s)}{'' if left_s is None else f', {short(left_s)} left'}"
    if record.get("on"):
        return "starting"
    return f"waited {short(seconds_since(record.get('submitted')) or 0)}"


def _watch(client: ServiceClient, wanted: Mapping[str, Any]) -> None:
    """Show the list every second until Ctrl-C, also while the service is away."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    try:
        with Live(_current_list(client, wanted), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_POLL_S)
                live.update(_current_list(client, wanted), refresh=True)
    except KeyboardInterrupt:
        return


def _current_list(client: ServiceClient, wanted: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group

    try:
        response = client.get("/v1/jobs", wanted)
    except NoService as error:
        return Group(str(error), "Trying again; Ctrl-C ends this.")
    records = records_of(response, "jobs")
    return Group(*overview(records, response.get("states")))
