"""Endpoints for apps that bid for themselves: an agent registers, waits for offers, and bids before the deadline."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from horae.core.bidding import Ask, BidAnswer, BidRow
from horae.service.api.auth import CallerGiven, Service, ServiceGiven, StreamOpener
from horae.service.api.errors import Problem

router = APIRouter(prefix="/v1/apps", tags=["agents"])

AppName = Annotated[str, Path(max_length=100, description="Name of the app, or id of a job without an app.")]
#: Seconds between two looks for an offer, and most seconds that a request may wait for one.
_POLL_S, LONGEST_WAIT_S = 0.02, 60.0
#: Most rows of a bid.
MOST_ROWS = 1000


class Bundle(BaseModel):
    """GPUs by machine, and the rho of the app with these GPUs."""

    model_config = ConfigDict(extra="forbid")

    gpus: dict[str, Annotated[int, Field(ge=1, le=1_000_000, strict=True)]] = Field(min_length=1, max_length=1000)
    rho: float = Field(gt=0, lt=1e12, allow_inf_nan=False)


class Bid(BaseModel):
    """A bid for one offer, in the format of `horae auction`."""

    model_config = ConfigDict(extra="forbid")

    auction: int = Field(ge=0, le=2**53)
    rho: float | None = Field(default=None, gt=0, lt=1e12, allow_inf_nan=False)
    table: list[Bundle] = Field(max_length=MOST_ROWS)


class Machine(BaseModel):
    """Free GPUs of one machine."""

    gpus: int
    type: str


class Offer(BaseModel):
    """GPUs that an app may bid for, until `answer_in_s` seconds from now.

    The app's jobs need `gang` GPUs each, the app can use up to `gangs` gangs, and it keeps `holds` GPUs in any case.
    The rho of a bid is (`elapsed_s` + seconds until the app is done) / `alone_s`. `rho` is the built-in agent's value
    if the app wins nothing.
    """

    auction: int
    answer_in_s: float
    gang: int
    gangs: int
    rho: float
    elapsed_s: float
    alone_s: float
    holds: int
    machines: dict[str, Machine]


class Offers(BaseModel):
    """The open offer, or null."""

    offer: Offer | None


@router.put("/{app}/agent")
def register(service: ServiceGiven, caller: CallerGiven, app: AppName) -> dict[str, Any]:
    """Register the app's own agent for bids. If it does not answer in time, the built-in agent bids."""
    service.operations.register_agent(caller, app, present=True)
    return {"app": app, "agent": "its own"}


@router.delete("/{app}/agent")
def dismiss(service: ServiceGiven, caller: CallerGiven, app: AppName) -> dict[str, Any]:
    """Dismiss the app's own agent: the built-in agent bids again."""
    service.operations.register_agent(caller, app, present=False)
    return {"app": app, "agent": "built-in"}


@router.get("/{app}/offer", response_model=Offers)
async def offer(
    service: ServiceGiven,
    caller: CallerGiven,
    open_stream: StreamOpener,
    app: AppName,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="Seconds to wait for an offer.")] = 0.0,
) -> Offers:
    """The open offer to this app; with `wait`, as soon as there is one."""
    await run_in_threadpool(service.operations.check_app_visible, caller, app)
    open_stream()
    until = time.monotonic() + wait
    while (ask := service.operations.offer(app)) is None and time.monotonic() < until and not service.closing:
        await asyncio.sleep(_POLL_S)
    return Offers(offer=None if ask is None else _offer(service, ask))


def _offer(service: Service, ask: Ask) -> Offer:
    return Offer(
        auction=ask.auction,
        answer_in_s=max(0.0, ask.deadline_s - service.daemon.clock()),
        gang=ask.gang,
        gangs=ask.gangs,
        rho=ask.rho,
        elapsed_s=ask.elapsed_s,
        alone_s=ask.alone_s,
        holds=ask.holds,
        machines={name: Machine(gpus=gpus, type=gpu_type) for name, gpus, gpu_type in ask.offer},
    )


@router.post("/{app}/bids", responses={409: {"model": Problem, "description": "The bid is late or wrong."}})
def bid(service: ServiceGiven, caller: CallerGiven, app: AppName, body: Bid) -> JSONResponse:
    """Bid for an offer. A late or wrong bid is recorded and refused, and the built-in agent bids instead."""
    table = tuple(BidRow(tuple(sorted(row.gpus.items())), row.rho) for row in body.table)
    problem = service.operations.bid(caller, BidAnswer(app, body.auction, body.rho, table))
    if problem:
        raise HTTPException(409, problem)
    return JSONResponse({"auction": body.auction, "bid": "taken"})
