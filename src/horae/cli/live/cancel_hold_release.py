"""`horae cancel`, `hold` and `release`: ask for jobs to be ended, kept or let go."""

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
    str | None, typer.Option("--app", metavar="NAME", help="All trials of an app that have not ended.")
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before acting on an app.")]


def cancel(
    jobs: JobsArgument = None,
    app: AppOption = None,
    yes: YesOption = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """End jobs for good: those that run are told to save and go."""
    _request("cancel", jobs or [], app, yes, url, output)


def hold(
    jobs: JobsArgument = None,
    app: AppOption = None,
    yes: YesOption = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep jobs from running until they are released: those that run are told to save and go."""
    _request("hold", jobs or [], app, yes, url, output)


def release(
    jobs: JobsArgument = None,
    app: AppOption = None,
    yes: YesOption = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let jobs that are held run again."""
    _request("release", jobs or [], app, yes, url, output)


def _request(what: str, jobs: Sequence[str], app: str | None, yes: bool, url: str | None, output: Output) -> None:
    """Ask for it, say of each job what became of it; a job that it came too late for is exit code 1."""
    if bool(jobs) == bool(app):
        raise UserError(f"Name the jobs to {what}, or --app and an app; `horae queue` lists jobs.")
    with service(url) as at:
        chosen = list(dict.fromkeys(jobs)) if jobs else _trials(at, str(app))
        if app:
            _confirm(f"{what} {count(len(chosen), 'job')} of app {app}", yes)
        answers = _asked(at, what, chosen)
    records = [{"id": job, "answer": said} for job, said in answers.items()]
    answer(output, {"jobs": answers}, records, lambda: [_sentence(what, job, said) for job, said in answers.items()])
    raise typer.Exit(int(any(said != "done" for said in answers.values())))


def _asked(at: ServiceClient, what: str, jobs: Sequence[str]) -> dict[str, str]:
    """All jobs are in one request: it is done for all, or for none if one is unknown."""
    paths = [job_path(job) for job in jobs]
    said = at.post(f"{paths[0]}/{what}") if len(paths) == 1 else at.post(f"/v1/jobs/{what}", {"ids": list(jobs)})
    return {str(job): str(one) for job, one in dict(said.get("jobs") or {}).items()}


def _trials(at: ServiceClient, app: str) -> list[str]:
    found = records_of(at.get("/v1/jobs", {"app": app, "limit": 0, "fields": "id"}), "jobs")
    if not found:
        raise UserError(f"App {app!r} has no jobs that have not ended; `horae queue --all --app {app}` lists all.")
    return [str(record["id"]) for record in found]


def _confirm(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"Nobody can be asked whether to {what}: add --yes.")
    if not typer.confirm(f"{what}?", err=True):
        raise UserError("Nothing was done.")


def _sentence(what: str, job: str, said: str) -> str:
    return visible(f"{job}: {_DONE[what] if said == 'done' else said}")
