"""What a policy sees: the jobs that want GPUs now, as read-only columns."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.bidding import Bidding
from horae.core.cluster import Cluster, Machines
from horae.core.gpu_ledger import GpuLedger
from horae.core.job_table import JobTable
from horae.core.node_room import asked_room, could_run_out, gpus_with_room
from horae.core.queues import QueueTree
from horae.core.states import FINISHED, LAUNCHING, PLACED, RUNNING

#: Part of a job's work that counts as left however much its attempts have lost.
_LEAST_LEFT = 0.1


class Snapshot:
    """What a policy may read: the jobs that want GPUs now, as read-only columns.

    Position i of every column is the job in row `rows[i]`, in order of submission.
    A column is gathered when it is first read, so a policy pays only for the columns it uses.
    """

    def __init__(
        self,
        now_s: float,
        rows: Ints,
        table: JobTable,
        gpus: GpuLedger,
        queues: QueueTree,
        flat: bool = False,
        bidding: Bidding | None = None,
    ) -> None:
        self.now_s = now_s
        self.rows = rows
        self.table, self.gpu_ledger, self.queues = table, gpus, queues
        self._flat = flat
        #: Apps with an agent of their own, the bids asked for and the bids given.
        self.bidding = bidding or Bidding()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cluster(self) -> Cluster:
        """The machines."""
        return self.gpu_ledger.cluster

    @property
    def machines(self) -> Machines:
        """Machines by the placement rule: nodes, or whole GPU types where only the GPU count matters."""
        return self.cluster.machines(self._flat)

    @property
    def open_gpus(self) -> Ints:
        """GPUs of each type that take jobs now."""
        return self.gpu_ledger.open_by_type

    @cached_property
    def gpus(self) -> Ints:
        """GPU count of each job: as asked for, but of an elastic job at most the open GPUs of a type it can use."""
        asked, least = self.table.gpus[self.rows], self.table.gpus_min[self.rows]
        if not (least < asked).any():
            return asked
        most = np.where(self.table.rates[self.rows] > 0, self.open_gpus, 0).max(axis=1)
        gpus: Ints = np.maximum(least, np.minimum(asked, most))
        return gpus

    @cached_property
    def submit_s(self) -> Floats:
        """When each job was submitted."""
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
    def quota(self) -> Ints:
        """Each job's quota node in `queues.quotas`."""
        return self.table.quota[self.rows]

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
    def usable(self) -> NDArray[np.bool_]:
        """Whether each job (rows) can run on each GPU type (columns): it has a speed there, and the gang fits now."""
        usable: NDArray[np.bool_] = (self.rates > 0) & (self.open_gpus >= self.gpus[:, None])
        nodes, nodes_with = self.table.nodes[self.rows], self.gpu_ledger.nodes_with
        for i in np.flatnonzero(nodes).tolist():
            each = int(self.gpus[i] // nodes[i])
            usable[i] &= nodes_with[each] >= nodes[i] if each < len(nodes_with) else False
        if could_run_out(self.table, self.gpu_ledger):
            self._rule_out_small_nodes(usable)
        return usable

    def _rule_out_small_nodes(self, usable: NDArray[np.bool_]) -> None:
        """A job cannot run on types whose nodes, if they were empty, had too few CPUs or too little memory for it."""
        ledger, cluster, types = self.gpu_ledger, self.cluster, len(self.cluster.gpu_types)
        asks, nodes = asked_room(self.table)[:, self.rows], self.table.nodes[self.rows]
        for cpus, memory_mb in np.unique(asks[:, asks.any(axis=0)], axis=1).T.tolist():
            fits = gpus_with_room(cluster.room, cpus, memory_mb, cluster.room_share)
            gpus = np.minimum(fits, ledger.open_by_node)
            alike = np.flatnonzero((asks[0] == cpus) & (asks[1] == memory_mb))
            by_type = np.bincount(cluster.node_type, gpus, types)
            usable[alike] &= by_type >= self.gpus[alike][:, None]
            for i in alike[nodes[alike] > 0].tolist():
                enough = cluster.node_type[gpus >= self.gpus[i] // nodes[i]]
                usable[i] &= np.bincount(enough, minlength=types) >= nodes[i]

    @cached_property
    def job_kind(self) -> Ints:
        """Number of each job's kind, an index of `pair_rates`; -1 for a job that never shares GPUs."""
        return self.table.kind[self.rows]

    @property
    def pair_rates(self) -> NDArray[np.float64]:
        """Work per second by the job's kind, its partner's kind and GPU type; 0 where the two cannot share GPUs."""
        return self.table.beside

    @cached_property
    def has_gpus(self) -> NDArray[np.bool_]:
        """Which jobs run, start up, or have GPUs set aside."""
        state = self.table.state[self.rows]
        running: NDArray[np.bool_] = (state >= int(PLACED)) & (state <= int(RUNNING))
        return running

    @cached_property
    def companion(self) -> Ints:
        """Row of the job that shares each job's GPUs; -1 where the job has its GPUs alone, or has none."""
        first, second = self.gpu_ledger.holders
        shared = np.flatnonzero(second >= 0)
        companion = np.full(len(self), -1, np.int64)
        for rows, others in ((first, second), (second, first)):
            position = np.searchsorted(self.rows, rows[shared])
            present = (position < len(self)) & (self.rows[np.minimum(position, len(self) - 1)] == rows[shared])
            companion[position[present]] = others[shared[present]]
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

    @property
    def departed(self) -> int:
        """Number of submitted jobs that want no GPUs now: jobs that have ended, or are held."""
        return self.table.past.jobs + len(self.table) - len(self.table.active)

    def has_finished(self, wanted: float) -> bool:
        """Whether `wanted` jobs or more have finished."""
        # `departed` is cheap and never below `finished`.
        return self.departed >= wanted and self.finished >= wanted

    @property
    def finished(self) -> int:
        """Number of jobs that have finished, retired jobs included."""
        in_table = int(np.count_nonzero(self.table.state[: len(self.table)] == int(FINISHED)))
        return self.table.past.finished + in_table

    def finished_before(self, when_s: float) -> Ints:
        """Rows of the jobs that had finished before `when_s`, in order of submission, without retired jobs."""
        table, n = self.table, len(self.table)
        finished: Ints = np.flatnonzero((table.state[:n] == int(FINISHED)) & (table.ended_s[:n] < when_s))
        return finished

    @cached_property
    def work_left(self) -> Floats:
        """Work left of each job as the engine estimates it; 0 for a job that takes longer than estimated."""
        return self.table.work_left_at(self.now_s, self.rows)

    @cached_property
    def charged_left(self) -> Floats:
        """Work left of each job as if what its attempts lost had been saved; at least a tenth of the job's work.

        Who compares jobs by how long they still need goes by this: otherwise a job gains by not saving.
        """
        lost = self.table.lost_work[self.rows]
        if not lost.any():
            return self.work_left
        least = np.minimum(self.work_left, _LEAST_LEFT * self.table.work[self.rows])
        return np.maximum(self.work_left - lost, least)

    @cached_property
    def remaining_s(self) -> Floats:
        """Seconds each job would still take on its fastest GPU type."""
        with np.errstate(divide="ignore"):
            remaining: Floats = self.work_left / self.table.best_rate[self.rows]
        return remaining

    @cached_property
    def gpu_seconds(self) -> Floats:
        """GPU-seconds each job has had while doing work (attained service). Shared GPUs count half."""
        return self.table.gpu_seconds_at(self.now_s, self.rows)

    @cached_property
    def executed_s(self) -> Floats:
        """Seconds that each job has done work for."""
        return self.table.executed_s_at(self.now_s, self.rows)
