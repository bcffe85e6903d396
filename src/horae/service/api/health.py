"""Health and metrics of the service, for monitoring."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from horae.service.api import schemas
from horae.service.api.auth import CallerGiven, ServiceGiven
from horae.service.health import what_is_wrong
from horae.service.metrics import exposition
from horae.service.standby import Follower

router = APIRouter(tags=["health"])

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}
}


@router.get("/healthz", response_model=schemas.Health, responses={503: {"model": schemas.Health}})
async def healthz(service: ServiceGiven) -> JSONResponse:
    """Whether the service works. Needs no token, so it gives no details."""
    wrong = what_is_wrong(service.daemon)
    standby = {"standby": True} if isinstance(service.daemon, Follower) else {}
    return JSONResponse({"ok": not wrong, "error": wrong, **standby}, 503 if wrong else 200)


@router.get("/metrics", responses=_TEXT, response_class=Response)
def metrics(service: ServiceGiven, caller: CallerGiven) -> Response:
    """Metrics for Prometheus: decision times, loop age, jobs, GPUs, preemptions and slow-downs."""
    return Response(exposition(service.daemon), media_type=CONTENT_TYPE_LATEST)
