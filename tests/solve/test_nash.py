"""Nash welfare against a general-purpose optimiser, and what lying brings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from horae.core.errors import UserError
from horae.solve.allocation.nash import strategy_proof
from horae.solve.allocation.problem import AllocationProblem, Sharing
from tests.solve.pairs import problems as pair_problems
from tests.solve.plain import Shares, problem


@st.composite
def problems(draw: st.DrawFn) -> AllocationProblem:
    jobs, types = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    speeds = [[draw(st.integers(1, 5)) for _ in range(types)] for _ in range(jobs)]
    capacity = [draw(st.integers(1, 3)) for _ in range(types)]
    weight = [draw(st.sampled_from([1.0, 2.0])) for _ in range(jobs)]
    return problem(speeds, capacity, weight=weight)


def welfare_of(p: AllocationProblem) -> tuple[float, np.ndarray]:
    """The largest sum of weight * log(throughput), by a method that knows nothing of the problem, and throughputs."""
    jobs, types = p.speed.shape

    def throughput(x: np.ndarray) -> np.ndarray:
        return (p.speed * x.reshape(jobs, types)).sum(axis=1)

    answer = minimize(
        lambda x: -(p.weight * np.log(np.maximum(throughput(x), 1e-12))).sum(),
        np.full(jobs * types, 0.9 / (jobs * types)),
        bounds=[(0, 1)] * (jobs * types),
        constraints=[
            {"type": "ineq", "fun": lambda x: 1 - x.reshape(jobs, types).sum(axis=1)},
            {"type": "ineq", "fun": lambda x: p.capacity - p.gpus @ x.reshape(jobs, types)},
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    return -float(answer.fun), throughput(answer.x)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_welfare_is_the_largest_there_is_and_payments_are_what_others_lose(p: AllocationProblem) -> None:
    answer = strategy_proof(p)
    plain, throughput = welfare_of(p)
    assert answer.objective >= plain - 1e-6
    # The method now and then stops where it started, and then tells nothing.
    assume(answer.objective <= plain + 1e-6)
    kept = answer.certificate["kept"]
    for m, name in enumerate(p.ids):
        others = np.arange(len(p)) != m
        without, alone = welfare_of(p.only(others)) if others.any() else (0.0, np.empty(0))
        assume(not others.any() or strategy_proof(p.only(others)).objective <= without + 1e-6)
        ratio = (throughput[others] / alone) ** (p.weight[others] / p.weight[m])
        assert kept[name] == pytest.approx(min(1.0, float(ratio.prod())), rel=2e-3)


def test_two_equal_jobs_on_one_gpu_keep_half_of_their_halves() -> None:
    answer = strategy_proof(problem([[1], [1]], [1]))
    assert answer.share.ravel() == pytest.approx([0.25, 0.25], abs=1e-5)
    assert answer.objective == pytest.approx(2 * np.log(0.5), abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 3), st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_nobody_gains_by_lying_about_its_speeds(p: AllocationProblem, liar: int, lie: list[int]) -> None:
    m = liar % len(p)
    said = p.speed.copy()
    said[m] = lie[: said.shape[1]]
    honest = strategy_proof(p).throughput(p)[m]
    lied = problem(said, p.capacity, weight=p.weight)
    # It runs at its true speeds, whatever it said.
    assert strategy_proof(lied).throughput(p)[m] <= honest * (1 + 1e-4)


@settings(max_examples=40, deadline=None)
@given(pair_problems())
def test_with_pairs_no_other_shares_are_better_for_some_by_more_than_they_are_worse_for_others(
    p: AllocationProblem,
) -> None:
    """That is what Nash welfare means, in percent, and a linear program can tell."""
    answer = strategy_proof(p)
    kept = np.array([answer.certificate["kept"][name] for name in p.ids])
    throughput, plain = answer.throughput(p) / kept, Shares(p)
    assert answer.objective == pytest.approx((p.weight * np.log(throughput)).sum(), abs=1e-6)
    most = plain.best((p.weight / throughput) @ plain.speed, np.zeros(len(p)))
    assert most == pytest.approx(p.weight.sum(), rel=1e-3)
    # Whatever there is to pay for, a job keeps 1 / e of its shares.
    assert kept.min() >= np.exp(-1) * (1 - 1e-6)
    check_shares(p, answer.share, answer.pairs, answer.pair_share)


def check_shares(p: AllocationProblem, share: np.ndarray, pairs: np.ndarray, pair_share: np.ndarray) -> None:
    """Nobody has more than all of its time, and no type is used beyond its GPUs."""
    time, used = share.sum(axis=1), p.gpus @ share
    for (a, b), row in zip(pairs.tolist(), pair_share, strict=True):
        time[[a, b]] += row.sum()
        used += p.gpus[a] * row
    assert (time <= 1 + 1e-7).all()
    assert (used <= p.capacity * (1 + 1e-7)).all()


def test_of_a_pair_whoever_keeps_more_goes_on_alone() -> None:
    """Job 2 stands in the way of job 0 more than of job 1, so these keep unlike parts of what they share."""
    beside = np.zeros((3, 3, 1))
    beside[0, 1], beside[1, 0] = 0.8, 0.7
    p = replace(problem([[1.0], [1.0], [1.0]], [2], weight=[4, 1, 1]), sharing=Sharing(np.array([0, 1, -1]), beside))
    answer = strategy_proof(p)
    kept = answer.certificate["kept"]
    assert answer.pairs.tolist() == [[0, 1]]
    assert kept["0"] != pytest.approx(kept["1"], rel=1e-3)
    more = 0 if kept["0"] > kept["1"] else 1
    assert answer.share[more, 0] > 0


@settings(max_examples=25, deadline=None)
@given(pair_problems(), st.integers(0, 7), st.floats(0.3, 3.0), st.floats(0.3, 1.0))
def test_nobody_gains_by_lying_unless_it_plays_down_what_company_costs(
    p: AllocationProblem, liar: int, alone: float, beside: float
) -> None:
    m = liar % len(p)
    rows = len(p.sharing.pair_speed)
    # A row of its own, so that it lies for itself only.
    own = np.append(np.arange(rows), max(p.sharing.pair_row[m], 0))
    true = replace(p.sharing, pair_row=p.sharing.pair_row.copy(), pair_speed=p.sharing.pair_speed[own][:, own])
    true.pair_row[m] = rows if p.sharing.pair_row[m] >= 0 else -1
    p = replace(p, sharing=true)
    said, company = p.speed.copy(), true.pair_speed.copy()
    said[m] *= alone
    company[rows] *= alone * beside
    lied = replace(p, speed=said, sharing=replace(true, pair_speed=company))
    honest = strategy_proof(p).throughput(p)[m]
    assert strategy_proof(lied).throughput(p)[m] <= honest * (1 + 1e-4)


def test_a_job_that_can_run_nowhere_is_named() -> None:
    with pytest.raises(UserError, match="'1' has no throughput"):
        strategy_proof(problem([[1.0, 1.0], [0.0, 2.0]], [1, 0]))
