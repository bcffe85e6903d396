"""Which parts of an offer are worth a bid. All subsets are far too many, and few of them matter.

The gangs of an app are taken in order, so that a bundle is a number of gangs and where they lie. Where:
on machines of one type, any of them, each gang on one machine; on the best types first, as far as they
go; and, if gangs are too large for that, spread over the machines of a rack, or of the cluster.
Every number of gangs up to 8 has a row, and about every sixth more from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from horae.core.arrays import Ints
from horae.core.cluster import Machines, Span
from horae.solve.auction.bids import Offer

if TYPE_CHECKING:
    from horae.policies.themis.bidding_agent import AppView

#: (place, GPUs on each machine, machines), as `Bundles` has them.
Piece = tuple[int, int, int]
#: A bundle, the speed that it has, and the number of its gangs.
Priced = tuple[list[Piece], float, int]

_EVERY, _STEP = 8, 1.15
#: Racks that are tried for gangs that no machine holds.
_RACKS = 4


@dataclass(frozen=True)
class Stock:
    """What is offered, by GPU type: a pool of the offer holds the machines of one type."""

    offer: Offer
    machines: Machines
    #: What was found out before: apps by the thousand ask the same.
    _held: dict[tuple[int, tuple[tuple[int, int], ...]], bool] = field(default_factory=dict)
    _gangs: dict[tuple[int, int], int] = field(default_factory=dict)

    @cached_property
    def of_type(self) -> dict[int, Ints]:
        """Positions of the machines of each type that have free GPUs."""
        free = np.flatnonzero(self.offer.free)
        return {int(t): free[self.machines.gpu_type[free] == t] for t in np.unique(self.machines.gpu_type[free])}

    def gangs(self, gpu_type: int, gpus: int) -> int:
        """How many gangs machines of a type hold, each on one machine."""
        if (gpu_type, gpus) not in self._gangs:
            self._gangs[gpu_type, gpus] = int((self.offer.free[self.of_type[gpu_type]] // gpus).sum())
        return self._gangs[gpu_type, gpus]

    def holds(self, gpu_type: int, sizes: Mapping[int, int]) -> bool:
        """Whether machines of a type hold so many gangs of each size, each on one machine: the largest first."""
        largest_first = tuple(sorted(sizes.items(), reverse=True))
        asked = gpu_type, largest_first
        if asked not in self._held:
            self._held[asked] = self._holds(gpu_type, largest_first)
        return self._held[asked]

    def _holds(self, gpu_type: int, largest_first: tuple[tuple[int, int], ...]) -> bool:
        free = self.offer.free[self.of_type[gpu_type]].copy()
        for gpus, count in largest_first:
            taken = np.diff(np.minimum(np.cumsum(free // gpus), count), prepend=0)
            if taken.sum() < count:
                return False
            free -= taken * gpus
        return True

    def anywhere(self, gpu_type: int, gpus: int, gangs: int) -> Piece:
        """So many gangs on machines of a type, whichever."""
        among = self.of_type[gpu_type]
        if len(among) == 1:
            return (int(among[0]), gpus * gangs, 1)
        return (self.offer.place_of_pool(int(self.offer.pool[among[0]])), gpus, gangs)

    def spread(self, gpu_type: int, gpus: int) -> Iterator[tuple[list[Piece], Span]]:
        """One gang over several machines: of each of the fullest racks that hold it, or of the cluster."""
        among = self.of_type[gpu_type]
        racks = self.machines.rack[among]
        free = np.bincount(racks, weights=self.offer.free[among]).astype(np.int64)
        enough = [rack for rack in np.argsort(-free, kind="stable")[:_RACKS].tolist() if free[rack] >= gpus]
        for rack in enough:
            yield self._largest_first(among[racks == rack], gpus), Span.RACK
        if not enough and int(self.offer.free[among].sum()) >= gpus:
            yield self._largest_first(among, gpus), Span.CLUSTER

    def _largest_first(self, among: Ints, gpus: int) -> list[Piece]:
        pieces = []
        for machine in among[np.argsort(-self.offer.free[among], kind="stable")].tolist():
            count = min(gpus, int(self.offer.free[machine]))
            pieces.append((machine, count, 1))
            gpus -= count
            if not gpus:
                break
        return pieces


def bundles_of(app: AppView, stock: Stock) -> Iterator[Priced]:
    """The bundles that an app should bid for."""
    types = [t for t in np.argsort(-app.type_speed, kind="stable").tolist() if t in stock.of_type]
    types = [t for t in types if app.type_speed[t] > 0]
    for gpu_type in types:
        yield from _on_one_type(app, stock, gpu_type)
        largest = int(app.wanting.max())
        if stock.gangs(gpu_type, largest) == 0:
            for pieces, span in stock.spread(gpu_type, largest):
                yield pieces, app.speed_of(gpu_type, largest, span), 1
    if len(types) > 1:
        yield from _over_types(app, stock, types)


def _on_one_type(app: AppView, stock: Stock, gpu_type: int) -> Iterator[Priced]:
    """The first so many gangs on one type."""
    for gangs in _numbers(len(app.wanting)):
        sizes = Counter(app.wanting[:gangs].tolist())
        if not stock.holds(gpu_type, sizes):
            break
        pieces = [stock.anywhere(gpu_type, gpus, count) for gpus, count in sizes.items()]
        speed = sum(count * app.speed_of(gpu_type, gpus, _alone(gpus)) for gpus, count in sizes.items())
        yield _joined(pieces, len(stock.offer.machines)), speed, gangs


def _over_types(app: AppView, stock: Stock, types: list[int]) -> Iterator[Priced]:
    """More gangs than the best type holds: the rest on the next."""
    wanted = set(_numbers(len(app.wanting)))
    room = {(t, gpus): stock.gangs(t, gpus) for t in types for gpus in set(app.wanting.tolist())}
    taken: Counter[tuple[int, int]] = Counter()
    speed = 0.0
    for number, gpus in enumerate(app.wanting.tolist(), start=1):
        gpu_type = next((t for t in types if taken[t, gpus] < room[t, gpus]), None)
        if gpu_type is None:
            return
        taken[gpu_type, gpus] += 1
        speed += app.speed_of(gpu_type, gpus, _alone(gpus))
        used = {t for t, _ in taken}
        fits = all(stock.holds(t, {size: n for (of, size), n in taken.items() if of == t}) for t in used)
        if number in wanted and len(used) > 1 and fits:
            pieces = [stock.anywhere(t, size, count) for (t, size), count in taken.items()]
            yield _joined(pieces, len(stock.offer.machines)), speed, number


def _alone(gpus: int) -> Span:
    """The span of a gang on one machine."""
    return Span.GPU if gpus == 1 else Span.NODE


def _joined(pieces: list[Piece], machines: int) -> list[Piece]:
    """Pieces on one and the same machine are one."""
    named: Counter[int] = Counter()
    for place, gpus, _ in pieces:
        named[place] += gpus if place < machines else 0
    loose = [piece for piece in pieces if piece[0] >= machines]
    return [(place, gpus, 1) for place, gpus in named.items() if gpus] + loose


def _numbers(most: int) -> list[int]:
    """Numbers of gangs that have a row."""
    numbers = list(range(1, min(most, _EVERY) + 1))
    while numbers and numbers[-1] < most:
        numbers.append(min(most, max(numbers[-1] + 1, int(numbers[-1] * _STEP))))
    return numbers
