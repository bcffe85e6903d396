"""Jobs as lists show them, made field by field: a list of 10,000 is ready in about the time it takes to write it down.

A field that nobody asked for is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.backends.task import Task
from horae.core.arrays import Ints
from horae.core.explain import explain
from horae.core.job import JobSpec
from horae.core.reasons import Reason
from horae.core.states import STATES, State
from horae.core.status import ClusterStatus
from horae.service.gpu_locations import describe

#: How people call the states.
STATE_NAMES = {state: state.name.lower() for state in State}
#: Jobs that stand in line, and those of which it is told why they do not run.
WAITING = (State.WAITING, State.PLACED)
_RESTING = (*WAITING, State.HELD)
_AT_WORK = (State.LAUNCHING, State.RUNNING)
_CODES = {int(reason): reason.code for reason in Reason}


def moment(epoch: float, at_s: float) -> str | None:
    """A moment for people and programs: UTC, to the millisecond; None for one that has not come."""
    if not isfinite(at_s):
        return None
    return datetime.fromtimestamp(epoch + at_s, UTC).isoformat(timespec="milliseconds")


def among(standing: ClusterStatus, states: Sequence[State]) -> NDArray[np.bool_]:
    """Which jobs are in one of these states."""
    wanted = np.zeros(len(STATES), np.bool_)
    wanted[[int(state) for state in states]] = True
    chosen: NDArray[np.bool_] = wanted[standing.columns["state"]]
    return chosen


@dataclass(frozen=True)
class Listing:
    """Some jobs of a standing."""

    standing: ClusterStatus
    tasks: Mapping[str, Task]
    epoch: float
    now_s: float
    rows: Ints

    def records(self, fields: Sequence[str] = ()) -> list[dict[str, Any]]:
        """One record a job, with these fields, or all that cost next to nothing."""
        names = tuple(fields) or _CHEAP
        columns = [_FIELDS[name](self) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    @cached_property
    def specs(self) -> list[JobSpec]:
        """What their users asked for."""
        return [self.standing.spec(row) for row in self.rows.tolist()]

    @cached_property
    def their_tasks(self) -> list[Task]:
        """What they run."""
        return [self.tasks[spec.id] for spec in self.specs]

    @cached_property
    def states(self) -> list[State]:
        """Where they are in their lives."""
        return [STATES[state] for state in self.column("state").tolist()]

    def column(self, name: str) -> NDArray[Any]:
        """A column of the standing, of these jobs."""
        return self.standing.columns[name][self.rows]

    def reasons(self) -> list[str]:
        """Why they wait, in a word."""
        codes = self.column("reason").tolist()
        return ["None" if state in _AT_WORK else _CODES[code] for state, code in zip(self.states, codes, strict=True)]

    def sentences(self) -> list[str]:
        """Why those wait that do: a sentence each, with numbers of its own."""
        return [
            explain(self.standing, spec.id, self.now_s).sentence if state in _RESTING else ""
            for spec, state in zip(self.specs, self.states, strict=True)
        ]

    def gpus(self) -> list[int]:
        """GPUs that they have, or else want."""
        occupied, wanted = self.standing.occupied, self.column("gpus").tolist()
        return [len(occupied.get(row, ())) or gpus for row, gpus in zip(self.rows.tolist(), wanted, strict=True)]

    def places(self) -> list[list[str]]:
        """GPUs that they have, such as v100[0,2]."""
        cluster, occupied = self.standing.cluster, self.standing.occupied
        return [describe(cluster, occupied[row]) if row in occupied else [] for row in self.rows.tolist()]

    def ahead(self) -> list[int]:
        """How many jobs that wait came earlier, of those that wait themselves."""
        waits = among(self.standing, WAITING)
        before = np.searchsorted(np.flatnonzero(waits), self.rows)
        return [int(count) for count in np.where(waits[self.rows], before, 0).tolist()]

    def moments(self, name: str) -> list[str | None]:
        """When something happened to each."""
        at_s = self.column(name).tolist()
        known = {one: moment(self.epoch, one) for one in set(at_s)}
        return [known[one] for one in at_s]

    def progress(self) -> list[float]:
        """How far they are, from 0 to 1, by what they reported: 0 before they do."""
        return list(map(float, self.column("reported") / self.column("work")))

    def losses(self) -> list[float | None]:
        """What they reported last, if it was a number."""
        return [loss if isfinite(loss) else None for loss in self.column("loss").tolist()]

    def along(self, base: str, slope: str) -> list[float]:
        """Where straight lines have got to."""
        return list(map(float, self.column(base) + self.column(slope) * self._elapsed_s))

    def left_s(self) -> list[float | None]:
        """How long those that run still have to, at the speed they had so far; None where nobody can know."""
        done, ran_s = self.column("reported") / self.column("work"), np.array(self.along("executed_s", "executing"))
        known = (self.column("state") == int(State.RUNNING)) & (done > 0) & (ran_s > 0)
        left_s = np.divide(ran_s * (1.0 - done), done, out=np.zeros(len(done)), where=known)
        return [float(one) if is_known else None for one, is_known in zip(left_s, known, strict=True)]

    @cached_property
    def _elapsed_s(self) -> NDArray[np.float64]:
        return np.maximum(0.0, self.now_s - self.column("since_s"))


#: The fields of a record, in order, and how each is made.
_FIELDS: dict[str, Callable[[Listing], Sequence[Any]]] = {
    "id": lambda jobs: [spec.id for spec in jobs.specs],
    "name": lambda jobs: [task.name for task in jobs.their_tasks],
    "user": lambda jobs: [task.user for task in jobs.their_tasks],
    "queue": lambda jobs: [spec.queue for spec in jobs.specs],
    "app": lambda jobs: [spec.app for spec in jobs.specs],
    "state": lambda jobs: [STATE_NAMES[state] for state in jobs.states],
    "reason": Listing.reasons,
    "why": Listing.sentences,
    "gpus": Listing.gpus,
    "gpu_types": lambda jobs: [list(spec.gpu_types) for spec in jobs.specs],
    "on": Listing.places,
    "ahead": Listing.ahead,
    "submitted": lambda jobs: jobs.moments("submit_s"),
    "started": lambda jobs: jobs.moments("first_started_s"),
    "ended": lambda jobs: jobs.moments("ended_s"),
    "attempt": lambda jobs: jobs.column("attempt").tolist(),
    "preemptions": lambda jobs: jobs.column("preemptions").tolist(),
    "failures": lambda jobs: jobs.column("failures").tolist(),
    "progress": Listing.progress,
    "loss": Listing.losses,
    "ran_s": lambda jobs: jobs.along("executed_s", "executing"),
    "left_s": Listing.left_s,
    "gpu_seconds": lambda jobs: jobs.along("gpu_seconds", "executing_gpus"),
}
#: Sentences are made for those who ask; the reason's code is in every list.
_CHEAP = tuple(name for name in _FIELDS if name != "why")
