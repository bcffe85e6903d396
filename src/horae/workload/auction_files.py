"""Bids from JSON files, for `horae auction`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from horae.core.errors import UserError, did_you_mean
from horae.solve.auction.bids import Bid, Bundles, Offer, Taker, check_bid
from horae.workload.clusters import MAX_GPUS
from horae.workload.json_files import read_document, whole_number

_Rho = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
_Gang = Annotated[int, Field(ge=1, le=MAX_GPUS), BeforeValidator(whole_number)]
_Count = Annotated[int, Field(ge=0, le=MAX_GPUS), BeforeValidator(whole_number)]
#: So many machines are named where somebody named one that is not there.
_NAMED = 8


class BadAuction(UserError):
    """A file of bids that says something impossible."""


class _Row(BaseModel):
    """One row of a table."""

    model_config = ConfigDict(extra="forbid")

    gpus: dict[str, _Count]
    rho: _Rho


class _Bid(BaseModel):
    """One bid."""

    model_config = ConfigDict(extra="forbid")

    app: Annotated[str, Field(min_length=1)]
    gang: _Gang = 1
    rho: _Rho | None = None
    table: list[_Row]


class _Other(BaseModel):
    """An app that did not bid."""

    model_config = ConfigDict(extra="forbid")

    app: Annotated[str, Field(min_length=1)]
    gang: _Gang = 1


class _Auction(BaseModel):
    """A file of bids."""

    model_config = ConfigDict(extra="forbid")

    machines: Annotated[dict[str, _Count], Field(min_length=1)]
    bids: list[_Bid]
    others: list[_Other] = []
    seed: Annotated[int, Field(ge=0), BeforeValidator(whole_number)] = 0


@dataclass(frozen=True)
class Auction:
    """One auction: what `hold_auction` asks for."""

    offer: Offer
    bids: list[Bid]
    others: list[Taker]
    seed: int


def load_auction(path: Path) -> Auction:
    """Read an auction: `{"machines": {name: free GPUs}, "bids": [{"app", "table", ...}], "others", "seed"}`."""
    page = "docs/reference/auctions.md"
    return _build(read_document(path, _Auction, "file of bids", page, BadAuction))


def _build(said: _Auction) -> Auction:
    _require_names([*(bid.app for bid in said.bids), *(other.app for other in said.others)])
    if (gpus := sum(said.machines.values())) > MAX_GPUS:
        raise BadAuction(
            f"The machines have {gpus:,} free GPUs together; at most {MAX_GPUS:,} can be auctioned at once."
        )
    offer = Offer.of(said.machines)
    bids = [_bid(offer, bid) for bid in said.bids]
    for bid in bids:
        check_bid(offer, bid)
    return Auction(offer, bids, [Taker(other.app, other.gang) for other in said.others], said.seed)


def _require_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise BadAuction(f"Two apps are called {twice[0]!r}, among bids and others: give each a name of its own.")


def _bid(offer: Offer, said: _Bid) -> Bid:
    for number, row in enumerate(said.table):
        _require_machines(offer, row.gpus, f"The bid of app {said.app!r}, in row {number},")
    bundles = Bundles.named(offer, [(row.gpus, row.rho) for row in said.table])
    return Bid(Taker(said.app, said.gang), bundles, said.rho)


def _require_machines(offer: Offer, gpus: dict[str, int], whose: str) -> None:
    for name in gpus:
        if name not in offer.number:
            hint = did_you_mean(name, offer.machines)
            raise BadAuction(f"{whose} names the machine {name!r}, which is not offered.{hint} {_offered(offer)}")


def _offered(offer: Offer) -> str:
    more = f" and {len(offer.machines) - _NAMED:,} more" if len(offer.machines) > _NAMED else ""
    return f"Offered: {', '.join(offer.machines[:_NAMED])}{more}."
