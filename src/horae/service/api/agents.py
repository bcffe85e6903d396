"""Apps that bid for themselves: an agent registers, waits for offers, and answers each before its deadline."""

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
from horae.service.api.auth import PersonGiven, Service, ServiceGiven
from horae.service.api.errors import Problem

router = APIRouter(prefix="/v1/apps", tags=["agents"])

AppName = Annotated[str, Path(max_length=100, description="The app's name, or the id of a job that has none.")]
#: How often a question that waits for an offer looks for one; the longest that it may wait.
_LOOK_S, LONGEST_WAIT_S = 0.02, 60.0
#: Rows of a bid.
MOST_ROWS = 1000


class Bundle(BaseModel):
    """GPUs by machine, and the rho that the app would have with them."""

    model_config = ConfigDict(extra="forbid")

    gpus: dict[str, Annotated[int, Field(ge=1, le=1_000_000, strict=True)]] = Field(min_length=1, max_length=1000)
    rho: float = Field(gt=0, lt=1e12, allow_inf_nan=False)


class Bid(BaseModel):
    """An agent's answer to one offer, in the form of a bid of `horae auction`."""

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

    The app has gangs of `gang` GPUs, can use so many `gangs` of them, and has `holds` GPUs whatever it wins. A bid's
    rho is (`elapsed_s` + the time until the app is done) / `alone_s`; `rho` is that of winning nothing, by the
    built-in agent.
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
    """The offer that is open now, if any."""

    offer: Offer | None


@router.put("/{app}/agent")
def register(service: ServiceGiven, who: PersonGiven, app: AppName) -> dict[str, Any]:
    """From now on this app's agent is asked for bids; where it does not answer in time, the built-in one bids."""
    service.operations.register_agent(who, app, present=True)
    return {"app": app, "agent": "its own"}


@router.delete("/{app}/agent")
def dismiss(service: ServiceGiven, who: PersonGiven, app: AppName) -> dict[str, Any]:
    """Leave bidding to the built-in agent again."""
    service.operations.register_agent(who, app, present=False)
    return {"app": app, "agent": "built-in"}


@router.get("/{app}/offer", response_model=Offers)
async def offer(
    service: ServiceGiven,
    who: PersonGiven,
    app: AppName,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="Seconds to wait for one.")] = 0.0,
) -> Offers:
    """The offer that waits for this app's bid; with `wait`, as soon as there is one."""
    await run_in_threadpool(service.operations.check_app_shown, who, app)
    service.check_room(who)
    until = time.monotonic() + wait
    with service.waiting(who):
        while (ask := service.operations.offer(app)) is None and time.monotonic() < until and not service.closing:
            await asyncio.sleep(_LOOK_S)
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
        machines={name: Machine(gpus=gpus, type=kind) for name, gpus, kind in ask.offer},
    )


@router.post("/{app}/bids", responses={409: {"model": Problem, "description": "The bid is late or wrong."}})
def bid(service: ServiceGiven, who: PersonGiven, app: AppName, said: Bid) -> JSONResponse:
    """Answer an offer. A bid that is late or wrong is recorded and refused, and the built-in agent bids instead."""
    table = tuple(BidRow(tuple(sorted(row.gpus.items())), row.rho) for row in said.table)
    problem = service.operations.bid(who, BidAnswer(app, said.auction, said.rho, table))
    if problem:
        raise HTTPException(409, problem)
    return JSONResponse({"auction": said.auction, "bid": "taken"})
