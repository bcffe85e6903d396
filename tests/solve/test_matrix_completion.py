"""Holes are filled by low rank and by the nearest row; known entries are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from horae.core.arrays import Floats
from horae.solve.matrix_completion import complete, fill, from_nearest_rows, nearest_rows

NAN = np.nan

#: Any matrix with holes, rows and columns without anything known among them.
shapes = array_shapes(min_dims=2, max_dims=2, max_side=7)
matrices = arrays(np.float64, shapes, elements=st.floats(-9, 9) | st.just(NAN))


def low_rank(rows: int, columns: int, rank: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    levels = rng.normal(size=(rows, 1)) + rng.normal(size=columns)
    return levels + rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))


def punch(values: Floats, share: float, seed: int) -> Floats:
    """Hide a share of the entries, but never a row's first, nor a column's."""
    holes = np.random.default_rng(seed).random(values.shape) < share
    holes[:, 0] = holes[0, :] = False
    return np.where(holes, NAN, values)


def loss(values: Floats, fitted: Floats) -> float:
    return float(np.nansum((values - fitted) ** 2))


def plain_nearest(fitted: Floats, known: np.ndarray, row: int, column: int) -> int:
    """The same by definition, one pair of rows at a time."""
    shape = fitted - fitted.mean(axis=1, keepdims=True)
    others = [other for other in range(len(fitted)) if other != row and known[other, column]]
    return min(others, key=lambda other: (round(float(((shape[row] - shape[other]) ** 2).sum()), 9), other), default=-1)


@given(matrices)
@settings(max_examples=60, deadline=None)
def test_whatever_is_missing_every_entry_becomes_a_number_and_known_ones_stay(values: Floats) -> None:
    filled = fill(values)
    known = ~np.isnan(values)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[known], values[known])
    np.testing.assert_array_equal(filled, fill(values))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_matrix_of_low_rank_is_found_again(rank: int) -> None:
    truth = low_rank(40, 30, rank, seed=3)
    holed = punch(truth, 0.4, seed=4)
    missing = np.isnan(holed)
    error = np.abs(complete(holed, rank=rank, ridge=1e-3, level_ridge=1e-3) - truth)[missing]
    assert missing.sum() > 400
    assert np.median(error) < 0.01
    assert np.quantile(error, 0.95) < 0.1


def test_levels_alone_are_the_ridge_solution_of_one_plain_system() -> None:
    holed = punch(low_rank(6, 5, 1, seed=1), 0.5, seed=2)
    rows, columns = np.nonzero(~np.isnan(holed))
    mean = np.nanmean(holed)
    design = np.hstack([rows[:, None] == np.arange(6), columns[:, None] == np.arange(5)]).astype(float)
    gram = design.T @ design + 0.05 * np.eye(11)
    levels = np.linalg.solve(gram, design.T @ (holed[rows, columns] - mean))
    np.testing.assert_allclose(
        complete(holed, rank=0, level_ridge=0.05), mean + levels[:6, None] + levels[6:], atol=1e-3
    )


def test_factors_explain_what_levels_cannot() -> None:
    holed = punch(low_rank(20, 15, 2, seed=5), 0.3, seed=6)
    assert loss(holed, complete(holed, rank=2)) < 0.1 * loss(holed, complete(holed, rank=0))


def test_a_row_takes_its_shape_from_the_nearest_row_and_its_level_from_itself() -> None:
    shapes = np.array([[0.0, 1.0, 2.0, 3.0], [0.0, -1.0, -2.0, -3.0]])
    whole = np.vstack([shapes[0], shapes[1], shapes[0] + 10])
    holed = whole.copy()
    holed[2, 3] = NAN
    assert from_nearest_rows(holed, whole)[2, 3] == pytest.approx(13)


def test_where_nobody_else_knows_the_column_the_fit_stays() -> None:
    holed = np.array([[1.0, NAN, 3.0], [2.0, NAN, NAN]])
    fitted = np.arange(6.0).reshape(2, 3)
    snapped = from_nearest_rows(holed, fitted)
    np.testing.assert_array_equal(snapped[:, 1], fitted[:, 1])
    assert snapped[0, 2] == fitted[0, 2]


@given(arrays(np.float64, (5, 4), elements=st.integers(-3, 3)), arrays(np.bool_, (5, 4)))
@settings(max_examples=60, deadline=None)
def test_the_nearest_row_is_the_one_a_plain_search_finds(fitted: Floats, known: np.ndarray) -> None:
    found = nearest_rows(fitted, known)
    expected = [[plain_nearest(fitted, known, row, column) for column in range(4)] for row in range(5)]
    np.testing.assert_array_equal(found, expected)


def test_the_mean_of_both_forgives_noise_better_than_the_nearest_row() -> None:
    truth = low_rank(30, 20, 2, seed=7)
    holed = punch(truth + 0.3 * np.random.default_rng(8).normal(size=truth.shape), 0.5, seed=9)
    missing = np.isnan(holed)
    borrowed = from_nearest_rows(holed, complete(holed))
    assert np.abs(fill(holed) - truth)[missing].mean() < np.abs(borrowed - truth)[missing].mean()


def test_the_mean_of_both_keeps_what_is_odd_better_than_low_rank() -> None:
    kinds = np.random.default_rng(10).normal(size=(8, 20))  # no rank to speak of, but each kind of row comes four times
    truth = np.repeat(kinds, 4, axis=0) + np.arange(32)[:, None] / 8
    holed = punch(truth, 0.4, seed=11)
    missing = np.isnan(holed)
    assert np.abs(fill(holed) - truth)[missing].mean() < 0.85 * np.abs(complete(holed) - truth)[missing].mean()
