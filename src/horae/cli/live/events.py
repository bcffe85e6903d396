"""`horae events`: what befell a job, and why."""

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

_LOOK_S = 1.0


def command(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay, and tell what comes until it ends.")] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell what befell a job: who preempted it and why, where it ran, how it ended.

    With --follow, JSON comes as one object on each line.
    """
    if follow and output is Output.CSV:
        raise UserError("Events cannot be followed as CSV: leave --follow out, or use -o json.")
    with service(url) as at:
        if follow:
            _follow(at, job, output)
            return
        events = _events(at, job)
    answer(output, {"job": job, "events": events}, events, lambda: _table(job, events))


def _events(at: ServiceClient, job: str) -> list[dict[str, Any]]:
    return records_of(at.get(f"{job_path(job)}/events"), "events")


def _table(job: str, events: list[dict[str, Any]]) -> list[Any]:
    if not events:
        return [f"Nothing is recorded of {job}."]
    rows = [(ago(one.get("at")), visible(one.get("kind", "")), visible(one.get("what", ""))) for one in events]
    return [table(("when", "event", "what"), rows)]


def _follow(at: ServiceClient, job: str, output: Output) -> None:
    """Tell each event once; the state is asked for first, so that the last events are not missed."""
    told = 0
    with interruptible(f"the job goes on, and `horae events -f {job}` tells more of it"):
        while True:
            state = job_state(at, job)
            for event in _events(at, job)[told:]:
                _tell(event, output)
                told += 1
            if state in ENDED:
                return
            time.sleep(_LOOK_S)


def _tell(event: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(event, ensure_ascii=False))
    else:
        typer.echo(f"{ago(event.get('at')):>12}  {visible(event.get('what', ''))}")
