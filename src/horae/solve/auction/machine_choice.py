"""From pieces to machines: bundles that took 'any machine of a pool' get certain ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from horae.core.arrays import Ints
from horae.core.jit import compiled_when_called
from horae.solve.auction.bids import Bid, Offer
from horae.solve.auction.winner_program import Books


def place_bundles(offer: Offer, bids: Sequence[Bid], books: Books, choice: Ints) -> list[dict[int, int]]:
    """GPUs by machine of what each app won.

    Named machines first, then the largest pieces: so all find a place (`market.py` says why). An
    app gets machines that it holds already where it can, and others do not take them without need.
    """
    placed: list[dict[int, int]] = [{} for _ in bids]
    room, held = offer.free.copy(), _held(bids, len(offer.free))
    # A bundle is worth the same on every machine of a pool.
    indifferent = np.zeros_like(room)
    pieces, loose = books.pieces, list[tuple[int, int, int]]()
    for app in np.flatnonzero(choice >= 0).tolist():
        of, to = np.searchsorted(pieces.bundle, books.origin[choice[app]] + np.arange(2))
        for piece in range(of, to):
            if pieces.named[piece]:
                _put(placed[app], room, int(pieces.place[piece]), int(pieces.gpus[piece]), int(pieces.gpus[piece]))
            else:
                loose.append((-int(pieces.counted[piece]), app, piece))
    for size, app, piece in sorted(loose):
        among = np.flatnonzero(offer.pool == pieces.pool[piece])
        near = _near(bids[app].taker.near, len(room))
        for _ in range(int(pieces.spread[piece])):
            machine = choose(room, among, -size, indifferent, near, held)
            assert machine >= 0, f"no machine is left for {-size} GPUs of {bids[app].app}"
            _put(placed[app], room, machine, int(pieces.gpus[piece]), -size)
    return placed


def _put(placed: dict[int, int], room: Ints, machine: int, gpus: int, counted: int) -> None:
    placed[machine] = placed.get(machine, 0) + gpus
    room[machine] -= counted


def _held(bids: Sequence[Bid], machines: int) -> Ints:
    """How many GPUs of each machine are near to some app."""
    held = np.zeros(machines, np.int64)
    for bid in bids:
        for machine, gpus in bid.taker.near.items():
            held[machine] += gpus
    return held


def _near(near: Mapping[int, int], machines: int) -> Ints:
    column = np.zeros(machines, np.int64)
    for machine, gpus in near.items():
        column[machine] = gpus
    return column


@compiled_when_called
def choose(room: Ints, among: Ints, size: int, rank: Ints, near: Ints, held: Ints) -> int:
    """The machine for so many GPUs: the best, where the app is already, away from others, where least is left over.

    -1 if they fit on none; of equal ones the lowest.
    """
    best, best_key = -1, (0, 0, 0, 0)
    for machine in among:
        if room[machine] >= size:
            key = (-near[machine], rank[machine], held[machine] - near[machine], room[machine] - size)
            if best < 0 or key < best_key:
                best, best_key = machine, key
    return best
