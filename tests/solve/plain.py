"""The same problems as plain linear programs with a row for each job, written down as in the paper."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.optimize import linprog

from horae.solve.allocation.problem import AllocationProblem


def problem(speed, capacity, **columns) -> AllocationProblem:
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
    return AllocationProblem(
        gpu_types=tuple(f"t{k}" for k in range(types)),
        capacity=np.array(capacity, float),
        ids=tuple(str(m) for m in range(jobs)),
        speed=speed,
        **{**defaults, **given},
    )


def best(p: AllocationProblem, gain: np.ndarray, least: np.ndarray) -> float | None:
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


def possible(p: AllocationProblem, least: np.ndarray) -> bool:
    """Whether everybody can have at least these throughputs."""
    return best(p, np.zeros_like(p.speed), least) is not None


def most_of_one(p: AllocationProblem, m: int, least: np.ndarray) -> float:
    """The highest throughput of one job while all have at least `least`."""
    gain = np.zeros_like(p.speed)
    gain[m] = p.speed[m]
    answer = best(p, gain, least)
    assert answer is not None
    return answer


def _base(p: AllocationProblem) -> tuple[list[np.ndarray], list[float]]:
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


class Shares:
    """A problem as one variable for each job, and each two jobs that can share, on each type."""

    def __init__(self, p: AllocationProblem) -> None:
        self.problem = p
        #: Jobs in it, and the type.
        self.who: list[tuple[tuple[int, ...], int]] = []
        #: Steps/s of every job in every variable.
        columns = []
        jobs, types = p.speed.shape
        for k in range(types):
            for m in range(jobs):
                if p.speed[m, k] > 0:
                    self.who.append(((m,), k))
                    columns.append({m: p.speed[m, k]})
            for a, b in combinations(range(jobs), 2):
                own, others = beside(p, a, b, k)
                if own > 0 and others > 0 and p.gpus[a] == p.gpus[b]:
                    self.who.append(((a, b), k))
                    columns.append({a: own, b: others})
        self.speed = np.array([[column.get(m, 0.0) for column in columns] for m in range(jobs)])

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Nobody spends more than all of its time, no type is used beyond its GPUs."""
        p = self.problem
        time = [[float(m in jobs) for jobs, _ in self.who] for m in range(len(p))]
        gpus = [[p.gpus[jobs[0]] * (k == at) for jobs, at in self.who] for k in range(len(p.capacity))]
        return np.array(time + gpus), np.concatenate((np.ones(len(p)), p.capacity))

    def best(self, gain: np.ndarray, least: np.ndarray) -> float | None:
        """The most of gain @ X with throughputs of at least `least`; None if they cannot be had."""
        rows, most = self.limits()
        fastest, scale = self.speed.max(axis=1), np.abs(gain).max() or 1.0
        rows = np.vstack((rows, -self.speed / fastest[:, None]))
        most = np.concatenate((most, -least * (1 - 1e-9) / fastest))
        options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        answer = linprog(-gain / scale, A_ub=rows, b_ub=most, method="highs", options=options)
        return -answer.fun * scale if answer.status == 0 else None

    def possible(self, least: np.ndarray) -> bool:
        """Whether everybody can have at least these throughputs."""
        return self.best(np.zeros(len(self.who)), least) is not None

    def most_of_one(self, m: int, least: np.ndarray) -> float:
        """The highest throughput of one job while all have at least `least`."""
        answer = self.best(self.speed[m], least)
        assert answer is not None
        return answer


def beside(p: AllocationProblem, a: int, b: int, k: int) -> tuple[float, float]:
    """Steps/s of two jobs on the same GPUs of a type, where each could run alone."""
    if (
        p.sharing is None
        or min(p.sharing.pair_row[a], p.sharing.pair_row[b]) < 0
        or min(p.speed[a, k], p.speed[b, k]) <= 0
    ):
        return 0.0, 0.0
    one, other = p.sharing.pair_row[a], p.sharing.pair_row[b]
    return float(p.sharing.pair_speed[one, other, k]), float(p.sharing.pair_speed[other, one, k])
