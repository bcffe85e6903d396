"""What is kept of retired jobs: counts, and the service that they had, from which policies learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats
from horae.core.declared import Stored
from horae.core.states import FINISHED

if TYPE_CHECKING:
    from horae.core.job_table import JobTable


#: Number of retired jobs, the last ones, whose service is kept. Enough for a distribution; bounds the memory.
MOST = 100_000


def _nothing() -> Floats:
    return np.empty(0)


@dataclass(frozen=True)
class RetiredJobs:
    """Counts of retired jobs and of the finished jobs among them; end and service of the last `MOST` of them."""

    STORED: ClassVar[dict[str, Stored]] = {"counts": Stored(tuple[int, int])}

    jobs: int = 0
    finished: int = 0
    #: When each job finished; infinite for a job that failed or was cancelled.
    finished_s: Floats = field(default_factory=_nothing)
    gpu_seconds: Floats = field(default_factory=_nothing)
    fastest_gpu_seconds: Floats = field(default_factory=_nothing)

    def joined_by(self, table: JobTable, rows: NDArray[np.int64]) -> RetiredJobs:
        """A new record that also counts these rows of a job table, all of which have ended."""
        done = table.state[rows] == int(FINISHED)
        return RetiredJobs(
            self.jobs + len(rows),
            self.finished + int(np.count_nonzero(done)),
            _newest(self.finished_s, np.where(done, table.ended_s[rows], np.inf)),
            _newest(self.gpu_seconds, table.gpu_seconds[rows]),
            _newest(self.fastest_gpu_seconds, table.fastest_gpu_seconds[rows]),
        )

    def service(self, normalise: bool, finished_before_s: float | None = None) -> Floats:
        """GPU-seconds that each job had; with `normalise` counted as GPUs of the job's fastest type.

        With `finished_before_s`, only of the jobs that had finished before that time.
        """
        service = self.fastest_gpu_seconds if normalise else self.gpu_seconds
        return service if finished_before_s is None else service[self.finished_s < finished_before_s]

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values and columns."""
        columns = {
            "finished_s": self.finished_s,
            "gpu_seconds": self.gpu_seconds,
            "fastest_gpu_seconds": self.fastest_gpu_seconds,
        }
        return {"counts": (self.jobs, self.finished), **columns}

    @staticmethod
    def restored(contents: Mapping[str, Any]) -> RetiredJobs:
        """The record from what `contents` gave."""
        jobs, finished = contents["counts"]
        return RetiredJobs(
            jobs, finished, contents["finished_s"], contents["gpu_seconds"], contents["fastest_gpu_seconds"]
        )


def _newest(before: Floats, more: Floats) -> Floats:
    return np.concatenate((before, more))[-MOST:]
