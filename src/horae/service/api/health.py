"""Health and metrics of the service, for monitoring."""

from __future__ import annotations

from typing import Annotated, Any

from anyio import move_on_after
from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from horae.service.api import schemas
from horae.service.api.auth import CallerGiven, ServiceGiven
from horae.service.health import what_is_wrong
from horae.service.metrics import exposition
from horae.service.roles import NotFound
from horae.service.standby import Follower

router = APIRouter(tags=["health"])

#: Seconds within which a thread for requests must become free.
_THREAD_S = 2.0

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}
}


async def _stuck_threads() -> str:
    """What is wrong if no thread for requests becomes free in time."""
    with move_on_after(_THREAD_S):
        await run_in_threadpool(lambda: None)
        return ""
    return f"All threads for requests have been busy for {_THREAD_S:g} s."


@router.get("/healthz", response_model=schemas.Health, responses={503: {"model": schemas.Health}})
async def healthz(service: ServiceGiven) -> JSONResponse:
    """Whether the service works. Needs no token, so it gives no details."""
    wrong = what_is_wrong(service.daemon) or await _stuck_threads()
    standby = {"standby": True} if isinstance(service.daemon, Follower) else {}
    return JSONResponse({"ok": not wrong, "error": wrong, **standby}, 503 if wrong else 200)


@router.get("/metrics", responses=_TEXT, response_class=Response)
def metrics(service: ServiceGiven, caller: CallerGiven) -> Response:
    """Metrics for Prometheus: decision times, loop age, jobs, GPUs, preemptions and slow-downs."""
    return Response(exposition(service.daemon), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/proof", response_model=schemas.Proof)
async def proof(
    service: ServiceGiven,
    key: Annotated[str, Query(max_length=120, description="Start of the token's SHA-256 in hex, or JOB/ATTEMPT.")],
    nonce: Annotated[str, Query(min_length=16, max_length=100)],
) -> schemas.Proof:
    """Proof that the service knows a token, for clients that must not send it to another program on its port.

    HMAC-SHA256 of `horae proof`, a line feed and the nonce. Its key is the SHA-256 of the token, in hex.
    """
    made = service.tokens.proof(key, nonce)
    if made is None:
        raise NotFound("This service does not know that token.")
    return schemas.Proof(proof=made)
