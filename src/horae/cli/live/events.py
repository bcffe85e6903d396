"""`horae events`: what happened to a job, and why."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from horae.cli.live.exit_codes import ENDED
from horae.cli.live.relative_time import ago
from horae.cli.live.rendering import JobArgument, UrlOption, answer, interruptible, visible
from horae.cli.options import OutputOption
from horae.cli.output import Output, table
from horae.client.job_records import job_path, job_state
from horae.client.service_client import ServiceClient, records_of, service
from horae.core.errors import UserError

_POLL_S = 1.0


def command(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new events until the job ends.")] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what happened to a job: who preempted it and why, where it ran, how it ended.

    With --follow, -o json prints one object per line.
    """
    if follow and output is Output.CSV:
        raise UserError("--follow does not work with -o csv: use -o json, or leave --follow out.")
    with service(url) as client:
        if follow:
            _follow(client, job, output)
            return
        events = _events(client, job)
    answer(output, {"job": job, "events": events}, events, lambda: _table(job, events))


def _events(client: ServiceClient, job: str) -> list[dict[str, Any]]:
    return records_of(client.get(f"{job_path(job)}/events"), "events")


def _table(job: str, events: list[dict[str, Any]]) -> list[Any]:
    if not events:
        return [f"There are no events of {job}."]
    rows = [(ago(event.get("at")), visible(event.get("kind", "")), visible(event.get("what", ""))) for event in events]
    return [table(("when", "event", "what"), rows)]


def _follow(client: ServiceClient, job: str, output: Output) -> None:
    """Print each event once. The state is read before the events, so that no last event is missed."""
    shown = 0
    with interruptible(f"the job goes on; `horae events -f {job}` follows it again"):
        while True:
            state = job_state(client, job)
            for event in _events(client, job)[shown:]:
                _print_event(event, output)
                shown += 1
            if state in ENDED:
                return
            time.sleep(_POLL_S)


def _print_event(event: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(event, ensure_ascii=False))
    else:
        typer.echo(f"{ago(event.get('at')):>12}  {visible(event.get('what', ''))}")
