"""`horae logs`: what a job printed."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from horae.cli.live.exit_codes import NOT_FOUND, exit_code
from horae.cli.live.rendering import JobArgument, UrlOption, interruptible
from horae.cli.options import OutputOption
from horae.cli.output import Output, note, print_csv, print_json
from horae.client.address import NoService
from horae.client.job_records import find_job, job_path
from horae.client.service_client import NotThere, ServiceClient, service


def command(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay, and print what comes until it ends.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines of what there is.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Another attempt than the last.")
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print what a job printed: of a long log the last 16 MiB, with -f all.

    With -o json it is one object, with -f one on each line.

    Exit codes: 0 succeeded, 100 failed, 101 not finished, 102 not found, 103 cancelled.
    """
    if follow and output is Output.CSV:
        raise typer.BadParameter("-f prints lines or JSON: leave -o out, or write -o json.")
    with service(url) as at:
        about = {"tail": tail, "attempt": attempt}
        try:
            record = find_job(at, job)
        except NotThere as error:
            note(f"error: {error}")
            raise typer.Exit(NOT_FOUND) from None
        state = _follow(at, job, about, output) if follow else _print(at, record, about, output)
    raise typer.Exit(exit_code(state))


def _print(at: ServiceClient, record: dict[str, Any], about: dict[str, Any], output: Output) -> str:
    job, state = str(record["id"]), str(record["state"])
    newest = record.get("attempt")
    if not newest:
        note(f"{job} has printed nothing: it is {state} and never started; `horae why {job}` says why.")
    text = at.text(f"{job_path(job)}/logs", about) if newest else ""
    attempt, lines = about["attempt"] or newest or None, text.splitlines()
    match output:
        case Output.JSON:
            print_json({"job": job, "attempt": attempt, "lines": lines})
        case Output.CSV:
            print_csv([{"job": job, "attempt": attempt, "line": line} for line in lines])
        case Output.TABLE:
            _write(text)
    return state


def _follow(at: ServiceClient, job: str, about: dict[str, Any], output: Output) -> str:
    """Print lines as they come, attempt after attempt; returns the state in which the job ended."""
    last = None
    with interruptible(f"the job goes on, and `horae logs -f {job}` follows it again"):
        for message in at.follow(f"{job_path(job)}/logs", {**about, "follow": True}):
            if message.event == "end":
                return str(message.data.get("state", ""))
            number = message.data.get("attempt")
            if output is not Output.TABLE:
                _write(json.dumps({"job": job, "attempt": number, "line": message.data.get("line", "")}) + "\n")
                continue
            if last is not None and number != last:
                note(f"(attempt {number})")
            last = number
            if "line" in message.data:
                _write(f"{message.data['line']}\n")
    raise NoService(f"The service stopped sending: `horae logs -f {job}` follows the job again.")


def _write(text: str) -> None:
    """What a job printed, as it is; letters that the terminal does not have become question marks."""
    typer.echo(text.encode(sys.stdout.encoding or "utf-8", "replace"), nl=False)
    sys.stdout.flush()
