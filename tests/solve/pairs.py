"""Problems in which jobs share GPUs, and a check that the shares of an answer could be given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from horae.solve.allocation.problem import AllocationProblem, Sharing, Solution
from horae.solve.allocation.programs import PROGRAMS
from tests.solve.plain import problem


@st.composite
def problems(draw: st.DrawFn) -> AllocationProblem:
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


def solve(name: str, p: AllocationProblem) -> tuple[Solution, np.ndarray]:
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
        one, other = p.sharing.pair_row[a], p.sharing.pair_row[b]
        assert min(one, other) >= 0
        assert (row[(p.sharing.pair_speed[one, other] == 0) | (p.sharing.pair_speed[other, one] == 0)] == 0).all()
        time[[a, b]] += row.sum()
        used += p.gpus[a] * row
    assert (time <= 1 + 1e-7).all()
    assert (used <= p.capacity * (1 + 1e-7)).all()
    assert solution.certificate["gap"] <= 1e-7
    return solution, solution.throughput(p)
