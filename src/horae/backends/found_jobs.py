"""Jobs that users gave to a cluster manager itself, and that the service takes in. Public.

A backend that finds such jobs has the methods of `FindsJobs` besides those of `Backend`. The service asks it again and
again what it found, submits each job once in its user's name, and tells the backend what it knows of them. Each call
may be lost or repeated: a job is recognised by its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from horae.core.states import State


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job to take in."""

    #: Identifies the job for good: a service takes in one job under a key, ever.
    key: str
    user: str
    #: The job as a job file would describe it.
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TakenJob:
    """What the service knows of a job that it took in."""

    job: str
    state: State
    #: Why it waits, in a sentence, as of when the reason was last another one; empty if it does not wait.
    why: str = ""


@runtime_checkable
class FindsJobs(Protocol):
    """The part of a backend that finds jobs. Called by a thread of the service: nothing here waits or raises."""

    @property
    def submit_with(self) -> str:
        """How users submit jobs, for those who try `horae submit`: `sbatch --partition=gpu --gres=gpu:1 train.sh`."""

    def found(self) -> list[FoundJob]:
        """Jobs to take in. A job is named until `follow` names its key, or it is gone."""

    def follow(self, jobs: Mapping[str, TakenJob]) -> None:
        """All jobs that the service took in and has not forgotten, by key. Before the first call nothing is known."""

    def refuse(self, key: str, why: str) -> None:
        """The service cannot take in a job; `why` is a sentence for its user."""
