"""Filling the holes of a matrix: low rank, and the nearest row that was measured (Gavel, OSDI '20).

Entries are logarithms, so that "half as fast" weighs as much as "twice as fast", and a row's
level (how fast a job is at all) is a sum away from its shape (where it is faster than elsewhere).
What is missing is not a number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints

#: Chosen by measurement on the published table, 70 % hidden, with and without noise; see docs/design/estimation.md.
RANK = 4
RIDGE = 0.3
LEVEL_RIDGE = 0.05

_SWEEPS = 30


def fill(values: Floats) -> Floats:
    """Known entries as they are, the others half way between low rank and nearest row.

    The low-rank fit is smooth and forgives noise, the nearest row keeps what is odd about
    real jobs; their mean is better than either, or as good.
    """
    fitted = complete(values)
    return np.where(np.isnan(values), (fitted + snap(values, fitted)) / 2, values)


def complete(values: Floats, rank: int = RANK, ridge: float = RIDGE, level_ridge: float = LEVEL_RIDGE) -> Floats:
    """The matrix `mean + row level + column level + low rank` that fits the known entries best.

    Alternating least squares, all rows at once and then all columns. Ridges keep a row with
    few known entries near the others; a row or column with none stays at the mean.
    """
    known = ~np.isnan(values)
    mean = float(values[known].mean()) if known.any() else 0.0
    centred, weight = np.where(known, values - mean, 0.0), known.astype(np.float64)
    levels = _alternate(centred, weight, np.zeros((values.shape[1], 1)), np.array([level_ridge]))
    columns = np.hstack([levels[1], _directions(weight * (centred - _product(*levels)), rank)])
    penalty = np.array([level_ridge, *[ridge] * (columns.shape[1] - 1)])
    return mean + _product(*_alternate(centred, weight, columns, penalty))


def _alternate(target: Floats, weight: Floats, columns: Floats, penalty: Floats) -> tuple[Floats, Floats]:
    """Level and factors of the rows, then of the columns, each fitted to the other, over and over."""
    for _ in range(_SWEEPS):
        rows = _regress(target, weight, columns, penalty)
        columns = _regress(target.T, weight.T, rows, penalty)
    return rows, columns


def _regress(target: Floats, weight: Floats, others: Floats, penalty: Floats) -> Floats:
    """Level and factors of every row of `target`, given those of the columns: one small system for each row."""
    features = np.hstack([np.ones((len(others), 1)), others[:, 1:]])
    gram = np.einsum("rc,ck,cl->rkl", weight, features, features) + np.diag(penalty)
    right = (weight * (target - others[:, 0])) @ features
    solved: Floats = np.linalg.solve(gram, right[..., None])[..., 0]
    return solved


def _product(rows: Floats, columns: Floats) -> Floats:
    """Level of the row, level of the column (first entries), and the product of the rest."""
    fitted: Floats = rows[:, :1] + columns[:, 0] + rows[:, 1:] @ columns[:, 1:].T
    return fitted


def _directions(residual: Floats, rank: int) -> Floats:
    """The leading directions of what levels leave: a start that is the same every time."""
    _, size, right = np.linalg.svd(residual, full_matrices=False)
    start: Floats = right[:rank].T * np.sqrt(size[:rank])
    return start


def snap(values: Floats, fitted: Floats) -> Floats:
    """Every entry as the nearest row has it that knows the column, at the level of the row itself.

    Where no other row knows the column, the fitted value stays.
    """
    nearest = nearest_rows(fitted, ~np.isnan(values))
    level = fitted.mean(axis=1)
    borrowed = level[:, None] - level[nearest] + values[nearest, np.arange(values.shape[1])]
    return np.where(nearest >= 0, borrowed, fitted)


def nearest_rows(fitted: Floats, known: NDArray[np.bool_]) -> Ints:
    """For each entry, the other row of the most similar shape that knows the column; -1 if none does."""
    apart = _distances(fitted - fitted.mean(axis=1, keepdims=True))
    nearest = np.full(known.shape, -1)
    for column in np.flatnonzero(known.any(axis=0)):
        candidates = np.flatnonzero(known[:, column])
        chosen = candidates[apart[:, candidates].argmin(axis=1)]
        oneself = chosen == np.arange(len(apart))
        nearest[:, column] = np.where(oneself, -1, chosen)
    return nearest


def _distances(points: Floats) -> Floats:
    """Squared distances; infinite to oneself. Rounded, so that equal ones tie and the first row wins."""
    squares = np.square(points).sum(axis=1)
    apart: Floats = np.round(squares[:, None] + squares - 2 * points @ points.T, 9)
    np.fill_diagonal(apart, np.inf)
    return apart
