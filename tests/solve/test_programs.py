"""Every program against a plain linear program, on the worked examples and on random problems.

Tests solve/allocation/cheapest_mix.py, solve/allocation/demands.py, solve/allocation/equal_jobs.py,
solve/allocation/lexicographic.py, solve/allocation/price_search.py, solve/allocation/problem.py,
solve/allocation/time_division.py, solve/allocation/time_lp.py and solve/allocation/units.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.allocation.programs import PROGRAMS, NoAllocation
from tests.solve.plain import best, most_of_one, possible, problem

T3 = [(2, 1, 0.5), (3, 2, 1)]
T4 = [*T3, (4, 3, 2), (1, 1, 1)]


@st.composite
def problems(draw: st.DrawFn) -> AllocationProblem:
    """Small problems of every shape: scarce and plenty, equal jobs, types that a job cannot use."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    jobs, types = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    speed = rng.integers(0, 6, (jobs, types)).astype(float)
    speed[speed.max(axis=1) == 0, 0] = 1.0
    if draw(st.booleans()):
        speed[:] = speed[0]
    return problem(
        speed,
        rng.integers(1, draw(st.sampled_from([2, 5, 20])) + 1, types),
        gpus=rng.choice([1, 1, 2, 4], jobs),
        weight=rng.choice([1, 1, 2, 5], jobs),
        steps_left=rng.integers(1, 1000, jobs),
        elapsed_s=rng.integers(0, 300, jobs) * draw(st.integers(0, 1)),
        isolated_s=rng.integers(0, 300, jobs) * draw(st.integers(0, 1)),
        deadline_s=np.where(rng.random(jobs) < 0.5, rng.integers(1, 2000, jobs), np.inf),
        price=rng.integers(1, 5, types),
    )


def solve(name: str, p: AllocationProblem) -> tuple[Solution, np.ndarray]:
    """Solve, and check that the shares could be given."""
    solution = PROGRAMS[name].solve(p)
    share = solution.share
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-7).all()
    assert (p.gpus @ share <= p.capacity * (1 + 1e-7)).all()
    assert (share[p.speed == 0] == 0).all()
    assert solution.certificate["gap"] <= 1e-7
    return solution, (share * p.speed).sum(axis=1)


def test_the_worked_examples() -> None:
    answer, throughput = solve("max-min", problem(T3, [1, 2, 3]))
    assert answer.objective == pytest.approx(1.54839, abs=1e-5)
    assert throughput == pytest.approx([1.4194, 2.5806], abs=1e-4)
    answer, _ = solve("finish-time", problem(T3, [1, 2, 3], steps_left=[300, 500]))
    assert answer.objective == pytest.approx(0.64583, abs=1e-5)
    answer, _ = solve("makespan", problem(T3, [1, 2, 3], steps_left=[300, 500]))
    assert answer.objective == pytest.approx(200, rel=1e-9)
    _, throughput = solve("max-min", problem(T4, [1, 1, 1]))
    assert throughput == pytest.approx([1.0431, 1.7882, 2.6824, 0.8941], abs=1e-4)
    answer, throughput = solve("max-min", problem([[40, 10], [12, 4], [100, 50]], [1, 1]))
    assert answer.objective == pytest.approx(0.72727, abs=1e-5)
    assert throughput == pytest.approx([18.1818, 5.8182, 54.5455], abs=1e-4)


@settings(max_examples=120, deadline=None)
@given(problems())
def test_max_min_raises_the_worst_off_as_far_as_a_plain_program_can(p: AllocationProblem) -> None:
    answer, throughput = solve("max-min", p)
    rate = p.weight * p.normaliser / p.gpus
    level = throughput / rate
    assert answer.objective == pytest.approx(level.min(), rel=1e-6)
    assert possible(p, rate * answer.objective * (1 - 1e-6))
    assert not possible(p, rate * answer.objective * (1 + 1e-6))
    _check_levels(p, throughput, level)


@settings(max_examples=80, deadline=None)
@given(problems())
def test_finish_time_lowers_the_largest_rho_as_far_as_a_plain_program_can(p: AllocationProblem) -> None:
    answer, throughput = solve("finish-time", p)
    alone_s = p.isolated_s + p.steps_left / p.isolated_throughput
    rho = (p.elapsed_s + p.steps_left / throughput) / alone_s
    assert answer.objective == pytest.approx(rho.max(), rel=1e-6)
    left_s = answer.objective * (1 - 1e-6) * alone_s - p.elapsed_s
    assert (left_s <= 0).any() or not possible(p, p.steps_left / left_s)
    _check_levels(p, throughput, 1 / rho)


#: Job 1 comes to rest exactly where its cheapest way changes, and job 4 has to rise on alone.
AT_A_BEND = problem([[2, 4, 3]] * 5, [5, 2, 4], gpus=[4, 1, 1, 1, 4], steps_left=[767, 375, 829, 861, 72])


@settings(max_examples=80, deadline=None)
@given(problems())
@example(AT_A_BEND)
def test_the_makespan_is_the_shortest_and_short_jobs_do_not_starve(p: AllocationProblem) -> None:
    answer, throughput = solve("makespan", p)
    assert answer.objective == pytest.approx((p.steps_left / throughput).max(), rel=1e-6)
    assert not possible(p, p.steps_left / (answer.objective * (1 - 1e-6)))
    _check_levels(p, throughput, throughput / p.steps_left)


