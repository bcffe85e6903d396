"""The history of a run, as columns: every report is made from one. A recorder collects its attempts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Cluster, Node, Span, host_of
from horae.core.commands import BY_POLICY, Decided
from horae.core.events import (
    Event,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobStarted,
    JobStopped,
    LaunchFailed,
    NodeJoined,
    NodeLost,
)
from horae.core.job import JobSpec
from horae.core.states import State

#: Order of an attempt's times in the recorder, and how many each attempt has.
_BEGIN, _WORK, _STOP, _END, _TIMES = range(5)


@dataclass(frozen=True)
class Attempts:
    """Every attempt of every job: which GPUs it held, and when. Columns of equal length.

    Two attempts may hold the same GPUs at the same time; a report must not count these GPUs twice.

    `gpu_ids[first[i]:first[i + 1]]` are the GPUs of attempt i. An attempt holds
    its GPUs from `begin_s` to `end_s`. It does work from `work_s` (after loading
    its checkpoint; NaN if it never worked) to `stop_s` (when its stop was
    commanded, or it ended). `preempted` says that the policy took its GPUs, `lost`
    that it was preempted and had saved nothing: the job starts over. None counts as no such attempt.
    """

    job: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    work_s: NDArray[np.float64]
    stop_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    span: NDArray[np.int8]
    preempted: NDArray[np.bool_]
    first: NDArray[np.int64]
    gpu_ids: NDArray[np.int32]
    lost: NDArray[np.bool_] | None = None

    @property
    def gpus(self) -> NDArray[np.int64]:
        """GPU count of each attempt."""
        return np.diff(self.first)


@dataclass(frozen=True)
class LeaveTimes:
    """How jobs left their GPUs, measured from reports, by job; NaN where that was not observed."""

    #: Seconds from the last work to the end, of jobs that finished.
    finish_s: NDArray[np.float64]
    #: Seconds for which a job worked on after a stop was ordered.
    notice_s: NDArray[np.float64]


@dataclass(frozen=True)
class NodePresence:
    """When nodes were there, and with how many GPUs. Columns of equal length; a node may come and go often."""

    gpu_type: NDArray[np.int64]
    gpus: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    def gpu_seconds(self, types: int, begin_s: float, end_s: float) -> NDArray[np.float64]:
        """GPU-seconds that were there between two times, by GPU type."""
        inside_s = np.minimum(self.end_s, end_s) - np.maximum(self.begin_s, begin_s)
        spent: NDArray[np.float64] = np.zeros(types)
        np.add.at(spent, self.gpu_type, self.gpus * np.maximum(inside_s, 0.0))
        return spent

    def most(self, types: int) -> NDArray[np.int64]:
        """The largest number of GPUs of each type that were there at the same time."""
        times_s, position = np.unique(np.concatenate((self.begin_s, self.end_s)), return_inverse=True)
        change = np.zeros((len(times_s), types), np.int64)
        np.add.at(change, (position, np.tile(self.gpu_type, 2)), np.concatenate((self.gpus, -self.gpus)))
        most: NDArray[np.int64] = change.cumsum(axis=0).max(axis=0, initial=0)
        return most


@dataclass(frozen=True)
class History:
    """A finished (or interrupted) run. Job columns follow the order of submission.

    `rates[i, k]` is the work per second of job i, alone on its own GPU count of
    type k at the narrowest span; 0 where it cannot run. It is the true rate where
    that is known, not the rate the scheduler believed. A time that never came is NaN.
    """

    cluster: Cluster
    jobs: tuple[JobSpec, ...]
    state: NDArray[np.uint8]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    rates: NDArray[np.float64]
    attempts: Attempts
    policy: str
    settings: dict[str, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    #: Sentence of `explain` for each job that had not ended, by job id.
    waiting: dict[str, str] = field(default_factory=dict)
    #: Ids of jobs whose deadlines the policy relaxed before they passed.
    relaxed: tuple[str, ...] = ()
    #: Whether each job was given up by its app (its state is cancelled); None where no app gives up trials.
    given_up: NDArray[np.bool_] | None = None
    #: How jobs of a live run left their GPUs; None for simulated runs.
    leave: LeaveTimes | None = None
    #: When nodes were there; None if all were there all the time.
    presence: NodePresence | None = None

    @property
    def gpus_by_type(self) -> NDArray[np.int64]:
        """GPUs of each type; if nodes came and went, the most that were there at the same time."""
        return self.presence.most(len(self.cluster.gpu_types)) if self.presence else self.cluster.gpus_by_type

    @property
    def submit_s(self) -> NDArray[np.float64]:
        """When each job was submitted."""
        return np.array([job.submit_s for job in self.jobs])

    @property
    def gpus(self) -> NDArray[np.int64]:
        """GPU count that each job asked for."""
        return np.array([job.gpus for job in self.jobs], dtype=np.int64)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Whether each job finished."""
        done: NDArray[np.bool_] = self.state == State.FINISHED
        return done


