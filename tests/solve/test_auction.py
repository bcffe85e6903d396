"""The auction: every property that is claimed of it, on small instances against plain searches.

Tests solve/auction/bids.py, solve/auction/explanation.py, solve/auction/leftovers.py,
solve/auction/machine_choice.py, solve/auction/outcome.py, solve/auction/payments.py and solve/auction/rounding.py.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.solve.auction.auction import hold_auction
from horae.solve.auction.bids import BadBid, Bid, Bundles, Offer, Taker, check_bid
from horae.solve.auction.explanation import explain, explain_gap
from horae.solve.auction.outcome import AuctionOutcome
from horae.solve.auction.rounding import draw, gangs_kept, keep
from tests.solve.auctions import (
    PlainBid,
    allocations,
    best_by_search,
    bid,
    every_bundle,
    log_value,
    made,
    small_auctions,
)

#: Two machines of four GPUs.
PAIR = Offer.of({"m0": 4, "m1": 4})


def linear(offer: Offer, app: str, scale: float = 1.0, rho: float | None = None) -> Bid:
    """An app that is as fast as it has GPUs, wherever."""
    return bid(offer, app, every_bundle(offer, lambda gpus: scale * sum(gpus.values())), rho)


def consolidated(offer: Offer, app: str) -> Bid:
    """An app that is half as fast across machines."""
    return bid(offer, app, every_bundle(offer, lambda gpus: sum(gpus.values()) / (1 if len(gpus) == 1 else 2)))


def gpus_of(counts: dict[int, int]) -> int:
    return sum(counts.values())


def chosen_rhos(outcome: AuctionOutcome) -> list[float]:
    return [award.rho for award in outcome.awards.values()]


# ------------------------------------------------------------ winners


@settings(max_examples=150, deadline=None)
@given(small_auctions())
def test_winners_have_the_largest_product_of_values(auction: tuple[dict[str, int], list[PlainBid]]) -> None:
    machines, bids = auction
    outcome = hold_auction(Offer.of(machines), made(Offer.of(machines), bids))
    assert sum(-math.log(rho) for rho in chosen_rhos(outcome)) == pytest.approx(
        best_by_search(machines, bids), abs=1e-9
    )
    assert outcome.gap == 0.0
    for name, free in machines.items():
        m = outcome.offer.number[name]
        assert sum(award.proportional.get(m, 0) for award in outcome.awards.values()) <= free


@settings(max_examples=100, deadline=None)
@given(small_auctions())
def test_winners_are_pareto_efficient(auction: tuple[dict[str, int], list[PlainBid]]) -> None:
    machines, bids = auction
    won = chosen_rhos(hold_auction(Offer.of(machines), made(Offer.of(machines), bids)))
    for other in allocations(machines, bids):
        rhos = [rho for _, rho in other]
        better = any(new < old * (1 - 1e-9) for new, old in zip(rhos, won, strict=True))
        worse = any(new > old * (1 + 1e-9) for new, old in zip(rhos, won, strict=True))
        assert worse or not better


@settings(max_examples=100, deadline=None)
@given(small_auctions(most_apps=3))
def test_of_equal_allocations_the_first_by_name_is_chosen(auction: tuple[dict[str, int], list[PlainBid]]) -> None:
    machines, bids = auction
    offer = Offer.of(machines)
    best = best_by_search(machines, bids)
    equal = [chosen for chosen in allocations(machines, bids) if log_value(chosen) > best - 1e-9]

    def in_order(chosen: list[tuple[dict[str, int], float]]) -> list[list[int]]:
        return [[-gpus.get(name, 0) for name in offer.machines] for gpus, _ in chosen]

    won = hold_auction(offer, made(offer, bids))
    ours = [[-award.proportional.get(m, 0) for m in range(len(machines))] for award in won.awards.values()]
    # Bundles that an app could do better without are left out: of two that it likes the same, it has the lesser.
    frugal = [
        chosen
        for chosen in equal
        if all(_frugal(plain, gpus, rho) for plain, (gpus, rho) in zip(bids, chosen, strict=True))
    ]
    assert ours == min(in_order(chosen) for chosen in frugal)


def _frugal(plain: PlainBid, gpus: dict[str, int], rho: float) -> bool:
    """Whether no other option is as good and takes nothing more anywhere."""
    return not any(
        other != gpus and as_good <= rho and all(count <= gpus.get(name, 0) for name, count in other.items())
        for other, as_good in plain.options()
    )


def test_the_order_of_bids_does_not_matter() -> None:
    bids = [consolidated(PAIR, "A"), linear(PAIR, "B"), linear(PAIR, "C", 0.3)]
    outcomes = [hold_auction(PAIR, order, seed=5) for order in itertools.permutations(bids)]
    assert all(outcome.awards == outcomes[0].awards for outcome in outcomes)
    assert all(outcome.leftover == outcomes[0].leftover for outcome in outcomes)


def test_two_apps_of_one_name_are_refused() -> None:
    with pytest.raises(BadBid, match="Two apps are called 'A'"):
        hold_auction(PAIR, [linear(PAIR, "A"), linear(PAIR, "A")])


def test_an_auction_without_bids_or_gpus_is_an_empty_one() -> None:
    assert hold_auction(PAIR, []).awards == {}
    nothing = Offer.of({"m0": 0})
    outcome = hold_auction(nothing, [Bid(Taker("A"), Bundles.of([]))], [Taker("B")])
    assert outcome.leftover == {}
    assert outcome.awards["A"].proportional == {}


# ------------------------------------------------------------ payments


@pytest.mark.parametrize(("apps", "fraction"), [(2, 0.5), (3, 0.4444), (4, 0.4219), (5, 0.4096)])
@pytest.mark.parametrize("times", [1, 2])
def test_identical_linear_apps_keep_the_known_part(apps: int, fraction: float, times: int) -> None:
    offer = Offer.of({"m0": times * apps * (apps - 1)})
    outcome = hold_auction(offer, [linear(offer, f"a{n}") for n in range(apps)])
    assert [gpus_of(award.proportional) for award in outcome.awards.values()] == [times * (apps - 1)] * apps
    for award in outcome.awards.values():
        assert award.fraction == pytest.approx(((apps - 1) / apps) ** (apps - 1), abs=1e-11)
        assert award.fraction == pytest.approx(fraction, abs=5e-5)
    assert outcome.exact


def test_identical_apps_on_single_gpus_keep_the_same_part() -> None:
    offer = Offer.of({f"m{n}": 1 for n in range(6)})
    outcome = hold_auction(offer, [linear(offer, f"a{n}") for n in range(3)])
    assert [award.fraction for award in outcome.awards.values()] == pytest.approx([4 / 9] * 3)


def test_the_worked_instance() -> None:
    outcome = hold_auction(PAIR, [consolidated(PAIR, "A"), linear(PAIR, "B")], [Taker("C")])
    a, b = outcome.awards["A"], outcome.awards["B"]
    assert (a.proportional, a.fraction, a.kept) == ({0: 4}, 0.5, {0: 2})
    assert (b.proportional, b.fraction, b.kept) == ({1: 4}, 1.0, {1: 4})
    assert outcome.leftover == {"C": {0: 2}}
    assert (outcome.paid, outcome.won) == (2, 8)


def test_equal_apps_would_have_had_what_the_other_would_have_had() -> None:
    """Whoever is the same but for its name is solved for once; what it says of the others is of their own tables."""
    offer = Offer.of({"m0": 3})
    bids = [
        bid(offer, "A", [], 1.0),
        *(bid(offer, f"B{n}", [({"m0": 3}, 1.0), ({"m0": 1}, 2.0)], 4.0) for n in range(4)),
    ]
    outcome = hold_auction(offer, bids)
    winners = [award for award in outcome.awards.values() if award.bundle is not None]
    assert [award.bundle for award in winners] == [1, 1, 1]
    for award in winners:
        assert award.fraction == pytest.approx(0.5)
        assert [(other.app, other.bundle, other.rho) for other in award.displaced] == [("B3", 1, 2.0)]


@settings(max_examples=60, deadline=None)
@given(small_auctions(most_apps=1))
def test_who_is_alone_pays_nothing(auction: tuple[dict[str, int], list[PlainBid]]) -> None:
    machines, bids = auction
    (award,) = hold_auction(Offer.of(machines), made(Offer.of(machines), bids)).awards.values()
    assert (award.fraction, award.kept) == (1.0, award.proportional)
    assert award.rho == min(rho for _, rho in bids[0].options())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.1, 1.9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_who_does_not_compete_pays_nothing(rhos: list[list[float]]) -> None:
    """Everybody bids for GPUs of a machine of its own."""
    offer = Offer.of({f"m{n}": 4 for n in range(len(rhos))})
    bids = [
        bid(offer, f"a{n}", [({f"m{n}": gpus}, rho) for gpus, rho in enumerate(table, start=1)], 2.0)
        for n, table in enumerate(rhos)
    ]
    for award in hold_auction(offer, bids).awards.values():
        assert (award.fraction, award.kept) == (1.0, award.proportional)


@settings(max_examples=100, deadline=None)
@given(small_auctions())
def test_payments_are_what_a_search_without_each_winner_says(auction: tuple[dict[str, int], list[PlainBid]]) -> None:
    machines, bids = auction
    offer = Offer.of(machines)
    outcome = hold_auction(offer, made(offer, bids))
    assert outcome.exact
    for n, plain in enumerate(bids):
        award = outcome.awards[plain.app]
        without = best_by_search(machines, [*bids[:n], *bids[n + 1 :]])
        others = sum(-math.log(a.rho) for a in outcome.awards.values() if a.app != plain.app)
        assert award.fraction == pytest.approx(min(1.0, math.exp(others - without)), rel=1e-9)
        assert 0 < award.fraction <= 1


@settings(max_examples=60, deadline=None)
@given(small_auctions(), st.integers(0, 3), st.sampled_from([0.125, 8.0, 1024.0]))
def test_scaling_all_of_ones_bids_changes_nothing(
    auction: tuple[dict[str, int], list[PlainBid]], who: int, factor: float
) -> None:
    machines, bids = auction
    offer, who = Offer.of(machines), who % len(bids)
    truth = hold_auction(offer, made(offer, bids), seed=3)
    plain = bids[who]
    scaled = replace(plain, rho=plain.rho * factor, table=[(gpus, rho * factor) for gpus, rho in plain.table])
    lie = hold_auction(offer, made(offer, [*bids[:who], scaled, *bids[who + 1 :]]), seed=3)
    for app, award in truth.awards.items():
        other = lie.awards[app]
        assert (award.proportional, award.fraction, award.kept) == (other.proportional, other.fraction, other.kept)
    assert truth.leftover == lie.leftover


def test_scaling_by_any_factor_changes_nothing() -> None:
    truth = [consolidated(PAIR, "A"), linear(PAIR, "B", 1.0, rho=20.0), linear(PAIR, "C", 1.7, rho=20.0)]
    for factor in (0.1, 3.0, 7.77, 1e3):
        rho = truth[1].bundles.rho * factor
        lie = Bid(truth[1].taker, replace(truth[1].bundles, rho=rho), 20.0 * factor)
        one, other = (hold_auction(PAIR, [truth[0], b, truth[2]]) for b in (truth[1], lie))
        for app, award in one.awards.items():
            assert other.awards[app].kept == award.kept
            assert other.awards[app].fraction == award.fraction


# ------------------------------------------------------------ lies


@st.composite
def homogeneous(draw: st.DrawFn) -> tuple[Offer, list[Bid], float, float, bool]:
    """Linear apps, of which some suffer when spread; and a lie of the first: a power, a cap, hidden locality."""
    sizes = draw(st.sampled_from([(12,), (6, 6), (4, 4, 4), (24,), (4, 8)]))
    offer = Offer.of({f"m{n}": size for n, size in enumerate(sizes)})
    slow = [draw(st.sampled_from([1.0, 1.0, 2.0])) for _ in range(draw(st.integers(2, 3)))]
    bids = [bid(offer, f"a{n}", every_bundle(offer, lambda g, s=s: _linear(g, s)), 50.0) for n, s in enumerate(slow)]
    return offer, bids, slow[0], draw(st.sampled_from([0.25, 0.5, 2.0, 4.0])), draw(st.booleans())


def _linear(gpus: dict[str, int], slow: float) -> float:
    return sum(gpus.values()) / (1.0 if len(gpus) == 1 else slow)


@settings(max_examples=60, deadline=None)
@given(homogeneous())
def test_lying_does_not_pay_where_values_are_homogeneous(case: tuple[Offer, list[Bid], float, float, bool]) -> None:
    """What is kept, before chance makes whole gangs of it, is worth no more with the lie, but for one gang."""
    offer, bids, slow, power, hides = case
    lie_value = every_bundle(offer, lambda gpus: _linear(gpus, 1.0 if hides else slow) ** power)
    lie = bid(offer, "a0", lie_value, 50.0)

    def worth(outcome: AuctionOutcome) -> float:
        award = outcome.awards["a0"]
        named = offer.named(award.proportional)
        return award.fraction * _linear(named, slow) if named else 0.0

    assert worth(hold_auction(offer, [lie, *bids[1:]])) <= worth(hold_auction(offer, bids)) + 1.0 + 1e-9


def test_where_values_are_not_homogeneous_a_lie_pays_and_that_is_known() -> None:
    """T_sh = 2 + work / GPUs, 12 GPUs, two apps: claiming eight times the work wins 8 GPUs instead of 5."""
    offer = Offer.of({"m0": 12})

    def claims(app: str, work: float) -> Bid:
        return bid(offer, app, [({"m0": g}, 2 + work / g) for g in range(1, 13)], 50.0)

    truth = hold_auction(offer, [claims("A", 1.0), claims("B", 1.0)])
    lie = hold_auction(offer, [claims("A", 8.0), claims("B", 1.0)])

    def kept(outcome: AuctionOutcome) -> float:
        return outcome.awards["A"].fraction * gpus_of(outcome.awards["A"].proportional)

    assert [gpus_of(outcome.awards["A"].proportional) for outcome in (truth, lie)] == [6, 9]
    assert [int(kept(outcome)) for outcome in (truth, lie)] == [5, 8]


# ------------------------------------------------------------ envy


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(0, 3), st.integers(0, 10_000))
def test_additive_values_are_envy_free_up_to_one_gang(apps: int, more: int, seed: int) -> None:
    """Single GPUs on machines of their own, one for each app and some more, worth something else to everybody."""
    rng = np.random.default_rng(seed)
    offer = Offer.of({f"m{n}": 1 for n in range(min(apps + more, 6))})
    worth = rng.integers(1, 10, (apps, len(offer.machines))).astype(float)

    def value(app: int, counts: dict[str, int] | dict[int, int]) -> float:
        return float(sum(worth[app, offer.number.get(m, m) if isinstance(m, str) else m] for m in counts))

    bids = [bid(offer, f"a{n}", every_bundle(offer, lambda g, n=n: value(n, g)), 1e6) for n in range(apps)]
    awards = list(hold_auction(offer, bids).awards.values())
    for one, mine in enumerate(awards):
        for theirs in awards:
            best = max((worth[one, m] for m in theirs.proportional), default=0.0)
            assert value(one, mine.proportional) >= value(one, theirs.proportional) - best - 1e-9


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 5), st.integers(1, 2))
def test_nobody_envies_where_the_divisible_answer_is_in_whole_gpus(scales: list[int], fast: int, times: int) -> None:
    """Everybody's own scale, the same wishes: equal parts of everything, and no envy at all."""
    apps = len(scales)
    offer = Offer.of({"fast": apps, "slow": times * apps})

    def value(scale: float, counts: dict[str, int]) -> float:
        return scale * (fast * counts.get("fast", 0) + counts.get("slow", 0))

    bids = [bid(offer, f"a{n}", every_bundle(offer, lambda g, s=s: value(s, g))) for n, s in enumerate(scales)]
    won = [offer.named(award.proportional) for award in hold_auction(offer, bids).awards.values()]
    assert all(value(1.0, counts) == value(1.0, won[0]) for counts in won)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=2, max_size=3), st.sampled_from([4, 8, 12]))
