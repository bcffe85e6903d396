"""Changes of nodes for a replay, and its alignment with the past run, so that metrics compare the same jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from horae.core.arrays import Floats
from horae.core.cluster import Node
from horae.core.events import NodeChange, NodeJoined, NodeLost
from horae.core.history import History
from horae.core.states import ENDED, State


def complete_changes(nodes: Iterable[Node], changes: Iterable[NodeChange]) -> Iterator[NodeChange]:
    """Changes of nodes, in which a host's old node is lost before its new node joins.

    Old journals lack that: compaction dropped the losses of nodes once. `nodes` are there in the beginning.
    """
    newest = {node.host: node.name for node in nodes}
    for change in changes:
        if isinstance(change, NodeJoined):
            old = newest.get(change.node.host, change.node.name)
            if old != change.node.name:
                yield NodeLost(change.at_s, old)
            newest[change.node.host] = change.node.name
        yield change


def align_with_past(past: History, rerun: History) -> History:
    """The rerun with all jobs of the past run, in which only jobs that finished in the past may count as finished.

    A job that was cancelled, failed, or has not ended occupies GPUs in the rerun. If it counted as finished there,
    metrics would compare two sets of jobs. A job that was not replayed is taken from the past.
    """
    rows = {job.id: row for row, job in enumerate(past.jobs)}
    row_of = np.array([rows[job.id] for job in rerun.jobs], np.int64)
    jobs, rates = list(past.jobs), _rates(past, rerun)
    for row, job in zip(row_of.tolist(), rerun.jobs, strict=True):
        jobs[row] = job
    rates[row_of] = rerun.rates
    state, start_s, end_s = past.state.copy(), past.start_s.copy(), past.end_s.copy()
    start_s[row_of] = rerun.start_s
    end_s[row_of] = np.where(np.isin(past.state[row_of], [int(ended) for ended in ENDED]), rerun.end_s, np.nan)
    finished = row_of[past.state[row_of] == State.FINISHED]
    state[finished] = rerun.state[past.state[row_of] == State.FINISHED]
    return replace(
        rerun,
        jobs=tuple(jobs),
        state=state,
        start_s=start_s,
        end_s=end_s,
        rates=rates,
        attempts=replace(rerun.attempts, job=row_of[rerun.attempts.job]),
        given_up=past.given_up,
    )


def _rates(past: History, rerun: History) -> Floats:
    """Speeds of the past run, for the GPU types of the rerun's cluster."""
    columns = [past.cluster.gpu_types.index(gpu_type) for gpu_type in rerun.cluster.gpu_types]
    rates: Floats = past.rates[:, columns].copy()
    return rates
