"""Endpoints for logs and events, also as server-sent events. A waiting stream holds no thread."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from horae.core.states import ALIVE, ENDED, State
from horae.service.api.auth import CallerGiven, Service, ServiceGiven, TokenStillValid
from horae.service.api.jobs import JobId
from horae.service.roles import Caller, Forbidden, NotFound
from horae.service.views.job_list import STATE_NAMES
from horae.service.views.logs import FollowedLog, masked, read_log

router = APIRouter(prefix="/v1", tags=["live"])

#: Seconds between two looks for new lines or events, and between two keep-alive comments.
POLL_S, KEEP_ALIVE_S = 0.2, 15.0
#: Seconds between two checks whether the token is still valid.
RECHECK_S = 1.0
#: Records read at a time.
_PAGE = 500

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
    service: ServiceGiven,
    caller: CallerGiven,
    token_valid: TokenStillValid,
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
        return _stream(service, caller, token_valid, _follow(service, caller, job, attempt, tail))
    text = await _in_log_thread(service, caller, _log_text, service, job, attempt or newest, tail) if newest else ""
    return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})


async def _follow(service: Service, caller: Caller, job: str, only: int | None, tail: int | None) -> AsyncIterator[str]:
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
            yield _event({"line": line, "attempt": number})
        if log and not log.at_end:
            continue
        if over and only is None and newest > number:
            number, log, tail = number + 1, None, None
        elif over and (only is not None or state in ENDED):
            yield _event({"state": STATE_NAMES[state]}, "end")
            return
        else:
            yield ""
            await asyncio.sleep(POLL_S)


async def _in_log_thread(service: Service, caller: Caller, read: Callable[..., _Answer], *words: Any) -> _Answer:
    """Read a log in one of the threads for logs, a few at a time for each user: other requests go on meanwhile."""
    async with service.log_reads.turn_of(caller.user):
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
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="Events after this record; default: from now on.")
    ] = None,
) -> StreamingResponse:
    """Events as they happen; only those that the token may see."""
    first = service.daemon.published_seq if after is None else after
    return _stream(service, caller, token_valid, _events_after(service, caller, first))


async def _events_after(service: Service, caller: Caller, after: int) -> AsyncIterator[str]:
    while not service.closing:
        if service.daemon.published_seq > after:
            events, after = await run_in_threadpool(_page, service, caller, after)
            for event in events:
                yield _event(event, number=event["seq"])
        else:
            yield ""
            await asyncio.sleep(POLL_S)


def _page(service: Service, caller: Caller, after: int) -> tuple[list[dict[str, Any]], int]:
    """Events of one page of records, and the number of the last record."""
    upto = service.daemon.published_seq
    records = list(islice(service.daemon.store.tail(after, upto), _PAGE))
    views, event_sentences = service.views(), service.event_sentences()
    events = [
        {"seq": seq, "at": views.timestamp(record.at_s), "kind": event.kind, "job": event.job}
        | {"what": views.plain(caller, event.what)}
        for seq, record in records
        for event in event_sentences.sentences_of(record)
        if service.may_see_event(caller, event, record.at_s)
    ]
    return events, records[-1][0] if records else upto


# ------------------------------------------------------------------ the format


def _stream(
    service: Service, caller: Caller, token_valid: Callable[[], bool], events: AsyncIterator[str]
) -> StreamingResponse:
    service.check_stream_limit(caller)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        _counted(service, caller, token_valid, events), media_type="text/event-stream", headers=headers
    )


async def _counted(
    service: Service, caller: Caller, token_valid: Callable[[], bool], events: AsyncIterator[str]
) -> AsyncIterator[str]:
    """The same events with keep-alive comments, until the token becomes invalid."""
    sent_s = checked_s = time.monotonic()
    with service.counted_stream(caller):
        yield ": here\n\n"
        async for event in events:
            now_s = time.monotonic()
            if now_s - checked_s > RECHECK_S:
                checked_s = now_s
                if not token_valid():
                    return
            if event or now_s - sent_s > KEEP_ALIVE_S:
                sent_s = now_s
                yield event or ": still here\n\n"


def _event(data: dict[str, Any], event_type: str = "", number: int | None = None) -> str:
    """One server-sent event. Its JSON has no line breaks."""
    head = (f"id: {number}\n" if number is not None else "") + (f"event: {event_type}\n" if event_type else "")
    return f"{head}data: {json.dumps(data)}\n\n"
