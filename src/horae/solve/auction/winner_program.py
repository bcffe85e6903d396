"""The market: bids as one integer program. Columns are bundles, rows are the capacities for which bundles compete.

A machine that a bundle names has a row: its free GPUs. A pool of several machines has a row for each size of piece:
pieces of at least s GPUs take no more than the whole multiples of s that its machines have free. If sizes divide one
another, these rows are sufficient: put the largest pieces first, wherever they fit, and every smaller piece finds a
machine, since a piece takes the same from the rows of smaller sizes whichever machine it is on. A size that does not
divide the others counts as the next larger size that does.

Values are gains over winning nothing, as logarithms in whole multiples of 2**-36: sums are exact, and an app that
scales all its bids changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from horae.core.arrays import Bools, Ints
from horae.core.jit import compiled_when_called, inner_when_called
from horae.solve.auction.bids import Bid, Offer

#: Units of a gain of 1 in the logarithm.
UNIT = float(1 << 36)
#: Number of pieces by which bundles are sorted.
_ORDERED_BY = 8
#: Larger than every GPU count.
_MANY = 1 << 24


class Market(NamedTuple):
    """The program. App i has the columns first[i]:first[i + 1]; column c has the entries start[c]:start[c + 1]."""

    first: Ints
    #: Gain of each column over nothing, in units; all above 0.
    gain: Ints
    start: Ints
    #: Row of each entry, and the amount that it takes.
    row: Ints
    amount: Ints
    #: Capacity of each row.
    capacity: Ints
    #: The nearest earlier app with equal columns, or -1.
    twin: Ints
    #: The app of each column; and the columns that take from row r, column[of_row[r] : of_row[r + 1]].
    app: Ints
    of_row: Ints
    column: Ints


@dataclass(frozen=True)
class BuiltMarket:
    """A market, with the row of each column in its app's table, and its pieces."""

    market: Market
    bundle: Ints
    pieces: Pieces
    #: Number of each column's bundle in `pieces`.
    origin: Ints


@dataclass(frozen=True)
class Pieces:
    """All pieces of all bids, by bundle (numbered over all bids) and by place."""

    bundle: Ints
    place: Ints
    gpus: Ints
    spread: Ints
    #: Pool of the place.
    pool: Ints
    #: Whether the piece is on a named machine.
    named: Bools
    #: GPU count, on each machine, as which the piece counts: see `_counted`.
    counted: Ints


def build_market(offer: Offer, bids: Sequence[Bid]) -> BuiltMarket:
    """The market of these bids, which are sorted by app."""
    counts = np.array([len(bid.bundles) for bid in bids], np.int64)
    app, begin = np.repeat(np.arange(len(bids)), counts), np.cumsum(counts) - counts
    pieces = _gather(offer, bids, begin)
    entries = _Entries.of(offer, pieces, len(app))
    gain = _gains(bids, app)
    order = _order(offer, pieces, app)
    order = order[(gain[order] > 0) & entries.fits()[order]]
    market = entries.market(app, gain, order, len(bids))
    order = order[_undominated(market)]
    market = entries.market(app, gain, order, len(bids))
    return BuiltMarket(market._replace(twin=_twins(market)), order - begin[app[order]], pieces, order)


def _gains(bids: Sequence[Bid], app: Ints) -> Ints:
    """log(rho of nothing / rho of the bundle) of each bundle, in units."""
    nothing = np.array([bid.rho_of_nothing for bid in bids])
    rho = np.concatenate([np.empty(0), *(bid.bundles.rho for bid in bids)])
    # A difference of two logarithms: the quotient of a very large and a very small rho would overflow.
    gain: Ints = np.rint((np.log(nothing)[app] - np.log(rho)) * UNIT).astype(np.int64)
    return gain


def _gather(offer: Offer, bids: Sequence[Bid], begin: Ints) -> Pieces:
    """The pieces of all bids. A pool of one machine counts as that machine."""

    def joined(column: str) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *(getattr(bid.bundles, column) for bid in bids)])

    pieces = [
        np.repeat(np.arange(len(b.bundles)), np.diff(b.bundles.start)) + n for b, n in zip(bids, begin, strict=True)
    ]
    bundle, place = np.concatenate([np.empty(0, np.int64), *pieces]), joined("place")
    place = _single_machines(offer)[place]
    key = _first_machine(offer)[place]
    order = np.lexsort((key, bundle))
    bundle, place = bundle[order], place[order]
    pool = np.append(offer.pool, np.arange(offer.pools))[place]
    named, gpus, spread = place < len(offer.machines), joined("gpus")[order], joined("spread")[order]
    # Several pieces on one named machine are one piece.
    gpus, spread = np.where(named, gpus * spread, gpus), np.where(named, 1, spread)
    counted = gpus.copy()
    for loose in _by_pool(pool, ~named):
        counted[loose] = _counted(gpus[loose], spread[loose], int(offer.free[offer.pool == pool[loose[0]]].max()))
    return Pieces(bundle, place, gpus, spread, pool, named, counted)


