"""Made-up auctions of any size: apps as in Themis' workload, and bids by the definition of rho."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from horae.solve.auction.bids import Bid, Bundles, Offer, Taker

#: GPUs of a machine, machines of a rack.
_MACHINE, _RACK = 4, 16
#: Gangs of an app's jobs, and how often.
_GANGS, _OFTEN = (4, 2, 1), (0.6, 0.25, 0.15)
#: Slow-down of gangs on one machine, across machines of a rack, and across racks.
_COMPUTE_BOUND, _NETWORK_BOUND = (1.0, 1.02, 1.05), (1.1, 1.5, 2.0)
_SENSITIVE = 0.4
#: Gangs that bundles have; racks that an app bids in.
_SIZES = (1, 2, 3, 4, 6, 8, 12)
_RACKS = 5
_LEASE_S = 1200.0

_Piece = tuple[int, int, int]


@dataclass(frozen=True)
class App:
    """What its agent knows."""

    name: str
    gang: int
    #: Gangs that can run at once.
    jobs: int
    elapsed_s: float
    #: GPU-seconds left, and the time alone on its share.
    work_s: float
    alone_s: float
    slow: tuple[float, float, float]

    def rho(self, gangs: int, span: int) -> float:
        """Slow-down with so many gangs, each as far apart as said."""
        gpus = min(gangs, self.jobs) * self.gang
        return (self.elapsed_s + self.work_s * self.slow[span] / gpus) / self.alone_s

    @property
    def rho_of_nothing(self) -> float:
        """Slow-down if the next lease passes without GPUs, and then one gang is had."""
        return (self.elapsed_s + _LEASE_S + self.work_s * self.slow[0] / self.gang) / self.alone_s


def draw_auction(apps: int, gpus: int, seed: int, named: bool) -> tuple[Offer, list[Bid]]:
    """An offer of `gpus`, some of each rack in use, and a bid of each app; machines are named, or any of a rack."""
    rng = np.random.default_rng(seed)
    machines = gpus // _MACHINE
    names = [f"r{m // _RACK:04}m{m % _RACK:02}" for m in range(machines)]
    offer = Offer.of(dict.fromkeys(names, _MACHINE), {name: name[:5] for name in names})
    return offer, [_bid(offer, _app(rng, n, gpus / apps), rng, named) for n in range(apps)]


def _app(rng: np.random.Generator, number: int, share: float) -> App:
    """Jobs of an app: 1 to 98, half of them below 23; it may have come just now or waited long."""
    gang = int(rng.choice(_GANGS, p=_OFTEN))
    jobs = int(np.clip(rng.lognormal(np.log(23), 1.0), 1, 98))
    work_s = jobs * gang * 60 * float(rng.choice([59.0, 123.0])) * float(rng.lognormal(0.0, 0.5))
    left = float(rng.uniform(0.05, 1.0))
    alone_s = work_s / min(max(share, gang), jobs * gang)
    slow = _NETWORK_BOUND if rng.random() < _SENSITIVE else _COMPUTE_BOUND
    elapsed_s = (1 - left) * alone_s * float(rng.uniform(0.7, 1.6))
    return App(f"app{number:04}", gang, jobs, elapsed_s, work_s * left, alone_s, slow)


def _bid(offer: Offer, app: App, rng: np.random.Generator, named: bool) -> Bid:
    racks = rng.permutation(offer.pools)[:_RACKS].tolist()
    rows = list(_named_rows(offer, app, racks, rng) if named else _pooled_rows(offer, app, racks))
    taker = Taker(app.name, app.gang, most=app.jobs)
    return Bid(taker, Bundles.of((pieces, rho) for pieces, rho in rows if pieces), app.rho_of_nothing)


def _sizes(app: App, most: int) -> list[int]:
    return [size for size in _SIZES if size <= min(app.jobs, most)]


def _pooled_rows(offer: Offer, app: App, racks: list[int]) -> Iterator[tuple[list[_Piece], float]]:
    """Whole gangs on any machines of one rack; over two racks; and gangs of four in halves."""
    places = [offer.place_of_pool(rack) for rack in racks]
    for place in places:
        for gangs in _sizes(app, _RACK * _MACHINE // app.gang):
            yield [(place, app.gang, gangs)], app.rho(gangs, 0)
        if app.gang == _MACHINE:
            yield [(place, app.gang // 2, 2)], app.rho(1, 1)
    for one, other in pairwise(places):
        for gangs in _sizes(app, _RACK)[1:3]:
            yield [(one, app.gang, gangs - gangs // 2), (other, app.gang, gangs // 2)], app.rho(gangs, 0)


def _named_rows(
    offer: Offer, app: App, racks: list[int], rng: np.random.Generator
) -> Iterator[tuple[list[_Piece], float]]:
    """Gangs side by side on machines from some machine of a rack on; and gangs of four over two machines."""
    for rack in racks:
        machines = np.flatnonzero(offer.pool == rack)
        begin = int(rng.integers(len(machines)))
        machines = np.roll(machines, -begin)
        for gangs in _sizes(app, len(machines) * _MACHINE // app.gang):
            yield _in_line(machines, gangs * app.gang), app.rho(gangs, 0)
        if app.gang == _MACHINE and len(machines) > 1:
            yield [(int(m), app.gang // 2, 1) for m in machines[:2]], app.rho(1, 1)


def _in_line(machines: np.ndarray[tuple[int, ...], np.dtype[np.int64]], gpus: int) -> list[_Piece]:
    counts = [min(_MACHINE, gpus - _MACHINE * n) for n in range(-(-gpus // _MACHINE))]
    return [(int(machine), count, 1) for machine, count in zip(machines, counts, strict=False)]
