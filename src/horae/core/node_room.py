"""CPUs and memory of nodes: what jobs take of them with their GPUs, and what is left.

Nothing here is stored: it follows from who has which GPUs and from what jobs ask for. A job that asks for nothing takes
the GPU's share. Where no job asks for more than its share nothing can run out, and nothing is counted (`room_of`).

Two jobs that share GPUs take what both ask for; one that asks for nothing is content with what the other leaves of
the share.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from horae.core.arrays import Ints
from horae.core.cluster import UNCOUNTED, Cluster, Node
from horae.core.counted import counted
from horae.core.gpu_ledger import GpuLedger
from horae.core.gpu_moves import NOBODY
from horae.core.job import JobSpec
from horae.core.job_table import JobTable

#: Rows of a block of room, and of what jobs ask for.
CPUS, MEMORY = 0, 1


class NodeRoom(NamedTuple):
    """CPUs and MiB of memory by node, as blocks of two rows; `asks` is by row of the job table."""

    asks: Ints
    #: What no job has by plan, and what no job uses, either.
    free: Ints
    idle: Ints


def could_run_out(jobs: JobTable, gpus: GpuLedger, pairs: bool = False) -> bool:
    """Whether CPUs or memory may be lacking where GPUs are free: some job asks for more than a GPU's share.

    `pairs` says that jobs are to share GPUs: two that ask for less than the share can ask for more together.
    """
    if not jobs.asks_for_room:
        return False
    least_cpus, least_memory = gpus.cluster.least_share
    if least_cpus == least_memory == UNCOUNTED:
        return False
    rows = np.concatenate((jobs.active, np.fromiter(gpus.occupied, np.int64, len(gpus.occupied))))
    cpus, memory = jobs.cpus_per_gpu[rows].max(initial=0), jobs.memory_mb_per_gpu[rows].max(initial=0)
    together = 2 if pairs or (gpus.holders[1] != NOBODY).any() or (gpus.occupants[1] != NOBODY).any() else 1
    return bool(together * cpus > least_cpus or together * memory > least_memory)


def room_of(jobs: JobTable, gpus: GpuLedger, pairs: bool = False) -> NodeRoom | None:
    """The room that is left on each node; None where it cannot run out."""
    if not could_run_out(jobs, gpus, pairs):
        return None
    asks = asked_room(jobs)
    free = gpus.cluster.room - taken_room(asks, gpus.holders, gpus.cluster)
    leaving = np.where(
        (gpus.occupants != gpus.holders[0]) & (gpus.occupants != gpus.holders[1]), gpus.occupants, NOBODY
    )
    first = np.where(leaving[0] == NOBODY, leaving[1], leaving[0])
    second = np.where(leaving[0] == NOBODY, NOBODY, leaving[1])
    return NodeRoom(asks, free, free - taken_room(asks, np.array((first, second)), gpus.cluster))


def asked_room(jobs: JobTable) -> Ints:
    """What each row of the table asks for with each GPU."""
    return np.ascontiguousarray(np.array((jobs.cpus_per_gpu, jobs.memory_mb_per_gpu), np.int64))


def taken_room(asks: Ints, seats: Ints, cluster: Cluster) -> Ints:
    """CPUs and memory that the jobs on some seats take of each node. `seats` has two rows by GPU, as in the ledger."""
    used = np.flatnonzero(seats[0] != NOBODY)
    node = cluster.gpu_node[used]
    each = need_per_gpu(asks, seats[0, used], seats[1, used], cluster.room_share[:, node])
    taken = np.zeros((2, len(cluster.nodes)), np.int64)
    for what in (CPUS, MEMORY):
        np.add.at(taken[what], node, each[what])
    return taken


def need_per_gpu(asks: Ints, lead: Ints, guest: Ints, share: Ints) -> Ints:
    """CPUs and memory that jobs, alone or with a guest (else -1), take with a GPU of a given share."""
    first, second = asks[:, lead], np.where(guest != NOBODY, asks[:, guest], 0)
    asks_nothing = (first == 0) | ((guest != NOBODY) & (second == 0))
    both: Ints = first + second
    return np.where(asks_nothing, np.maximum(both, share), both)


def gpus_with_room(room: Ints, cpus_per_gpu: int, memory_mb_per_gpu: int, share: Ints) -> Ints:
    """For how many GPUs of a job each node has CPUs and memory; nodes are the columns of `room` and `share`."""
    fits = np.full(room.shape[1], UNCOUNTED, np.int64)
    for what, asked in ((CPUS, cpus_per_gpu), (MEMORY, memory_mb_per_gpu)):
        need = np.full(room.shape[1], asked) if asked else share[what]
        fits = np.minimum(fits, np.where(need > 0, room[what] // np.maximum(need, 1), UNCOUNTED))
    return np.maximum(fits, 0)


class LaunchRoom:
    """CPUs and memory that no process uses now; the launches of one decision take from them one after the other."""

    def __init__(self, jobs: JobTable, gpus: GpuLedger) -> None:
        self._gpus, self._asks = gpus, asked_room(jobs)
        self._left = gpus.cluster.room - taken_room(self._asks, gpus.occupants, gpus.cluster)
        #: GPUs that launches have taken, and the row that got each first.
        self._launched: dict[int, int] = {}

    def take(self, row: int, gpu_ids: tuple[int, ...]) -> bool:
        """Take what a job needs beside its GPUs; False if that is not there yet: then nothing is taken."""
        cluster, ids = self._gpus.cluster, np.array(gpu_ids, np.int64)
        beside = self._launched.get(gpu_ids[0], int(self._gpus.occupants[0, gpu_ids[0]]))
        share = cluster.room_share[:, cluster.gpu_node[ids]]
        alone, nobody = np.full(len(ids), row), np.full(len(ids), NOBODY)
        each = need_per_gpu(self._asks, alone, nobody, share)
        if beside != NOBODY:
            other = np.full(len(ids), beside)
            each = need_per_gpu(self._asks, other, alone, share) - need_per_gpu(self._asks, other, nobody, share)
        taken = np.zeros_like(self._left)
        for what in (CPUS, MEMORY):
            np.add.at(taken[what], cluster.gpu_node[ids], each[what])
        if ((taken > 0) & (taken > self._left)).any():
            return False
        self._left -= taken
        for gpu in gpu_ids:
            self._launched.setdefault(gpu, row)
        return True


def lack_of_room(job: JobSpec, nodes: Collection[Node]) -> str:
    """Why a job could never have its CPUs and memory on these nodes, and the most that would fit; empty if it could.

    The end of a sentence.
    """
    if not job.cpus_per_gpu and not job.memory_mb_per_gpu:
        return ""
    cluster = Cluster(tuple(nodes))
    fits = gpus_with_room(cluster.room, job.cpus_per_gpu, job.memory_mb_per_gpu, cluster.room_share)
    gpus = np.minimum(fits, [node.gpus for node in nodes])
    if job.nodes:
        fitting = np.bincount(cluster.node_type[gpus >= job.gpus_per_node], minlength=1)
        enough, most = int(fitting.max()) >= job.nodes, int(fitting.max())
    else:
        of_type = np.bincount(cluster.node_type, gpus, len(cluster.gpu_types)).astype(np.int64)
        enough, most = int(of_type.max(initial=0)) >= job.gpus_min, int(of_type.max(initial=0))
    return "" if enough else f"{_asked(job)}, and {_largest(job, cluster, most)}"


def _asked(job: JobSpec) -> str:
    """What a job asks for with each GPU, in words."""
    parts = [counted(job.cpus_per_gpu, "CPU")] if job.cpus_per_gpu else []
    parts += [f"{job.memory_mb_per_gpu:,} MiB of memory"] if job.memory_mb_per_gpu else []
    return f"asks for {' and '.join(parts)} with each GPU"


def _largest(job: JobSpec, cluster: Cluster, most: int) -> str:
    """How far the nodes go, in words."""
    if most and job.nodes:
        return f"only {counted(most, 'node')} of one type {'has' if most == 1 else 'have'} that for {job.gpus_per_node}"
    if most:
        return f"the nodes of one type have that for {counted(most, 'GPU')} at most, not for {job.gpus_min}"
    # One GPU of a job has all CPUs and all memory of a node at most.
    counts = cluster.room < UNCOUNTED
    cpus, memory = (int(np.where(counts[what], cluster.room[what], 0).max(initial=0)) for what in (CPUS, MEMORY))
    limits = [f"{cpus:,} CPUs"] if job.cpus_per_gpu and counts[CPUS].any() else []
    limits += [f"{memory:,} MiB"] if job.memory_mb_per_gpu and counts[MEMORY].any() else []
    return f"the largest node it could use has {' and '.join(limits)}"
