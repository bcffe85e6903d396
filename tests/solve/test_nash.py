"""Nash welfare against a general-purpose optimiser, and what lying brings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.solve.plain import problem

from horae.solve.nash import strategy_proof
from horae.solve.problem import Problem


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    jobs, types = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    speeds = [[draw(st.integers(1, 5)) for _ in range(types)] for _ in range(jobs)]
    capacity = [draw(st.integers(1, 3)) for _ in range(types)]
    weight = [draw(st.sampled_from([1.0, 2.0])) for _ in range(jobs)]
    return problem(speeds, capacity, weight=weight)


def welfare_of(p: Problem) -> tuple[float, np.ndarray]:
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
def test_the_welfare_is_the_largest_there_is_and_payments_are_what_others_lose(p: Problem) -> None:
    answer = strategy_proof(p)
    plain, throughput = welfare_of(p)
    assert answer.objective >= plain - 1e-6
    kept = answer.certificate["kept"]
    for m, name in enumerate(p.ids):
        others = np.arange(len(p)) != m
        alone = welfare_of(p.only(others))[1] if others.any() else np.empty(0)
        ratio = (throughput[others] / alone) ** (p.weight[others] / p.weight[m])
        assert kept[name] == pytest.approx(min(1.0, float(ratio.prod())), rel=2e-3)


def test_two_equal_jobs_on_one_gpu_keep_half_of_their_halves() -> None:
    answer = strategy_proof(problem([[1], [1]], [1]))
    assert answer.share.ravel() == pytest.approx([0.25, 0.25], abs=1e-5)
    assert answer.objective == pytest.approx(2 * np.log(0.5), abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 3), st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_nobody_gains_by_lying_about_its_speeds(p: Problem, liar: int, lie: list[int]) -> None:
    m = liar % len(p)
    said = p.speed.copy()
    said[m] = lie[: said.shape[1]]
    honest = strategy_proof(p).throughput(p)[m]
    lied = problem(said, p.capacity, weight=p.weight)
    # It runs at its true speeds, whatever it said.
    assert strategy_proof(lied).throughput(p)[m] <= honest * (1 + 1e-4)
