"""Allocation problems to solve: jobs of the published table of speeds, or of one made up in its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.workload import find_data
from horae.core.cluster import Span
from horae.core.queues import Queue, QueueTree
from horae.core.throughputs import Setting, Throughputs
from horae.solve.allocation.problem import AllocationProblem, Sharing
from horae.workload.model_mixes import DISTRIBUTED, SINGLE
from horae.workload.speed_files import load_throughputs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TYPES = ("v100", "p100", "k80")
SIZES = (1, 2, 4, 8)

#: The classes of the published table: a model with its batch size, on so many GPUs.
CLASSES = tuple((name, gpus) for name in DISTRIBUTED for gpus in SIZES) + tuple((name, 1) for name in SINGLE)


@dataclass(frozen=True)
class Speeds:
    """Steps/s of each class alone (by type), and beside each other class (by neighbour and type)."""

    about: str
    gpus: Floats
    alone: Floats
    beside: Floats
    #: Whether it is the table that limits are set for.
    published: bool = False

    def __len__(self) -> int:
        return len(self.gpus)

    def only(self, chosen: NDArray[np.bool_]) -> Speeds:
        """Some of the classes."""
        return replace(self, gpus=self.gpus[chosen], alone=self.alone[chosen], beside=self.beside[chosen][:, chosen])


def find_speeds() -> Speeds:
    """The published table where it is at hand."""
    path = find_data("gavel/simulation_throughputs.json")
    if path.is_file():
        return _published(path)
    about = (
        f"a made-up table of {len(CLASSES)} classes: {path} does not exist; set HORAE_DATA to the folder of the data"
    )
    return made_up_speeds(about)


def _published(path: Path) -> Speeds:
    table = load_throughputs(path)
    alone = np.array([_row(table, name, gpus) for name, gpus in CLASSES])
    beside = np.array([[_pair(table, one, other) for other in CLASSES] for one in CLASSES])
    return Speeds("the published table", _sizes(), alone, beside, published=True)


def _pair(table: Throughputs, one: tuple[str, int], other: tuple[str, int]) -> list[float]:
    return _row(table, *one, neighbour=other[0]) if one[1] == other[1] else [0.0] * len(TYPES)


def _row(table: Throughputs, job_class: str, gpus: int, neighbour: str = "") -> list[float]:
    span = Span.GPU if gpus == 1 else Span.NODE
    known = [table.get(Setting(job_class, gpu_type, gpus, span, neighbour)) for gpu_type in TYPES]
    return [number.steps_per_s if number else 0.0 for number in known]


def made_up_speeds(about: str = "a made-up table") -> Speeds:
    """Speeds as unlike as measured ones: types differ by up to ten times, and a neighbour takes up to two thirds."""
    rng = np.random.default_rng(0)
    gpus, classes = _sizes(), len(CLASSES)
    slower = np.column_stack((np.ones(classes), rng.uniform(0.3, 0.9, classes), rng.uniform(0.1, 0.5, classes)))
    alone = rng.lognormal(1.0, 1.0, (classes, 1)) * slower
    beside = alone[:, None, :] * rng.uniform(0.35, 0.95, (classes, classes, len(TYPES)))
    return Speeds(about, gpus, alone, np.where(gpus[:, None, None] == gpus[None, :, None], beside, 0.0))


def _sizes() -> Floats:
    return np.array([gpus for _, gpus in CLASSES], np.float64)


def draw_problem(speeds: Speeds, jobs: int, sharing: bool = False, seed: int = 0) -> AllocationProblem:
    """Jobs of classes drawn alike, on a quarter as many GPUs of each type."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(len(speeds), size=jobs)
    return AllocationProblem(
        gpu_types=TYPES,
        capacity=np.full(len(TYPES), float(jobs // 4)),
        ids=tuple(map(str, range(jobs))),
        gpus=speeds.gpus[kind],
        speed=speeds.alone[kind],
        weight=np.ones(jobs),
        steps_left=rng.uniform(100.0, 10_000.0, jobs) * speeds.alone[kind, 0],
        elapsed_s=rng.uniform(0.0, 10_000.0, jobs),
        isolated_s=rng.uniform(0.0, 10_000.0, jobs),
        sharing=Sharing(kind, speeds.beside) if sharing else None,
    )


def draw_differing(speeds: Speeds, jobs: int, seed: int = 0) -> AllocationProblem:
    """The same with speeds that are estimates, so that no two jobs are alike."""
    problem = draw_problem(speeds, jobs, seed=seed)
    noise = np.random.default_rng(seed + 1).lognormal(0.0, 0.1, problem.speed.shape)
    return replace(problem, speed=problem.speed * noise)


def draw_queued(speeds: Speeds, jobs: int, queues: int, seed: int = 0) -> AllocationProblem:
    """The same with jobs of three weights in queues, of which every fourth is first come, first served."""
    rng = np.random.default_rng(seed + 2)
    tree = QueueTree(_queues(rng, queues))
    problem = draw_problem(speeds, jobs, seed=seed)
    return replace(
        problem, weight=rng.choice([1.0, 2.0, 5.0], jobs), queue=rng.integers(1, queues + 1, jobs), queues=tree
    )


def _queues(rng: np.random.Generator, queues: int) -> Sequence[Queue]:
    rules = ["fifo" if number % 4 == 3 else "fairness" for number in range(queues)]
    return [Queue(f"team-{number}", float(rng.integers(1, 4)), rule) for number, rule in enumerate(rules)]
