"""`horae wait`: wait until jobs have ended."""

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

#: Seconds between two looks, and seconds for which the service may be away.
_POLL_S, _SERVICE_AWAY_S = 0.5, 60.0
_NOT_FOUND_STATE = "not found"


def command(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="Ids of the jobs.", show_default=False)],
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Wait at most this long, such as 90, 30m or 4h.")
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until jobs have ended, even if the service is away for up to a minute.

    Exit codes: 0 succeeded, 100 failed, 101 not finished, 102 not found, 103 cancelled, 104 time limit. For several
    jobs the worst one counts, in the order: not found, failed, time limit, cancelled, not finished.
    """
    limit_s = None if timeout is None else read_span("--timeout", timeout)
    with service(url) as client:
        states = _watch(client, list(dict.fromkeys(jobs)), limit_s, _echo if output is Output.TABLE else _print_nothing)
    records = [{"id": job, "state": state} for job, state in states.items()]
    answer(output, {"jobs": records}, records, list)
    raise typer.Exit(_code(states.values()))


def wait_for(client: ServiceClient, jobs: Sequence[str], limit_s: float | None) -> int:
    """Wait until jobs have ended, print each job's state on stderr, and return one exit code for all."""
    return _code(_watch(client, jobs, limit_s, note).values())


def _code(states: Iterable[str]) -> int:
    return worst(NOT_FOUND if state == _NOT_FOUND_STATE else exit_code(state) for state in states)


def _echo(sentence: str) -> None:
    typer.echo(sentence)
    sys.stdout.flush()


def _print_nothing(sentence: str) -> None:
    """JSON and CSV are printed at the end."""


def _watch(
    client: ServiceClient, jobs: Sequence[str], limit_s: float | None, report: Callable[[str], None]
) -> dict[str, str]:
    """The last state of each job. Jobs are watched one after the other, in the given order."""
    end_s = None if limit_s is None else time.monotonic() + limit_s
    states: dict[str, str] = {}
    with interruptible("jobs that have not ended go on"):
        for job in jobs:
            states[job] = _state(client, job)
            while states[job] not in (*ENDED, _NOT_FOUND_STATE) and (end_s is None or time.monotonic() < end_s):
                time.sleep(_POLL_S if end_s is None else max(0.0, min(_POLL_S, end_s - time.monotonic())))
                states[job] = _state_again(client, job)
            report(f"{visible(job)}: {states[job]}")
    return states


def _state_again(client: ServiceClient, job: str) -> str:
    """The state of a job that existed before. Waits for a service that is being restarted."""
    end_s = time.monotonic() + _SERVICE_AWAY_S
    while True:
        try:
            return _state(client, job)
        except NoService:
            if time.monotonic() >= end_s:
                raise
            time.sleep(_POLL_S)


def _state(client: ServiceClient, job: str) -> str:
    try:
        return job_state(client, job)
    except NotThere:
        return _NOT_FOUND_STATE
