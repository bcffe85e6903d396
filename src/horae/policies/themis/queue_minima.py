"""Queues below their guaranteed minimum, which are served before the auction.

The minimum means the same as under ordering policies: a job is within it if its queue, or a queue above, has no more
than its minimum with the job's GPUs. No job loses a lease for a minimum, and no app bids or pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from horae.core.arrays import Ints
from horae.core.snapshot import Snapshot
from horae.policies.themis.app_split import Counts, divide
from horae.policies.themis.app_views import AppViews


def serve_minima(now: Snapshot, views: AppViews, free: Ints) -> dict[int, Counts]:
    """GPU count by machine of jobs (by position) within the minimum of their queue, as far as free GPUs go."""
    if not now.queues.has_minimum:
        return {}
    given: dict[int, Counts] = {}
    use, left = views.queue_use(), Counter(dict(enumerate(free.tolist())))
    for i in _worst_off_first(views):
        quota, gpus = int(now.quota[i]), int(now.gpus[i])
        if use.guarantees(quota, gpus) and (found := divide(now, np.array([i]), left, views.leased)):
            given |= found
            use.add(quota, gpus)
            left.subtract(found[i])
    # Divided together, no job leaves its GPUs for a job that fits elsewhere. Not used if a job would get nothing.
    together = divide(now, np.array(list(given), np.int64), dict(enumerate(free.tolist())), views.leased)
    return together if len(together) == len(given) else given


def _worst_off_first(views: AppViews) -> Iterator[int]:
    """Positions of the jobs without a lease: apps by rho, highest first; the jobs of an app in the app's order."""
    asking = {app: jobs[~views.leased[jobs]] for app, jobs in enumerate(views.jobs_of)}
    rho = {app: round(views.view(app).rho_now, 9) for app, jobs in asking.items() if len(jobs)}
    for app in sorted(rho, key=lambda app: (-rho[app], app)):
        yield from asking[app].tolist()
