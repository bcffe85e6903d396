"""Lists of jobs as records, computed column by column so that 10,000 jobs are fast. Public: field names stay.

Only requested fields are computed.
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

#: Names of the states in the API and in commands.
STATE_NAMES = {state: state.name.lower() for state in State}
#: States of jobs that wait for GPUs; states for which a sentence explains why the job does not run.
WAITING = (State.WAITING, State.PLACED)
_EXPLAINED = (*WAITING, State.HELD)
_ACTIVE = (State.LAUNCHING, State.RUNNING)
_CODES = {int(reason): reason.code for reason in Reason}


def timestamp(epoch: float, at_s: float) -> str | None:
    """Seconds of the journal as ISO 8601 in UTC, to the millisecond; None if not finite."""
    if not isfinite(at_s):
        return None
    return datetime.fromtimestamp(epoch + at_s, UTC).isoformat(timespec="milliseconds")


def in_states(status: ClusterStatus, states: Sequence[State]) -> NDArray[np.bool_]:
    """Mask of the jobs that are in one of these states."""
    wanted = np.zeros(len(STATES), np.bool_)
    wanted[[int(state) for state in states]] = True
    chosen: NDArray[np.bool_] = wanted[status.columns["state"]]
    return chosen


@dataclass(frozen=True)
class JobListing:
    """Some jobs of a cluster status, given by their rows."""

    status: ClusterStatus
    tasks: Mapping[str, Task]
    epoch: float
    now_s: float
    rows: Ints

    def records(self, fields: Sequence[str] = ()) -> list[dict[str, Any]]:
        """One record per job, with these fields, or with all fields except `why`."""
        names = tuple(fields) or _DEFAULT_FIELDS
        columns = [_FIELDS[name](self) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    @cached_property
    def specs(self) -> list[JobSpec]:
        """Specs of the jobs."""
        return [self.status.spec(row) for row in self.rows.tolist()]

    @cached_property
    def listed_tasks(self) -> list[Task]:
        """Tasks of the jobs."""
        return [self.tasks[spec.id] for spec in self.specs]

    @cached_property
    def states(self) -> list[State]:
        """States of the jobs."""
        return [STATES[state] for state in self.column("state").tolist()]

    def column(self, name: str) -> NDArray[Any]:
        """A column of the cluster status, for these jobs."""
        return self.status.columns[name][self.rows]

    def reasons(self) -> list[str]:
        """Reason codes; "None" for launching and running jobs."""
        codes = self.column("reason").tolist()
        return ["None" if state in _ACTIVE else _CODES[code] for state, code in zip(self.states, codes, strict=True)]

    def sentences(self) -> list[str]:
        """Why each job waits, in a sentence; empty if it does not wait."""
        return [
            explain(self.status, spec.id, self.now_s).sentence if state in _EXPLAINED else ""
            for spec, state in zip(self.specs, self.states, strict=True)
        ]

    def gpus(self) -> list[int]:
        """GPU count of each job: occupied, or else requested."""
        occupied, wanted = self.status.occupied, self.column("gpus").tolist()
        return [len(occupied.get(row, ())) or gpus for row, gpus in zip(self.rows.tolist(), wanted, strict=True)]

    def places(self) -> list[list[str]]:
        """Occupied GPUs by node, such as v100[0,2]."""
        cluster, occupied = self.status.cluster, self.status.occupied
        return [cluster.gpu_labels(occupied[row]) if row in occupied else [] for row in self.rows.tolist()]

    def ahead(self) -> list[int]:
        """For each waiting job, the number of waiting jobs submitted before it; else 0."""
        waits = in_states(self.status, WAITING)
        before = np.searchsorted(np.flatnonzero(waits), self.rows)
        return [int(count) for count in np.where(waits[self.rows], before, 0).tolist()]

    def timestamps(self, name: str) -> list[str | None]:
        """A column of times as text."""
        at_s = self.column(name).tolist()
        texts = {seconds: timestamp(self.epoch, seconds) for seconds in set(at_s)}
        return [texts[seconds] for seconds in at_s]

    def progress(self) -> list[float]:
        """Share of the work done, from 0 to 1, by the last report; 0 before the first."""
        return list(map(float, self.column("reported") / self.column("work")))

    def losses(self) -> list[float | None]:
        """The last reported loss; None if it was no finite number."""
        return [loss if isfinite(loss) else None for loss in self.column("loss").tolist()]

    def extrapolated(self, base: str, slope: str) -> list[float]:
        """`base` + `slope` * seconds since the last event of each job."""
        return list(map(float, self.column(base) + self.column(slope) * self._elapsed_s))

    def left_s(self) -> list[float | None]:
        """Seconds that each running job still needs at its average speed so far; None if unknown."""
        done = self.column("reported") / self.column("work")
        ran_s = np.array(self.extrapolated("executed_s", "executing"))
        has_speed = (self.column("state") == int(State.RUNNING)) & (done > 0) & (ran_s > 0)
        left_s = np.divide(ran_s * (1.0 - done), done, out=np.zeros(len(done)), where=has_speed)
        return [float(seconds) if moves else None for seconds, moves in zip(left_s, has_speed, strict=True)]

    @cached_property
    def _elapsed_s(self) -> NDArray[np.float64]:
        return np.maximum(0.0, self.now_s - self.column("since_s"))


#: The fields of a record, in order, and how each is computed.
_FIELDS: dict[str, Callable[[JobListing], Sequence[Any]]] = {
    "id": lambda jobs: [spec.id for spec in jobs.specs],
    "name": lambda jobs: [task.name for task in jobs.listed_tasks],
    "user": lambda jobs: [task.user for task in jobs.listed_tasks],
    "queue": lambda jobs: [spec.queue for spec in jobs.specs],
    "app": lambda jobs: [spec.app for spec in jobs.specs],
    "state": lambda jobs: [STATE_NAMES[state] for state in jobs.states],
    "reason": JobListing.reasons,
    "why": JobListing.sentences,
    "gpus": JobListing.gpus,
    "nodes": lambda jobs: [spec.nodes or None for spec in jobs.specs],
    "gpu_types": lambda jobs: [list(spec.gpu_types) for spec in jobs.specs],
    "on": JobListing.places,
    "ahead": JobListing.ahead,
    "submitted": lambda jobs: jobs.timestamps("submit_s"),
    "started": lambda jobs: jobs.timestamps("first_started_s"),
    "ended": lambda jobs: jobs.timestamps("ended_s"),
    "attempt": lambda jobs: jobs.column("attempt").tolist(),
    "preemptions": lambda jobs: jobs.column("preemptions").tolist(),
    "failures": lambda jobs: jobs.column("failures").tolist(),
    "progress": JobListing.progress,
    "loss": JobListing.losses,
    "ran_s": lambda jobs: jobs.extrapolated("executed_s", "executing"),
    "left_s": JobListing.left_s,
    "gpu_seconds": lambda jobs: jobs.extrapolated("gpu_seconds", "executing_gpus"),
}
#: Fields of a record by default. `why` is costly and only computed on request.
_DEFAULT_FIELDS = tuple(name for name in _FIELDS if name != "why")
