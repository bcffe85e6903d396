"""The job table: all jobs as columns. A job's row is its position in order of submission.

Rows stay the same until jobs are retired (`retirement.py`), so that holders of GPUs, a policy's memory and a
journal can name a job by its row. `active` is the sorted list of rows of jobs that have not ended and are not
held; a snapshot gathers only the columns that a policy reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Bytes, Floats, Ints
from horae.core.cluster import Span
from horae.core.declared import Column, Rows, Stored, codes, floats, ints
from horae.core.job import JobSpec
from horae.core.queues import QueueTree
from horae.core.reasons import Reason
from horae.core.retired_jobs import RetiredJobs
from horae.core.states import State
from horae.core.straight_lines import along
from horae.core.throughputs import Setting, Speeds, closest_span


class JobTable:
    """Every job that was submitted and is not retired, one row each.

    A column is declared here once: the value of a new row, and whether it is part of a `ClusterStatus` (`shown`).
    """

    state: Bytes = codes(State.WAITING, shown=True)
    reason: Bytes = codes(Reason.NOT_YET_CONSIDERED, shown=True)
    #: Since when the reason is this one, by the decisions that told it.
    reason_since_s: Floats = floats(-np.inf)
    attempt: Ints = ints(0, shown=True)
    gpus: Ints = ints(1, shown=True)
    gpus_min: Ints = ints(1, shown=True)
    gpus_max: Ints = ints(1)
    #: Nodes that the job asks for, with the same number of GPUs on each; 0 if it leaves that to the placement rule.
    nodes: Ints = ints(0, shown=True)
    #: CPUs and MiB of memory that the job takes with each GPU; 0 for the GPU's share.
    cpus_per_gpu: Ints = ints(0, shown=True)
    memory_mb_per_gpu: Ints = ints(0, shown=True)
    #: Mask of the GPU types that the job can run on.
    types: Ints = ints(0, shown=True)
    #: Number of the job's kind in `Speeds`; -1 for a job that never shares GPUs.
    kind: Ints = ints(-1)
    queue: Ints = ints(0, shown=True)
    app: Ints = ints(0, shown=True, rows=Rows.APPS)
    weight: Floats = floats(1, shown=True)
    #: Skew of the model; below 0 where it is not known.
    skew: Floats = floats(-1)
    submit_s: Floats = floats(0, shown=True)
    work: Floats = floats(0, shown=True)
    best_rate: Floats = floats(0, shown=True)
    min_runtime_s: Floats = floats(0)
    deadline_s: Floats = floats(np.inf)
    # Straight lines: the values at `since_s`, and how they change from there.
    since_s: Floats = floats(0, shown=True)
    work_left: Floats = floats(0, shown=True)
    rate: Floats = floats(0, shown=True)
    gpu_seconds: Floats = floats(0, shown=True)
    executing_gpus: Floats = floats(0, shown=True)
    #: GPU-seconds normalised by speed: as GPUs of the job's fastest type.
    fastest_gpu_seconds: Floats = floats(0)
    executing_fastest: Floats = floats(0)
    executed_s: Floats = floats(0, shown=True)
    executing: Floats = floats(0, shown=True)
    # Moments.
    launched_s: Floats = floats(-np.inf, shown=True)
    first_started_s: Floats = floats(np.inf, shown=True)
    #: When the last attempt began to work; infinite before it has said so, NaN before the first launch.
    works_since_s: Floats = floats(np.nan)
    ended_s: Floats = floats(np.inf, shown=True)
    waiting_since_s: Floats = floats(0, shown=True)
    lease_until_s: Floats = floats(-np.inf)
    #: Until when the attempt keeps its GPUs by a lease, its minimum run time or its slice.
    promised_until_s: Floats = floats(-np.inf)
    #: The same, or until it has loaded and worked as long as it loaded, whichever is later.
    protected_until_s: Floats = floats(-np.inf)
    #: Seconds that the next attempt may work at least, since the last one was preempted and had saved nothing.
    slice_s: Floats = floats(0, shown=True)
    #: Work of attempts that were preempted and had saved nothing.
    lost_work: Floats = floats(0)
    # Counts.
    preemptions: Ints = ints(0, shown=True)
    failures: Ints = ints(0, shown=True)
    launch_failures: Ints = ints(0, shown=True)
    #: GPU type of the last launch; -1 before the first.
    last_type: Ints = ints(-1, shown=True)
    #: Work done by the last report; the straight line is the estimate since then.
    reported: Floats = floats(0, shown=True)
    #: Order of the trials of an app, the lowest first; below 0 while the app pauses the trial.
    turn: Ints = ints(0, shown=True)
    # The first and the last two losses reported, and the work done by then; NaN before a report.
    loss_first: Floats = floats(np.nan)
    loss: Floats = floats(np.nan, shown=True)
    loss_work: Floats = floats(np.nan)
    loss_before: Floats = floats(np.nan)
    loss_work_before: Floats = floats(np.nan)

    #: The other parts that are stored beside the columns.
    STORED: ClassVar[dict[str, Stored]] = {
        "specs": Stored(tuple[JobSpec, ...], Rows.POSITIONS),
        "active": Stored(None, Rows.VALUES),
    }

    def __init__(self, gpu_types: tuple[str, ...], speeds: Speeds, queues: QueueTree) -> None:
        self.specs: list[JobSpec] = []
        #: What is kept of retired jobs.
        self.past = RetiredJobs()
        self.rows: dict[str, int] = {}
        #: Whether any job has asked for a number of nodes.
        self.asks_for_nodes = False
        #: Whether any job has asked for CPUs or memory.
        self.asks_for_room = False
        self.gpu_types = gpu_types
        self.speeds, self._queues = speeds, queues
        #: Name of each app number, newest number of each name, and rows of each app without some that have ended.
        self._app_names: list[str] = []
        self._app_numbers: dict[str, int] = {}
        self._app_rows: list[list[int]] = []
        #: Rows by job class, and by (GPU count, accepted types, slow-down), on which a learnt rate also depends.
        self._alike: dict[str, dict[tuple[int, tuple[str, ...], tuple[float, ...]], list[int]]] = {}
        self._beside: tuple[tuple[str, ...], NDArray[np.float64]] = ((), np.zeros((0, 0, 0)))
        self._active, self._active_count = np.empty(64, np.int64), 0
        for name, column in COLUMNS.items():
            setattr(self, name, column.fresh(64))
        self.rates = np.zeros((64, len(gpu_types)))
        #: Quota node of each job in `QueueTree.quotas`; not stored, since it follows from spec and limits.
        self.quota: Ints = np.zeros(64, np.int64)
        #: Number of each job's user, by first job; -1 for a job of nobody. Not stored either.
        self.owner: Ints = np.full(64, -1, np.int64)
        self._owners: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.specs)

    @property
    def active(self) -> NDArray[np.int64]:
        """Rows of jobs that have not ended and are not held, in order: a view, valid until the next event."""
        return self._active[: self._active_count]

    @property
    def apps(self) -> tuple[str, ...]:
        """Name of each app number. A name that is used again after the app's end gets a new number."""
        return tuple(self._app_names)

    def app_goes_on(self, app: int) -> bool:
        """Whether any job of an app has not ended."""
        return bool((self.ended_s[: len(self)][self.app[: len(self)] == app] == np.inf).any())

    def submitted_before(self, moment_s: float) -> list[str]:
        """Ids of the jobs that were submitted before `moment_s`."""
        return [self.specs[row].id for row in np.flatnonzero(self.submit_s[: len(self)] < moment_s).tolist()]

    def long_over(self, before_s: float) -> NDArray[np.int64]:
        """Rows of apps whose jobs all ended before `before_s`, without the app of the newest job."""
        over, app = self.ended_s[: len(self)] < before_s, self.app[: len(self)]
        stays = np.zeros(len(self._app_names), np.bool_)
        stays[app[~over]] = True
        stays[app[-1:]] = True
        return np.flatnonzero(~stays[app])

    def add(self, spec: JobSpec, now_s: float) -> int:
        """Give a new job its row; it is active at once."""
        row = len(self.specs)
        if row == len(self.state):
            self.make_room(2 * row)
        self.specs.append(spec)
        self.rows[spec.id] = row
        self.gpus[row], self.gpus_min[row], self.gpus_max[row] = spec.gpus, spec.gpus_min, spec.gpus_max
        self.nodes[row], self.asks_for_nodes = spec.nodes, self.asks_for_nodes or spec.nodes > 0
        if spec.cpus_per_gpu or spec.memory_mb_per_gpu:
            self.cpus_per_gpu[row], self.memory_mb_per_gpu[row] = spec.cpus_per_gpu, spec.memory_mb_per_gpu
            self.asks_for_room = True
        self.submit_s[row] = self.waiting_since_s[row] = self.since_s[row] = now_s
        self.work[row] = self.work_left[row] = spec.work
        self.weight[row], self.min_runtime_s[row] = spec.weight, spec.min_runtime_s
        if spec.skew is not None:
            self.skew[row] = spec.skew
        if spec.deadline_s is not None:
            self.deadline_s[row] = now_s + spec.deadline_s
        self.queue[row] = self._queues.number(spec.queue)
        self.quota[row], self.owner[row] = self._quota(row), self._owner(spec)
        self._group(row, spec)
        self._join_app(row, self._app_of(spec, now_s))
        self.set_rates(row)
        self.activate(row)
        return row

    def _app_of(self, spec: JobSpec, now_s: float) -> int:
        """Number of a job's app: a new number if all jobs of an app of that name ended before `now_s`."""
        number = self._app_numbers.get(spec.app_id, -1)
        if number < 0:
            return len(self._app_names)
        rows = self._app_rows[number]
        while rows and self.ended_s[rows[-1]] < now_s:
            rows.pop()
        return number if rows else len(self._app_names)

    def _join_app(self, row: int, number: int) -> None:
        """Add a row to its app. Rows are added in order, so a new app has the next number."""
        name = self.specs[row].app_id
        if number == len(self._app_names):
            self._app_names.append(name)
            self._app_rows.append([])
        self._app_numbers[name] = self.app[row] = number
        self._app_rows[number].append(row)

    def set_rates(self, row: int) -> None:
        """Look up how fast a job runs on each GPU type, and so which types it can use."""
        spec = self.specs[row]
        job_kind, rates, best_rate, types = self.speeds.type_rates(spec, self.gpu_types)
        self.kind[row] = job_kind if _may_share(spec) else -1
        self.rates[row] = rates
        self.best_rate[row] = best_rate
        self.types[row] = types

    def _job_kind(self, spec: JobSpec) -> int:
        """Number of the job's kind; -1 for a job that never shares GPUs."""
        job_kind = self.speeds.job_kind(spec)
        return job_kind if _may_share(spec) else -1

    def rate_on(self, row: int, gpu_type: int, gpus: int, span: Span, neighbour: int = -1) -> float:
        """Work per second of a job on `gpus` GPUs of a type at a span, alone or shared with the row `neighbour`."""
        beside = self.specs[neighbour] if neighbour >= 0 else None
        return self.speeds.rate(self.specs[row], self.gpu_types[gpu_type], gpus, span, beside)

    @property
    def beside(self) -> NDArray[np.float64]:
        """Work per second of jobs of two kinds that share GPUs, on each type; see `Speeds.beside`."""
        types, table = self._beside
        if types != self.gpu_types or len(table) <= int(self.kind[: len(self)].max(initial=-1)):
            self._beside = (self.gpu_types, self.speeds.beside(self.gpu_types))
        return self._beside[1]

    def look_up_again(self, learnt: Setting, first: bool) -> None:
        """Refresh the rates of active jobs of `learnt.job_class`; of all of them if this is the class's `first` speed.

        Otherwise only of the jobs with the GPU count of `learnt`: thousands of jobs may wait, and every running job
        may report once a second.
        """
        self.speeds.forget()
        self._beside = ((), np.zeros((0, 0, 0)))
        alike = self._alike.get(learnt.job_class, {})
        if first:
            for row in (row for rows in alike.values() for row in self._wanting(rows).tolist()):
                self.set_rates(row)
        elif not learnt.neighbour and learnt.span <= closest_span(learnt.gpus):
            for (gpus, *_), rows in alike.items():
                if gpus == learnt.gpus:
                    self._take_rate(self._wanting(rows), learnt.gpu_type)

    def _wanting(self, rows: list[int]) -> NDArray[np.int64]:
        """The active rows among `rows`. Rows of ended jobs are removed from `rows` once they are more than half."""
        these, active = np.array(rows, np.int64), self.active
        if 2 * np.count_nonzero(self.ended_s[these] < np.inf) > len(these):
            rows[:] = these[self.ended_s[these] == np.inf].tolist()
        if not len(active):
            return active
        at = np.minimum(np.searchsorted(active, these), len(active) - 1)
        return np.asarray(these[active[at] == these])

    def _take_rate(self, rows: NDArray[np.int64], name: str) -> None:
        """Set the rate on the GPU type `name` for rows that all have the same rate there."""
        if not len(rows):
            return
        spec = self.specs[rows[0]]
        self.rates[rows, self.gpu_types.index(name)] = self.speeds.throughputs.rate(
            spec, name, spec.gpus, closest_span(spec.gpus)
        )
        self.best_rate[rows] = self.rates[rows].max(axis=1)
        self.types[rows] = (self.rates[rows] > 0) @ (1 << np.arange(len(self.gpu_types)))

    def _group(self, row: int, spec: JobSpec) -> None:
        """Add a row to the rows that have the same rates in the throughput table."""
        alike = spec.gpus, spec.gpu_types, spec.slowdown
        self._alike.setdefault(spec.job_class, {}).setdefault(alike, []).append(row)

    def know_types(self, gpu_types: tuple[str, ...]) -> None:
        """Set the GPU types of the cluster; if they are new, look up every job's rates again."""
        if gpu_types == self.gpu_types:
            return
        self.gpu_types = gpu_types
        self.speeds.forget()
        self.rates = np.zeros((len(self.state), len(gpu_types)))
        for row in range(len(self.specs)):
            self.set_rates(row)

    def activate(self, row: int) -> None:
        """Add a row to the active rows."""
        if self._active_count == len(self._active):
            self._active = np.concatenate((self._active, np.empty_like(self._active)))
        count = self._active_count
        at = count
        if count and self._active[count - 1] > row:
            # The job was active before: its row is not the newest.
            at = int(self._active[:count].searchsorted(row))
            self._active[at + 1 : count + 1] = self._active[at:count]
        self._active[at] = row
        self._active_count = count + 1

    def deactivate(self, row: int) -> None:
        """Remove a row from the active rows: the job is held or has ended."""
        count = self._active_count
        at = int(self._active[:count].searchsorted(row))
        assert self._active[at] == row, f"row {row} is not active"
        self._active[at : count - 1] = self._active[at + 1 : count]
        self._active_count = count - 1

    def stop_accruing(self, row: int, now_s: float) -> None:
        """Write the values of the row's straight lines at `now_s`; from there on they are flat."""
        elapsed = now_s - self.since_s[row]
        if self.executing[row]:
            self.work_left[row] = max(0.0, self.work_left[row] - self.rate[row] * elapsed)
            self.gpu_seconds[row] += self.executing_gpus[row] * elapsed
            self.fastest_gpu_seconds[row] += self.executing_fastest[row] * elapsed
            self.executed_s[row] += elapsed
            self.executing_fastest[row] = 0.0
            self.rate[row] = self.executing_gpus[row] = self.executing[row] = 0.0
        self.since_s[row] = now_s

    def execute(self, row: int, now_s: float, rate: float, gpus: float) -> None:
        """The job does work from now on, at `rate` on `gpus` GPUs; shared GPUs count half."""
        self.stop_accruing(row, now_s)
        self.rate[row], self.executing_gpus[row], self.executing[row] = rate, gpus, 1.0
        # A GPU type without a rate for the job counts in full.
        speed, best = self.rates[row, self.last_type[row]], self.best_rate[row]
        self.executing_fastest[row] = gpus * speed / best if 0 < speed < best else gpus

    def work_left_at(self, now_s: float, rows: Ints) -> Floats:
        """Work left of these rows at `now_s`, by their straight lines; at least 0."""
        left = along(now_s, rows, self.work_left, self.rate, self.since_s, -1.0)
        return np.maximum(left, 0.0, out=left)

    def gpu_seconds_at(self, now_s: float, rows: Ints) -> Floats:
        """Attained service of these rows at `now_s`, in GPU-seconds."""
        return along(now_s, rows, self.gpu_seconds, self.executing_gpus, self.since_s, 1.0)

    def fastest_gpu_seconds_at(self, now_s: float, rows: Ints) -> Floats:
        """Attained service of these rows at `now_s`, counted as GPU-seconds of each job's fastest type."""
        return along(now_s, rows, self.fastest_gpu_seconds, self.executing_fastest, self.since_s, 1.0)

    def executed_s_at(self, now_s: float, rows: Ints) -> Floats:
        """Seconds for which these rows have done work until `now_s`."""
        return along(now_s, rows, self.executed_s, self.executing, self.since_s, 1.0)

    def note_loss(self, row: int, work_done: float, loss: float) -> bool:
        """Keep a reported loss; False if it is not newer than the last, by work done."""
        if work_done <= self.loss_work[row]:
            return False
        self.loss_before[row], self.loss_work_before[row] = self.loss[row], self.loss_work[row]
        self.loss[row], self.loss_work[row] = loss, work_done
        if np.isnan(self.loss_first[row]):
            self.loss_first[row] = loss
        return True

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Every column, without the spare room at its end: for checkpoints and comparison."""
        columns = {name: getattr(self, name)[: len(self)] for name in COLUMNS}
        return {**columns, "rates": self.rates[: len(self)]}

    def shown(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the columns of a `ClusterStatus`."""
        return {name: getattr(self, name)[: len(self)].copy() for name, column in COLUMNS.items() if column.shown}

    def contents(self) -> dict[str, Any]:
        """Everything here that is stored, as plain values and columns."""
        return {"specs": tuple(self.specs), "jobs": self.columns(), "active": self.active.copy()}

    def restore(
        self,
        gpu_types: tuple[str, ...],
        specs: Sequence[JobSpec],
        columns: Mapping[str, NDArray[np.generic]],
        active: NDArray[np.int64],
    ) -> None:
        """Take over these jobs and columns. A missing column has the values of new rows."""
        self.gpu_types = gpu_types
        self.specs = list(specs)
        self.rows = {spec.id: row for row, spec in enumerate(specs)}
        self.asks_for_nodes = any(spec.nodes for spec in specs)
        self.asks_for_room = any(spec.cpus_per_gpu or spec.memory_mb_per_gpu for spec in specs)
        for row, spec in enumerate(specs):
            self._group(row, spec)
        room = max(64, len(specs))
        for name, column in COLUMNS.items():
            setattr(self, name, _extended(columns.get(name, np.empty(0)), column.fresh(room)))
        for row, app in enumerate(self.app[: len(specs)].tolist()):
            self._join_app(row, app)
        # Kinds are numbered by first use, so that retirement may change the numbers.
        self.kind[: len(specs)] = [self._job_kind(spec) for spec in specs]
        self.rates = _extended(columns["rates"], np.zeros((room, len(gpu_types))))
        self._active, self._active_count = _extended(active, np.empty(room, np.int64)), len(active)
        self.quota, self.owner, self._owners = np.zeros(room, np.int64), np.full(room, -1, np.int64), {}
        self.owner[: len(specs)] = [self._owner(spec) for spec in specs]
        self.find_quotas()

    def find_quotas(self) -> None:
        """Give every job its quota node, after limits changed."""
        self.quota[: len(self)] = [self._quota(row) for row in range(len(self))]

    def _owner(self, spec: JobSpec) -> int:
        return self._owners.setdefault(spec.user, len(self._owners)) if spec.user else -1

    def _quota(self, row: int) -> int:
        spec = self.specs[row]
        user, keeps = ("", False) if spec.exempt else (spec.user, spec.keeps_gpus)
        return self._queues.quotas.node(int(self.queue[row]), user, keeps)

    def make_room(self, jobs: int) -> None:
        """Have room for `jobs` rows, so that the columns need not grow until there are more."""
        if jobs <= len(self.state):
            return
        for name, column in COLUMNS.items():
            setattr(self, name, _extended(getattr(self, name), column.fresh(jobs)))
        self.rates = _extended(self.rates, np.zeros((jobs, len(self.gpu_types))))
        self.quota = _extended(self.quota, np.zeros(jobs, np.int64))
        self.owner = _extended(self.owner, np.full(jobs, -1, np.int64))


#: The columns as they were declared, by name.
COLUMNS: dict[str, Column] = {name: value for name, value in vars(JobTable).items() if isinstance(value, Column)}


def _may_share(spec: JobSpec) -> bool:
    """Whether a job may share GPUs: partners have the same GPU count, on whichever nodes one of them is."""
    return not spec.elastic and not spec.nodes


def _extended(column: NDArray[np.generic], room: NDArray[Any]) -> NDArray[Any]:
    """The column copied to the beginning of `room`."""
    room[: len(column)] = column
    return room