def _by_pool(pool: Ints, chosen: Bools) -> list[Ints]:
    """Positions of the chosen pieces, one array for each pool."""
    position = np.flatnonzero(chosen)
    position = position[np.argsort(pool[position], kind="stable")]
    return np.split(position, np.flatnonzero(np.diff(pool[position])) + 1) if len(position) else []


def _first_machine(offer: Offer) -> Ints:
    """The first machine of each place."""
    _, first = np.unique(offer.pool, return_index=True)
    return np.append(np.arange(len(offer.machines)), first)


def _single_machines(offer: Offer) -> Ints:
    """For each place itself, or its machine if it is a pool of one machine."""
    first = _first_machine(offer)
    alone = np.bincount(offer.pool, minlength=offer.pools) == 1
    only = np.append(np.ones(len(offer.machines), np.bool_), alone)
    return np.where(only, first, np.arange(len(first)))


def _order(offer: Offer, pieces: Pieces, app: Ints) -> Ints:
    """Bundles in order of apps; then bundles with more GPUs on the machine that is first by name."""
    nth = np.arange(len(pieces.bundle)) - np.searchsorted(pieces.bundle, pieces.bundle)
    key = (_first_machine(offer)[pieces.place] + 1) * _MANY - pieces.gpus * pieces.spread
    keys = []
    for n in range(min(_ORDERED_BY, int(nth.max(initial=-1)) + 1)):
        is_nth = nth == n
        column = np.full(len(app), np.iinfo(np.int64).max)
        column[pieces.bundle[is_nth]] = key[is_nth]
        keys.append(column)
    return np.lexsort((*reversed(keys), app)).astype(np.int64)


@dataclass(frozen=True)
class _Entries:
    """The amounts that bundles take from rows, by bundle."""

    start: Ints
    row: Ints
    amount: Ints
    capacity: Ints

    @staticmethod
    def of(offer: Offer, pieces: Pieces, bundles: int) -> _Entries:
        """The entries of all bundles: the sum over the pieces of each."""
        taken, capacity = _machine_rows(offer, pieces)
        for loose in _by_pool(pieces.pool, ~pieces.named):
            for of_row, limit in _pool_rows(offer, pieces, loose, len(capacity)):
                taken.append(of_row)
                capacity.append(limit)
        bundle, row, amount = (np.concatenate([of_row[n] for of_row in taken]) for n in range(3))
        order = np.lexsort((row, bundle))
        bundle, row, amount = bundle[order], row[order], amount[order]
        new = np.flatnonzero(np.append(True, (np.diff(bundle) != 0) | (np.diff(row) != 0))[: len(row)])
        total = np.add.reduceat(amount, new) if len(new) else amount
        start = np.searchsorted(bundle[new], np.arange(bundles + 1)).astype(np.int64)
        return _Entries(start, row[new], total, np.array(capacity, np.int64))

    def fits(self) -> Bools:
        """Bundles that take from no row more than its capacity."""
        over = np.append(0, np.cumsum(self.amount > self.capacity[self.row]))
        return np.asarray(over[self.start[1:]] == over[self.start[:-1]])

    def market(self, app: Ints, gain: Ints, order: Ints, apps: int) -> Market:
        """The market of these bundles, in this order."""
        length = self.start[order + 1] - self.start[order]
        start = np.append(0, np.cumsum(length))
        entry = np.repeat(self.start[order] - start[:-1], length) + np.arange(start[-1])
        first = np.searchsorted(app[order], np.arange(apps + 1)).astype(np.int64)
        row, column = self.row[entry], np.repeat(np.arange(len(order)), length)
        by_row, twin = np.argsort(row, kind="stable"), np.full(apps, -1, np.int64)
        of_row = np.searchsorted(row[by_row], np.arange(len(self.capacity) + 1)).astype(np.int64)
        columns = (first, gain[order], start, row, self.amount[entry], self.capacity, twin)
        return Market(*columns, app[order], of_row, column[by_row])