def _check_levels(p: AllocationProblem, throughput: np.ndarray, level: np.ndarray) -> None:
    """Lexicographic: no job can rise if all that are no better off than it keep what they have."""
    for m in range(len(p)):
        no_better_off = level <= level[m] * (1 + 1e-6)
        least = np.where(no_better_off, throughput * (1 - 1e-7), 0.0)
        tolerance = 1e-4 * throughput[m] + 1e-5 * p.speed[m].max()
        assert most_of_one(p, m, least) <= throughput[m] + tolerance, f"job {m} of {p} could rise"


@settings(max_examples=80, deadline=None)
@given(problems())
def test_total_throughput_and_cost_equal_the_plain_program(p: AllocationProblem) -> None:
    nothing = np.zeros(len(p))
    answer, _ = solve("total-throughput", p)
    assert answer.objective == pytest.approx(best(p, p.speed / p.normaliser[:, None], nothing), rel=1e-6)
    answer, _ = solve("cost", p)
    assert answer.objective == pytest.approx(best(p, p.speed / p.price, nothing), rel=1e-6)


@pytest.mark.parametrize("name", ["cost", "cost-deadline"])
def test_steps_may_be_as_small_as_anybody_counts_them(name: str) -> None:
    """The objective is in steps, and what a solver takes for infinite is absolute."""
    speed, steps_left = np.array([[2.0, 1.0], [3.0, 2.0], [1.0, 4.0]]), np.full(3, 100.0)
    few, many = (problem(speed * by, [2, 1], steps_left=steps_left * by) for by in (1.0, 1e25))
    answer, steps = solve(name, many)
    plain, throughput = solve(name, few)
    assert answer.objective == pytest.approx(plain.objective * 1e25)
    assert steps == pytest.approx(throughput * 1e25)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_only_deadlines_that_cannot_be_met_are_relaxed_and_by_name(p: AllocationProblem) -> None:
    answer, throughput = solve("cost-deadline", p)
    relaxed = answer.certificate["relaxed_deadlines"]
    met = [m for m in range(len(p)) if np.isfinite(p.deadline_s[m]) and p.ids[m] not in relaxed]
    least = np.zeros(len(p))
    least[met] = p.steps_left[met] / p.deadline_s[met]
    assert (throughput >= least * (1 - 1e-6)).all()
    assert answer.objective == pytest.approx(best(p, p.speed / p.price, least), rel=1e-5)
    for name in relaxed:
        m = int(name)
        sooner = [k for k in met if (p.deadline_s[k], p.ids[k]) < (p.deadline_s[m], p.ids[m])]
        before = np.zeros(len(p))
        before[sooner] = least[sooner]
        before[m] = p.steps_left[m] / p.deadline_s[m]
        assert not possible(p, before * (1 + 1e-6))


def test_a_job_of_weight_two_ends_up_with_twice_the_share() -> None:
    _, throughput = solve("max-min", problem([[1.0], [1.0]], [1], weight=[1, 2]))
    assert throughput == pytest.approx([1 / 3, 2 / 3])


def test_equal_jobs_get_equal_shares_however_many_there_are() -> None:
    p = problem(np.tile([[4.0, 2.0], [1.0, 1.0]], (500, 1)), [10, 20])
    answer, throughput = solve("max-min", p)
    assert answer.certificate["classes"] == 2
    assert np.ptp(throughput[::2]) == 0


def test_a_problem_that_makes_no_sense_is_refused_in_words() -> None:
    with pytest.raises(NoAllocation, match="no throughput"):
        PROGRAMS["max-min"].solve(problem([[0.0, 0.0]], [1, 1]))
    with pytest.raises(NoAllocation, match="no steps left"):
        PROGRAMS["makespan"].solve(problem([[1.0]], [1], steps_left=[0]))
    with pytest.raises(NoAllocation, match="price"):
        PROGRAMS["cost"].solve(problem([[1.0]], [1], price=[0]))


def cheapest(speed: np.ndarray, size: float, price: np.ndarray, throughput: float) -> float:
    """The least that a job of this size pays for a throughput, as a plain program over its own time."""
    from scipy.optimize import linprog

    rows = np.vstack((-speed, np.ones(len(speed))))
    answer = linprog(size * price, A_ub=rows, b_ub=[-throughput, 1.0], method="highs")
    assert answer.status == 0
    return float(answer.fun)


@settings(max_examples=25, deadline=None)
@given(problems())
def test_at_the_prices_of_the_certificate_no_higher_level_can_be_paid_for(p: AllocationProblem) -> None:
    answer, _ = solve("max-min", p)
    price = np.array(answer.certificate["prices"])
    rate = p.weight * p.normaliser / p.gpus
    most = float((p.speed.max(axis=1) / rate).min())
    if answer.objective >= most * (1 - 1e-6):
        return  # Somebody has its fastest: that is proof enough.
    assert price @ p.capacity == pytest.approx(1)
    paid = sum(cheapest(p.speed[m], p.gpus[m], price, answer.objective * rate[m]) for m in range(len(p)))
    assert paid == pytest.approx(1, rel=1e-6)
