"""The cluster's status at one moment: lists, explanations and shares are read from it.

The engine changes while other threads read a status. The two share only what never changes or only
grows (specs, names, the cluster); everything else is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.bidding import Ask
from horae.core.cluster import Cluster, Node
from horae.core.commands import Evidence
from horae.core.gpu_ledger import SEATS
from horae.core.gpu_moves import NOBODY
from horae.core.job import JobSpec
from horae.core.limits import Limits
from horae.core.node_room import taken_room
from horae.core.queues import Queue, UnknownQueues
from horae.core.reasons import Reason
from horae.core.state import EngineState
from horae.core.states import STATES, State


@dataclass(frozen=True)
class ClusterStatus:
    """Jobs, GPUs, nodes and queues at `now_s`. The position in every column is the job's row."""

    now_s: float
    columns: Mapping[str, NDArray[np.generic]]
    rates: NDArray[np.float64]
    cluster: Cluster
    open_by_type: NDArray[np.int64]
    #: Nodes with the GPUs that they have now; a node may have come back with fewer GPUs than `cluster` counts.
    nodes: tuple[Node, ...]
    node_up: tuple[bool, ...]
    node_draining: tuple[bool, ...]
    #: GPU numbers by row: GPUs that the job occupies, and GPUs that it holds.
    occupied: Mapping[int, tuple[int, ...]]
    held: Mapping[int, tuple[int, ...]]
    evidence: Evidence | None
    #: By row: when a failed job, or a failed launch, is tried again; why a trial was given up.
    retry_s: Mapping[int, float]
    given_up: Mapping[int, str]
    queue_paths: tuple[str, ...]
    queue_parents: tuple[int, ...]
    queues: Mapping[str, Queue]
    #: Limits by whom they are for; what becomes of jobs for queues that nobody configured.
    limits: Mapping[str, Limits]
    unknown_queues: UnknownQueues
    #: Apps that have an agent of their own, and the asks that are open now.
    agents: tuple[str, ...]
    asks: tuple[Ask, ...]
    policy: str
    settings: Mapping[str, str]
    _specs: list[JobSpec]
    _rows: Mapping[str, int]

    @staticmethod
    def of(state: EngineState) -> ClusterStatus:
        """The status of an engine with this state."""
        jobs, gpus, queues, bidding = state.jobs, state.gpus, state.queues, state.bidding
        return ClusterStatus(
            now_s=state.now_s,
            columns=jobs.shown(),
            rates=jobs.rates[: len(jobs)].copy(),
            cluster=gpus.cluster,
            open_by_type=gpus.open_by_type,
            nodes=gpus.nodes(),
            node_up=tuple(gpus.node_up),
            node_draining=tuple(gpus.node_draining),
            occupied=dict(gpus.occupied),
            held=dict(gpus.held),
            evidence=state.resolve_evidence(),
            retry_s=dict(state.backoff),
            given_up=dict(state.apps.given_up),
            queue_paths=tuple(queues.paths),
            queue_parents=tuple(queues.parents().tolist()),
            queues={queue.path: queue for queue in queues.configured},
            limits=dict(queues.limits),
            unknown_queues=state.unknown_queues,
            agents=tuple(bidding.agents),
            asks=tuple(ask for ask in bidding.asked.values() if ask.app not in bidding.answers),
            policy=state.policy[0],
            settings=state.policy[1],
            _specs=jobs.specs,
            _rows=jobs.rows,
        )

    @property
    def gpu_there(self) -> NDArray[np.bool_]:
        """Whether each GPU exists now: its node is up and has not come back with fewer GPUs. Drained nodes count."""
        cluster = self.cluster
        counts = np.array([node.gpus if up else 0 for node, up in zip(self.nodes, self.node_up, strict=True)], np.int64)
        return np.asarray(np.arange(cluster.gpus) - cluster.first_gpu[cluster.gpu_node] < counts[cluster.gpu_node])

    def room_in_use(self) -> NDArray[np.int64]:
        """CPUs (row 0) and MiB of memory (row 1) of each node that the jobs there take with their GPUs."""
        seats = np.full((SEATS, self.cluster.gpus), NOBODY, np.int64)
        for row, gpu_ids in self.occupied.items():
            ids = list(gpu_ids)
            seats[0 if seats[0, ids[0]] == NOBODY else 1, ids] = row
        asks = np.array((self.columns["cpus_per_gpu"], self.columns["memory_mb_per_gpu"]), np.int64)
        return taken_room(asks, seats, self.cluster)

    def __len__(self) -> int:
        return len(self.columns["state"])

    def row(self, job: str) -> int | None:
        """Row of the job with this id; None if there is no such job."""
        row = self._rows.get(job)
        return row if row is not None and row < len(self) else None

    @property
    def jobs(self) -> object:
        """Identity token: the same for two statuses if their rows mean the same jobs; retirement changes it."""
        return self._specs

    def spec(self, row: int) -> JobSpec:
        """The job as it was submitted."""
        return self._specs[row]

    def state(self, row: int) -> State:
        """Where a job is in its life."""
        return STATES[int(self.columns["state"][row])]

    def reason(self, row: int) -> Reason:
        """Why a job waits, by the last decision."""
        return Reason(int(self.columns["reason"][row]))
