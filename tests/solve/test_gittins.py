"""The Gittins index: the printed values, the plain definition, and that serving by it is best.

Tests policies/tiresias/service_samples.py.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from horae.plugins.setting_files import read_column
from horae.solve.gittins import ServiceDistribution

samples = st.lists(st.integers(1, 12), min_size=1, max_size=10)
ages = st.lists(st.integers(0, 14), min_size=1, max_size=8)


def known(values: list[int]) -> ServiceDistribution:
    return ServiceDistribution(np.array(values, float))


def plain_index(values: list[int], age: int, quantum: int | None) -> Fraction:
    """The definition, word by word; without a quantum it is infinite."""
    left = [one - age for one in values if one > age]
    if not left:
        return Fraction(0)
    given = max(left) if quantum is None else quantum
    return Fraction(sum(one <= given for one in left)) / sum(min(one, given) for one in left)


def plain_best(values: list[int], age: int) -> Fraction:
    """The highest index of any quantum; between two samples more quantum only costs."""
    return max((plain_index(values, age, one - age) for one in values if one > age), default=Fraction(0))


@pytest.mark.parametrize(
    ("age", "quantum", "best"),
    [(0, "297.2", "340"), (1000, "236.9", "704"), (5000, "83.3", "193"), (50000, "7.5", "10.6")],
)
def test_the_published_samples_give_the_printed_digits(shared_data: Path, age: float, quantum: str, best: str) -> None:
    distribution = ServiceDistribution(
        np.array(read_column("samples", str(shared_data / "tiresias" / "yarn-gput1000.csv"), "gpu_seconds"))
    )
    at = np.array([age], float)
    assert f"{1e6 * distribution.index(at, np.array([3250.0]))[0]:.1f}" == quantum
    assert f"{1e6 * distribution.best_index(at)[0]:.{len(best.partition('.')[2])}f}" == best


@given(samples, ages, st.integers(1, 14))
def test_the_index_is_that_of_the_definition(values: list[int], at: list[int], quantum: int) -> None:
    where = np.array(at, float)
    for asked in (quantum, None):
        found = known(values).index(where, np.full(len(at), np.inf if asked is None else float(asked)))
        assert found == pytest.approx([float(plain_index(values, age, asked)) for age in at], rel=1e-12)


@given(samples, ages)
def test_the_best_index_is_the_highest_of_any_quantum(values: list[int], at: list[int]) -> None:
    found = known(values).best_index(np.array(at, float))
    assert found == pytest.approx([float(plain_best(values, age)) for age in at], rel=1e-12)


@given(samples, st.integers(1, 14))
def test_the_order_of_jobs_is_that_of_brute_force(values: list[int], quantum: int) -> None:
    every_age = list(range(14))
    where = np.array(every_age, float)
    orders = [
        (known(values).best_index(where), [plain_best(values, age) for age in every_age]),
        (
            known(values).index(where, np.full(14, float(quantum))),
            [plain_index(values, age, quantum) for age in every_age],
        ),
    ]
    for found, exact in orders:
        for one in every_age:
            for other in every_age:
                if exact[one] > exact[other]:
                    assert found[one] > found[other]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.integers(0, 4), min_size=2, max_size=3))
def test_no_way_to_serve_ends_jobs_sooner_than_the_highest_index_first(values: list[int], start: list[int]) -> None:
    """One server, jobs of one distribution, a decision after every unit: the least expected sum of completion times."""
    start = [min(age, max(values) - 1) for age in start]
    index = known(values).best_index(np.arange(6.0))

    def ends_now(age: int) -> Fraction:
        left = [one for one in values if one > age]
        return Fraction(sum(one == age + 1 for one in left), len(left))

    def cost(now: tuple[int, ...], served: int, after: object) -> Fraction:
        """All that are there wait a unit; the one that is served may end."""
        rest, chance = now[:served] + now[served + 1 :], ends_now(now[served])
        total = Fraction(len(now)) + (chance * after(rest) if chance else 0)  # type: ignore[operator]
        older = tuple(sorted((*rest, now[served] + 1)))
        return total + ((1 - chance) * after(older) if chance < 1 else 0)  # type: ignore[operator]

    @cache
    def best(now: tuple[int, ...]) -> Fraction:
        return min((cost(now, one, best) for one in range(len(now))), default=Fraction(0))

    @cache
    def by_index(now: tuple[int, ...]) -> Fraction:
        return cost(now, max(range(len(now)), key=lambda one: index[now[one]]), by_index) if now else Fraction(0)

    assert by_index(tuple(sorted(start))) == best(tuple(sorted(start)))


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=30), st.lists(st.floats(0, 1e9), min_size=1, max_size=10))
def test_real_numbers_of_any_size_give_an_index_that_is_one(values: list[float], at: list[float]) -> None:
    distribution, where = ServiceDistribution(np.array(values)), np.array(at)
    best = distribution.best_index(where)
    assert np.isfinite(best).all()
    for quantum in (1.0, 1e4, np.inf):
        index = distribution.index(where, np.full(len(at), quantum))
        assert (index <= best * (1 + 1e-6)).all()
        assert (index >= 0).all()
    assert ((best > 0) == (where < max(values))).all()
