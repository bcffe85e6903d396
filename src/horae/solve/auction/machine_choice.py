"""Machine choice: pieces on any machines of a pool get named machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from horae.core.arrays import Ints
from horae.core.jit import compiled_when_called
from horae.solve.auction.bids import Bid, Offer
from horae.solve.auction.winner_program import BuiltMarket


def place_bundles(offer: Offer, bids: Sequence[Bid], built: BuiltMarket, choice: Ints) -> list[dict[int, int]]:
    """GPU count by machine of the bundle that each app won.

    Named machines first, then the largest pieces: so every piece fits (`winner_program.py` says why). An app gets
    machines that it has GPUs on where possible, and other apps avoid these.
    """
    placed: list[dict[int, int]] = [{} for _ in bids]
    room, held = offer.free.copy(), _near_any_app(bids, len(offer.free))
    # All machines of a pool have the same rank.
    indifferent = np.zeros_like(room)
    pieces, loose = built.pieces, list[tuple[int, int, int]]()
    for app in np.flatnonzero(choice >= 0).tolist():
        begin, end = np.searchsorted(pieces.bundle, built.origin[choice[app]] + np.arange(2))
        for piece in range(begin, end):
            if pieces.named[piece]:
                _put(placed[app], room, int(pieces.place[piece]), int(pieces.gpus[piece]), int(pieces.gpus[piece]))
            else:
                loose.append((-int(pieces.counted[piece]), app, piece))
    for size, app, piece in sorted(loose):
        candidates = np.flatnonzero(offer.pool == pieces.pool[piece])
        near = _near(bids[app].taker.near, len(room))
        for _ in range(int(pieces.spread[piece])):
            machine = choose(room, candidates, -size, indifferent, near, held)
            assert machine >= 0, f"no machine is left for {-size} GPUs of {bids[app].app}"
            _put(placed[app], room, machine, int(pieces.gpus[piece]), -size)
    return placed


def _put(placed: dict[int, int], room: Ints, machine: int, gpus: int, counted: int) -> None:
    placed[machine] = placed.get(machine, 0) + gpus
    room[machine] -= counted


def _near_any_app(bids: Sequence[Bid], machines: int) -> Ints:
    """GPUs of each machine that bidders have, or had until now."""
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
def choose(room: Ints, candidates: Ints, size: int, rank: Ints, near: Ints, held: Ints) -> int:
    """The machine for `size` GPUs; -1 if they fit on none.

    By this order: most GPUs of the app there already, best rank, fewest GPUs of other apps, least room left over,
    first by position.
    """
    best, best_key = -1, (0, 0, 0, 0)
    for machine in candidates:
        if room[machine] >= size:
            key = (-near[machine], rank[machine], held[machine] - near[machine], room[machine] - size)
            if best < 0 or key < best_key:
                best, best_key = machine, key
    return best
