"""The history of a run, as columns: every report is made from one. A recorder collects its attempts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Cluster, Span
from horae.core.commands import Decided, StopWhy
from horae.core.events import Event, JobFailed, JobFinished, JobProgressed, JobStarted, JobStopped, LaunchFailed
from horae.core.job import JobSpec
from horae.core.states import State

_BY_POLICY = (StopWhy.PREEMPTED, StopWhy.MOVED)


@dataclass(frozen=True)
class Attempts:
    """Every attempt of every job: which GPUs it held, and when. Columns of equal length.

    Two attempts may hold the same GPUs at the same time; a report must not count these GPUs twice.

    `gpu_ids[first[i]:first[i + 1]]` are the GPUs of attempt i. An attempt holds
    its GPUs from `begin_s` to `end_s`. It does work from `work_s` (after loading
    its checkpoint; NaN if it never worked) to `stop_s` (when its stop was
    commanded, or it ended). `preempted` says that the policy took its GPUs.
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

    @property
    def gpus(self) -> NDArray[np.int64]:
        """GPU count of each attempt."""
        return np.diff(self.first)


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


class Recorder:
    """Collects attempts from events and decisions: of a simulation, a daemon, or a journal."""

    def __init__(self) -> None:
        #: Attempts that have not ended, by job and number.
        self._open: dict[tuple[int, int], int] = {}
        #: Attempts (by position) whose start of work is only assumed.
        self._assumed: set[int] = set()
        self._job, self._span, self._preempted = array("q"), array("b"), array("b")
        self._begin, self._work, self._stop, self._end = array("d"), array("d"), array("d"), array("d")
        self._first, self._gpus, self._had = array("q", [0]), array("i"), array("d")

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
            case JobStopped() | JobFailed() | LaunchFailed() if record.job in rows:
                self.ended(rows[record.job], record.attempt, record.at_s)
            case Decided():
                for stop in record.stops:
                    self.stopping(rows.get(stop.job, -1), stop.attempt, record.at_s, stop.why in _BY_POLICY)
                for launch in record.launches:
                    row, had = rows[launch.job], launch.work_done
                    self.launched(row, launch.attempt, record.at_s, launch.gpu_ids, launch.span, had)

    def launched(
        self, job: int, number: int, now_s: float, gpu_ids: Sequence[int], span: Span, work_done: float = 0.0
    ) -> None:
        """An attempt of a job (its row) was launched; `work_done` is the work in the job's checkpoint."""
        assert (job, number) not in self._open, f"attempt {number} of job {job} launched twice at {now_s}"
        self._open[job, number] = len(self._job)
        self._had.append(work_done)
        self._job.append(job)
        self._span.append(int(span))
        self._preempted.append(0)
        self._begin.append(now_s)
        self._work.append(nan)
        self._stop.append(nan)
        self._end.append(nan)
        self._gpus.extend(gpu_ids)
        self._first.append(len(self._gpus))

    def started(self, job: int, number: int, now_s: float, up_s: float = 0.0) -> None:
        """An attempt began to do work now; with `up_s` above 0 it is assumed to have begun `up_s` seconds ago."""
        attempt = self._open.get((job, number))
        if attempt is not None and isnan(self._work[attempt]):
            self._work[attempt] = max(self._begin[attempt], now_s - up_s)
            if up_s > 0:
                self._assumed.add(attempt)

    def reported(self, job: int, number: int, now_s: float, work_done: float) -> None:
        """An attempt reported its progress. If it has done no work yet, its assumed start of work moves to now."""
        attempt = self._open.get((job, number))
        if attempt is None or attempt not in self._assumed:
            return
        self._assumed.remove(attempt)
        if work_done <= self._had[attempt]:
            self._work[attempt] = now_s

    def stopping(self, job: int, number: int, now_s: float, preempted: bool) -> None:
        """The stop of an attempt was commanded."""
        attempt = self._open.get((job, number))
        if attempt is not None and isnan(self._stop[attempt]):
            self._stop[attempt] = now_s
            self._preempted[attempt] = preempted

    def ended(self, job: int, number: int, now_s: float) -> None:
        """An attempt ended and its GPUs are free."""
        attempt = self._open.pop((job, number), None)
        if attempt is None:
            return
        self._end[attempt] = now_s
        if isnan(self._stop[attempt]):
            self._stop[attempt] = now_s

    def attempts(self, until_s: float) -> Attempts:
        """All attempts, without a copy; running attempts end at `until_s`. Nothing can be recorded afterwards."""
        end, stop = np.frombuffer(self._end), np.frombuffer(self._stop)
        end[np.isnan(end)] = until_s
        stop[np.isnan(stop)] = until_s
        return Attempts(
            job=np.frombuffer(self._job, np.int64),
            begin_s=np.frombuffer(self._begin),
            work_s=np.frombuffer(self._work),
            stop_s=stop,
            end_s=end,
            span=np.frombuffer(self._span, np.int8),
            preempted=np.frombuffer(self._preempted, np.bool_),
            first=np.frombuffer(self._first, np.int64),
            gpu_ids=np.frombuffer(self._gpus, np.int32),
        )
