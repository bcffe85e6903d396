"""What each user got of the GPU time, and over how many apps and queues their jobs were spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.history import History
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.job_outcomes import outcomes


@dataclass(frozen=True)
class UserShare:
    """A user's jobs, and their part of the GPU time of all jobs."""

    user: str
    jobs: int
    apps: int
    queues: int
    gpu_hours: float
    share: float


def user_shares(history: History) -> list[UserShare]:
    """The users, most GPU time first; none if the jobs name no users."""
    users = sorted({job.user for job in history.jobs if job.user})
    if not users:
        return []
    gpu_seconds = outcomes(history, Holdings.of_gangs(history.attempts)).gpu_seconds
    total = float(gpu_seconds.sum()) or 1.0
    shares = []
    for user in users:
        rows = np.array([row for row, job in enumerate(history.jobs) if job.user == user], np.int64)
        jobs = [history.jobs[row] for row in rows.tolist()]
        apps, queues = {job.app_id for job in jobs}, {job.queue for job in jobs}
        held_s = float(gpu_seconds[rows].sum())
        shares.append(UserShare(user, len(jobs), len(apps), len(queues), held_s / 3600, held_s / total))
    return sorted(shares, key=lambda share: (-share.share, share.user))
