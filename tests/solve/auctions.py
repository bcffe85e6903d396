"""Small auctions for tests, and what a plain search over all allocations makes of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from horae.solve.auction.bids import Bid, Bundles, Offer, Taker

Table = list[tuple[dict[str, int], float]]


def bid(offer: Offer, app: str, table: Table, rho: float | None = None, gang: int = 1) -> Bid:
    """A bid for named machines."""
    return Bid(Taker(app, gang), Bundles.named(offer, table), rho)


def every_bundle(offer: Offer, value: Callable[[dict[str, int]], float], gang: int = 1) -> Table:
    """All bundles of whole gangs, with rho = 1 / value."""
    counts = itertools.product(*(range(int(free) + 1) for free in offer.free))
    named = ({m: n for m, n in zip(offer.machines, count, strict=True) if n} for count in counts)
    return [(gpus, 1.0 / value(gpus)) for gpus in named if gpus and sum(gpus.values()) % gang == 0]


@dataclass(frozen=True)
class PlainBid:
    """A bid as a test says it: nothing comes first."""

    app: str
    gang: int
    rho: float
    table: Table

    def options(self) -> Table:
        return [({}, self.rho), *self.table]


def made(offer: Offer, bids: Sequence[PlainBid]) -> list[Bid]:
    return [bid(offer, plain.app, plain.table, plain.rho, plain.gang) for plain in bids]


def allocations(machines: dict[str, int], bids: Sequence[PlainBid]) -> Iterator[list[tuple[dict[str, int], float]]]:
    """Every way to give each app one of its options."""
    for chosen in itertools.product(*(plain.options() for plain in bids)):
        used = {name: sum(gpus.get(name, 0) for gpus, _ in chosen) for name in machines}
        if all(used[name] <= machines[name] for name in machines):
            yield list(chosen)


def log_value(chosen: Sequence[tuple[dict[str, int], float]]) -> float:
    return sum(-math.log(rho) for _, rho in chosen)


def best_by_search(machines: dict[str, int], bids: Sequence[PlainBid]) -> float:
    """The largest sum of log V."""
    return max(log_value(chosen) for chosen in allocations(machines, bids))


@st.composite
def small_auctions(draw: st.DrawFn, most_apps: int = 4, most_gpus: int = 8) -> tuple[dict[str, int], list[PlainBid]]:
    """Few apps, few GPUs, any tables."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda s: sum(s) <= most_gpus))
    machines = {f"m{n}": size for n, size in enumerate(sizes)}
    bids = []
    for n in range(draw(st.integers(1, most_apps))):
        gang = draw(st.sampled_from([1, 1, 2]))
        table: dict[tuple[int, ...], float] = {}
        for _ in range(draw(st.integers(0, 6))):
            counts = tuple(draw(st.integers(0, size)) for size in sizes)
            if sum(counts) and sum(counts) % gang == 0:
                # Few values, so that there are ties.
                table[counts] = draw(st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 12.0]))
        rows = [({f"m{k}": c for k, c in enumerate(counts) if c}, rho) for counts, rho in table.items()]
        bids.append(PlainBid(f"a{n}", gang, draw(st.sampled_from([1.0, 2.0, 4.0, 8.0])), rows))
    return machines, bids
