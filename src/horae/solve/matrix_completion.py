"""Matrix completion: missing entries from a low-rank fit and from the nearest measured row (Gavel, OSDI '20).

Entries are logarithms of speeds, so that "half as fast" weighs as much as "twice as fast", and a row is the sum of its
level (the job's speed in general) and its shape (the columns in which it is faster). Missing entries are NaN.
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
    """Measured entries as they are; missing entries half way between the low-rank fit and the nearest row.

    The low-rank fit is smooth and tolerates noise; the nearest row keeps the peculiarities of real jobs. Their mean
    is as good as either, or better.
    """
    fitted = complete(values)
    return np.where(np.isnan(values), (fitted + from_nearest_rows(values, fitted)) / 2, values)


def complete(values: Floats, rank: int = RANK, ridge: float = RIDGE, level_ridge: float = LEVEL_RIDGE) -> Floats:
    """The matrix `mean + row level + column level + low rank` that fits the measured entries best.

    Alternating least squares, all rows at once and then all columns. Ridges keep a row with
    few measured entries near the others; a row or column without entries stays at the mean.
    """
    measured = ~np.isnan(values)
    mean = float(values[measured].mean()) if measured.any() else 0.0
    centred, weight = np.where(measured, values - mean, 0.0), measured.astype(np.float64)
    levels = _alternate(centred, weight, np.zeros((values.shape[1], 1)), np.array([level_ridge]))
    columns = np.hstack([levels[1], _directions(weight * (centred - _product(*levels)), rank)])
    penalty = np.array([level_ridge, *[ridge] * (columns.shape[1] - 1)])
    return mean + _product(*_alternate(centred, weight, columns, penalty))


def _alternate(target: Floats, weight: Floats, columns: Floats, penalty: Floats) -> tuple[Floats, Floats]:
    """Levels and factors of rows and of columns, fitted to each other in turns."""
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
    """The leading directions of the residual of the levels: a deterministic start."""
    _, size, right = np.linalg.svd(residual, full_matrices=False)
    start: Floats = right[:rank].T * np.sqrt(size[:rank])
    return start


def from_nearest_rows(values: Floats, fitted: Floats) -> Floats:
    """Every entry from the nearest row with a measurement in the column, shifted to the level of the row itself.

    Where no other row has a measurement in the column, the fitted value stays.
    """
    nearest = nearest_rows(fitted, ~np.isnan(values))
    level = fitted.mean(axis=1)
    borrowed = level[:, None] - level[nearest] + values[nearest, np.arange(values.shape[1])]
    return np.where(nearest >= 0, borrowed, fitted)


def nearest_rows(fitted: Floats, measured: NDArray[np.bool_]) -> Ints:
    """For each entry, the other row of most similar shape with a measurement in the column; -1 if there is none."""
    distance = _distances(fitted - fitted.mean(axis=1, keepdims=True))
    nearest = np.full(measured.shape, -1)
    for column in np.flatnonzero(measured.any(axis=0)):
        candidates = np.flatnonzero(measured[:, column])
        chosen = candidates[distance[:, candidates].argmin(axis=1)]
        itself = chosen == np.arange(len(distance))
        nearest[:, column] = np.where(itself, -1, chosen)
    return nearest


def _distances(points: Floats) -> Floats:
    """Squared distances; infinite to itself. Rounded, so that equal ones tie and the first row wins."""
    squares = np.square(points).sum(axis=1)
    distance: Floats = np.round(squares[:, None] + squares - 2 * points @ points.T, 9)
    np.fill_diagonal(distance, np.inf)
    return distance
