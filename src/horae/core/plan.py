"""The talk between engine, policy and placement: snapshot in, wishes out, then a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from horae.core.bidding import Ask, Bidding
from horae.core.cluster import Cluster, Machines, Span
from horae.core.commands import MemoryWrite
from horae.core.compared_by import ComparedBy, values
from horae.core.gpu_ledger import GpuLedger
from horae.core.job_table import JobTable, along
from horae.core.queues import QueueTree
from horae.core.reasons import Reason
from horae.core.states import FINISHED, LAUNCHING, PLACED, RUNNING

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Snapshot:
    """What a policy may look at: the jobs that want GPUs now, as read-only columns.

    Position i of every column is the same job, `rows[i]`, in order of submission.
    Columns are gathered when first asked for, so a policy pays for what it uses.
    """

    def __init__(
        self,
        now_s: float,
        rows: Ints,
        table: JobTable,
        gpus: GpuLedger,
        queues: QueueTree,
        flat: bool = False,
        talk: Bidding | None = None,
    ) -> None:
        self.now_s = now_s
        self.rows = rows
        self.table, self.gpu_ledger, self.queues = table, gpus, queues
        self._flat = flat
        #: Who has an agent of their own, and what these were asked and answered.
        self.talk = talk or Bidding()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cluster(self) -> Cluster:
        """The machines."""
        return self.gpu_ledger.cluster

    @property
    def machines(self) -> Machines:
        """What a gang is together in, by the placement rule: nodes, or GPU types where only the count matters."""
        return self.cluster.types_as_machines if self._flat else self.cluster.nodes_as_machines

    @property
    def open_gpus(self) -> Ints:
        """GPUs of each type that take jobs now."""
        return self.gpu_ledger.open_by_type

    @cached_property
    def gpus(self) -> Ints:
        """GPUs each job asked for; of a job that can do with fewer, as many as there are where it can run."""
        asked, least = self.table.gpus[self.rows], self.table.gpus_min[self.rows]
        if not (least < asked).any():
            return asked
        most = np.where(self.table.rates[self.rows] > 0, self.open_gpus, 0).max(axis=1)
        gpus: Ints = np.maximum(least, np.minimum(asked, most))
        return gpus

    @cached_property
    def submit_s(self) -> Floats:
        """When each job came."""
        return self.table.submit_s[self.rows]

    @cached_property
    def waiting_since_s(self) -> Floats:
        """When each job was submitted or last lost its GPUs."""
        return self.table.waiting_since_s[self.rows]

    @cached_property
    def weight(self) -> Floats:
        """Weight of each job."""
        return self.table.weight[self.rows]

    @cached_property
    def queue(self) -> Ints:
        """Number of each job's queue in `queues`."""
        return self.table.queue[self.rows]

    @cached_property
    def deadline_s(self) -> Floats:
        """When each job should be done; infinite where it has no deadline."""
        return self.table.deadline_s[self.rows]

    @cached_property
    def rates(self) -> Floats:
        """Work per second of each job (rows) on its GPUs of each type (columns); 0 where it cannot run."""
        rates, asked = self.table.rates[self.rows], self.table.gpus[self.rows]
        if np.array_equal(self.gpus, asked):
            return rates
        return rates * (self.gpus / asked)[:, None]

    @cached_property
    def kind(self) -> Ints:
        """Kind of each job, as `beside` numbers them; -1 for jobs that never share GPUs."""
        return self.table.kind[self.rows]

    @property
    def beside(self) -> NDArray[np.float64]:
        """Work per second of a job of one kind beside one of another on each GPU type; 0 where they cannot share."""
        return self.table.beside

    @cached_property
    def has_gpus(self) -> NDArray[np.bool_]:
        """Which jobs run, start up, or have GPUs set aside."""
        state = self.table.state[self.rows]
        running: NDArray[np.bool_] = (state >= int(PLACED)) & (state <= int(RUNNING))
        return running

    @cached_property
    def companion(self) -> Ints:
        """Row of the job that has the same GPUs as each job; -1 where it has them alone, or has none."""
        first, second = self.gpu_ledger.holders
        shared = np.flatnonzero(second >= 0)
        companion = np.full(len(self), -1, np.int64)
        for rows, others in ((first, second), (second, first)):
            at = np.searchsorted(self.rows, rows[shared])
            known = (at < len(self)) & (self.rows[np.minimum(at, len(self) - 1)] == rows[shared])
            companion[at[known]] = others[shared[known]]
        return companion

    @cached_property
    def loading(self) -> NDArray[np.bool_]:
        """Which jobs have GPUs but do no work yet."""
        loading: NDArray[np.bool_] = self.has_gpus & (self.table.executing[self.rows] == 0)
        return loading

    @cached_property
    def last_type(self) -> Ints:
        """Number of the GPU type each job runs on, or ran on last; -1 if it never ran."""
        return self.table.last_type[self.rows]

    @cached_property
    def launched_s(self) -> Floats:
        """When each job last got GPUs; minus infinity if it never had any."""
        return self.table.launched_s[self.rows]

    @cached_property
    def launched(self) -> NDArray[np.bool_]:
        """Which jobs have been launched: they start up or work."""
        state = self.table.state[self.rows]
        launched: NDArray[np.bool_] = (state == int(LAUNCHING)) | (state == int(RUNNING))
        return launched

    @cached_property
    def first_started_s(self) -> Floats:
        """When each job first did work; infinite if it never has."""
        return self.table.first_started_s[self.rows]

    @cached_property
    def working_gpus(self) -> Floats:
        """GPUs on which each job does work now; 0 where it does none."""
        return self.table.executing_gpus[self.rows]

    @cached_property
    def working_rate(self) -> Floats:
        """Work per second that each job does now; 0 where it does none."""
        return self.table.rate[self.rows]

    @property
    def departed(self) -> int:
        """How many jobs that came want nothing now: they have ended, or are held."""
        return self.table.past.jobs + len(self.table) - len(self.table.active)

    def has_finished(self, wanted: float) -> bool:
        """Whether so many jobs have finished. They are counted only once as many have departed at all."""
        return self.departed >= wanted and self.finished >= wanted

    @property
    def finished(self) -> int:
        """How many jobs have finished."""
        here = int(np.count_nonzero(self.table.state[: len(self.table)] == int(FINISHED)))
        return self.table.past.finished + here

    def finished_before(self, when_s: float) -> Ints:
        """Rows of the jobs that had finished before a moment, in order of submission, of those that have not left."""
        table, n = self.table, len(self.table)
        finished: Ints = np.flatnonzero((table.state[:n] == int(FINISHED)) & (table.ended_s[:n] < when_s))
        return finished

    @cached_property
    def work_left(self) -> Floats:
        """Work left of each job, by what the engine knows; none, if it takes longer than anybody believed."""
        return self._left(self.rows)

    def _left(self, rows: Ints) -> Floats:
        table = self.table
        left = along(self.now_s, rows, table.work_left, table.rate, table.since_s, -1.0)
        return np.maximum(left, 0.0, out=left)

    @cached_property
    def remaining_s(self) -> Floats:
        """Seconds each job would still take on its fastest GPU type."""
        with np.errstate(divide="ignore"):
            remaining: Floats = self.work_left / self.table.best_rate[self.rows]
        return remaining

    @cached_property
    def gpu_seconds(self) -> Floats:
        """GPU time each job has had while doing work (attained service); half of what it shared with another."""
        table = self.table
        return along(self.now_s, self.rows, table.gpu_seconds, table.executing_gpus, table.since_s, 1.0)

    def measured(self, measure: ComparedBy, rows: Ints) -> Floats:
        """What jobs are compared by, of some rows, as it stands now."""
        table = self.table
        work_left = self._left(rows)
        served = along(self.now_s, rows, table.gpu_seconds, table.executing_gpus, table.since_s, 1.0)
        columns = {"work_left": work_left, "gpu_seconds": served}
        columns |= {"best_rate": table.best_rate[rows], "gpus": table.gpus[rows].astype(np.float64)}
        return values(measure, columns, np.arange(len(rows)))

    @cached_property
    def executed_s(self) -> Floats:
        """Time each job has done work."""
        table = self.table
        return along(self.now_s, self.rows, table.executed_s, table.executing, table.since_s, 1.0)


