"""What jobs are compared by, in numbers that people know: for the sentence behind a reason."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ComparedBy(StrEnum):
    """What a policy orders jobs by, least first. A job that waits keeps its value until it runs again."""

    NOTHING = ""
    #: GPU-seconds that a job has had.
    SERVICE = "service"
    #: Seconds that it would still take on its fastest GPU type, and the same times its GPUs.
    TIME_LEFT = "time left"
    SERVICE_LEFT = "service left"


def values(measure: ComparedBy, columns: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The measure of some jobs, by what the columns of the job table hold of them."""
    match measure:
        case ComparedBy.NOTHING:
            return np.zeros(len(rows))
        case ComparedBy.SERVICE:
            return np.asarray(columns["gpu_seconds"][rows], np.float64)
        case ComparedBy.TIME_LEFT | ComparedBy.SERVICE_LEFT:
            rate = columns["best_rate"][rows]
            left_s = np.divide(columns["work_left"][rows], rate, out=np.zeros(len(rows)), where=rate > 0)
            return np.asarray(left_s * (columns["gpus"][rows] if measure is ComparedBy.SERVICE_LEFT else 1), np.float64)


def told(measure: ComparedBy, theirs: float, its_own: float) -> str:
    """Both sides of a comparison in words; nothing where there is no measure."""
    match measure:
        case ComparedBy.NOTHING:
            return ""
        case ComparedBy.SERVICE:
            return f"; they have had {_gpu_time(theirs)} each on average, this one {_gpu_time(its_own)}"
        case ComparedBy.TIME_LEFT:
            return f"; they have {_time(theirs)} left each on average, this one {_time(its_own)}"
        case ComparedBy.SERVICE_LEFT:
            return f"; they have {_gpu_time(theirs)} left each on average, this one {_gpu_time(its_own)}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


def _gpu_time(seconds: float) -> str:
    return f"{seconds:.0f} GPU-seconds" if seconds < 3600 else f"{seconds / 3600:.1f} GPU-hours"
