"""What people see of a service: jobs, nodes and shares as plain records, made from a standing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.backends.task import Task
from horae.core.explain import explain
from horae.core.states import ENDED, State
from horae.core.status import ClusterStatus
from horae.service.roles import Caller, NotFound
from horae.service.views.job_list import STATE_NAMES, Listing, among, moment
from horae.service.views.queue_shares import QueueShares

#: States that a list shows unless all are asked for.
LIVE = tuple(state for state in State if state not in ENDED)


@dataclass(frozen=True)
class Filters:
    """Which jobs a list shows: all that are asked for, the newest last, at most `limit`."""

    states: tuple[State, ...] = LIVE
    user: str | None = None
    queue: str | None = None
    app: str | None = None
    since_s: float = 0.0
    limit: int = 100
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServiceViews:
    """Everything that can be looked at, at one moment."""

    standing: ClusterStatus
    tasks: Mapping[str, Task]
    epoch: float
    now_s: float

    # -------------------------------------------------------------------- jobs

    def jobs(self, who: Caller, wanted: Filters) -> tuple[list[dict[str, Any]], int]:
        """The jobs that somebody asks for and may see, and how many there are in all."""
        rows = self._rows(who, wanted)
        shown = rows[-wanted.limit :] if wanted.limit else rows
        return self._listing(shown).records(wanted.fields), len(rows)

    def find(self, who: Caller, job: str) -> int:
        """Row of a job that somebody may see; another's job is as good as none."""
        row = self.standing.row(job)
        if row is None or not (who.sees_all or self.tasks[job].user == who.user):
            raise NotFound(f"There is no job {job!r}; `horae queue --all` lists yours.")
        return row

    def job(self, row: int) -> dict[str, Any]:
        """One job, as lists show it."""
        return self._listing(np.array([row])).records()[0]

    def _listing(self, rows: NDArray[np.int64]) -> Listing:
        return Listing(self.standing, self.tasks, self.epoch, self.now_s, rows)

    def why(self, row: int) -> dict[str, Any]:
        """Why a job waits: the one reason its last decision gave, the numbers behind it, and what to do."""
        at = self.standing
        told = explain(at, at.spec(row).id, self.now_s)
        decided_s = at.evidence.at_s if at.evidence else None
        return {
            "job": told.job,
            "state": STATE_NAMES[at.state(row)],
            "reason": told.code,
            "sentence": told.sentence,
            "numbers": told.numbers,
            "decided": None if decided_s is None else self.moment(decided_s),
        }

    def life(self, row: int) -> tuple[float, float]:
        """When a job was submitted, and when it ended: at infinity, as long as it has not."""
        columns = self.standing.columns
        return float(columns["submit_s"][row]), float(columns["ended_s"][row])

    def moment(self, at_s: float) -> str | None:
        """A moment for people and programs: UTC, to the millisecond."""
        return moment(self.epoch, at_s)

    def _rows(self, who: Caller, wanted: Filters) -> NDArray[np.int64]:
        column = self.standing.columns
        chosen = among(self.standing, wanted.states)
        chosen &= np.asarray(column["submit_s"], np.float64) >= wanted.since_s
        if wanted.queue is not None:
            chosen &= np.isin(column["queue"], self._queues_in(wanted.queue))
        user = wanted.user if who.sees_all else who.user
        if not who.sees_all and wanted.user not in (None, who.user):
            chosen[:] = False
        rows = np.flatnonzero(chosen)
        if wanted.app is not None:
            rows = rows[[self.standing.spec(row).app == wanted.app for row in rows.tolist()]]
        if user is not None:
            tasks, spec = self.tasks, self.standing.spec
            rows = rows[[tasks[spec(row).id].user == user for row in rows.tolist()]]
        return rows

    def _queues_in(self, path: str) -> list[int]:
        """Numbers of a queue and those below it."""
        return [n for n, one in enumerate(self.standing.queue_paths) if one == path or one.startswith(f"{path}/")]

    # ------------------------------------------------------------ nodes, shares

    def nodes(self) -> list[dict[str, Any]]:
        """Every node: what it has, what is taken, and by whom."""
        at = self.standing
        taken: dict[int, dict[str, int]] = {}
        for row, gpus in at.occupied.items():
            for node in at.cluster.gpu_node[list(gpus)].tolist():
                here = taken.setdefault(node, {})
                here[at.spec(row).id] = here.get(at.spec(row).id, 0) + 1
        # Two jobs may share a GPU.
        used = np.bincount(at.cluster.gpu_node[list(set(chain(*at.occupied.values())))], minlength=len(at.node_up))
        return [self._node(number, count, taken.get(number, {})) for number, count in enumerate(used.tolist())]

    def _node(self, number: int, used: int, jobs: Mapping[str, int]) -> dict[str, Any]:
        at, node = self.standing, self.standing.nodes[number]
        state = "down" if not at.node_up[number] else "draining" if at.node_draining[number] else "up"
        return {
            "node": node.name,
            "gpu_type": node.gpu_type,
            "gpus": node.gpus,
            "used": used,
            "state": state,
            "jobs": dict(jobs),
        }

    def shares(self) -> list[dict[str, Any]]:
        """The queue tree: what each queue is entitled to and uses."""
        return QueueShares(self.standing).records()
