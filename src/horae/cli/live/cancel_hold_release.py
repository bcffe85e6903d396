"""`horae cancel`, `horae hold` and `horae release`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from horae.cli.live.rendering import JobsArgument, UrlOption, answer, count, visible
from horae.cli.options import OutputOption
from horae.cli.output import Output
from horae.client.job_records import job_path
from horae.client.service_client import ServiceClient, records_of, service
from horae.core.errors import UserError

_DONE = {"cancel": "cancelled", "hold": "held", "release": "released"}

AppOption = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="All jobs of this app that have not ended.")
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="With --app, do not ask for confirmation.")]


def cancel(
    jobs: JobsArgument = None,
    app: AppOption = None,
    yes: YesOption = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel jobs for good. Running jobs get their stop signal, to save and exit."""
    _request("cancel", jobs or [], app, yes, url, output)


def hold(
    jobs: JobsArgument = None,
    app: AppOption = None,
    yes: YesOption = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold jobs: they do not run until `horae release`. Running jobs get their stop signal, to save and exit."""
    _request("hold", jobs or [], app, yes, url, output)


def release(
    jobs: JobsArgument = None,
    app: AppOption = None,
    yes: YesOption = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Release held jobs, so that they can run again."""
    _request("release", jobs or [], app, yes, url, output)


def _request(what: str, jobs: Sequence[str], app: str | None, yes: bool, url: str | None, output: Output) -> None:
    """Send the request and print the result of each job. Exit code 1 if a job was not changed."""
    if bool(jobs) == bool(app):
        raise UserError(f"Name the jobs to {what}, or an app with --app NAME; `horae queue` lists jobs.")
    with service(url) as client:
        chosen = list(dict.fromkeys(jobs)) if jobs else _trials(client, str(app))
        if app:
            _confirm(f"{what} {count(len(chosen), 'job')} of app {app}", yes)
        answers = _send_request(client, what, chosen)
    records = [{"id": job, "answer": outcome} for job, outcome in answers.items()]
    lines = [_sentence(what, job, outcome) for job, outcome in answers.items()]
    answer(output, {"jobs": answers}, records, lambda: lines)
    raise typer.Exit(int(any(outcome != "done" for outcome in answers.values())))


def _send_request(client: ServiceClient, what: str, jobs: Sequence[str]) -> dict[str, str]:
    """Send one request for all jobs: if a job is unknown, nothing is done."""
    paths = [job_path(job) for job in jobs]
    path, body = (f"{paths[0]}/{what}", None) if len(paths) == 1 else (f"/v1/jobs/{what}", {"ids": list(jobs)})
    response = client.post(path, body)
    return {str(job): str(outcome) for job, outcome in dict(response.get("jobs") or {}).items()}


def _trials(client: ServiceClient, app: str) -> list[str]:
    found = records_of(client.get("/v1/jobs", {"app": app, "limit": 0, "fields": "id"}), "jobs")
    if not found:
        raise UserError(
            f"All jobs of app {app!r} have ended, or there are none; `horae queue --all --app {app}` lists them."
        )
    return [str(record["id"]) for record in found]


def _confirm(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"There is no terminal to ask whether to {what}: add --yes.")
    if not typer.confirm(f"{what}?", err=True):
        raise UserError("Nothing was done.")


def _sentence(what: str, job: str, outcome: str) -> str:
    return visible(f"{job}: {_DONE[what] if outcome == 'done' else outcome}")
