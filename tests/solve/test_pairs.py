"""Programs in which jobs share GPUs, against a plain one with a variable for every two jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.solve.plain import Shares, problem

from horae.solve.problem import Problem, Sharing, Solution
from horae.solve.programs import PROGRAMS


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small problems: several jobs of a kind, some that never share, gangs among single GPUs, types out of reach."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    jobs, types, kinds = draw(st.integers(1, 8)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    speeds = rng.integers(0, 6, (kinds, types)).astype(float)
    speeds[speeds.max(axis=1) == 0, 0] = 1.0
    # Together two jobs mostly do more than taking turns, sometimes less, and sometimes do not fit.
    beside = speeds[:, None, :] * rng.choice([0.0, 0.3, 0.6, 0.8, 1.0], (kinds, kinds, types))
    number = rng.integers(0, kinds, jobs)
    kind = np.where(rng.random(jobs) < 0.15, -1, number)
    speed = speeds[number]
    if draw(st.booleans()):
        speed = speed * rng.choice([1.0, 1.1], (jobs, 1))
    few = draw(st.booleans())
    p = problem(
        speed,
        rng.integers(1, draw(st.sampled_from([2, 4])) + 1, types),
        gpus=rng.choice([1, 1, 2], jobs) if draw(st.booleans()) else np.ones(jobs),
        weight=rng.choice([1, 1, 2, 5], jobs),
        steps_left=rng.choice([100, 200], jobs) if few else rng.integers(1, 1000, jobs),
        elapsed_s=rng.integers(0, 300, jobs) * draw(st.integers(0, 1)),
        isolated_s=rng.integers(0, 300, jobs) * draw(st.integers(0, 1)),
        deadline_s=np.where(rng.random(jobs) < 0.6, rng.choice([-5, 50, 100, 300, 900], jobs), np.inf),
        price=rng.integers(1, 5, types),
    )
    return replace(p, sharing=Sharing(kind, beside))


def solve(name: str, p: Problem) -> tuple[Solution, np.ndarray]:
    """Solve, and check that the shares could be given."""
    solution = PROGRAMS[name].solve(p)
    share, pairs, pair_share = solution.share, solution.pairs, solution.pair_share
    assert (share >= 0).all()
    assert (share[p.speed == 0] == 0).all()
    time, used = share.sum(axis=1), p.gpus @ share
    assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == len(pairs)
    for (a, b), row in zip(pairs.tolist(), pair_share, strict=True):
        assert a != b
        assert p.gpus[a] == p.gpus[b]
        assert (row >= 0).all()
        assert row.sum() > 0
        one, other = p.sharing.kind[a], p.sharing.kind[b]
        assert min(one, other) >= 0
        assert (row[(p.sharing.beside[one, other] == 0) | (p.sharing.beside[other, one] == 0)] == 0).all()
        time[[a, b]] += row.sum()
        used += p.gpus[a] * row
    assert (time <= 1 + 1e-7).all()
    assert (used <= p.capacity * (1 + 1e-7)).all()
    assert solution.certificate["gap"] <= 1e-7
    return solution, solution.throughput(p)


def check_levels(plain: Shares, throughput: np.ndarray, level: np.ndarray) -> None:
    """Lexicographic: no job can rise if all that are no better off than it keep what they have."""
    for m in range(len(throughput)):
        no_better_off = level <= level[m] * (1 + 1e-6)
        least = np.where(no_better_off, throughput * (1 - 1e-7), 0.0)
        tolerance = 1e-4 * throughput[m] + 1e-5 * plain.speed[m].max()
        assert plain.most_of_one(m, least) <= throughput[m] + tolerance, f"job {m} of {plain.problem} could rise"


@settings(max_examples=150, deadline=None)
@given(problems())
def test_max_min_with_pairs_raises_the_worst_off_as_far_as_a_plain_program_can(p: Problem) -> None:
    answer, throughput = solve("max-min", p)
    rate, plain = p.weight * p.normaliser / p.gpus, Shares(p)
    assert answer.objective == pytest.approx((throughput / rate).min(), rel=1e-6)
    assert plain.possible(rate * answer.objective * (1 - 1e-6))
    assert not plain.possible(rate * answer.objective * (1 + 1e-6))
    check_levels(plain, throughput, throughput / rate)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_finish_time_with_pairs_lowers_the_largest_rho_as_far_as_a_plain_program_can(p: Problem) -> None:
    answer, throughput = solve("finish-time", p)
    alone_s, plain = p.isolated_s + p.steps_left / p.isolated_throughput, Shares(p)
    rho = (p.elapsed_s + p.steps_left / throughput) / alone_s
    assert answer.objective == pytest.approx(rho.max(), rel=1e-6)
    left_s = answer.objective * (1 - 1e-6) * alone_s - p.elapsed_s
    assert (left_s <= 0).any() or not plain.possible(p.steps_left / left_s)
    check_levels(plain, throughput, 1 / rho)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_makespan_with_pairs_is_the_shortest_and_short_jobs_do_not_starve(p: Problem) -> None:
    answer, throughput = solve("makespan", p)
    plain = Shares(p)
    assert answer.objective == pytest.approx((p.steps_left / throughput).max(), rel=1e-6)
    assert not plain.possible(p.steps_left / (answer.objective * (1 - 1e-6)))
    check_levels(plain, throughput, throughput / p.steps_left)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_total_throughput_and_cost_with_pairs_equal_the_plain_program(p: Problem) -> None:
    plain, nothing = Shares(p), np.zeros(len(p))
    answer, throughput = solve("total-throughput", p)
    assert answer.objective == pytest.approx(plain.best((1 / p.normaliser) @ plain.speed, nothing), rel=1e-6)
    assert answer.objective == pytest.approx((throughput / p.normaliser).sum(), rel=1e-6)
    answer, _ = solve("cost", p)
    assert answer.objective == pytest.approx(plain.best(_per_price(plain), nothing), rel=1e-6)


def _per_price(plain: Shares) -> np.ndarray:
    return plain.speed.sum(axis=0) / np.array([plain.problem.price[k] for _, k in plain.who])


@settings(max_examples=100, deadline=None)
@given(problems())
def test_with_pairs_only_deadlines_that_cannot_be_met_are_relaxed_and_by_name(p: Problem) -> None:
    answer, throughput = solve("cost-deadline", p)
    plain, least, expected = Shares(p), np.zeros(len(p)), []
    dated = [m for m in range(len(p)) if np.isfinite(p.deadline_s[m])]
    for m in sorted(dated, key=lambda m: (p.deadline_s[m], p.ids[m])):
        trial = least.copy()
        trial[m] = p.steps_left[m] / p.deadline_s[m] if p.deadline_s[m] > 0 else 1e9
        least, expected = (trial, expected) if plain.possible(trial) else (least, [*expected, p.ids[m]])
    assert answer.certificate["relaxed_deadlines"] == expected
    assert (throughput >= least * (1 - 1e-6)).all()
    assert answer.objective == pytest.approx(plain.best(_per_price(plain), least), rel=1e-6)
