"""What people see of a service: jobs, nodes and shares as plain records, made from a standing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.backends.task import Task
from horae.core.explain import explain
from horae.core.standing import Standing
from horae.core.states import ENDED, State
from horae.service.listing import STATE_NAMES, Listing, among, moment
from horae.service.people import NotFound, Person

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
class Views:
    """Everything that can be looked at, at one moment."""

    standing: Standing
    tasks: Mapping[str, Task]
    epoch: float
    now_s: float

    # -------------------------------------------------------------------- jobs

    def jobs(self, who: Person, wanted: Filters) -> tuple[list[dict[str, Any]], int]:
        """The jobs that somebody asks for and may see, and how many there are in all."""
        rows = self._rows(who, wanted)
        shown = rows[-wanted.limit :] if wanted.limit else rows
        return self._listing(shown).records(wanted.fields), len(rows)

    def find(self, who: Person, job: str) -> int:
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

    def _rows(self, who: Person, wanted: Filters) -> NDArray[np.int64]:
        column = self.standing.columns
        chosen = among(self.standing, wanted.states)
        chosen &= np.asarray(column["submit_s"], np.float64) >= wanted.since_s
        if wanted.queue is not None:
            chosen &= np.isin(column["queue"], self._queues_in(wanted.queue))
        user = wanted.user if who.sees_all else who.user
        if not who.sees_all and wanted.user not in (None, who.user):
            chosen[:] = False
        rows = np.flatnonzero(chosen)
        if user is None and wanted.app is None:
            return rows
        return rows[[self._is_of(row, user, wanted.app) for row in rows.tolist()]]

    def _queues_in(self, path: str) -> list[int]:
        """Numbers of a queue and those below it."""
        return [n for n, one in enumerate(self.standing.queue_paths) if one == path or one.startswith(f"{path}/")]

    def _is_of(self, row: int, user: str | None, app: str | None) -> bool:
        spec = self.standing.spec(row)
        return (user is None or self.tasks[spec.id].user == user) and (app is None or spec.app == app)

    # ------------------------------------------------------------ nodes, shares

    def nodes(self) -> list[dict[str, Any]]:
        """Every node: what it has, what is taken, and by whom."""
        at = self.standing
        taken: dict[int, dict[str, int]] = {}
        for row, gpus in at.occupied.items():
            for gpu in gpus:
                here = taken.setdefault(int(at.cluster.gpu_node[gpu]), {})
                here[at.spec(row).id] = here.get(at.spec(row).id, 0) + 1
        return [self._node(number, taken.get(number, {})) for number in range(len(at.cluster.nodes))]

    def _node(self, number: int, jobs: Mapping[str, int]) -> dict[str, Any]:
        at, node = self.standing, self.standing.cluster.nodes[number]
        state = "down" if not at.node_up[number] else "draining" if at.node_draining[number] else "up"
        first, last = int(at.cluster.first_gpu[number]), int(at.cluster.first_gpu[number + 1])
        used = len({gpu for gpus in at.occupied.values() for gpu in gpus if first <= gpu < last})
        return {
            "node": node.name,
            "gpu_type": node.gpu_type,
            "gpus": node.gpus,
            "used": used,
            "state": state,
            "jobs": dict(jobs),
        }

    def shares(self) -> list[dict[str, Any]]:
        """The queue tree: what each queue is entitled to and uses, in GPUs and in GPUs of the fastest type.

        Entitled is the queue's weight among its siblings that have jobs now, of what its parent is entitled to.
        """
        at = self.standing
        own = self._use()
        busy = set(self._ancestors_of(own))
        entitled = self._entitled(busy)
        total, fastest = float(at.cluster.gpus), self._fastest_total()
        records = []
        for queue, path in enumerate(at.queue_paths):
            raw = sum(use[0] for one, use in own.items() if queue in self._path(one))
            normal = sum(use[1] for one, use in own.items() if queue in self._path(one))
            running = sum(use[2] for one, use in own.items() if queue in self._path(one))
            waiting = sum(use[3] for one, use in own.items() if queue in self._path(one))
            settings = at.queues.get(path)
            records.append(
                {
                    "queue": path or "(all)",
                    "weight": settings.weight if settings else 1.0,
                    "gpus_min": settings.gpus_min if settings else 0,
                    "gpus_max": settings.gpus_max if settings else None,
                    "running": running,
                    "waiting": waiting,
                    "entitled_gpus": entitled.get(queue, 0.0) * total,
                    "used_gpus": raw,
                    "entitled_share": entitled.get(queue, 0.0),
                    "used_share": raw / total,
                    "used_share_normalised": normal / fastest if fastest else 0.0,
                }
            )
        return records

    def _use(self) -> dict[int, tuple[float, float, int, int]]:
        """GPUs, GPUs of the fastest type, running and waiting jobs of every queue that has any."""
        at, column = self.standing, self.standing.columns
        use: dict[int, tuple[float, float, int, int]] = {}
        live = among(at, LIVE)
        for row in np.flatnonzero(live).tolist():
            queue, gpus = int(column["queue"][row]), len(at.occupied.get(row, ()))
            before = use.get(queue, (0.0, 0.0, 0, 0))
            speed = self._speed(row) if gpus else 0.0
            use[queue] = (
                before[0] + gpus,
                before[1] + gpus * speed,
                before[2] + (gpus > 0),
                before[3] + (gpus == 0),
            )
        return use

    def _speed(self, row: int) -> float:
        """Speed of a job's GPU type against the job's fastest."""
        rates = self.standing.rates[row]
        best, here = float(rates.max()), float(rates[int(self.standing.columns["last_type"][row])])
        return here / best if 0 < here <= best else 1.0

    def _fastest_total(self) -> float:
        """All GPUs, each counted by its speed for the jobs there are, against the fastest type."""
        at = self.standing
        live = among(at, LIVE)
        rates = at.rates[live]
        best = rates.max(axis=1, initial=0.0)
        usable = rates[best > 0] / best[best > 0, None]
        speed = usable.mean(axis=0) if len(usable) else np.ones(len(at.cluster.gpu_types))
        return float((at.cluster.gpus_by_type * speed).sum())

    def _path(self, queue: int) -> Iterator[int]:
        while queue >= 0:
            yield queue
            queue = self.standing.queue_parents[queue]

    def _ancestors_of(self, queues: Iterable[int]) -> Iterator[int]:
        for queue in queues:
            yield from self._path(queue)

    def _entitled(self, busy: set[int]) -> dict[int, float]:
        """Share of the cluster of each queue that has jobs; parents come before their children."""
        at = self.standing
        weight = {
            queue: at.queues[path].weight if path in at.queues else 1.0 for queue, path in enumerate(at.queue_paths)
        }
        share = {0: 1.0}
        for queue in sorted(busy - {0}):
            parent = at.queue_parents[queue]
            siblings = [one for one in busy if at.queue_parents[one] == parent]
            share[queue] = share[parent] * weight[queue] / sum(weight[one] for one in siblings)
        return share
