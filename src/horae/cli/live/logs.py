"""`horae logs`: the output of a job."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from horae.cli.live.exit_codes import NOT_FOUND, exit_code
from horae.cli.live.rendering import JobArgument, UrlOption, interruptible
from horae.cli.options import OutputOption
from horae.cli.output import Output, note, print_csv, print_json, without_controls
from horae.client.address import NoService
from horae.client.job_records import find_job, job_path
from horae.client.service_client import NotThere, ServiceClient, service


def command(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the job ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Start with the last N lines.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Log of attempt N (default: the last attempt).")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print escape sequences and control characters on a terminal, too.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the log of a job: at most the last 16 MiB, with -f all of it that was kept.

    -o json prints one object; with -f, one object per line. On a terminal, what could control it is shown as \\x1b and
    the like, unless --raw is given; in a pipe or a file nothing is changed.

    Exit codes: 0 succeeded, 100 failed, 101 not finished, 102 not found, 103 cancelled, 104 time limit.
    """
    if follow and output is Output.CSV:
        raise typer.BadParameter("-f does not work with -o csv: use -o json, or leave -o out.")
    with service(url) as client:
        about = {"tail": tail, "attempt": attempt}
        try:
            record = find_job(client, job)
        except NotThere as error:
            note(f"error: {error}")
            raise typer.Exit(NOT_FOUND) from None
        form = _Form(output, raw or not sys.stdout.isatty())
        state = _follow(client, job, about, form) if follow else _print(client, record, about, form)
    raise typer.Exit(exit_code(state))


@dataclass(frozen=True)
class _Form:
    """How the log is printed."""

    output: Output
    #: Whether control characters stay as they are.
    raw: bool

    def write(self, text: str) -> None:
        """Write the job's output; characters that the terminal cannot show become question marks.

        Progress bars go back to the beginning of their line: that stays.
        """
        shown = text if self.raw else without_controls(text, keep="\r")
        typer.echo(shown.encode(sys.stdout.encoding or "utf-8", "replace"), nl=False)
        sys.stdout.flush()


def _print(client: ServiceClient, record: dict[str, Any], about: dict[str, Any], form: _Form) -> str:
    job, state = str(record["id"]), str(record["state"])
    newest = record.get("attempt")
    if not newest:
        note(f"{job} has printed nothing: it is {state} and never started; `horae why {job}` says why.")
    text = client.text(f"{job_path(job)}/logs", about) if newest else ""
    attempt, lines = about["attempt"] or newest or None, text.splitlines()
    match form.output:
        case Output.JSON:
            print_json({"job": job, "attempt": attempt, "lines": lines})
        case Output.CSV:
            print_csv([{"job": job, "attempt": attempt, "line": line} for line in lines])
        case Output.TABLE:
            form.write(text)
    return state


def _follow(client: ServiceClient, job: str, about: dict[str, Any], form: _Form) -> str:
    """Print new lines, attempt after attempt; returns the state in which the job ended."""
    last = None
    with interruptible(f"the job goes on; `horae logs -f {job}` follows it again"):
        for message in client.follow(f"{job_path(job)}/logs", {**about, "follow": True}):
            if message.event == "end":
                return str(message.data.get("state", ""))
            number = message.data.get("attempt")
            if form.output is not Output.TABLE:
                form.write(json.dumps({"job": job, "attempt": number, "line": message.data.get("line", "")}) + "\n")
                continue
            if last is not None and number != last:
                note(f"(attempt {number})")
            last = number
            if "line" in message.data:
                form.write(f"{message.data['line']}\n")
    raise NoService(f"The service stopped sending: `horae logs -f {job}` follows the job again.")
