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
#: Machines that an error lists when a bid names a machine that is not offered.
_NAMED = 8


class BadAuction(UserError):
    """A file of bids that says something impossible."""


class _BundleEntry(BaseModel):
    """One row of a bid: GPUs by machine and the rho with them."""

    model_config = ConfigDict(extra="forbid")

    gpus: dict[str, _Count]
    rho: _Rho


class _BidEntry(BaseModel):
    """One bid of a file. The API has its own form of a bid (`service/api/agents.py`), with limits on its size."""

    model_config = ConfigDict(extra="forbid")

    app: Annotated[str, Field(min_length=1)]
    gang: _Gang = 1
    rho: _Rho | None = None
    table: list[_BundleEntry]


class _OtherApp(BaseModel):
    """An app that did not bid."""

    model_config = ConfigDict(extra="forbid")

    app: Annotated[str, Field(min_length=1)]
    gang: _Gang = 1


class _AuctionFile(BaseModel):
    """A file of bids."""

    model_config = ConfigDict(extra="forbid")

    machines: Annotated[dict[str, _Count], Field(min_length=1)]
    bids: list[_BidEntry]
    others: list[_OtherApp] = []
    seed: Annotated[int, Field(ge=0), BeforeValidator(whole_number)] = 0


@dataclass(frozen=True)
class AuctionInput:
    """The arguments of `hold_auction`."""

    offer: Offer
    bids: list[Bid]
    others: list[Taker]
    seed: int


def load_auction(path: Path) -> AuctionInput:
    """Read an auction: `{"machines": {name: free GPUs}, "bids": [{"app", "table", ...}], "others", "seed"}`."""
    page = "docs/reference/auctions.md"
    return _build(read_document(path, _AuctionFile, "file of bids", page, BadAuction))


def _build(document: _AuctionFile) -> AuctionInput:
    _require_names([*(bid.app for bid in document.bids), *(other.app for other in document.others)])
    if (gpus := sum(document.machines.values())) > MAX_GPUS:
        raise BadAuction(
            f"The machines have {gpus:,} free GPUs together; at most {MAX_GPUS:,} can be auctioned at once."
        )
    offer = Offer.of(document.machines)
    bids = [_bid(offer, bid) for bid in document.bids]
    for bid in bids:
        check_bid(offer, bid)
    return AuctionInput(offer, bids, [Taker(other.app, other.gang) for other in document.others], document.seed)


def _require_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise BadAuction(f"Two apps are called {twice[0]!r}, among bids and others: give each a name of its own.")


def _bid(offer: Offer, entry: _BidEntry) -> Bid:
    for number, row in enumerate(entry.table):
        _require_machines(offer, row.gpus, f"The bid of app {entry.app!r}, in row {number},")
    bundles = Bundles.named(offer, [(row.gpus, row.rho) for row in entry.table])
    return Bid(Taker(entry.app, entry.gang), bundles, entry.rho)


def _require_machines(offer: Offer, gpus: dict[str, int], whose: str) -> None:
    for name in gpus:
        if name not in offer.number:
            hint = did_you_mean(name, offer.machines)
            raise BadAuction(f"{whose} names the machine {name!r}, which is not offered.{hint} {_offered(offer)}")


def _offered(offer: Offer) -> str:
    more = f" and {len(offer.machines) - _NAMED:,} more" if len(offer.machines) > _NAMED else ""
    return f"Offered: {', '.join(offer.machines[:_NAMED])}{more}."