class _NodeTimes:
    """When nodes were there. Two nodes of one host, such as `v1` and `v1~2`, never were at the same time."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        #: By host: its node that is there, and since when.
        self._there = {node.host: (node, 0.0) for node in nodes}
        self._gone: list[tuple[Node, float, float]] = []
        self._changed = False

    def joined(self, event: NodeJoined) -> None:
        """A node joined, or was reopened."""
        self._leave(event.node.host, event.at_s)
        self._there[event.node.host] = (event.node, event.at_s)
        self._changed = True

    def lost(self, event: NodeLost) -> None:
        """A node was lost. What is said of a host's old node does not concern its new one."""
        there = self._there.get(host_of(event.node))
        if there and there[0].name == event.node:
            self._leave(there[0].host, event.at_s)
            self._changed = True

    def _leave(self, host: str, now_s: float) -> None:
        if there := self._there.pop(host, None):
            self._gone.append((*there, now_s))

    def presence(self, gpu_types: Sequence[str], until_s: float) -> NodePresence | None:
        """All times until `until_s`; None if no node ever came or went."""
        if not self._changed:
            return None
        stays = [*self._gone, *((node, since_s, until_s) for node, since_s in self._there.values())]
        nodes, begin_s, end_s = zip(*stays, strict=True) if stays else ((), (), ())
        types = [gpu_types.index(node.gpu_type) for node in nodes]
        gpus = np.array([node.gpus for node in nodes], np.int64)
        return NodePresence(np.array(types, np.int64), gpus, np.array(begin_s, float), np.array(end_s, float))


