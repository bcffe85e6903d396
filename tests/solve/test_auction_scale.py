"""The auction beyond plain searches: pools of machines, bounds where nothing is proved, payments that stay sane.

Tests solve/auction/branch_and_bound.py, solve/auction/local_search.py, solve/auction/moves.py,
solve/auction/prices.py, solve/auction/winner_program.py and solve/auction/winners.py.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_matrix

from horae.solve.auction.auction import hold_auction
from horae.solve.auction.bids import BadBid, Bid, Bundles, Offer, Taker, check_bid
from horae.solve.auction.outcome import AuctionOutcome
from horae.solve.auction.winner_program import UNIT, Market, build_market
from horae.solve.auction.winners import Effort, find_winners, find_winners_without

#: So little that hardly anything is proved.
QUICK = Effort(steps=20, rounds=2, moves=3, kicks=2, polish=2, work=0)


def best_by_milp(market: Market) -> float:
    """The largest gain, as another solver finds it."""
    apps, columns = len(market.first) - 1, len(market.gain)
    rows = csc_matrix((market.amount, market.row, market.start), shape=(len(market.capacity), columns))
    once = csc_matrix((np.ones(columns), (market.app, np.arange(columns))), shape=(apps, columns))
    limits = [LinearConstraint(rows, -np.inf, market.capacity), LinearConstraint(once, -np.inf, 1)]
    options = {"mip_rel_gap": 1e-9}
    solved = milp(-market.gain / UNIT, constraints=limits, bounds=Bounds(0, 1), integrality=1, options=options)
    return float(-solved.fun)


def draw_bids(offer: Offer, apps: int, seed: int, pooled: bool) -> list[Bid]:
    """Bids for a few gangs in some racks, with any slow-downs that get better with more gangs."""
    rng = np.random.default_rng(seed)
    bids = []
    for n in range(apps):
        gang, rows = int(rng.choice([1, 2, 4])), []
        left = float(rng.uniform(1, 30))
        for pool in rng.permutation(offer.pools)[:3].tolist():
            machines = np.flatnonzero(offer.pool == pool)
            for gangs in range(1, 5):
                rho = (1 + left / gangs) * float(rng.uniform(1.0, 1.3))
                if pooled and gangs <= (offer.free[machines] // gang).sum() and gangs <= len(machines):
                    rows.append(([(offer.place_of_pool(pool), gang, gangs)], rho))
                elif not pooled and gangs <= len(machines):
                    chosen = rng.permutation(machines)[:gangs]
                    rows.append(([(int(m), gang, 1) for m in chosen if offer.free[m] >= gang], rho))
        rows = [(pieces, rho) for pieces, rho in rows if pieces]
        bids.append(Bid(Taker(f"a{n:03}", gang), Bundles.of(rows), 1 + 2 * left))
    return bids


def racks(count: int, machines: int, free: int = 4) -> Offer:
    names = [f"r{r}m{m}" for r in range(count) for m in range(machines)]
    return Offer.of(dict.fromkeys(names, free), {name: name.split("m")[0] for name in names})


def check_capacity(outcome: AuctionOutcome) -> None:
    for counts in (
        [award.proportional for award in outcome.awards.values()],
        list(outcome.holdings().values()),
    ):
        used = np.zeros(len(outcome.offer.free), np.int64)
        for machine, gpus in itertools.chain.from_iterable(count.items() for count in counts):
            used[machine] += gpus
        assert (used <= outcome.offer.free).all()


# ------------------------------------------------------------ bounds


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_the_gap_is_a_true_bound_and_exact_means_exact(seed: int, pooled: bool) -> None:
    offer = racks(3, 4)
    market = build_market(offer, draw_bids(offer, 10, seed, pooled)).market
    best = best_by_milp(market)
    for effort in (QUICK, Effort(), Effort().times(50)):
        found = find_winners(market, effort)
        assert found.gain / UNIT <= best + 1e-6
        assert found.bound / UNIT >= best - 1e-6
        assert found.gain / UNIT + found.log_gap >= best - 1e-6
    assert found.exact
    assert found.gain / UNIT == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("pooled", [True, False])
def test_with_one_app_less_the_bound_and_the_gain_hold_too(pooled: bool) -> None:
    offer = racks(3, 4)
    bids = draw_bids(offer, 7, 7, pooled)
    market = build_market(offer, bids).market
    winners = find_winners(market, Effort().times(50))
    for app in np.flatnonzero(winners.choice >= 0).tolist():
        without = find_winners_without(market, app, winners, Effort().times(50))
        best = best_by_milp(build_market(offer, [*bids[:app], *bids[app + 1 :]]).market)
        assert without.choice[app] == -1
        assert without.gain / UNIT == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_payments_that_are_not_proved_are_near_those_of_the_same_winners(seed: int, pooled: bool) -> None:
    """What others would have had without a winner is searched for no less than what they have, so errors cancel."""
    offer = racks(3, 4)
    bids = draw_bids(offer, 9, seed, pooled)
    hasty = hold_auction(offer, bids, effort=replace(Effort(), work=0))
    gains = [math.log(award.rho_of_nothing / award.rho) for award in hasty.awards.values()]
    best, errors = best_by_milp(build_market(offer, bids).market), []
    for n, award in enumerate(hasty.awards.values()):
        assert 0 < award.fraction <= 1
        if award.bundle is not None:
            without = best_by_milp(build_market(offer, [*bids[:n], *bids[n + 1 :]]).market)
            errors.append(award.fraction - math.exp(best - gains[n] - without))
    assert np.abs(errors).mean() < 0.15


def test_a_large_auction_is_near_the_best_and_the_same_every_time() -> None:
    offer = racks(16, 8)
    bids = draw_bids(offer, 150, 3, pooled=True)
    one, other = hold_auction(offer, bids, seed=2), hold_auction(offer, list(reversed(bids)), seed=2)
    assert one.awards == other.awards
    assert one.leftover == other.leftover
    assert 0 < one.gap < 0.01
    assert one.gap == pytest.approx(math.expm1(one.log_gap / 150))
    check_capacity(one)


# ------------------------------------------------------------ pools


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=5), st.integers(0, 10_000), st.sampled_from([(1, 2, 4), (1, 3, 2)])
)
def test_what_is_won_of_a_pool_finds_machines(free: list[int], seed: int, sizes: tuple[int, ...]) -> None:
    """Whatever sizes pieces have, and whether machines are named beside: nothing is given twice."""
    assume(max(free) > 0)
    rng = np.random.default_rng(seed)
    offer = Offer.of({f"m{n}": count for n, count in enumerate(free)}, {f"m{n}": "pool" for n in range(len(free))})
    pool, bids = offer.place_of_pool(0), []
    for n in range(5):
        rows = []
        for _ in range(4):
            size, machine = int(rng.choice(sizes)), int(rng.integers(len(free)))
            room = any(count >= size for count in free)
            spread = int(rng.integers(1, 4))
            if room and spread <= sum(count // size for count in free):
                rows.append(([(pool, size, spread)], float(rng.uniform(0.1, 1)) / (size * spread)))
            if free[machine] >= size:
                rows.append(([(machine, size, 1)], float(rng.uniform(0.1, 1)) / size))
        bids.append(Bid(Taker(f"a{n}"), Bundles.of(rows), 5.0))
    for bid in bids:
        check_bid(offer, bid)
    outcome = hold_auction(offer, bids, effort=QUICK if seed % 2 else None)
    check_capacity(outcome)
    for bid in bids:
        award = outcome.awards[bid.app]
        if award.bundle is not None:
            assert sum(award.proportional.values()) == bid.bundles.total[award.bundle]


@pytest.mark.parametrize("seed", range(5))
def test_a_pool_is_worth_what_naming_all_its_machines_is(seed: int) -> None:
    """Bids for any two machines of three, and the same bids with every pair of machines in a row of its own."""
    rng = np.random.default_rng(seed)
    free = {"m0": 4, "m1": 4, "m2": 3}
    pooled, named = Offer.of(free, dict.fromkeys(free, "all")), Offer.of(free)
    loose, strict = [], []
    for n in range(4):
        rho = rng.uniform(0.2, 2, 3)
        shapes = [(4, 1), (2, 1), (2, 2)]
        loose.append(
            Bid(Taker(f"a{n}"), Bundles.of(([(3, size, k)], r) for (size, k), r in zip(shapes, rho, strict=True)), 4.0)
        )
        rows = []
        for (size, k), r in zip(shapes, rho, strict=True):
            for machines in itertools.combinations_with_replacement(range(3), k):
                counts = {m: size * machines.count(m) for m in machines}
                if all(count <= list(free.values())[m] for m, count in counts.items()):
                    rows.append(([(m, count, 1) for m, count in counts.items()], r))
        strict.append(Bid(Taker(f"a{n}"), Bundles.of(rows), 4.0))
    one, other = hold_auction(pooled, loose), hold_auction(named, strict)
    assert sum(math.log(a.rho) for a in one.awards.values()) == pytest.approx(
        sum(math.log(a.rho) for a in other.awards.values())
    )
    assert [a.fraction for a in one.awards.values()] == pytest.approx([a.fraction for a in other.awards.values()])


def test_a_bidder_wins_the_machines_back_that_it_held() -> None:
    offer = racks(1, 3)
    pool = offer.place_of_pool(0)
    table = Bundles.of([([(pool, 4, 1)], 1.0)])
    bids = [Bid(Taker("a", 4, near={2: 4}), table, 9.0), Bid(Taker("b", 4, near={0: 4}), table, 9.0)]
    outcome = hold_auction(offer, bids)
    assert [award.proportional for award in outcome.awards.values()] == [{2: 4}, {0: 4}]


def test_others_leave_machines_to_those_who_hold_them() -> None:
    offer = racks(1, 3)
    table = Bundles.of([([(offer.place_of_pool(0), 4, 1)], 1.0)])
    bids = [Bid(Taker("a", 4), table, 9.0), Bid(Taker("b", 4, near={0: 4}), table, 9.0)]
    outcome = hold_auction(offer, bids)
    assert [award.proportional for award in outcome.awards.values()] == [{1: 4}, {0: 4}]


def test_more_of_a_pool_than_it_has_is_refused() -> None:
    offer = racks(1, 3)
    pool = offer.place_of_pool(0)
    for piece in ((pool, 5, 1), (pool, 4, 4)):
        with pytest.raises(BadBid, match=r"of pool 0(, where at most 4 are free| 4 times, and 3 times)"):
            check_bid(offer, Bid(Taker("a"), Bundles.of([([piece], 1.0)])))
