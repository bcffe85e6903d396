"""How the service itself is: for monitors."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from horae.service.api import schemas
from horae.service.api.auth import PersonGiven, ServiceGiven
from horae.service.daemon import Daemon
from horae.service.metrics import exposition

router = APIRouter(tags=["health"])

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}
}

#: A loop that has not come round for so long is not well.
OLDEST_LOOP_S = 10.0


@router.get("/healthz", response_model=schemas.Health, responses={503: {"model": schemas.Health}})
async def healthz(service: ServiceGiven) -> JSONResponse:
    """Whether the service is well: open to everybody, so it tells no more than that."""
    wrong = what_is_wrong(service.daemon)
    return JSONResponse({"ok": not wrong, "error": wrong}, 503 if wrong else 200)


def what_is_wrong(daemon: Daemon) -> str:
    """What a monitor has to know; empty while all is well."""
    if daemon.crashed is not None or daemon.closing:
        return "The service is not running any more."
    age_s = daemon.clock() - daemon.meter.cycle_s
    if age_s > OLDEST_LOOP_S:
        return f"The loop has not come round for {age_s:.0f} s."
    if daemon.meter.trouble:
        return "The journal cannot be written."
    if getattr(daemon.engine.policy, "trouble", ""):
        return "The policy fails: jobs that run go on, and no other starts."
    return "A job cannot be told to stop." if daemon.meter.unstopped else ""


@router.get("/metrics", responses=_TEXT, response_class=Response)
def metrics(service: ServiceGiven, who: PersonGiven) -> Response:
    """Decision times, the loop's age, queue lengths, GPUs, preemptions and slow-downs, for Prometheus."""
    return Response(exposition(service.daemon), media_type=CONTENT_TYPE_LATEST)
