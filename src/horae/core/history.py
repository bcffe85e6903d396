"""What happened in a run, as columns: the one thing every report is made from."""

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
    """Every launch of every job: who held which GPUs when. Columns of equal length.

    Two attempts may hold the same GPUs at the same time; a report must not count these twice.

    `gpu_ids[first[i]:first[i + 1]]` are the GPUs of attempt i. An attempt holds
    its GPUs from `begin_s` to `end_s`; it does work from `work_s` (after loading
    its checkpoint; NaN if it never came so far) to `stop_s` (when it was told to
    stop, or ended). `preempted` says that it was running and lost its GPUs.
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
        """How many GPUs each attempt held."""
        return np.diff(self.first)


@dataclass(frozen=True)
class History:
    """A finished (or interrupted) run. Job columns follow the order of submission.

    `rates[i, k]` is the work per second of job i, alone on its own number of GPUs of
    type k, as close together as they can be; 0 where it cannot run. It is what was
    true, where that is known, whatever the scheduler believed: jobs are judged by
    what they could have had. Times that never came are NaN.
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
    #: Why each job that had not ended was waiting, by job id.
    waiting: dict[str, str] = field(default_factory=dict)
    #: Jobs whose deadlines the policy gave up while they lay ahead.
    relaxed: tuple[str, ...] = ()
    #: Which jobs their app gave up (they are cancelled, too); None where no app does that.
    given_up: NDArray[np.bool_] | None = None

    @property
    def submit_s(self) -> NDArray[np.float64]:
        """When each job was submitted."""
        return np.array([job.submit_s for job in self.jobs])

    @property
    def gpus(self) -> NDArray[np.int64]:
        """How many GPUs each job asked for."""
        return np.array([job.gpus for job in self.jobs], dtype=np.int64)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Which jobs came to their end."""
        done: NDArray[np.bool_] = self.state == State.FINISHED
        return done


class Recorder:
    """Gathers attempts while events and decisions go by, in a simulation, in a daemon, or read from a journal."""

    def __init__(self) -> None:
        #: Attempts that have not ended, by job and number.
        self._open: dict[tuple[int, int], int] = {}
        #: Those of which nobody has said when they began to work.
        self._assumed: set[int] = set()
        self._job, self._span, self._preempted = array("q"), array("b"), array("b")
        self._begin, self._work, self._stop, self._end = array("d"), array("d"), array("d"), array("d")
        self._first, self._gpus, self._had = array("q", [0]), array("i"), array("d")

    def see(self, record: Event | Decided, rows: Mapping[str, int]) -> None:
        """An event was applied, or a decision made. `rows` are those of the jobs, by name."""
        match record:
            case JobStarted() if record.job in rows:
                self.started(rows[record.job], record.attempt, record.at_s, record.up_s)
            case JobProgressed() if record.job in rows:
                self.reported(rows[record.job], record.attempt, record.at_s, record.work_done)
            case JobFinished() if record.job in rows:
                # Of one that never said so, too, it is known by now that it worked.
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
        """An attempt of a job (its row) got GPUs; its checkpoint holds so much work."""
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
        """An attempt began to do work, or is taken to have, so long ago."""
        attempt = self._open.get((job, number))
        if attempt is not None and isnan(self._work[attempt]):
            self._work[attempt] = max(self._begin[attempt], now_s - up_s)
            if up_s > 0:
                self._assumed.add(attempt)

    def reported(self, job: int, number: int, now_s: float, work_done: float) -> None:
        """An attempt told where it is: if that is where it began, it has loaded until now, whatever was assumed."""
        attempt = self._open.get((job, number))
        if attempt is None or attempt not in self._assumed:
            return
        self._assumed.remove(attempt)
        if work_done <= self._had[attempt]:
            self._work[attempt] = now_s

    def stopping(self, job: int, number: int, now_s: float, preempted: bool) -> None:
        """An attempt was told to stop."""
        attempt = self._open.get((job, number))
        if attempt is not None and isnan(self._stop[attempt]):
            self._stop[attempt] = now_s
            self._preempted[attempt] = preempted

    def ended(self, job: int, number: int, now_s: float) -> None:
        """An attempt gave its GPUs back, for whatever reason."""
        attempt = self._open.pop((job, number), None)
        if attempt is None:
            return
        self._end[attempt] = now_s
        if isnan(self._stop[attempt]):
            self._stop[attempt] = now_s

    def attempts(self, until_s: float) -> Attempts:
        """Everything so far, without a copy; attempts that still run are cut at `until_s`. Nothing may follow."""
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