_Taken = tuple[Ints, Ints, Ints]


def _machine_rows(offer: Offer, pieces: Pieces) -> tuple[list[_Taken], list[int]]:
    """The rows of named machines, one for each."""
    named = np.flatnonzero(pieces.named)
    machines, row = np.unique(pieces.place[named], return_inverse=True)
    return [(pieces.bundle[named], row.astype(np.int64), pieces.gpus[named])], offer.free[machines].tolist()


def _pool_rows(offer: Offer, pieces: Pieces, loose: Ints, row: int) -> Iterator[tuple[_Taken, int]]:
    """The rows of a pool of several machines, numbered from `row`: one for each size that others do not imply."""
    pool, counted = pieces.pool[loose[0]], pieces.counted[loose]
    free = offer.free[offer.pool == pool]
    named = np.flatnonzero(pieces.named & (pieces.pool == pool))
    for size in np.unique(counted).tolist():
        implied = not (free % size).any() and not (pieces.gpus[named] % size).any()
        if size > counted.min() and implied:
            continue
        large = counted >= size
        most = offer.free[pieces.place[named]] // size * size
        bundle = np.append(pieces.bundle[loose[large]], pieces.bundle[named])
        # Fewer GPUs than the size on a named machine may take a whole multiple of the size from the pool.
        rounded = np.minimum(-(-pieces.gpus[named] // size) * size, most)
        amount = np.append((counted * pieces.spread[loose])[large], rounded)
        yield (bundle, np.full(len(bundle), row), amount), int((free // size * size).sum())
        row += 1


def _counted(gpus: Ints, spread: Ints, largest: int) -> Ints:
    """GPU count as which each piece counts, so that all sizes divide one another: as little more as possible."""
    sizes = np.unique(gpus)
    doubled = 2 ** np.arange(int(sizes.max() - 1).bit_length() + 1)
    chains = [chain for chain in (_chain(sizes), doubled) if chain[-1] <= largest]
    counts = [chain[np.searchsorted(chain, gpus)] for chain in chains]
    return min(counts, key=lambda counted: int(((counted - gpus) * spread).sum())).astype(np.int64)


def _chain(sizes: Ints) -> Ints:
    """From the largest size down, each size that divides the size before; in rising order."""
    chain = [int(sizes[-1])]
    for size in sizes[::-1].tolist():
        if chain[-1] % size == 0 and size < chain[-1]:
            chain.append(size)
    return np.array(chain[::-1], np.int64)


def _twins(market: Market) -> Ints:
    """The nearest earlier app with equal columns, or -1: exchanging the two apps changes no gain."""
    first, start = market.first, market.start
    twin, last = np.full(len(first) - 1, -1, np.int64), dict[tuple[bytes, ...], int]()
    for app in range(len(first) - 1):
        begin, end = first[app], first[app + 1]
        entries = slice(start[begin], start[end])
        columns = (market.gain[begin:end], np.diff(start[begin : end + 1]), market.row[entries], market.amount[entries])
        key = tuple(column.tobytes() for column in columns)
        twin[app] = last.get(key, -1)
        last[key] = app
    return twin


@compiled_when_called
def _undominated(market: Market) -> Bools:
    """Columns that no other column of the app dominates (takes no more from any row, and gains no less)."""
    first, gain = market.first, market.gain
    kept = np.ones(len(gain), np.bool_)
    for app in range(len(first) - 1):
        for c in range(first[app], first[app + 1]):
            for d in range(first[app], first[app + 1]):
                if c == d or not kept[d] or gain[d] < gain[c] or not _takes_no_more(market, d, c):
                    continue
                # Of two equal columns the earlier stays.
                if d < c or gain[d] > gain[c] or not _takes_no_more(market, c, d):
                    kept[c] = False
                    break
    return kept


@inner_when_called
def _takes_no_more(market: Market, d: int, c: int) -> bool:
    """Whether column d takes from every row at most as much as column c; rows are sorted."""
    other, end = market.start[c], market.start[c + 1]
    for entry in range(market.start[d], market.start[d + 1]):
        while other < end and market.row[other] < market.row[entry]:
            other += 1
        if other == end or market.row[other] != market.row[entry] or market.amount[other] < market.amount[entry]:
            return False
    return True
