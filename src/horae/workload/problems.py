"""Allocation problems from JSON files, for `horae solve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from horae.core.errors import UserError, in_plain_words
from horae.solve.problem import Problem

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BadProblem(UserError):
    """A problem file that says something impossible."""


class _Job(BaseModel):
    """One job of a problem file."""

    model_config = ConfigDict(extra="forbid")

    id: str
    throughput: dict[str, _NotNegative]
    gpus: Annotated[int, Field(ge=1)] = 1
    weight: _Positive = 1.0
    steps_left: _NotNegative = 0.0
    elapsed_s: _NotNegative = 0.0
    isolated_s: _NotNegative = 0.0
    deadline_s: float | None = None


class _Problem(BaseModel):
    """A problem file."""

    model_config = ConfigDict(extra="forbid")

    gpus: Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(min_length=1)]
    prices: dict[str, _NotNegative] = {}
    jobs: Annotated[list[_Job], Field(min_length=1)]


def load_problem(path: Path) -> Problem:
    """Read a problem: `{"gpus": {type: count}, "prices": {...}, "jobs": [{"id", "throughput", ...}]}`."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadProblem(
            f"The problem file {path} cannot be read ({error.__class__.__name__}): name a JSON file."
        ) from None
    except json.JSONDecodeError as error:
        raise BadProblem(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    try:
        return _build(_Problem.model_validate(said))
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = in_plain_words(first["msg"])
        raise BadProblem(f"{path}: {where or 'the problem'}: {what}; see docs/reference/problems.md.") from None


def _build(said: _Problem) -> Problem:
    types = tuple(said.gpus)
    names = [job.id for job in said.jobs]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise BadProblem(f"Two jobs are called {twice[0]!r}: give each an id of its own.")
    for job in said.jobs:
        unknown = sorted(set(job.throughput) - set(types))
        if unknown:
            raise BadProblem(
                f"Job {job.id!r} has a throughput on {unknown[0]!r}, which is not among the gpus: {', '.join(types)}."
            )
    unpriced = sorted(set(said.prices) - set(types))
    if unpriced:
        raise BadProblem(f"There is a price for {unpriced[0]!r}, which is not among the gpus: {', '.join(types)}.")
    capacity = np.array([float(count) for count in said.gpus.values()])
    if capacity.sum() == 0:
        raise BadProblem("The problem has no GPUs: give at least one type a count above 0.")
    gpus = np.array([float(job.gpus) for job in said.jobs])
    speed = np.array([[job.throughput.get(name, 0.0) for name in types] for job in said.jobs])
    # A gang that is larger than a type never runs on it.
    speed = np.where(gpus[:, None] <= capacity[None, :], speed, 0.0)

    def column(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([float(getattr(job, name)) for job in said.jobs])

    return Problem(
        gpu_types=types,
        capacity=capacity,
        ids=tuple(names),
        gpus=gpus,
        speed=speed,
        weight=column("weight"),
        steps_left=column("steps_left"),
        elapsed_s=column("elapsed_s"),
        isolated_s=column("isolated_s"),
        deadline_s=np.array([np.inf if job.deadline_s is None else job.deadline_s for job in said.jobs]),
        price=np.array([said.prices.get(name, 0.0) for name in types]),
    )
