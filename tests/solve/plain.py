"""The same problems as plain linear programs with a row for each job, written down as in the paper."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from horae.solve.problem import Problem


def problem(speed, capacity, **columns) -> Problem:
    """A problem from its speeds and capacities; everything else has a default."""
    speed = np.array(speed, float)
    jobs, types = speed.shape
    given = {name: np.array(values, float) for name, values in columns.items()}
    defaults = {
        "gpus": np.ones(jobs),
        "weight": np.ones(jobs),
        "steps_left": np.full(jobs, 100.0),
        "elapsed_s": np.zeros(jobs),
        "isolated_s": np.zeros(jobs),
        "deadline_s": np.full(jobs, np.inf),
        "price": np.ones(types),
    }
    return Problem(
        gpu_types=tuple(f"t{k}" for k in range(types)),
        capacity=np.array(capacity, float),
        ids=tuple(str(m) for m in range(jobs)),
        speed=speed,
        **{**defaults, **given},
    )


def best(p: Problem, gain: np.ndarray, least: np.ndarray) -> float | None:
    """The most of sum(gain * X) with throughputs of at least `least`; None if they cannot be had."""
    jobs, types = p.speed.shape
    rows, bounds = _base(p)
    for m in range(jobs):
        row = np.zeros((jobs, types))
        row[m] = -p.speed[m]
        rows.append(row.ravel())
        bounds.append(-least[m] * (1 - 1e-9))
    limits = [(0, 1 if speed > 0 else 0) for speed in p.speed.ravel()]
    answer = linprog(-gain.ravel(), A_ub=np.array(rows), b_ub=np.array(bounds), bounds=limits, method="highs")
    return -answer.fun if answer.status == 0 else None


def possible(p: Problem, least: np.ndarray) -> bool:
    """Whether everybody can have at least these throughputs."""
    return best(p, np.zeros_like(p.speed), least) is not None


def most_of_one(p: Problem, m: int, least: np.ndarray) -> float:
    """The highest throughput of one job while all have at least `least`."""
    gain = np.zeros_like(p.speed)
    gain[m] = p.speed[m]
    answer = best(p, gain, least)
    assert answer is not None
    return answer


def _base(p: Problem) -> tuple[list[np.ndarray], list[float]]:
    """Nobody spends more than all of its time, no type is used beyond its GPUs."""
    jobs, types = p.speed.shape
    rows, bounds = [], []
    for m in range(jobs):
        row = np.zeros((jobs, types))
        row[m] = 1.0
        rows.append(row.ravel())
        bounds.append(1.0)
    for k in range(types):
        row = np.zeros((jobs, types))
        row[:, k] = p.gpus
        rows.append(row.ravel())
        bounds.append(p.capacity[k])
    return rows, bounds
