"""What the reasons of waiting jobs rest on.

A decision leaves only a basis: the few facts that the state does not hold. The evidence itself is derived
when it is first asked for: by the journal, which stores it, or by a person who wants to know why a job waits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.cluster import UNCOUNTED
from horae.core.commands import Evidence
from horae.core.compared_by import ComparedBy, compared_values
from horae.core.gpu_ledger import GpuLedger
from horae.core.gpu_moves import NOBODY
from horae.core.job_table import JobTable
from horae.core.node_room import CPUS, MEMORY, room_of
from horae.core.plan import Kept
from horae.core.queues import QueueTree
from horae.core.quotas import QuotaUse


class EvidenceBasis(NamedTuple):
    """What only the decision itself knew."""

    at_s: float
    #: Whether any job was left waiting: without one there is nothing to explain.
    some_wait: bool
    head: str
    measure: ComparedBy
    again_s: float
    unprotected_s: float
    reserve_after_s: float
    kept: Kept | None


def derive_evidence(basis: EvidenceBasis, jobs: JobTable, gpus: GpuLedger, queues: QueueTree) -> Evidence:
    """The evidence of the last decision, from the state that it left."""
    cluster = gpus.cluster
    free = (gpus.holders[0] == NOBODY) & gpus.gpu_open
    node_free = np.bincount(cluster.gpu_node[free], minlength=len(cluster.nodes)).astype(np.int64)
    if not basis.some_wait:
        return Evidence(basis.at_s, node_free)
    held, types = gpus.held, len(cluster.gpu_types)
    rows = np.array(list(held), np.int64)
    gpu_type = cluster.gpu_type[[gpu_ids[0] for gpu_ids in held.values()]] if held else rows
    taken = gpus.holders[0] != NOBODY
    measured = _measured(basis, jobs, rows) if basis.measure else None
    kept = _least_kept(basis.kept, gpus) if basis.kept is not None else []
    room = room_of(jobs, gpus)
    left = [] if room is None else np.where(cluster.room < UNCOUNTED, np.maximum(room.free, 0), -1).tolist()
    return Evidence(
        at_s=basis.at_s,
        node_free=node_free,
        head=basis.head,
        jobs_by_type=tuple(np.bincount(gpu_type, minlength=types).tolist()),
        gpus_by_type=tuple(np.bincount(cluster.gpu_type[taken], minlength=types).tolist()),
        measure=basis.measure,
        measured_by_type=() if measured is None else tuple(np.bincount(gpu_type, measured, types).tolist()),
        queue_used=_queue_use(jobs, gpus, queues) if queues.has_maximum else (),
        again_s=basis.again_s,
        unprotected_s=basis.unprotected_s,
        reserve_after_s=basis.reserve_after_s,
        kept_by=tuple([jobs.specs[row].id if row >= 0 else "" for row, _ in kept]),
        kept_until_s=tuple([until_s for _, until_s in kept]),
        node_cpus=tuple(left[CPUS]) if left else (),
        node_memory_mb=tuple(left[MEMORY]) if left else (),
    )


def _least_kept(kept: Kept, gpus: GpuLedger) -> list[tuple[int, float]]:
    """For each GPU type, the row that keeps its GPUs least long, or -1, and until when."""
    least, gpu_type = [(NOBODY, np.inf)] * len(gpus.cluster.gpu_types), gpus.cluster.gpu_type
    for at in np.lexsort((kept.rows, -kept.until_s)).tolist():
        row = int(kept.rows[at])
        if row in gpus.held:
            least[int(gpu_type[gpus.held[row][0]])] = row, float(kept.until_s[at])
    return least


def _measured(basis: EvidenceBasis, jobs: JobTable, rows: Ints) -> Floats:
    """What jobs are compared by, for some rows, at the time of the decision."""
    columns = {
        "work_left": jobs.work_left_at(basis.at_s, rows),
        "gpu_seconds": jobs.gpu_seconds_at(basis.at_s, rows),
        "best_rate": jobs.best_rate[rows],
        "gpus": jobs.gpus[rows].astype(np.float64),
    }
    return compared_values(basis.measure, columns, np.arange(len(rows)))


def _queue_use(jobs: JobTable, gpus: GpuLedger, queues: QueueTree) -> tuple[int, ...]:
    """GPUs of each queue and all queues below it."""
    use = QuotaUse(queues)
    for row, gpu_ids in gpus.held.items():
        use.add(int(jobs.quota[row]), len(gpu_ids))
    return use.used_by_queue(queues)
