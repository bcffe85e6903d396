"""Leftovers: GPUs that no app won or kept go to apps that did not bid, by lot, gang by gang; then to bidders.

Apps that did not bid cannot have misreported, so no app gains by a misreport that leaves more GPUs over. Bidders come
in an order that is drawn from the seed and their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from horae.core.arrays import Ints
from horae.solve.auction.bids import Taker
from horae.solve.auction.machine_choice import choose
from horae.solve.auction.rounding import Seed, entropy_of

#: GPU count by app and machine.
Given = dict[str, dict[int, int]]


def give_leftovers(
    free: Ints, others: Sequence[Taker], bidders: Sequence[Taker], kept: Mapping[str, Mapping[int, int]], seed: Seed
) -> Given:
    """Give the free GPUs to apps. `kept`: GPU count by machine that bidders keep from the auction."""
    left = _FreeGpus(free.copy(), np.arange(len(free)), np.zeros(len(free), np.int64))
    chance = np.random.default_rng(np.random.SeedSequence(entropy_of(seed, "leftovers")))
    non_bidders = [_Applicant(taker, dict(taker.near)) for taker in sorted(others, key=lambda taker: taker.app)]
    for spans in (False, True):
        left.give_by_lot([applicant for applicant in non_bidders if applicant.taker.spans or not spans], spans, chance)
    # The order is not drawn if no GPU is left.
    order = sorted(bidders, key=lambda taker: _rank_by_lot(seed, taker.app)) if left.free.any() else []
    own = [_Applicant(taker, _sum(taker.near, kept.get(taker.app, {})), gangs=_gangs(taker, kept)) for taker in order]
    for spans in (False, True):
        left.give_in_order([applicant for applicant in own if applicant.taker.spans or not spans], spans)
    return {applicant.taker.app: applicant.given for applicant in (*non_bidders, *own) if applicant.given}


def _rank_by_lot(seed: Seed, app: str) -> tuple[int, str]:
    """Sort key of a bidder, drawn from the seed and the name only: independent of bids."""
    state = np.random.SeedSequence(entropy_of(seed, "line", app)).generate_state(1, np.uint64)
    return int(state[0]), app


def _gangs(taker: Taker, kept: Mapping[str, Mapping[int, int]]) -> int:
    """Number of gangs that a bidder keeps from the auction."""
    return sum(kept.get(taker.app, {}).values()) // taker.gang


def _sum(left: Mapping[int, int], right: Mapping[int, int]) -> dict[int, int]:
    return {m: left.get(m, 0) + right.get(m, 0) for m in (*left, *right)}


@dataclass
class _Applicant:
    """An app that may get leftovers: the machines that it prefers, and the GPUs it was given."""

    taker: Taker
    near: dict[int, int]
    given: dict[int, int] = field(default_factory=dict)
    gangs: int = 0

    @property
    def full(self) -> bool:
        return self.taker.most is not None and self.gangs >= self.taker.most


@dataclass
class _FreeGpus:
    """Free GPUs by machine."""

    free: Ints
    all_machines: Ints
    zeros: Ints

    def give_by_lot(self, applicants: list[_Applicant], spans: bool, chance: np.random.Generator) -> None:
        """Give one gang at a time to an app drawn by lot. An app that cannot take one leaves: free GPUs only shrink."""
        while applicants and self.free.any():
            n = int(chance.integers(len(applicants)))
            if applicants[n].full or not self._give(applicants[n], spans):
                applicants[n] = applicants[-1]
                applicants.pop()

    def give_in_order(self, applicants: list[_Applicant], spans: bool) -> None:
        """Give one gang to each app in order, until no app can take one."""
        while applicants:
            applicants = [applicant for applicant in applicants if not applicant.full and self._give(applicant, spans)]

    def _give(self, applicant: _Applicant, spans: bool) -> bool:
        """Give one gang, on one machine or (`spans`) over several; False if there is none."""
        taker = applicant.taker
        candidates = self.all_machines if taker.usable is None else taker.usable
        rank = self.zeros if taker.rank is None else taker.rank
        if spans:
            gpus = self._spread(candidates, taker.gang, rank, applicant.near)
        else:
            machine = choose(self.free, candidates, taker.gang, rank, self._nearness(applicant.near), self.zeros)
            gpus = {machine: taker.gang} if machine >= 0 else {}
        for machine, count in gpus.items():
            self.free[machine] -= count
            applicant.given[machine] = applicant.given.get(machine, 0) + count
            applicant.near[machine] = applicant.near.get(machine, 0) + count
        applicant.gangs += bool(gpus)
        return bool(gpus)

    def _nearness(self, near: Mapping[int, int]) -> Ints:
        if not near:
            return self.zeros
        column = np.zeros(len(self.free), np.int64)
        column[list(near)] = list(near.values())
        return column

    def _spread(self, candidates: Ints, gang: int, rank: Ints, near: Mapping[int, int]) -> dict[int, int]:
        """A gang over several machines of one rank: the best rank that has enough GPUs."""
        for level in np.unique(rank[candidates]).tolist():
            alike = candidates[rank[candidates] == level]
            if int(self.free[alike].sum()) >= gang:
                return self._emptiest_first(alike, gang, self._nearness(near))
        return {}

    def _emptiest_first(self, candidates: Ints, gang: int, nearness: Ints) -> dict[int, int]:
        """The GPUs of a gang: on machines that the app has GPUs on, then on machines with most free GPUs."""
        gpus: dict[int, int] = {}
        for machine in candidates[np.lexsort((candidates, -self.free[candidates], -nearness[candidates]))].tolist():
            count = min(gang, int(self.free[machine]))
            if count:
                gpus[machine] = count
                gang -= count
            if not gang:
                break
        return gpus
