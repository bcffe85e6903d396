"""Classes of equal jobs. Solving by class instead of by job is exact.

If two jobs have the same speeds, GPU count and demand, any allocation can give both the mean of their shares, which
is feasible and no worse for the lesser. So a problem needs a row for each class, not for each job (83 classes in the
published table of throughputs, for any number of jobs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats


@dataclass(frozen=True)
class Classes:
    """`first[c]`: position of one job of class c; `count[c]`: number of its jobs; `of_job[m]`: class of job m."""

    first: NDArray[np.int64]
    count: Floats
    of_job: NDArray[np.int64]


def find_classes(columns: Floats) -> Classes:
    """Group equal rows. A random projection sorts them; equality is then checked, not assumed."""
    rows, width = columns.shape
    factors = np.random.default_rng(0).uniform(0.5, 1.5, width)
    projected = columns @ factors
    _, first, of_job, count = np.unique(projected, return_index=True, return_inverse=True, return_counts=True)
    if not np.array_equal(columns[first[of_job]], columns):
        _, first, of_job, count = np.unique(columns, axis=0, return_index=True, return_inverse=True, return_counts=True)
    assert len(of_job) == rows
    return Classes(first.astype(np.int64), count.astype(np.float64), of_job.reshape(-1).astype(np.int64))
