"""Live views: logs, and what happens, as server-sent events. A stream that waits holds no thread."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from horae.core.states import ALIVE, ENDED, State
from horae.service.api.auth import PersonGiven, Service, ServiceGiven, StillGood
from horae.service.api.jobs import JobId
from horae.service.roles import Caller, NotFound
from horae.service.views.job_list import STATE_NAMES
from horae.service.views.logs import Log, masked, read_log

router = APIRouter(prefix="/v1", tags=["live"])

#: How often a stream looks for news, and says that it is still there.
LOOK_S, STILL_S = 0.2, 15.0
#: How often it is looked whether the token is still good.
RECHECK_S = 1.0
#: Records looked at in one go.
_PAGE = 500

#: An event as clients see it; `data` is JSON.
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
    who: PersonGiven,
    good: StillGood,
    job: JobId,
    attempt: Annotated[int | None, Query(ge=1, le=2**31, description="The newest, unless told otherwise.")] = None,
    tail: Annotated[int | None, Query(ge=0, le=100_000, description="Only so many lines at the end.")] = None,
    follow: Annotated[bool, Query(description="Go on as the job prints, until it ends.")] = False,
) -> Response:
    """What a job printed. A job that has not been launched yet has printed nothing."""
    at = service.daemon.standing
    newest = int(at.columns["attempt"][service.views().find(who, job)])
    if attempt is not None and attempt > newest:
        raise NotFound(f"Job {job} has had {newest} attempts so far: ask for one of these.")
    if follow:
        return _stream(service, who, good, _follow(service, job, attempt, tail))
    path = service.daemon.backend.log_path(job, attempt or newest) if newest else None
    text = await run_in_threadpool(lambda: _masked(service, job, read_log(path, tail))) if path else ""
    return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})


async def _follow(service: Service, job: str, only: int | None, tail: int | None) -> AsyncIterator[str]:
    """Lines as they come, attempt after attempt (or of `only` one), and how the job stands at the end."""
    number, log = only or max(_standing(service, job)[0], 1), None
    while not service.closing:
        # First how things stand, then the lines: what is printed before an end is read before it is told.
        newest, state = _standing(service, job)
        over = newest > number or state in ENDED or (newest == number and state not in ALIVE)
        log = log or (Log(service.daemon.backend.log_path(job, number), tail) if newest >= number else None)
        for line in await run_in_threadpool(_lines, service, job, log, over) if log else ():
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
            await asyncio.sleep(LOOK_S)


def _lines(service: Service, job: str, log: Log, finished: bool) -> list[str]:
    lines = log.lines(finished)
    return _masked(service, job, "\n".join(lines)).split("\n") if lines else []


def _masked(service: Service, job: str, text: str) -> str:
    return masked(text, service.daemon.backend.secrets(service.daemon.tasks[job].secrets).values())


def _standing(service: Service, job: str) -> tuple[int, State]:
    """The job's newest attempt, and its state."""
    at = service.daemon.standing
    row = at.row(job)
    assert row is not None, f"job {job} is gone"
    return int(at.columns["attempt"][row]), at.state(row)


@router.get("/stream", responses=_EVENTS, response_class=Response)
async def stream(
    service: ServiceGiven,
    who: PersonGiven,
    good: StillGood,
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="From this record on; by default, from now.")
    ] = None,
) -> StreamingResponse:
    """What happens, as it happens: only what the token may see."""
    first = service.daemon.shown if after is None else after
    return _stream(service, who, good, _news(service, who, first))


async def _news(service: Service, who: Caller, after: int) -> AsyncIterator[str]:
    while not service.closing:
        if service.daemon.shown > after:
            told, after = await run_in_threadpool(_page, service, who, after)
            for one in told:
                yield _event(one, number=one["seq"])
        else:
            yield ""
            await asyncio.sleep(LOOK_S)


def _page(service: Service, who: Caller, after: int) -> tuple[list[dict[str, Any]], int]:
    """What some records tell, and the last of them."""
    upto = service.daemon.shown
    records = list(islice(service.daemon.store.tail(after, upto), _PAGE))
    views, teller = service.views(), service.teller()
    told = [
        {"seq": seq, "at": views.moment(record.at_s), "kind": one.kind, "job": one.job, "what": one.what}
        for seq, record in records
        for one in teller.tell(record)
        if service.shows(who, one, record.at_s)
    ]
    return told, records[-1][0] if records else upto


# ------------------------------------------------------------------ the format


def _stream(service: Service, who: Caller, good: Callable[[], bool], events: AsyncIterator[str]) -> StreamingResponse:
    service.check_room(who)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_counted(service, who, good, events), media_type="text/event-stream", headers=headers)


async def _counted(
    service: Service, who: Caller, good: Callable[[], bool], events: AsyncIterator[str]
) -> AsyncIterator[str]:
    """The same events, with a sign of life where there are none for long, while the token is good."""
    said_s = checked_s = time.monotonic()
    with service.waiting(who):
        yield ": here\n\n"
        async for event in events:
            now_s = time.monotonic()
            if now_s - checked_s > RECHECK_S:
                checked_s = now_s
                if not good():
                    return
            if event or now_s - said_s > STILL_S:
                said_s = now_s
                yield event or ": still here\n\n"


def _event(data: dict[str, Any], kind: str = "", number: int | None = None) -> str:
    """One server-sent event. JSON has no line breaks of its own."""
    head = (f"id: {number}\n" if number is not None else "") + (f"event: {kind}\n" if kind else "")
    return f"{head}data: {json.dumps(data)}\n\n"
