"""Views of a service: jobs, nodes and queue shares as plain records. Public: field names stay."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.backends.task import Task
from horae.core.explain import explain
from horae.core.node_room import CPUS, MEMORY
from horae.core.states import ALIVE, ENDED, STATES, State
from horae.core.status import ClusterStatus
from horae.service.machines import node_numbers
from horae.service.rights import Rights, without_others_names
from horae.service.roles import Caller, NotFound
from horae.service.views.job_list import STATE_NAMES, WAITING, JobListing, in_states, timestamp
from horae.service.views.queue_shares import QueueShares

#: Which jobs a list that is too long keeps first: those that have GPUs, then those in line.
_URGENCY = {
    **dict.fromkeys(ALIVE, 0),
    **dict.fromkeys(WAITING, 1),
}
_LEAST_URGENT = 2
#: States of jobs that have not ended, which lists show by default.
LIVE = tuple(state for state in State if state not in ENDED)


@dataclass(frozen=True)
class Filters:
    """Which jobs a list shows: those that match, newest last, and of many the `limit` that matter most (0 for all)."""

    states: tuple[State, ...] = LIVE
    user: str | None = None
    queue: str | None = None
    app: str | None = None
    since_s: float = 0.0
    limit: int = 100
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServiceViews:
    """All views of one cluster status at `now_s`."""

    status: ClusterStatus
    tasks: Mapping[str, Task]
    epoch: float
    now_s: float

    # -------------------------------------------------------------------- jobs

    def jobs(self, caller: Caller, filters: Filters) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Records of the jobs that match and that the caller may see, and the number of matches in each state."""
        rows = self._rows(caller, filters)
        counts = np.bincount(self.status.columns["state"][rows], minlength=len(STATES)).tolist()
        by_state = {STATE_NAMES[state]: count for state, count in zip(STATES, counts, strict=True) if count}
        records = self._listing(self._cut(rows, filters.limit)).records(filters.fields)
        for record in records if "why" in filters.fields else ():
            record["why"] = self.plain(caller, record["why"])
        return records, by_state

    def _cut(self, rows: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        """At most `limit` rows: jobs that have GPUs, then jobs in line from its head, then the newest of the others."""
        if not limit or len(rows) <= limit:
            return rows
        urgency = np.array([_URGENCY.get(state, _LEAST_URGENT) for state in STATES])[self.status.columns["state"][rows]]
        age = np.where(urgency == _LEAST_URGENT, -rows, rows)
        return np.sort(rows[np.lexsort((age, urgency))[:limit]])

    def visible_row(self, caller: Caller, job: str) -> int:
        """Row of a job that the caller may see. A job of another user is reported as not found."""
        row = self.status.row(job)
        if row is None or not self.rights.sees(caller, self.tasks[job].user, self.status.spec(row)):
            raise NotFound(f"There is no job {job!r}; `horae queue --all` lists yours.")
        return row

    def sees_job(self, caller: Caller, job: str) -> bool:
        """Whether the caller may see a job."""
        row = self.status.row(job)
        return row is not None and self.rights.sees(caller, self.tasks[job].user, self.status.spec(row))

    def sees_details(self, caller: Caller, row: int) -> bool:
        """Whether the caller may see what a job runs, and its log."""
        spec = self.status.spec(row)
        return self.rights.sees_details(caller, self.tasks[spec.id].user, spec)

    def plain(self, caller: Caller, sentence: str) -> str:
        """A sentence without the names of jobs that the caller may not see."""
        if caller.lists_all:
            return sentence
        return without_others_names(sentence, self.tasks, lambda job: self.sees_job(caller, job))

    @cached_property
    def rights(self) -> Rights:
        """What callers may do."""
        return Rights.of(self.status)

    def job(self, row: int) -> dict[str, Any]:
        """The record of one job."""
        return self._listing(np.array([row])).records()[0]

    def _listing(self, rows: NDArray[np.int64]) -> JobListing:
        return JobListing(self.status, self.tasks, self.epoch, self.now_s, rows)

    def why(self, caller: Caller, row: int) -> dict[str, Any]:
        """Why a job waits: reason and numbers of the last decision, and a sentence."""
        status = self.status
        explanation = explain(status, status.spec(row).id, self.now_s)
        decided_s = status.evidence.at_s if status.evidence else None
        return {
            "job": explanation.job,
            "state": STATE_NAMES[status.state(row)],
            "reason": explanation.code,
            "sentence": self.plain(caller, explanation.sentence),
            "numbers": {name: self._plain_number(caller, value) for name, value in explanation.numbers.items()},
            "decided": None if decided_s is None else self.timestamp(decided_s),
        }

    def _plain_number(self, caller: Caller, value: float | str) -> float | str:
        """A number of an explanation; the name of a job that the caller may not see is left out."""
        hidden = isinstance(value, str) and self.status.row(value) is not None and not self.sees_job(caller, value)
        return "" if hidden else value

    def lifetime(self, row: int) -> tuple[float, float]:
        """Times of submission and end of a job in seconds; the end is infinite if it has not ended."""
        columns = self.status.columns
        return float(columns["submit_s"][row]), float(columns["ended_s"][row])

    def timestamp(self, at_s: float) -> str | None:
        """Seconds of the journal as ISO 8601 in UTC."""
        return timestamp(self.epoch, at_s)

    def _rows(self, caller: Caller, filters: Filters) -> NDArray[np.int64]:
        column = self.status.columns
        chosen = in_states(self.status, filters.states)
        chosen &= np.asarray(column["submit_s"], np.float64) >= filters.since_s
        if filters.queue is not None:
            chosen &= np.isin(column["queue"], self._queues_in(filters.queue))
        rows = np.flatnonzero(chosen)
        if filters.app is not None:
            rows = rows[[self.status.spec(row).app == filters.app for row in rows.tolist()]]
        tasks, spec = self.tasks, self.status.spec
        if filters.user is not None:
            rows = rows[[tasks[spec(row).id].user == filters.user for row in rows.tolist()]]
        if not caller.lists_all:
            sees = self.rights.sees
            rows = rows[[sees(caller, tasks[spec(row).id].user, spec(row)) for row in rows.tolist()]]
        return rows

    def _queues_in(self, path: str) -> list[int]:
        """Numbers of a queue and of the queues below it."""
        return [
            number
            for number, queue in enumerate(self.status.queue_paths)
            if queue == path or queue.startswith(f"{path}/")
        ]

    # ------------------------------------------------------------ nodes, shares

    def nodes(self) -> list[dict[str, Any]]:
        """Every host: its GPUs, how many are used, and by which jobs."""
        status, cluster = self.status, self.status.cluster
        taken: dict[str, Counter[str]] = defaultdict(Counter)
        for row, gpus in status.occupied.items():
            taken_on = Counter(cluster.nodes[node].host for node in cluster.gpu_node[list(gpus)].tolist())
            for host, count in taken_on.items():
                taken[host][status.spec(row).id] += count
        # Two jobs may share a GPU.
        in_use = cluster.gpu_node[list(set(chain(*status.occupied.values())))].tolist()
        used = Counter(cluster.nodes[node].host for node in in_use)
        room = status.room_in_use()
        numbers = node_numbers(cluster)
        return [self._node(number, used[host], room[:, number], taken[host]) for host, number in numbers.items()]

    def _node(self, number: int, used: int, in_use: NDArray[np.int64], jobs: Mapping[str, int]) -> dict[str, Any]:
        status, node = self.status, self.status.nodes[number]
        state = "down" if not status.node_up[number] else "draining" if status.node_draining[number] else "up"
        return {
            "node": node.host,
            "gpu_type": node.gpu_type,
            "gpus": node.gpus,
            "rack": node.rack,
            "cpus": node.cpus,
            "memory_mb": node.memory_mb,
            "used": used,
            "used_cpus": int(in_use[CPUS]) if node.cpus else 0,
            "used_memory_mb": int(in_use[MEMORY]) if node.memory_mb else 0,
            "state": state,
            "jobs": dict(jobs),
        }

    def shares(self) -> list[dict[str, Any]]:
        """The queue tree: entitlement and usage of each queue."""
        return QueueShares(self.status).records()