@dataclass(frozen=True)
class MemorySpec:
    """What a policy wants remembered: columns by job (width 0: one number a job) and scalars."""

    columns: dict[str, int] = field(default_factory=dict)
    #: Those of them that lie by the numbers of apps, and those that name a row: its number plus 1, 0 for none.
    by_app: tuple[str, ...] = ()
    naming_rows: tuple[str, ...] = ()
    #: Columns with one number for each GPU type.
    by_type: tuple[str, ...] = ()
    scalars: dict[str, float] = field(default_factory=dict)


class Memory:
    """A policy's memory. The engine owns it; every write is logged into the decision's record."""

    def __init__(self, spec: MemorySpec, gpu_types: int) -> None:
        self._spec, self._gpu_types = spec, gpu_types
        self._scalars: dict[str, float] = dict(spec.scalars)
        self._columns: dict[str, Floats] = {}
        self._writes: list[MemoryWrite] = []
        self.fit(64, gpu_types)

    def fit(self, rows: int, gpu_types: int) -> None:
        """Make room for so many jobs and GPU types; what is new is 0."""
        widths = {**self._spec.columns, **dict.fromkeys(self._spec.by_type, gpu_types)}
        for name, width in widths.items():
            old = self._columns.get(name)
            if old is not None and len(old) >= rows and (name not in self._spec.by_type or old.shape[1] == width):
                continue
            room = max(
                rows, 2 * len(old) if old is not None and len(old) < rows else 0, len(old) if old is not None else 0
            )
            new = np.zeros((room, width) if width else room)
            if old is not None:
                new[tuple(slice(size) for size in old.shape)] = old
            self._columns[name] = new

    def column(self, name: str, rows: Ints) -> Floats:
        """The remembered numbers of these jobs."""
        values: Floats = self._columns[name][rows]
        return values

    def put(self, name: str, rows: Ints, values: Floats) -> None:
        """Remember numbers of these jobs; those that are remembered already are no writes, for the journal's sake."""
        before = self._columns[name][rows]
        other = before != values
        changed = other.any(axis=1) if other.ndim > 1 else other
        if changed.any():
            self.apply((name, rows[changed], np.broadcast_to(values, before.shape)[changed]))

    def scalar(self, name: str) -> float:
        """A remembered number."""
        return self._scalars[name]

    def put_scalar(self, name: str, value: float) -> None:
        """Remember one number."""
        self.apply((name, None, float(value)))

    def apply(self, write: MemoryWrite) -> None:
        """Perform a write and log it."""
        name, rows, values = write
        if rows is None:
            self._scalars[name] = values
        elif name in self._columns:
            # Of a column that nobody declares any more nothing need be remembered.
            self._columns[name][rows] = values
        self._writes.append(write)

    def drain(self) -> tuple[MemoryWrite, ...]:
        """The writes since the last call."""
        writes = tuple(self._writes)
        self._writes.clear()
        return writes

    def contents(self, rows: int) -> dict[str, Any]:
        """Everything remembered about the first `rows` jobs: for checkpoints and comparison."""
        columns = {name: _of_length(column, rows) for name, column in self._columns.items()}
        return {"scalars": dict(self._scalars), "columns": columns}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Remember what `contents` gave; what the policy has come to declare since then begins afresh."""
        self._scalars.update(contents["scalars"])
        for name, column in contents.get("columns", {}).items():
            self._columns[name] = _of_length(column, max(64, len(column))).copy()


def _of_length(column: Floats, rows: int) -> Floats:
    """The first rows of a column, 0 where it ends before."""
    if len(column) >= rows:
        return column[:rows]
    return np.concatenate((column, np.zeros((rows - len(column), *column.shape[1:]))))


_NO_INTS = np.empty(0, np.int64)
_NO_FLOATS = np.empty(0, np.float64)


def _no_ints() -> Ints:
    return _NO_INTS


def _no_floats() -> Floats:
    return _NO_FLOATS


@dataclass(frozen=True, slots=True)
class Pins:
    """Where wishes must be placed: wish i on `gpus[k]` GPUs of `machine[k]`, k from first[i] to first[i + 1]."""

    first: Ints
    machine: Ints
    gpus: Ints


@dataclass(frozen=True, slots=True)
class Wishes:
    """Who should run, as columns: position i wishes GPUs for the job in row `job[i]`.

    The wish with the lowest `key` goes first; equal keys, or no keys at all, keep
    the given order. A job may stand in several wishes; the first that can be placed
    wins. An empty column takes what the job itself says. A wish with a partner is for two
    jobs of one size on the same GPUs, both or neither.
    """

    job: Ints
    key: Floats = field(default_factory=_no_floats)
    gpu_type: Ints = field(default_factory=_no_ints)
    gpus_min: Ints = field(default_factory=_no_ints)
    gpus_max: Ints = field(default_factory=_no_ints)
    #: Row of the job that shares the GPUs, or -1.
    partner: Ints = field(default_factory=_no_ints)
    #: For policies that choose the machines themselves. Jobs without a wish keep theirs unless somebody needs them.
    pins: Pins | None = None
    #: Whether running jobs may lose their GPUs to wishes that go before theirs.
    preempt: bool = True
    #: Whether the first wish that cannot be placed stops all behind it.
    blocking: bool = False
    #: A job that waits this long gets a reservation: what goes before it must not delay it.
    reserve_after_s: float = np.inf
    #: Jobs that get or keep GPUs hold them at least until then.
    lease_until_s: float = -np.inf
    #: Why a job waits when those ahead of it took the GPUs.
    waiting: Reason = Reason.NO_FREE_GPUS
    #: What jobs are compared by, for people.
    measure: ComparedBy = ComparedBy.NOTHING
    #: When to ask again even if nothing happens.
    wake_s: float = np.inf
    #: Whether to ask again, too, when a job that was launched begins to work.
    heed_starts: bool = False
    #: Bids that apps' own agents are asked for; the answers, or the deadline, are when to ask again.
    asks: tuple[Ask, ...] = ()
    #: When to ask again for the sake of each job, if it loses its GPUs by this decision.
    wake_if_stopped_s: Floats = field(default_factory=_no_floats)

    def __post_init__(self) -> None:
        for column in (self.partner, self.key, self.gpu_type, self.gpus_min, self.gpus_max, self.wake_if_stopped_s):
            assert len(column) in (0, len(self.job)), f"a column of {len(column)} for {len(self.job)} wishes"


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs for one job. `ready` says that all of them are free now."""

    row: int
    gpu_ids: tuple[int, ...]
    span: Span
    ready: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What a placement rule made of the wishes, in rows of the job table."""

    #: (row that loses its GPUs, row that gets them or -1).
    stopped: tuple[tuple[int, int], ...]
    placed: tuple[Placement, ...]
    #: Rows that keep the GPUs they have, with lease expired.
    renewed: tuple[int, ...]
    reason_rows: Ints
    reason_codes: NDArray[np.uint8]
    node_free: Ints
    #: Row that GPUs are held back for, or -1.
    head: int
    #: When the first protected job that stands in somebody's way loses its protection.
    unprotected_s: float


class Policy(Protocol):
    """Who should run. Pure: it may cache, but remembers only in the memory it declares."""

    memory: MemorySpec

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Turn what is into what should be."""
        ...


@runtime_checkable
class Particular(Protocol):
    """A policy whose settings do not go with every cluster and workload."""

    def check(self, gpu_types: tuple[str, ...], pairs_known: bool) -> None:
        """Refuse these GPU types, or that nobody knows how fast two jobs on the same GPUs are, with a `UserError`."""
        ...


@runtime_checkable
class Relaxing(Protocol):
    """A policy that keeps deadlines, and gives up those that cannot be met."""

    def relaxed(self, memory: Memory, rows: Ints) -> NDArray[np.bool_]:
        """Which jobs' deadlines were given up while they still lay ahead."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A policy that counts things on the way that people want to know."""

    def counters(self, memory: Memory) -> dict[str, int]:
        """What was counted, by name."""
        ...


class PlacementRule(Protocol):
    """Where they run. Pure: wishes and GPUs in, plan out."""

    @property
    def flat(self) -> bool:
        """Whether only the count matters: all GPUs of a type are one big machine."""
        ...

    def fit(self, now: Snapshot, wishes: Wishes) -> Plan:
        """Turn wishes into GPUs."""
        ...
