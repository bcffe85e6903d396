"""What a policy compares jobs by, for the sentence behind a reason: attained service, time left, service left."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ComparedBy(StrEnum):
    """What a policy orders jobs by, least first. The value of a waiting job does not change."""

    NOTHING = ""
    #: Attained service: GPU-seconds that a job has had.
    SERVICE = "service"
    #: Seconds until the job would be done on its fastest GPU type; the same times its GPU count.
    TIME_LEFT = "time left"
    SERVICE_LEFT = "service left"


def compared_values(
    compared_by: ComparedBy, columns: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What jobs are compared by, for these rows, from the columns of the job table; in s or GPU-seconds."""
    match compared_by:
        case ComparedBy.NOTHING:
            return np.zeros(len(rows))
        case ComparedBy.SERVICE:
            return np.asarray(columns["gpu_seconds"][rows], np.float64)
        case ComparedBy.TIME_LEFT | ComparedBy.SERVICE_LEFT:
            rate = columns["best_rate"][rows]
            left_s = np.divide(columns["work_left"][rows], rate, out=np.zeros(len(rows)), where=rate > 0)
            gpus = columns["gpus"][rows] if compared_by is ComparedBy.SERVICE_LEFT else 1
            return np.asarray(left_s * gpus, np.float64)


def comparison_in_words(compared_by: ComparedBy, others_mean: float, own: float) -> str:
    """The mean of the jobs that hold GPUs and the job's own value, in words; empty for NOTHING."""
    match compared_by:
        case ComparedBy.NOTHING:
            return ""
        case ComparedBy.SERVICE:
            return f"; they have had {_gpu_time(others_mean)} each on average, this one {_gpu_time(own)}"
        case ComparedBy.TIME_LEFT:
            return f"; they have {_time(others_mean)} left each on average, this one {_time(own)}"
        case ComparedBy.SERVICE_LEFT:
            return f"; they have {_gpu_time(others_mean)} left each on average, this one {_gpu_time(own)}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


def _gpu_time(seconds: float) -> str:
    return f"{seconds:.0f} GPU-seconds" if seconds < 3600 else f"{seconds / 3600:.1f} GPU-hours"