def test_envy_goes_as_gpus_become_divisible(speeds: list[tuple[int, int]], gpus: int) -> None:
    """Homogeneous values: nobody would rather have another's bundle, but for one GPU, however fine GPUs are."""
    offer = Offer.of({"fast": gpus, "slow": gpus})

    def value(app: int, counts: dict[str, int]) -> float:
        return counts.get("fast", 0) * speeds[app][0] + counts.get("slow", 0) * speeds[app][1]

    bids = [bid(offer, f"a{n}", every_bundle(offer, lambda g, n=n: value(n, g))) for n in range(len(speeds))]
    won = [offer.named(award.proportional) for award in hold_auction(offer, bids).awards.values()]
    for app, theirs in itertools.product(range(len(speeds)), won):
        assert value(app, won[app]) >= value(app, theirs) - max(speeds[app]) - 1e-9


# ------------------------------------------------------------ gangs


def test_a_fraction_becomes_whole_gangs_by_chance_that_is_right_on_average() -> None:
    kept = [gangs_kept(0.37, 5, draw(seed, "A")) for seed in range(4000)]
    assert set(kept) == {1, 2}
    assert np.mean(kept) == pytest.approx(1.85, abs=0.02)


def test_what_is_drawn_depends_on_seed_and_name_alone() -> None:
    assert draw(3, "A") == draw(3, "A") == draw((3,), "A")
    assert len({draw(3, "A"), draw(3, "B"), draw(4, "A"), draw((3, 1), "A")}) == 4


