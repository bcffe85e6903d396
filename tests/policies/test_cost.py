"""Prices: how they are read, and what they change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from horae.core.cluster import Node
from horae.core.events import NodeJoined
from horae.core.history import History
from horae.policies import make_policy
from horae.policies.gavel.cost import NoPrice
from horae.policies.settings import BadSetting
from tests.builders import Cell, Script, cluster, job, run, times
from tests.policies.unlike_gpus import typed, types_of
from tests.solve.plain import problem

BOTH = ("cost", "cost-deadline")
PRICES = {"prices": "fast:4,slow:1"}


@pytest.mark.parametrize("policy", BOTH)
def test_a_job_goes_where_a_step_is_cheapest(policy: str) -> None:
    cell = Cell("fast:1x1,slow:1x1", policy, PRICES)
    cell.submit(0, typed("twice as fast", 2, 1), typed("ten times", 10, 1))
    assert types_of(cell) == {"twice as fast": "slow", "ten times": "fast"}


@pytest.mark.parametrize(("price", "chosen"), [("fast:4,slow:1", "slow"), ("fast:4,slow:3", "fast")])
def test_other_prices_make_another_choice(price: str, chosen: str) -> None:
    cell = Cell("fast:1x1,slow:1x1", "cost", {"prices": price})
    cell.submit(0, typed("a", 2, 1))
    assert types_of(cell) == {"a": chosen}


def spent(history: History, prices: dict[str, float]) -> float:
    """What the run cost, by the hour of each GPU held."""
    attempts, machines = history.attempts, history.cluster
    gpu_types = [machines.gpu_types[machines.gpu_type[attempts.gpu_ids[first]]] for first in attempts.first[:-1]]
    hours = (attempts.end_s - attempts.begin_s) * attempts.gpus / 3600
    return float(sum(prices[name] * held for name, held in zip(gpu_types, hours, strict=True)))


def test_the_same_work_costs_less_than_under_max_min() -> None:
    jobs = [typed(f"j{k}", 2 + k % 3, 1, work=20_000) for k in range(3)]
    bills = {
        policy: spent(
            run(jobs, "fast:1x4,slow:1x4", policy, settings=PRICES if policy == "cost" else {}), {"fast": 4, "slow": 1}
        )
        for policy in ("max-min", "cost")
    }
    assert bills["cost"] < 0.75 * bills["max-min"]


def test_a_deadline_buys_the_faster_type() -> None:
    cell = Cell("fast:1x1,slow:1x1", "cost-deadline", PRICES)
    cell.submit(0, typed("hurry", 2, 1, work=1000, deadline_s=600))
    assert types_of(cell) == {"hurry": "fast"}
    assert times(
        run([typed("hurry", 2, 1, deadline_s=600)], "fast:1x1,slow:1x1", "cost-deadline", settings=PRICES)
    ) == {"hurry": (0, 500)}


def test_a_deadline_that_cannot_be_met_relaxes_nobody_elses() -> None:
    jobs = [typed("hopeless", 2, 1, work=100_000, deadline_s=600), typed("hurry", 2, 1, deadline_s=601)]
    ended = times(run(jobs, "fast:1x1,slow:1x1", "cost-deadline", settings=PRICES))
    assert ended["hurry"] == (0, 500)
    assert ended["hopeless"][0] == 0


def test_a_deadline_that_has_passed_does_not_stop_the_run() -> None:
    jobs = [typed("late", 2, 1, work=5000, deadline_s=100), typed("b", 2, 1, submit_s=1000, deadline_s=600)]
    ended = times(run(jobs, "fast:1x1,slow:1x1", "cost-deadline", settings=PRICES))
    assert ended["b"] == (1000, 1500)


def test_shares_are_solved_anew_as_a_deadline_comes_closer() -> None:
    policy = make_policy("cost-deadline", {"prices": "t0:4,t1:1"})
    fast = [
        policy._solve(problem([[2.0, 1.0]], [1, 1], steps_left=[7200], deadline_s=[left_s])).share[0, 0]
        for left_s in (9000, 5760)
    ]
    # A round early: 7,200 steps in 5,400 s take a third of the time at speed 2.
    assert fast == pytest.approx([0, 1 / 3])


def test_a_star_prices_all_other_types() -> None:
    cell = Cell("fast:1x1,slow:1x1", "cost", {"prices": "fast:4,*:1"})
    cell.submit(0, typed("a", 2, 1))
    assert types_of(cell) == {"a": "slow"}


@pytest.mark.parametrize("policy", BOTH)
def test_types_without_a_price_are_named_with_an_example(policy: str) -> None:
    with pytest.raises(NoPrice, match=r"mi300, tpu: .* --set prices=v100:1\.5,mi300:1\.5,tpu:1\.5"):
        run([job("a")], cluster("v100:1x1,mi300:1x1,tpu:1x1"), policy)


@pytest.mark.parametrize("policy", BOTH)
def test_a_price_for_a_type_that_is_not_there_is_refused(policy: str) -> None:
    with pytest.raises(NoPrice, match=r"price for 'fats' and the cluster has fast, slow: .* Did you mean 'fast'\?"):
        run([job("a")], "fast:1x1,slow:1x1", policy, settings={"prices": "fats:4,*:1"})


@pytest.mark.parametrize("policy", BOTH)
def test_a_type_that_joins_without_a_price_is_as_dear_as_the_dearest_and_the_run_goes_on(policy: str) -> None:
    jobs = [typed("a", 2, 1, work=7200), typed("b", 2, 1, work=7200)]
    jobs = [replace(one, throughput={**one.throughput, "new": 2.0}) for one in jobs]
    joined = NodeJoined(600, Node("new-0", "new", 2))
    script = Script(jobs, "fast:1x1,slow:1x2", policy, PRICES, events=[joined])
    assert script.history.finished.all()
    held = {script.engine.gpus.cluster.gpu_type[gpu] for gpu in script.history.attempts.gpu_ids.tolist()}
    assert held == {1}, "at twice the speed for four times the price nobody moves"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must name each GPU type once"),
        ("2.48", "must name each GPU type once"),
        ("v100:2,v100:3", "must name each GPU type once"),
        ("v100:2,", "must name each GPU type once"),
        ("v100:dear", "'v100:dear' is no price"),
        ("v100:0", "is no price"),
        ("v100:-1", "is no price"),
        ("v100:inf", "is no price"),
        ("v100:nan", "is no price"),
    ],
)
@pytest.mark.parametrize("policy", BOTH)
def test_prices_that_are_none_are_refused_before_anything_runs(policy: str, text: str, complaint: str) -> None:
    with pytest.raises(BadSetting, match=complaint):
        make_policy(policy, {"prices": text})


def test_spaces_around_prices_do_no_harm() -> None:
    Cell("fast:1x1,slow:1x1", "cost", {"prices": " fast : 4 , slow:1"}).submit(0, typed("a", 2, 1))
