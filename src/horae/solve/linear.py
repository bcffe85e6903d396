"""Linear programs over shares of time, through HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from horae.solve.prices import Jobs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Optimum:
    """The best shares, what they are worth, and the worth of one GPU of each type."""

    share: Floats
    value: float
    price: Floats


def best_shares(jobs: Jobs, capacity: Floats, worth: Floats, least: Floats) -> Optimum | None:
    """Shares that maximise sum(worth * share), each job with at least a throughput; None if that cannot be.

    `worth` is what all jobs of a class gain from a whole share of a type; `least` is the
    throughput of one of them.
    """
    classes, types = jobs.speed.shape
    program: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    program.setOptionValue("output_flag", False)
    program.setOptionValue("threads", 1)
    program.passModel(_model(jobs, capacity, worth, least))
    program.run()
    if program.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = program.getSolution()
    share = np.maximum(np.array(solution.col_value).reshape(classes, types), 0.0)
    duals = np.array(solution.row_dual)
    return Optimum(share, float((worth * share).sum()), np.maximum(duals[classes : classes + types], 0.0))


def _model(jobs: Jobs, capacity: Floats, worth: Floats, least: Floats) -> highspy.HighsLp:
    """Rows: time of each class, GPUs of each type, throughput of each class that must have some."""
    classes, types = jobs.speed.shape
    bound = np.flatnonzero(least > 0)
    row_of = np.full(classes, -1)
    row_of[bound] = classes + types + np.arange(len(bound))
    starts, indices, values = [0], [], []
    for c in range(classes):
        for t in range(types):
            indices += [c, classes + t]
            values += [1.0, float(jobs.size[c])]
            if row_of[c] >= 0:
                indices.append(int(row_of[c]))
                values.append(float(jobs.speed[c, t]))
            starts.append(len(indices))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = classes * types, classes + types + len(bound)
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = worth.reshape(-1)
    model.col_lower_ = np.zeros(classes * types)
    model.col_upper_ = np.where(jobs.speed.reshape(-1) > 0, 1.0, 0.0)
    infinity = highspy.kHighsInf
    model.row_lower_ = np.concatenate((np.full(classes + types, -infinity), least[bound]))
    model.row_upper_ = np.concatenate((np.ones(classes), capacity, np.full(len(bound), infinity)))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.array(starts, np.int32)
    model.a_matrix_.index_ = np.array(indices, np.int32)
    model.a_matrix_.value_ = np.array(values)
    return model
