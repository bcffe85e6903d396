"""Allocation problems from JSON files, for `horae solve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from horae.core.errors import UserError, did_you_mean
from horae.core.job import DEFAULT_QUEUE, MAX_SECONDS, MAX_STEPS
from horae.core.queues import Queue, QueueTree
from horae.solve.allocation.problem import AllocationProblem, Sharing
from horae.workload.json_files import read_document

#: Bounds of a throughput. Outside them the solver would lose it, or the others beside it, to rounding.
_SLOWEST, _FASTEST = 1e-9, 1e9
#: Joins the names of a pair in the answer.
_JOINED = "+"


def _check_throughput(speed: float) -> float:
    if speed != 0 and not _SLOWEST <= speed <= _FASTEST:
        raise ValueError(f"{speed:g} steps/s are no throughput; it must be 0, or from {_SLOWEST:g} to {_FASTEST:g}")
    return speed


_Count = Annotated[int, Field(ge=0, le=10**9)]
_Price = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_Weight = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]
_Steps = Annotated[float, Field(ge=0, le=MAX_STEPS, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
_Throughput = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_check_throughput)]


class BadProblem(UserError):
    """A problem file that says something impossible."""


class _ProblemJob(BaseModel):
    """One job of a problem file."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(min_length=1)]
    throughput: dict[str, _Throughput]
    gpus: Annotated[_Count, Field(ge=1)] = 1
    weight: _Weight = 1.0
    steps_left: _Steps = 0.0
    elapsed_s: _Seconds = 0.0
    isolated_s: _Seconds = 0.0
    queue: str = DEFAULT_QUEUE
    #: Below 0 if it has passed.
    deadline_s: Annotated[float, Field(ge=-MAX_SECONDS, le=MAX_SECONDS, allow_inf_nan=False)] | None = None


class _ProblemPair(BaseModel):
    """Two jobs that can share GPUs."""

    model_config = ConfigDict(extra="forbid")

    jobs: tuple[str, str]
    throughput: dict[str, tuple[_Throughput, _Throughput]]


class _ProblemQueue(BaseModel):
    """A queue of a problem file."""

    model_config = ConfigDict(extra="forbid")

    weight: _Weight = 1.0
    rule: Literal["fairness", "fifo"] = "fairness"


class _ProblemFile(BaseModel):
    """A problem file."""

    model_config = ConfigDict(extra="forbid")

    gpus: Annotated[dict[str, _Count], Field(min_length=1)]
    prices: dict[str, _Price] = {}
    jobs: Annotated[list[_ProblemJob], Field(min_length=1)]
    pairs: list[_ProblemPair] = []
    queues: dict[str, _ProblemQueue] = {}


def load_problem(path: Path) -> AllocationProblem:
    """Read a problem: `{"gpus": {type: count}, "prices", "jobs": [{"id", "throughput", ...}], "pairs", "queues"}`."""
    page = "docs/reference/problems.md"
    return _build(read_document(path, _ProblemFile, "problem file", page, BadProblem))


