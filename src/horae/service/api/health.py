"""Health and metrics of the service, for monitoring."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from horae.service.api import schemas
from horae.service.api.auth import CallerGiven, ServiceGiven
from horae.service.daemon import Daemon
from horae.service.metrics import exposition

router = APIRouter(tags=["health"])

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}
}

#: Seconds without a cycle after which the daemon's loop counts as stuck.
OLDEST_LOOP_S = 10.0


@router.get("/healthz", response_model=schemas.Health, responses={503: {"model": schemas.Health}})
async def healthz(service: ServiceGiven) -> JSONResponse:
    """Whether the service works. Needs no token, so it gives no details."""
    wrong = what_is_wrong(service.daemon)
    return JSONResponse({"ok": not wrong, "error": wrong}, 503 if wrong else 200)


def what_is_wrong(daemon: Daemon) -> str:
    """What is wrong with the service, in a sentence; empty if it works."""
    if daemon.crashed is not None or daemon.closing:
        return "The service is not running any more."
    age_s = daemon.clock() - daemon.counters.cycle_s
    if age_s > OLDEST_LOOP_S:
        return f"The daemon's loop has been stuck for {age_s:.0f} s."
    if daemon.counters.trouble:
        return "The journal cannot be written."
    if getattr(daemon.engine.policy, "trouble", ""):
        return "The policy fails: running jobs go on, and no other job starts."
    return daemon.backend.trouble


@router.get("/metrics", responses=_TEXT, response_class=Response)
def metrics(service: ServiceGiven, caller: CallerGiven) -> Response:
    """Metrics for Prometheus: decision times, loop age, jobs, GPUs, preemptions and slow-downs."""
    return Response(exposition(service.daemon), media_type=CONTENT_TYPE_LATEST)