class Recorder:
    """Collects attempts, and when nodes were there, from events and decisions: of a simulation or a journal."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        """`nodes` are there from the beginning."""
        self._nodes = _NodeTimes(nodes)
        #: Attempts that have not ended, by job and number: where their times begin, and the work in the job's
        #: checkpoint when they were launched.
        self._open: dict[tuple[int, int], tuple[int, float]] = {}
        #: Attempts (by where their times begin) whose start of work is only assumed.
        self._assumed: set[int] = set()
        self._job, self._span, self._preempted, self._lost = array("q"), array("b"), array("b"), array("b")
        # A single array for all times: arrays that grow side by side leave holes in the memory.
        self._times = array("d")
        self._first, self._gpus = array("q", [0]), array("i")

    def see(self, record: Event | Decided, rows: Mapping[str, int]) -> None:
        """An event was applied, or a decision made. `rows` is the row of each job, by job id."""
        match record:
            case JobStarted() if record.job in rows:
                self.started(rows[record.job], record.attempt, record.at_s, record.up_s)
            case JobProgressed() if record.job in rows:
                self.reported(rows[record.job], record.attempt, record.at_s, record.work_done)
            case JobFinished() if record.job in rows:
                # An attempt that finished has worked, even if it never reported its start.
                self.started(rows[record.job], record.attempt, record.at_s, up_s=inf)
                self.ended(rows[record.job], record.attempt, record.at_s)
            case JobStopped() | JobFailed() if record.job in rows:
                self.ended(rows[record.job], record.attempt, record.at_s, record.work_done)
            case LaunchFailed() if record.job in rows:
                self.ended(rows[record.job], record.attempt, record.at_s)
            case Decided():
                for stop in record.stops:
                    self.stopping(rows.get(stop.job, -1), stop.attempt, record.at_s, stop.why in BY_POLICY)
                for launch in record.launches:
                    row, had = rows[launch.job], launch.work_done
                    self.launched(row, launch.attempt, record.at_s, launch.gpu_ids, launch.span, had)
            case NodeJoined():
                self._nodes.joined(record)
            case NodeLost():
                self._nodes.lost(record)

    def launched(
        self, job: int, number: int, now_s: float, gpu_ids: Sequence[int], span: Span, work_done: float = 0.0
    ) -> None:
        """An attempt of a job (its row) was launched; `work_done` is the work in the job's checkpoint."""
        assert (job, number) not in self._open, f"attempt {number} of job {job} launched twice at {now_s}"
        self._open[job, number] = len(self._times), work_done
        self._job.append(job)
        self._span.append(int(span))
        self._preempted.append(0)
        self._lost.append(0)
        self._times.extend((now_s, nan, nan, nan))
        self._gpus.extend(gpu_ids)
        self._first.append(len(self._gpus))

    def started(self, job: int, number: int, now_s: float, up_s: float = 0.0) -> None:
        """An attempt began to do work now; with `up_s` above 0 it is assumed to have begun `up_s` seconds ago."""
        if (found := self._open.get((job, number))) is None:
            return
        times, at = self._times, found[0]
        if isnan(times[at + _WORK]):
            times[at + _WORK] = max(times[at + _BEGIN], now_s - up_s)
            if up_s > 0:
                self._assumed.add(at)

    def reported(self, job: int, number: int, now_s: float, work_done: float) -> None:
        """An attempt reported its progress. If it has done no work yet, its assumed start of work moves to now."""
        at, had = self._open.get((job, number), (-1, 0.0))
        if at not in self._assumed:
            return
        self._assumed.remove(at)
        if work_done <= had:
            self._times[at + _WORK] = now_s

    def stopping(self, job: int, number: int, now_s: float, preempted: bool) -> None:
        """The stop of an attempt was commanded."""
        found = self._open.get((job, number))
        if found is not None and isnan(self._times[found[0] + _STOP]):
            self._times[found[0] + _STOP] = now_s
            self._preempted[found[0] // _TIMES] = preempted

    def ended(self, job: int, number: int, now_s: float, work_done: float = inf) -> None:
        """An attempt ended and its GPUs are free; `work_done` is the work in the job's checkpoint."""
        found = self._open.pop((job, number), None)
        if found is None:
            return
        times, (at, had) = self._times, found
        self._lost[at // _TIMES] = bool(self._preempted[at // _TIMES]) and bool(work_done <= had)
        times[at + _END] = now_s
        if isnan(times[at + _STOP]):
            times[at + _STOP] = now_s

    def presence(self, gpu_types: Sequence[str], until_s: float) -> NodePresence | None:
        """When nodes were there, until `until_s`; None if all were there all the time."""
        return self._nodes.presence(gpu_types, until_s)

    def attempts(self, until_s: float) -> Attempts:
        """All attempts, without a copy; running attempts end at `until_s`. Nothing can be recorded afterwards."""
        begin, work, stop, end = np.frombuffer(self._times).reshape(-1, _TIMES).T
        end[np.isnan(end)] = until_s
        stop[np.isnan(stop)] = until_s
        return Attempts(
            job=np.frombuffer(self._job, np.int64),
            begin_s=begin,
            work_s=work,
            stop_s=stop,
            end_s=end,
            span=np.frombuffer(self._span, np.int8),
            preempted=np.frombuffer(self._preempted, np.bool_),
            first=np.frombuffer(self._first, np.int64),
            gpu_ids=np.frombuffer(self._gpus, np.int32),
            lost=np.frombuffer(self._lost, np.bool_),
        )
