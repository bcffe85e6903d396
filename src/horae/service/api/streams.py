"""Live views: logs, and what happens, as server-sent events. A stream that waits holds no thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from horae.service.api.access import PersonGiven, Service, ServiceGiven
from horae.service.api.jobs import JobId
from horae.service.logs import Log, read_log
from horae.service.people import NotFound

router = APIRouter(prefix="/v1", tags=["live"])

#: How often a stream looks for news, and says that it is still there.
LOOK_S, STILL_S = 0.2, 15.0
#: Streams that one user may have open.
MOST_STREAMS = 50
#: Records looked at in one go.
_PAGE = 500

_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events."}
}
_LOG: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}}, **_EVENTS[200]["content"]},
        "description": "What the job printed; with `follow`, server-sent events.",
    }
}


@router.get("/jobs/{job}/logs", responses=_LOG, response_class=PlainTextResponse)
async def logs(
    service: ServiceGiven,
    who: PersonGiven,
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
        return _stream(service, who, _follow(service, job, attempt, tail))
    path = service.daemon.backend.log_path(job, attempt or newest) if newest else None
    text = await run_in_threadpool(read_log, path, tail) if path else ""
    return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})


async def _follow(service: Service, job: str, only: int | None, tail: int | None) -> AsyncIterator[str]:
    """Lines as they come, attempt after attempt, and how the job (or the one attempt) stands at the end."""
    current, over = _attempt(service, job)
    number, log = only or max(current, 1), None
    while True:
        current, over = _attempt(service, job)
        done = over if current == number else current > number
        if log is None and current >= number:
            log = Log(service.daemon.backend.log_path(job, number), tail)
        for line in await run_in_threadpool(log.lines, done) if log else ():
            yield _event({"line": line, "attempt": number})
        if done and not log_has_more(log):
            if only is None and current > number:
                number, log, tail = number + 1, None, None
                continue
            if only is not None or _has_ended(service, job):
                break
        if service.closing:
            return
        yield ""
        await asyncio.sleep(LOOK_S)
    yield _event({"state": _state(service, job)}, "end")
