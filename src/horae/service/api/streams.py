"""Endpoints for logs and events, also as server-sent events. A waiting stream holds no thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.responses import Response

from horae.core.states import ALIVE, ENDED, State
from horae.service.api.auth import CallerGiven, Service, ServiceGiven, StreamOpener, TokenStillValid
from horae.service.api.event_hub import POLL_S, sse
from horae.service.api.jobs import JobId
from horae.service.roles import Caller, Forbidden, NotFound
from horae.service.views.job_list import STATE_NAMES
from horae.service.views.logs import FollowedLog, masked, read_log

router = APIRouter(prefix="/v1", tags=["live"])

#: Seconds between two keep-alive comments.
KEEP_ALIVE_S = 15.0
#: Seconds between two checks whether the token is still valid.
RECHECK_S = 1.0

_Answer = TypeVar("_Answer")

#: A server-sent event in the API's description; `data` is JSON.
_SENT = {"type": "object", "properties": {name: {"type": "string"} for name in ("id", "event", "data")}}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": _SENT}}, "description": "Server-sent events."}
}
_LOG: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}}, **_EVENTS[200]["content"]},
        "description": "What the job printed; with `follow`, server-sent events.",
    }
}


@router.get("/jobs/{job}/logs", responses=_LOG, response_class=Response)
async def logs(
    request: Request,
    service: ServiceGiven,
    caller: CallerGiven,
    token_valid: TokenStillValid,
    open_stream: StreamOpener,
    job: JobId,
    attempt: Annotated[int | None, Query(ge=1, le=2**31, description="Number of the attempt; default: newest.")] = None,
    tail: Annotated[int | None, Query(ge=0, le=100_000, description="Only the last N lines.")] = None,
    follow: Annotated[bool, Query(description="Send new lines until the job ends.")] = False,
) -> Response:
    """The log of a job. Empty if the job was not launched yet."""
    status = service.daemon.status
    views = service.views()
    row = views.visible_row(caller, job)
    if not views.sees_details(caller, row):
        raise Forbidden(f"The log of job {job} is for its user, admins of its queue, viewers and admins.")
    newest = int(status.columns["attempt"][row])
    if attempt is not None and attempt > newest:
        raise NotFound(f"Job {job} has no attempt {attempt}: its newest attempt is number {newest}.")
    if follow:
        open_stream()
        return _stream(token_valid, _follow(service, caller, job, attempt, tail))
    # Reads of logs have threads and limits of their own, so that they need no turn of the caller's requests.
    request.state.give_back()
    text = await _in_log_thread(service, caller, _log_text, service, job, attempt or newest, tail) if newest else ""
    return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})


async def _follow(
    service: Service, caller: Caller, job: str, only: int | None, tail: int | None
) -> AsyncGenerator[str, None]:
    """New lines, attempt after attempt (or of attempt `only`), and the state of the job at the end."""
    number, log = only or max(_attempt_and_state(service, job)[0], 1), None
    while not service.closing:
        # Read the state before the lines, so that all lines before the end are sent before the end.
        newest, state = _attempt_and_state(service, job)
        over = newest > number or state in ENDED or (newest == number and state not in ALIVE)
        if log is None and newest >= number:
            path = await _in_log_thread(service, caller, service.daemon.backend.log, job, number)
            log = FollowedLog(path, tail, partial(_masked, service, job))
        for line in await _in_log_thread(service, caller, _lines, service, job, log, over) if log else ():
            yield sse({"line": line, "attempt": number})
        if log and not log.at_end:
            continue
        if over and only is None and newest > number:
            number, log, tail = number + 1, None, None
        elif over and (only is not None or state in ENDED):
            yield sse({"state": STATE_NAMES[state]}, "end")
            return
        else:
            yield ""
            await asyncio.sleep(POLL_S)


async def _in_log_thread(service: Service, caller: Caller, read: Callable[..., _Answer], *words: Any) -> _Answer:
    """Read a log in one of the threads for logs, a few at a time for each user: other requests go on meanwhile."""
    async with service.log_reads.turn_of(caller.user, service.limits_of(caller)):
        return await to_thread.run_sync(read, *words, limiter=service.log_reads.threads)


def _log_text(service: Service, job: str, attempt: int, tail: int | None) -> str:
    return _masked(service, job, read_log(service.daemon.backend.log(job, attempt), tail))


def _lines(service: Service, job: str, log: FollowedLog, finished: bool) -> list[str]:
    lines = log.lines(finished)
    return _masked(service, job, "\n".join(lines)).split("\n") if lines else []


def _masked(service: Service, job: str, text: str) -> str:
    task = service.daemon.tasks[job]
    return masked(text, service.daemon.backend.secrets(map(task.secret_file, task.secrets)).values())


def _attempt_and_state(service: Service, job: str) -> tuple[int, State]:
    """The job's newest attempt, and its state."""
    status = service.daemon.status
    row = status.row(job)
    assert row is not None, f"job {job} is gone"
    return int(status.columns["attempt"][row]), status.state(row)


@router.get("/stream", responses=_EVENTS, response_class=Response)
async def stream(
    service: ServiceGiven,
    caller: CallerGiven,
    token_valid: TokenStillValid,
    open_stream: StreamOpener,
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="Events after this record; default: from now on.")
    ] = None,
) -> StreamingResponse:
    """Events as they happen; only those that the token may see."""
    open_stream()
    first = service.daemon.published_seq if after is None else after
    return _stream(token_valid, service.hub.listen(caller, first))


# ------------------------------------------------------------------ the format


def _stream(token_valid: Callable[[], Awaitable[bool]], events: AsyncGenerator[str, None]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_kept_alive(token_valid, events), media_type="text/event-stream", headers=headers)


async def _kept_alive(
    token_valid: Callable[[], Awaitable[bool]], events: AsyncGenerator[str, None]
) -> AsyncGenerator[str, None]:
    """The same events with keep-alive comments, until the token becomes invalid."""
    sent_s = checked_s = time.monotonic()
    async with aclosing(events):
        yield ": here\n\n"
        async for event in events:
            now_s = time.monotonic()
            if now_s - checked_s > RECHECK_S:
                checked_s = now_s
                if not await token_valid():
                    return
            if event or now_s - sent_s > KEEP_ALIVE_S:
                sent_s = now_s
                yield event or ": still here\n\n"
