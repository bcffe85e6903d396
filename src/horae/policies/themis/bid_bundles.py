"""The bundles of an offer for which an app bids. An offer has far too many subsets, and few of them matter.

The gangs of an app are taken in order, so a bundle is a number of gangs and their placement. Placements are:
- each gang on one machine, all on any machines of one GPU type;
- each gang on one machine, on the fastest types first, as far as these go;
- for a gang that no machine holds: spread over the machines of a rack, or else of the cluster.
Every number of gangs up to 8 has a row; beyond that, about every sixth number.
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
#: (pieces of a bundle, speed of the app on it, number of its gangs).
ValuedBundle = tuple[list[Piece], float, int]

#: Up to this number of gangs each has a row; from there numbers grow by this factor.
_EVERY, _STEP = 8, 1.15
#: Number of racks that are tried for a gang that no machine holds.
_RACKS = 4


@dataclass(frozen=True)
class Stock:
    """The offer by GPU type: a pool of the offer is the machines of one type."""

    offer: Offer
    machines: Machines
    #: Caches of `holds` and `gangs`: thousands of apps ask the same.
    _held: dict[tuple[int, tuple[tuple[int, int], ...]], bool] = field(default_factory=dict)
    _gangs: dict[tuple[int, int], int] = field(default_factory=dict)

    @cached_property
    def of_type(self) -> dict[int, Ints]:
        """Positions of the machines with free GPUs, by GPU type."""
        free = np.flatnonzero(self.offer.free)
        return {int(t): free[self.machines.gpu_type[free] == t] for t in np.unique(self.machines.gpu_type[free])}

    def gangs(self, gpu_type: int, gpus: int) -> int:
        """Number of gangs of this size that machines of a type hold, each on one machine."""
        if (gpu_type, gpus) not in self._gangs:
            self._gangs[gpu_type, gpus] = int((self.offer.free[self.of_type[gpu_type]] // gpus).sum())
        return self._gangs[gpu_type, gpus]

    def holds(self, gpu_type: int, sizes: Mapping[int, int]) -> bool:
        """Whether machines of a type hold these gangs (number by size), each on one machine, packed largest first."""
        largest_first = tuple(sorted(sizes.items(), reverse=True))
        key = gpu_type, largest_first
        if key not in self._held:
            self._held[key] = self._holds(gpu_type, largest_first)
        return self._held[key]

    def _holds(self, gpu_type: int, largest_first: tuple[tuple[int, int], ...]) -> bool:
        free = self.offer.free[self.of_type[gpu_type]].copy()
        for gpus, count in largest_first:
            taken = np.diff(np.minimum(np.cumsum(free // gpus), count), prepend=0)
            if taken.sum() < count:
                return False
            free -= taken * gpus
        return True

    def anywhere(self, gpu_type: int, gpus: int, gangs: int) -> Piece:
        """The piece of `gangs` gangs on any machines of a type."""
        machines = self.of_type[gpu_type]
        if len(machines) == 1:
            return (int(machines[0]), gpus * gangs, 1)
        return (self.offer.place_of_pool(int(self.offer.pool[machines[0]])), gpus, gangs)

    def spread(self, gpu_type: int, gpus: int) -> Iterator[tuple[list[Piece], Span]]:
        """One gang over several machines: of each of the emptiest racks that hold it, or else of the cluster."""
        machines = self.of_type[gpu_type]
        racks = self.machines.rack[machines]
        free = np.bincount(racks, weights=self.offer.free[machines]).astype(np.int64)
        large_enough = [rack for rack in np.argsort(-free, kind="stable")[:_RACKS].tolist() if free[rack] >= gpus]
        for rack in large_enough:
            yield self._emptiest_first(machines[racks == rack], gpus), Span.RACK
        if not large_enough and int(self.offer.free[machines].sum()) >= gpus:
            yield self._emptiest_first(machines, gpus), Span.CLUSTER

    def _emptiest_first(self, machines: Ints, gpus: int) -> list[Piece]:
        """Pieces that hold a gang, from the machines with most free GPUs."""
        pieces = []
        for machine in machines[np.argsort(-self.offer.free[machines], kind="stable")].tolist():
            count = min(gpus, int(self.offer.free[machine]))
            pieces.append((machine, count, 1))
            gpus -= count
            if not gpus:
                break
        return pieces


def bundles_of(app: AppView, stock: Stock) -> Iterator[ValuedBundle]:
    """The bundles for which an app bids."""
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


def _on_one_type(app: AppView, stock: Stock, gpu_type: int) -> Iterator[ValuedBundle]:
    """Bundles of the app's first gangs on one type, for each number of gangs that has a row."""
    for gangs in _gang_numbers(len(app.wanting)):
        sizes = Counter(app.wanting[:gangs].tolist())
        if not stock.holds(gpu_type, sizes):
            break
        pieces = [stock.anywhere(gpu_type, gpus, count) for gpus, count in sizes.items()]
        speed = sum(count * app.speed_of(gpu_type, gpus, _span_on_one_machine(gpus)) for gpus, count in sizes.items())
        yield _joined(pieces, len(stock.offer.machines)), speed, gangs


def _over_types(app: AppView, stock: Stock, types: list[int]) -> Iterator[ValuedBundle]:
    """Bundles over several types: gangs beyond those that the fastest type holds go to the next type."""
    numbers = set(_gang_numbers(len(app.wanting)))
    room = {(t, gpus): stock.gangs(t, gpus) for t in types for gpus in set(app.wanting.tolist())}
    taken: Counter[tuple[int, int]] = Counter()
    speed = 0.0
    for number, gpus in enumerate(app.wanting.tolist(), start=1):
        gpu_type = next((t for t in types if taken[t, gpus] < room[t, gpus]), None)
        if gpu_type is None:
            return
        taken[gpu_type, gpus] += 1
        speed += app.speed_of(gpu_type, gpus, _span_on_one_machine(gpus))
        used = {t for t, _ in taken}
        fits = all(stock.holds(t, {size: n for (used_type, size), n in taken.items() if used_type == t}) for t in used)
        if number in numbers and len(used) > 1 and fits:
            pieces = [stock.anywhere(t, size, count) for (t, size), count in taken.items()]
            yield _joined(pieces, len(stock.offer.machines)), speed, number


def _span_on_one_machine(gpus: int) -> Span:
    """The span of a gang on one machine."""
    return Span.GPU if gpus == 1 else Span.NODE


def _joined(pieces: list[Piece], machines: int) -> list[Piece]:
    """The same pieces, with pieces on one machine added up; places from `machines` on are pools, and stay apart."""
    by_machine: Counter[int] = Counter()
    for place, gpus, _ in pieces:
        by_machine[place] += gpus if place < machines else 0
    in_pools = [piece for piece in pieces if piece[0] >= machines]
    return [(place, gpus, 1) for place, gpus in by_machine.items() if gpus] + in_pools


def _gang_numbers(most: int) -> list[int]:
    """Numbers of gangs, up to `most`, that have a row in a bid."""
    numbers = list(range(1, min(most, _EVERY) + 1))
    while numbers and numbers[-1] < most:
        numbers.append(min(most, max(numbers[-1] + 1, int(numbers[-1] * _STEP))))
    return numbers
