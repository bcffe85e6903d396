"""Offers and bids.

An **offer** is free GPUs by machine. Machines may be in pools: the machines of a pool are the same to every bidder. A
**bundle** is a list of pieces. A piece is a GPU count on a named machine, or a GPU count on each of several machines of
a pool, whichever. So an app that wants any four machines of a rack says that in one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.errors import UserError

#: Value (1 / rho) of winning nothing, for a bid that does not say.
NO_VALUE = 1e-9


class BadBid(UserError):
    """A bid for GPUs that are not offered, or with impossible numbers."""


@dataclass(frozen=True)
class Offer:
    """Free GPUs by machine. Machines are in the order of their names, which decides ties."""

    machines: tuple[str, ...]
    free: Ints
    #: Number of each machine's pool, from 0; by default each machine is a pool of its own.
    pool: Ints

    @staticmethod
    def of(free: Mapping[str, int], pools: Mapping[str, str] | None = None) -> Offer:
        """An offer by machine name; machines with the same name in `pools` are one pool."""
        machines = tuple(sorted(free))
        pool_names = list(machines) if pools is None else [pools[name] for name in machines]
        number = {pool: n for n, pool in enumerate(dict.fromkeys(pool_names))}
        counts = np.array([free[name] for name in machines], np.int64)
        return Offer(machines, counts, np.array([number[pool] for pool in pool_names], np.int64))

    @property
    def gpus(self) -> int:
        """Number of free GPUs."""
        return int(self.free.sum())

    @cached_property
    def pools(self) -> int:
        """Number of pools."""
        return int(self.pool.max()) + 1 if len(self.pool) else 0

    @cached_property
    def number(self) -> dict[str, int]:
        """Position of each machine, by name."""
        return {name: m for m, name in enumerate(self.machines)}

    def place_of_pool(self, pool: int) -> int:
        """The place of a piece on any machines of this pool; the place of a named machine is its position."""
        return len(self.machines) + pool

    def named(self, counts: Mapping[int, int]) -> dict[str, int]:
        """GPU count by machine name."""
        return {self.machines[m]: counts[m] for m in sorted(counts)}


@dataclass(frozen=True)
class Bundles:
    """A table of bundles as columns: bundle b has the pieces start[b]:start[b + 1]."""

    #: Rho (finish-time slow-down) of the app with each bundle.
    rho: Floats
    start: Ints
    #: Place of a piece: the position of a machine, or `Offer.place_of_pool`.
    place: Ints
    #: GPU count of a piece on each of its machines.
    gpus: Ints
    #: Number of machines of a piece; 1 for a named machine.
    spread: Ints

    @staticmethod
    def of(table: Iterable[tuple[Sequence[tuple[int, int, int]], float]]) -> Bundles:
        """Bundles as ([(place, GPUs on each machine, machines), ...], rho)."""
        rows = list(table)
        pieces = np.array([piece for bundle, _ in rows for piece in bundle], np.int64).reshape(-1, 3)
        start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(bundle) for bundle, _ in rows], out=start[1:])
        rho = np.array([rho for _, rho in rows], np.float64)
        return Bundles(rho, start, *(np.ascontiguousarray(column) for column in pieces.T))

    @staticmethod
    def named(offer: Offer, table: Iterable[tuple[Mapping[str, int], float]]) -> Bundles:
        """Bundles as (GPU count by machine name, rho)."""
        number = offer.number
        return Bundles.of(
            ([(number[name], count, 1) for name, count in gpus.items() if count], rho) for gpus, rho in table
        )

    def __len__(self) -> int:
        return len(self.rho)

    @cached_property
    def total(self) -> Ints:
        """GPU count of each bundle."""
        whole = np.append(0, np.cumsum(self.gpus * self.spread))
        return np.asarray(whole[self.start[1:]] - whole[self.start[:-1]])


@dataclass(frozen=True)
class Taker:
    """An app that takes GPUs, whole gangs at a time, and the machines that it can use."""

    app: str
    gang: int = 1
    #: Number of gangs that it can use beside those it has; None: any number.
    most: int | None = None
    #: Positions of the machines that it can use; None: all.
    usable: Ints | None = None
    #: Rank of each machine for the app, by position; the best is 0. None: all are equal. A gang is never spread over
    #: machines of different rank.
    rank: Ints | None = None
    #: GPU count by position of the machine that the app has, or had until now: it prefers these machines.
    near: Mapping[int, int] = field(default_factory=dict)
    #: Whether a gang may span machines.
    spans: bool = True


@dataclass(frozen=True)
class Bid:
    """The bid of one app: the app as a taker, its rho if it wins nothing, and its bundles."""

    taker: Taker
    bundles: Bundles
    #: None: winning nothing is worth `NO_VALUE`.
    rho: float | None = None

    @property
    def app(self) -> str:
        """Name of the app."""
        return self.taker.app

    @property
    def gang(self) -> int:
        """GPU count of a gang."""
        return self.taker.gang

    @property
    def rho_of_nothing(self) -> float:
        """Rho if the app wins nothing."""
        return 1.0 / NO_VALUE if self.rho is None else self.rho


def check_bid(offer: Offer, bid: Bid) -> None:
    """Refuse an impossible bid, with a sentence that says why."""
    whose, bundles = f"The bid of app {bid.app!r}", bid.bundles
    if bid.gang < 1:
        raise BadBid(f"{whose} has a gang of {bid.gang} GPUs: it must be at least 1.")
    if not (np.isfinite(bid.rho_of_nothing) and bid.rho_of_nothing > 0):
        raise BadBid(f"{whose} has a rho of {bid.rho} for winning nothing: it must be a number above 0.")
    wrong = np.flatnonzero(~(np.isfinite(bundles.rho) & (bundles.rho > 0)))
    if len(wrong):
        raise BadBid(f"{whose} has a rho of {bundles.rho[wrong[0]]} in row {wrong[0]}: it must be a number above 0.")
    empty = np.flatnonzero(np.diff(bundles.start) == 0)
    if len(empty):
        raise BadBid(
            f"{whose} has no GPUs in row {empty[0]}: leave it out, and say as the bid's rho what nothing is worth."
        )
    _check_pieces(offer, bundles, whose)
    uneven = np.flatnonzero(bundles.total % bid.gang)
    if len(uneven):
        row, total = uneven[0], bundles.total[uneven[0]]
        raise BadBid(
            f"{whose} has {total} GPUs in row {row}, which are no whole gangs of {bid.gang}: leave the row out."
        )


def _check_pieces(offer: Offer, bundles: Bundles, whose: str) -> None:
    """Refuse pieces that are not on machines of the offer, or larger than these."""
    places = len(offer.machines) + offer.pools
    row = np.repeat(np.arange(len(bundles)), np.diff(bundles.start))
    invalid = np.flatnonzero(
        (bundles.place < 0) | (bundles.place >= places) | (bundles.gpus < 1) | (bundles.spread < 1)
    )
    if len(invalid):
        raise BadBid(
            f"{whose} has a piece in row {row[invalid[0]]} that is nowhere or empty: name machines of the offer."
        )
    largest, fits = _largest(offer)[bundles.place], _times_that_fit(offer, bundles)
    for piece in np.flatnonzero((bundles.gpus > largest) | (bundles.spread > fits))[:1].tolist():
        gpus, where = bundles.gpus[piece], place_name(offer, int(bundles.place[piece]))
        asked = f"{whose} asks in row {row[piece]} for {gpus} GPUs of {where}"
        if gpus > largest[piece]:
            raise BadBid(f"{asked}, where at most {largest[piece]} are free on one machine: bid for what is offered.")
        raise BadBid(f"{asked} {bundles.spread[piece]} times, and {fits[piece]} times that are free: bid for less.")
    named = bundles.place < len(offer.machines)
    if len(np.unique(row[named] * places + bundles.place[named])) < named.sum():
        raise BadBid(f"{whose} names a machine twice in one row: give each machine one count.")


def place_name(offer: Offer, place: int) -> str:
    """Name of a place, for people."""
    machines = len(offer.machines)
    return offer.machines[place] if place < machines else f"pool {place - machines}"


def _largest(offer: Offer) -> Ints:
    """Largest number of free GPUs on one machine, by place."""
    largest = np.zeros(offer.pools, np.int64)
    np.maximum.at(largest, offer.pool, offer.free)
    return np.append(offer.free, largest)


def _times_that_fit(offer: Offer, bundles: Bundles) -> Ints:
    """Number of machines, counted with multiplicity, on which each piece fits."""
    pool = bundles.place - len(offer.machines)
    fits = np.ones(len(pool), np.int64)
    for piece in np.flatnonzero(pool >= 0).tolist():
        fits[piece] = int((offer.free[offer.pool == pool[piece]] // bundles.gpus[piece]).sum())
    return fits
