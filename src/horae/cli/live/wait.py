"""`horae wait`: stay until jobs have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer

from horae.cli.live.exit_codes import ENDED, NOT_FOUND, exit_code, worst
from horae.cli.live.rendering import UrlOption, answer, interruptible, visible
from horae.cli.options import OutputOption
from horae.cli.output import Output, note
from horae.cli.setup.duration_options import read_span
from horae.client.address import NoService
from horae.client.job_records import job_state
from horae.client.service_client import NotThere, ServiceClient, service

#: How often to look, and how long a service may be away.
_LOOK_S, _AWAY_S = 0.5, 60.0
_UNKNOWN = "not found"


def command(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="Ids of the jobs.", show_default=False)],
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Wait no longer than this, such as 90, 30m or 4h.")
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until jobs have ended, also if the service is away for a minute.

    Exit codes: 0 succeeded, 100 failed, 101 not finished, 102 not found, 103 cancelled; of several jobs
    the worst counts: not found, failed, cancelled, not finished.
    """
    limit_s = None if timeout is None else read_span("--timeout", timeout)
    with service(url) as at:
        states = _watch(at, list(dict.fromkeys(jobs)), limit_s, _echo if output is Output.TABLE else _nothing)
    records = [{"id": job, "state": state} for job, state in states.items()]
    answer(output, {"jobs": records}, records, list)
    raise typer.Exit(_code(states.values()))


def wait_for(at: ServiceClient, jobs: Sequence[str], limit_s: float | None) -> int:
    """Wait until jobs have ended, tell of each on stderr, and return the exit code for all."""
    return _code(_watch(at, jobs, limit_s, note).values())


def _code(states: Iterable[str]) -> int:
    return worst(NOT_FOUND if state == _UNKNOWN else exit_code(state) for state in states)


def _echo(sentence: str) -> None:
    typer.echo(sentence)
    sys.stdout.flush()


def _nothing(sentence: str) -> None:
    """Programs are told at the end."""


def _watch(
    at: ServiceClient, jobs: Sequence[str], limit_s: float | None, tell: Callable[[str], None]
) -> dict[str, str]:
    """The last state of each job. One is looked at, at a time: those that end meanwhile are told when it has ended."""
    end_s = None if limit_s is None else time.monotonic() + limit_s
    states: dict[str, str] = {}
    with interruptible("jobs that have not ended go on"):
        for job in jobs:
            states[job] = _state(at, job)
            while states[job] not in (*ENDED, _UNKNOWN) and (end_s is None or time.monotonic() < end_s):
                time.sleep(_LOOK_S if end_s is None else max(0.0, min(_LOOK_S, end_s - time.monotonic())))
                states[job] = _state_again(at, job)
            tell(f"{visible(job)}: {states[job]}")
    return states


def _state_again(at: ServiceClient, job: str) -> str:
    """The state of a job that was there before: a service that is being started anew is waited for."""
    end_s = time.monotonic() + _AWAY_S
    while True:
        try:
            return _state(at, job)
        except NoService:
            if time.monotonic() >= end_s:
                raise
            time.sleep(_LOOK_S)


def _state(at: ServiceClient, job: str) -> str:
    try:
        return job_state(at, job)
    except NotThere:
        return _UNKNOWN