def _build(document: _ProblemFile) -> AllocationProblem:
    types = tuple(document.gpus)
    names = [job.id for job in document.jobs]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise BadProblem(f"Two jobs are called {twice[0]!r}: give each an id of its own.")
    for job in document.jobs:
        unknown = sorted(set(job.throughput) - set(types))
        if unknown:
            raise BadProblem(
                f"Job {job.id!r} has a throughput on {unknown[0]!r}, which is not among the gpus: {', '.join(types)}."
            )
    unpriced = sorted(set(document.prices) - set(types))
    if unpriced:
        raise BadProblem(f"There is a price for {unpriced[0]!r}, which is not among the gpus: {', '.join(types)}.")
    capacity = np.array([float(count) for count in document.gpus.values()])
    if capacity.sum() == 0:
        raise BadProblem("The problem has no GPUs: give at least one type a count above 0.")
    gpus = np.array([float(job.gpus) for job in document.jobs])
    speed = np.array([[job.throughput.get(name, 0.0) for name in types] for job in document.jobs])
    # A gang larger than the GPUs of a type never runs on it.
    fits = gpus[:, None] <= capacity[None, :]
    for m in np.flatnonzero((speed > 0).any(axis=1) & ~((speed > 0) & fits).any(axis=1)).tolist():
        raise BadProblem(_too_large(document.jobs[m], document.gpus))
    speed = np.where(fits, speed, 0.0)

    queues = QueueTree(Queue(path, queue.weight, queue.rule) for path, queue in document.queues.items())

    def column(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([float(getattr(job, name)) for job in document.jobs])

    return AllocationProblem(
        gpu_types=types,
        capacity=capacity,
        ids=tuple(names),
        gpus=gpus,
        speed=speed,
        weight=column("weight"),
        steps_left=column("steps_left"),
        elapsed_s=column("elapsed_s"),
        isolated_s=column("isolated_s"),
        deadline_s=np.array([np.inf if job.deadline_s is None else job.deadline_s for job in document.jobs]),
        price=np.array([document.prices.get(name, 0.0) for name in types]),
        queue=np.array([queues.number(_path(job)) for job in document.jobs], np.int64),
        queues=queues,
        sharing=_sharing(document, types, capacity) if document.pairs else None,
    )


def _too_large(job: _ProblemJob, gpus: dict[str, int]) -> str:
    counts = ", ".join(f"{gpus[name]} {name}" for name, speed in job.throughput.items() if speed > 0)
    wanted = "1 GPU" if job.gpus == 1 else f"{job.gpus} GPUs of one type"
    return f"Job {job.id!r} needs {wanted}, and the types it has a throughput on have {counts}: make it smaller."


def _path(job: _ProblemJob) -> str:
    if not job.queue or any(not part for part in job.queue.split("/")):
        raise BadProblem(f"Job {job.id!r} has the queue {job.queue!r}, which is not a path such as org/team/user.")
    return job.queue


def _sharing(
    document: _ProblemFile, types: tuple[str, ...], capacity: np.ndarray[Any, np.dtype[np.float64]]
) -> Sharing:
    """The speeds of pairs. Every job that is part of a pair is a class of its own."""
    _check_names(document)
    position = {job.id: m for m, job in enumerate(document.jobs)}
    paired = sorted({_job_position(name, position) for pair in document.pairs for name in pair.jobs})
    pairing_class = np.full(len(document.jobs), -1, np.int64)
    pairing_class[paired] = np.arange(len(paired))
    speed_beside = np.zeros((len(paired), len(paired), len(types)))
    for pair in document.pairs:
        first, other = (position[name] for name in pair.jobs)
        _check_pair(pair, document.jobs[first], document.jobs[other], types)
        for gpu_type, (own, others) in pair.throughput.items():
            j = types.index(gpu_type)
            if document.jobs[first].gpus <= capacity[j]:
                (
                    speed_beside[pairing_class[first], pairing_class[other], j],
                    speed_beside[pairing_class[other], pairing_class[first], j],
                ) = own, others
    return Sharing(pairing_class, speed_beside)


def _check_names(document: _ProblemFile) -> None:
    """Every job and every pair has a name of its own in the answer."""
    joined = [job.id for job in document.jobs if _JOINED in job.id]
    if joined:
        raise BadProblem(
            f"Job {joined[0]!r} has a {_JOINED!r} in its id, as the answer has it between the jobs of a pair: "
            "give it another id, or leave the pairs out."
        )
    seen: set[frozenset[str]] = set()
    for pair in document.pairs:
        if frozenset(pair.jobs) in seen:
            raise BadProblem(f"The pair of {pair.jobs[0]!r} and {pair.jobs[1]!r} is there twice: leave one out.")
        seen.add(frozenset(pair.jobs))


def _job_position(name: str, position: dict[str, int]) -> int:
    if name not in position:
        raise BadProblem(f"A pair names the job {name!r}, which is not among the jobs.{did_you_mean(name, position)}")
    return position[name]


def _check_pair(pair: _ProblemPair, first: _ProblemJob, other: _ProblemJob, types: tuple[str, ...]) -> None:
    named = f"The pair of {first.id!r} and {other.id!r}"
    if first.id == other.id:
        raise BadProblem(f"The job {first.id!r} is paired with itself: name two jobs.")
    if first.gpus != other.gpus:
        raise BadProblem(f"{named} has {first.gpus} and {other.gpus} GPUs: only jobs of equal size can share.")
    unknown = sorted(set(pair.throughput) - set(types))
    if unknown:
        raise BadProblem(
            f"{named} has a throughput on {unknown[0]!r}, which is not among the gpus: {', '.join(types)}."
        )
