"""What nobody won or kept: to apps that did not bid, by lot, one gang at a time; then to bidders in a drawn order.

Who did not bid cannot have lied, so that nobody gains by a lie that leaves more over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from horae.core.arrays import Ints
from horae.solve.auction.bids import Taker
from horae.solve.auction.machine_choice import choose
from horae.solve.auction.rounding import Seed, words_of

Given = dict[str, dict[int, int]]


def give_leftovers(
    free: Ints, others: Sequence[Taker], bidders: Sequence[Taker], kept: Mapping[str, Mapping[int, int]], seed: Seed
) -> Given:
    """GPUs by app and machine. `kept` is what bidders have from the auction, and so where they are."""
    left = _Left(free.copy(), np.arange(len(free)), np.zeros(len(free), np.int64))
    chance = np.random.default_rng(np.random.SeedSequence(words_of(seed, "leftovers")))
    strangers = [_Turn(taker, dict(taker.near)) for taker in sorted(others, key=lambda taker: taker.app)]
    for spans in (False, True):
        left.give_by_lot([turn for turn in strangers if turn.taker.spans or not spans], spans, chance)
    # Where nothing is left nobody stands in line.
    order = sorted(bidders, key=lambda taker: _place_in_line(seed, taker.app)) if left.free.any() else []
    own = [_Turn(taker, _together(taker.near, kept.get(taker.app, {})), gangs=_gangs(taker, kept)) for taker in order]
    for spans in (False, True):
        left.give_in_turn([turn for turn in own if turn.taker.spans or not spans], spans)
    return {turn.taker.app: turn.given for turn in (*strangers, *own) if turn.given}


def _place_in_line(seed: Seed, app: str) -> tuple[int, str]:
    """Drawn from the seed and the name alone, and so before any bid is opened."""
    state = np.random.SeedSequence(words_of(seed, "line", app)).generate_state(1, np.uint64)
    return int(state[0]), app


def _gangs(taker: Taker, kept: Mapping[str, Mapping[int, int]]) -> int:
    """Gangs that a bidder has from the auction."""
    return sum(kept.get(taker.app, {}).values()) // taker.gang


def _together(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {m: one.get(m, 0) + other.get(m, 0) for m in (*one, *other)}


@dataclass
class _Turn:
    """An app in the line, where it is near, and what it was given."""

    taker: Taker
    near: dict[int, int]
    given: dict[int, int] = field(default_factory=dict)
    gangs: int = 0

    @property
    def full(self) -> bool:
        return self.taker.most is not None and self.gangs >= self.taker.most


@dataclass
class _Left:
    """Free GPUs by machine."""

    free: Ints
    everywhere: Ints
    nobody: Ints

    def give_by_lot(self, turns: list[_Turn], spans: bool, chance: np.random.Generator) -> None:
        """One gang at a time to somebody drawn; who cannot take one now never can, since there is ever less."""
        while turns and self.free.any():
            n = int(chance.integers(len(turns)))
            if turns[n].full or not self._give(turns[n], spans):
                turns[n] = turns[-1]
                turns.pop()

    def give_in_turn(self, turns: list[_Turn], spans: bool) -> None:
        """One gang to each in order, until nobody can take one."""
        while turns:
            turns = [turn for turn in turns if not turn.full and self._give(turn, spans)]

    def _give(self, turn: _Turn, spans: bool) -> bool:
        """One gang, on one machine or over several; whether there was one."""
        taker = turn.taker
        among = self.everywhere if taker.usable is None else taker.usable
        rank = self.nobody if taker.rank is None else taker.rank
        if spans:
            gpus = self._spread(among, taker.gang, rank, turn.near)
        else:
            machine = choose(self.free, among, taker.gang, rank, self._nearness(turn.near), self.nobody)
            gpus = {machine: taker.gang} if machine >= 0 else {}
        for machine, count in gpus.items():
            self.free[machine] -= count
            turn.given[machine] = turn.given.get(machine, 0) + count
            turn.near[machine] = turn.near.get(machine, 0) + count
        turn.gangs += bool(gpus)
        return bool(gpus)

    def _nearness(self, near: Mapping[int, int]) -> Ints:
        if not near:
            return self.nobody
        column = np.zeros(len(self.free), np.int64)
        column[list(near)] = list(near.values())
        return column

    def _spread(self, among: Ints, gang: int, rank: Ints, near: Mapping[int, int]) -> dict[int, int]:
        """A gang over several machines of one rank, the best that has enough."""
        for level in np.unique(rank[among]).tolist():
            alike = among[rank[among] == level]
            if int(self.free[alike].sum()) >= gang:
                return self._fullest(alike, gang, self._nearness(near))
        return {}

    def _fullest(self, among: Ints, gang: int, nearness: Ints) -> dict[int, int]:
        """So many GPUs: where the app is already, then where most is free."""
        gpus: dict[int, int] = {}
        for machine in among[np.lexsort((among, -self.free[among], -nearness[among]))].tolist():
            count = min(gang, int(self.free[machine]))
            if count:
                gpus[machine] = count
                gang -= count
            if not gang:
                break
        return gpus