def test_a_fraction_that_comes_out_even_needs_no_chance() -> None:
    assert [gangs_kept(1 - 1e-13, 4, drawn) for drawn in (0.0, 0.999999)] == [4, 4]
    assert [gangs_kept(0.5 - 1e-13, 4, drawn) for drawn in (0.0, 0.999999)] == [2, 2]


@pytest.mark.parametrize(
    ("bundle", "gang", "gangs", "kept"),
    [
        ({0: 4}, 1, 2, {0: 2}),
        ({0: 2, 1: 4}, 1, 4, {1: 4}),
        ({0: 2, 1: 4}, 1, 2, {0: 2}),
        ({0: 2, 1: 4}, 1, 5, {0: 2, 1: 3}),
        ({0: 3, 1: 3}, 2, 2, {0: 2, 1: 2}),
        ({0: 3, 1: 4, 2: 1}, 4, 1, {1: 4}),
        ({0: 3, 1: 1, 2: 4}, 4, 2, {0: 3, 1: 1, 2: 4}),
        ({0: 1, 1: 1, 2: 1, 3: 1}, 2, 1, {0: 1, 1: 1}),
        ({0: 4, 1: 4}, 4, 0, {}),
        ({}, 4, 0, {}),
    ],
)
def test_the_gangs_that_are_kept_are_together_and_low(
    bundle: dict[int, int], gang: int, gangs: int, kept: dict[int, int]
) -> None:
    assert keep(bundle, gang, gangs) == kept


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 10))
def test_kept_gangs_are_part_of_the_bundle_on_as_few_machines_as_can_be(
    sizes: list[int], gang: int, gangs: int
) -> None:
    bundle = dict(enumerate(sizes))
    gangs = min(gangs, sum(sizes) // gang)
    kept = keep(bundle, gang, gangs)
    assert sum(kept.values()) == gangs * gang
    assert all(0 < count <= bundle[m] for m, count in kept.items())
    whole = sorted((size // gang for size in sizes), reverse=True)
    if sum(whole) >= gangs:
        fewest = next(n for n in range(len(whole) + 1) if sum(whole[:n]) >= gangs)
        assert len(kept) == fewest
        assert all(count % gang == 0 for count in kept.values())


# ------------------------------------------------------------ leftovers


@settings(max_examples=60, deadline=None)
@given(small_auctions(), st.lists(st.sampled_from([1, 2, 3]), max_size=3), st.integers(0, 100))
def test_nothing_idles_that_an_app_could_use(
    auction: tuple[dict[str, int], list[PlainBid]], others: list[int], seed: int
) -> None:
    machines, bids = auction
    offer = Offer.of(machines)
    takers = [Taker(f"z{n}", gang) for n, gang in enumerate(others)]
    outcome = hold_auction(offer, made(offer, bids), takers, seed)
    held = outcome.holdings()
    used = {m: sum(counts.get(m, 0) for counts in held.values()) for m in range(len(machines))}
    assert all(used[m] <= offer.free[m] for m in used)
    idle = offer.gpus - sum(used.values())
    assert idle < min([taker.gang for taker in takers] + [plain.gang for plain in bids])
    if outcome.leftover.keys() & outcome.awards.keys() and takers:
        to_bidders = sum(gpus_of(outcome.leftover.get(plain.app, {})) for plain in bids)
        assert idle + to_bidders < min(taker.gang for taker in takers)


def test_leftovers_keep_gangs_together_where_they_fit() -> None:
    offer = Offer.of({"m0": 3, "m1": 4, "m2": 1})
    assert hold_auction(offer, [], [Taker("Z", 4, most=1)]).leftover == {"Z": {1: 4}}
    assert hold_auction(offer, [], [Taker("Z", 4)]).leftover == {"Z": {0: 3, 1: 4, 2: 1}}
    assert hold_auction(offer, [], [Taker("Z", 4, spans=False)]).leftover == {"Z": {1: 4}}


def test_leftovers_go_where_an_app_is_and_can_be() -> None:
    offer = Offer.of({"m0": 2, "m1": 4})
    assert hold_auction(offer, [], [Taker("Z", 2, most=1, near={1: 1})]).leftover == {"Z": {1: 2}}
    assert hold_auction(offer, [], [Taker("Z", 2, most=1)]).leftover == {"Z": {0: 2}}
    assert hold_auction(offer, [], [Taker("Z", 1, usable=np.array([1]))]).leftover == {"Z": {1: 4}}


def test_the_lot_favours_nobody_and_the_line_of_bidders_is_drawn_by_name() -> None:
    offer = Offer.of({"m0": 1})
    lucky = [next(iter(hold_auction(offer, [], [Taker("Y"), Taker("Z")], seed).leftover)) for seed in range(200)]
    assert 60 < lucky.count("Y") < 140
    bids = [bid(offer, "A", [], 2.0), bid(offer, "B", [], 2.0)]
    first = [next(iter(hold_auction(offer, bids, seed=seed).leftover)) for seed in range(200)]
    assert 60 < first.count("A") < 140


# ------------------------------------------------------------ words


def test_the_explanation_says_who_was_displaced_and_how_chance_fell() -> None:
    bids = [consolidated(PAIR, "A"), linear(PAIR, "B")]
    outcome = hold_auction(PAIR, bids, [Taker("C")])
    said = explain(outcome, bids)
    assert "B would have won 4 GPUs on m0 and 4 GPUs on m1" in said["A"]
    assert "keeps 2 GPUs on m0" in said["A"]
    assert "keeps all" in said["B"]
    assert "by lot" in said["C"]
    assert explain_gap(outcome).startswith("No allocation")


def test_the_explanation_tells_losers_and_chance_and_what_came_in_the_drawn_order() -> None:
    offer = Offer.of({"m0": 4})
    bids = [
        bid(offer, "A", [({"m0": 4}, 1.0)], 8.0, 4),
        bid(offer, "B", [({"m0": 4}, 1.0)], 4.0, 4),
        bid(offer, "C", [], 1.0),
    ]
    for seed in range(8):
        outcome = hold_auction(offer, bids, seed=seed)
        said = explain(outcome, bids)
        assert "0.25 of its 1 gang of 4 GPUs" in said["A"]
        assert ("one more" if outcome.awards["A"].kept else "no more") in said["A"]
        assert "Without A it would have won 4 GPUs on m0" in said["B"]
        assert "its table is empty" in said["C"]
        assert sum("order drawn" in sentence for sentence in said.values()) == (not outcome.awards["A"].kept)


# ------------------------------------------------------------ bids that cannot be meant


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (bid(PAIR, "A", [({"m0": 5}, 1.0)]), "at most 4 are free"),
        (bid(PAIR, "A", [({"m0": 3}, 1.0)], gang=2), "no whole gangs of 2"),
        (bid(PAIR, "A", [({"m0": 3}, float("nan"))]), "rho of nan in row 0"),
        (bid(PAIR, "A", [({"m0": 3}, 0.0)]), "rho of 0.0 in row 0"),
        (bid(PAIR, "A", [({}, 1.0)]), "no GPUs in row 0"),
        (bid(PAIR, "A", [({"m0": 3}, 1.0)], -1.0), "rho of -1.0 for winning nothing"),
        (bid(PAIR, "A", [({"m0": 3}, 1.0)], gang=0), "gang of 0"),
        (Bid(Taker("A"), Bundles.of([([(9, 1, 1)], 1.0)])), "nowhere"),
        (Bid(Taker("A"), Bundles.of([([(0, 1, 1), (0, 2, 1)], 1.0)])), "twice"),
    ],
)
def test_a_bid_that_cannot_be_meant_is_refused_in_one_sentence(wrong: Bid, words: str) -> None:
    with pytest.raises(BadBid, match=words):
        check_bid(PAIR, wrong)
