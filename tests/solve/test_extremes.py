"""Programs with pairs where numbers lie far apart: jobs with next to nothing left, old ones, unlike weights.

Tests solve/allocation/floors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.policies.gavel.finish_time import FinishTime
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.solve.allocation.problem import AllocationProblem, Sharing, Solution
from horae.solve.allocation.programs import finish_time
from horae.workload.clusters import parse_cluster
from horae.workload.speed_files import load_throughputs
from horae.workload.traces import load_trace
from tests.solve.pairs import solve
from tests.solve.plain import Shares, problem


@st.composite
def problems(draw: st.DrawFn) -> AllocationProblem:
    """Jobs of a few kinds, some of which have a billionth of their work left."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    jobs, kinds, types = draw(st.integers(2, 14)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    speeds = rng.uniform(0.1, 10.0, (kinds, types))
    beside = speeds[:, None, :] * rng.uniform(0.3, 0.9, (kinds, kinds, types))
    kind = rng.integers(0, kinds, jobs)
    work_s = 10 ** rng.uniform(2, 5, jobs) * np.where(rng.random(jobs) < draw(st.floats(0, 0.4)), 1e-9, 1.0)
    p = problem(
        speeds[kind],
        rng.integers(1, 4, types),
        weight=10 ** rng.uniform(-2, 2, jobs),
        steps_left=work_s * speeds[kind].max(axis=1),
        elapsed_s=10 ** rng.uniform(0, 6, jobs),
        isolated_s=rng.uniform(0, 1e4, jobs),
        deadline_s=10 ** rng.uniform(0, 6, jobs),
        price=rng.uniform(0.5, 3.0, types),
    )
    return replace(p, sharing=Sharing(kind, beside))


def cannot_all_have(p: AllocationProblem, throughput: np.ndarray) -> bool:
    """Whether a plain program says so. What it cannot tell from nothing is left out."""
    fastest = Shares(p).speed.max(axis=1)
    return bool((throughput > fastest).any()) or not Shares(p).possible(
        np.where(throughput > 1e-6 * fastest, throughput, 0.0)
    )


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_largest_rho_is_as_low_as_can_be(p: AllocationProblem) -> None:
    answer, throughput = solve("finish-time", p)
    alone_s = p.isolated_s + p.steps_left / p.isolated_throughput
    assert answer.objective == pytest.approx(((p.elapsed_s + p.steps_left / throughput) / alone_s).max(), rel=1e-6)
    left_s = answer.objective * (1 - 1e-4) * alone_s - p.elapsed_s
    assert (left_s <= 0).any() or cannot_all_have(p, p.steps_left / left_s)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_makespan_is_as_short_as_can_be(p: AllocationProblem) -> None:
    answer, throughput = solve("makespan", p)
    assert answer.objective == pytest.approx((p.steps_left / throughput).max(), rel=1e-6)
    assert cannot_all_have(p, p.steps_left / (answer.objective * (1 - 1e-4)))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_worst_off_is_as_well_off_as_can_be(p: AllocationProblem) -> None:
    answer, throughput = solve("max-min", p)
    rate = p.weight * p.normaliser / p.gpus
    assert answer.objective == pytest.approx((throughput / rate).min(), rel=1e-6)
    assert cannot_all_have(p, rate * answer.objective * (1 + 1e-4))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_deadlines_that_are_met_are_met_exactly(p: AllocationProblem) -> None:
    answer, throughput = solve("cost-deadline", p)
    met = ~np.isin(p.ids, answer.certificate["relaxed_deadlines"])
    assert (throughput[met] >= (p.steps_left / p.deadline_s)[met] * (1 - 1e-6)).all()


@settings(max_examples=15, deadline=None)
@given(problems())
def test_nash_welfare_is_as_large_as_can_be(p: AllocationProblem) -> None:
    answer, _ = solve("strategy-proof", p)
    kept = np.array([answer.certificate["kept"][name] for name in p.ids])
    throughput, plain = answer.throughput(p) / kept, Shares(p)
    most = plain.best((p.weight / throughput) @ plain.speed, np.zeros(len(p)))
    gap, part = answer.certificate["gap"], p.weight / p.weight.sum()
    assert gap <= 1e-8
    # A job with little weight adds little to the welfare: that is off by the square of how far the job is off.
    off = np.sqrt(2 * max(gap, 1e-10) / part.min())
    assert most == pytest.approx(p.weight.sum(), rel=1e-4 + off)


def test_a_job_with_next_to_nothing_left_takes_nothing_from_the_others() -> None:
    """It came long ago, so its rho is what it is, but it has what nobody else can use."""
    p = problem([[1.0], [1.0]], [1], steps_left=[1e-6, 1000], elapsed_s=[1e6, 0])
    p = replace(p, sharing=Sharing(np.zeros(2, np.int64), np.full((1, 1, 1), 0.4)))
    for sharing in (p.sharing, None):
        scarce, plenty = replace(p, sharing=sharing), replace(p, sharing=sharing, capacity=np.array([2.0]))
        assert finish_time(scarce).share.ravel() == pytest.approx([1e-4, 1 - 1e-4], rel=1e-6)
        assert finish_time(plenty).share.ravel() == pytest.approx([1, 1], rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_every_moment_of_a_trace_has_its_proof(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gaps: list[float] = []

    def noting(
        allocate: Callable[[FinishTime, AllocationProblem], Solution],
    ) -> Callable[[FinishTime, AllocationProblem], Solution]:
        def noted(policy: FinishTime, p: AllocationProblem) -> Solution:
            solution = allocate(policy, p)
            assert p.sharing is not None
            gaps.append(float(solution.certificate["gap"]))
            return solution

        return noted

    monkeypatch.setattr(FinishTime, "allocate", noting(FinishTime.allocate))
    speeds = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    history = simulate(
        Scenario(
            load_trace(shared_data / "gavel" / "minimize_makespan.trace", throughputs=speeds).jobs[:40],
            parse_cluster("v100:4x1,p100:8x1,k80:12x1"),
            policy="finish-time",
            settings={"space-sharing": "true"},
            placement="anywhere",
            throughputs=speeds,
        )
    )
    assert np.isfinite(history.end_s).all()
    assert len(gaps) >= 100
    assert max(gaps) <= 1e-6
