"""Orphans: attempts that run and that the journal does not know, because it lost records or was restored.

Nobody asked for their end, so they go on. Their nodes take no other jobs until they have ended or an admin ends them,
since nobody knows which GPUs they use; a job that the journal knows is held while a later attempt of it still runs.
After a loss all nodes are closed (`NumbersRaised`), each until it is observed without orphans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from horae.backends.protocol import Attempt, Sight
from horae.core.engine import Engine
from horae.core.events import (
    BY_ORPHANS,
    Event,
    JobFailed,
    JobFinished,
    JobHeld,
    JobReleased,
    JobStopped,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
)
from horae.core.states import LAUNCHING, STATES, Move, after
from horae.service.machines import reopened

_ENDS = (JobFinished, JobFailed, JobStopped, LaunchFailed)


class Orphans:
    """The orphans of a service, by node. Belongs to the daemon's thread; others may read `attempts`."""

    def __init__(self) -> None:
        #: Orphans of each node that was observed.
        self._by_node: dict[str, frozenset[Attempt]] = {}
        #: Jobs that are held because of their orphans.
        self._held: set[str] = set()

    @property
    def attempts(self) -> dict[Attempt, tuple[str, ...]]:
        """All orphans, each with its nodes."""
        found: dict[Attempt, tuple[str, ...]] = {}
        for node, orphans in sorted(self._by_node.items()):
            for orphan in sorted(orphans):
                found[orphan] = (*found.get(orphan, ()), node)
        return found

    def set_apart(self, events: Sequence[Event], engine: Engine, sight: Sight | None, now_s: float) -> list[Event]:
        """The events without orphans, which would be stopped, and what follows from orphans that came or ended."""
        left: list[Event] = []
        for event in events:
            if isinstance(event, NodeObserved):
                orphans = frozenset(attempt for attempt in event.alive if _is_unknown(attempt, engine))
                self._by_node[event.node] = orphans
                left.append(replace(event, alive=tuple(attempt for attempt in event.alive if attempt not in orphans)))
                continue
            if isinstance(event, NodeLost):
                self._by_node.pop(event.node, None)
            elif isinstance(event, _ENDS) and self._by_node:
                self._remove((event.job, event.attempt))
            left.append(event)
        return [*left, *self._changes(_opened(left), engine, sight, now_s)] if self._by_node else left

    def _remove(self, attempt: Attempt) -> None:
        for node, orphans in self._by_node.items():
            if attempt in orphans:
                self._by_node[node] = orphans - {attempt}

    def _changes(self, opened: set[str], engine: Engine, sight: Sight | None, now_s: float) -> Iterator[Event]:
        """Nodes to close or to open again, jobs to hold or to release. `opened` are nodes that open just now."""
        ledger = engine.gpus
        for node, orphans in self._by_node.items():
            number, closed_by = ledger.cluster.node_numbers.get(node, -1), ledger.closed_by.get(node)
            if orphans and (node in opened or (number >= 0 and ledger.node_up[number] and closed_by is None)):
                yield NodeDraining(now_s, node, by=BY_ORPHANS)
            elif not orphans and closed_by == BY_ORPHANS:
                yield from reopened(sight, ledger, number, now_s)
        running = {job for orphans in self._by_node.values() for job, _ in orphans}
        for job in sorted(running | self._held):
            row = engine.jobs.rows.get(job, -1)
            state = STATES[engine.jobs.state[row]] if row >= 0 else None
            if job in running and state is not None and after(state, Move.HOLD) is not None:
                self._held.add(job)
                yield JobHeld(now_s, job, BY_ORPHANS)
            elif job not in running:
                self._held.discard(job)
                if state is not None and after(state, Move.RELEASE) is not None:
                    yield JobReleased(now_s, job, BY_ORPHANS)


def lost_launches(reports: Sequence[Event], engine: Engine, now_s: float) -> list[JobStopped]:
    """Ends of launches that the journal decided before it lost records, and that do not live any more.

    To repeat such a launch would be wrong: its attempt may have ended long ago, and an attempt never runs twice.
    """
    observed = {event.node: set(event.alive) for event in reports if isinstance(event, NodeObserved)}
    jobs, cluster, ends = engine.jobs, engine.gpus.cluster, []
    for row in engine.attempt_floors:
        if STATES[jobs.state[row]] is not LAUNCHING:
            continue
        attempt = (jobs.specs[row].id, int(jobs.attempt[row]))
        nodes = {cluster.nodes[number].name for number in cluster.gpus_by_node(engine.gpus.held[row])}
        if nodes <= observed.keys() and not any(attempt in observed[node] for node in nodes):
            ends.append(JobStopped(now_s, *attempt, float(jobs.work[row] - jobs.work_left[row])))
    return ends


def _opened(events: Sequence[Event]) -> set[str]:
    """Nodes that take jobs after these events, and may not have before."""
    drained = {event.node for event in events if isinstance(event, NodeDraining)}
    return {event.node.name for event in events if isinstance(event, NodeJoined)} - drained


def _is_unknown(attempt: Attempt, engine: Engine) -> bool:
    """Whether the journal does not know an attempt: every attempt is in the journal before it starts."""
    job, number = attempt
    row = engine.jobs.rows.get(job, -1)
    return row < 0 or number > int(engine.jobs.attempt[row])
