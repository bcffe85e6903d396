"""Queues below their guaranteed minimum, which are served before anything is auctioned.

A minimum means here what it means under policies that order jobs: a job is within it if its queue, or one above,
has no more than its minimum with the job's GPUs. Nobody loses a lease for it, and nobody bids or pays.
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
    """GPUs by machine for jobs (by position) that their queues are guaranteed, as far as free ones go."""
    if not now.queues.has_minimum:
        return {}
    given: dict[int, Counts] = {}
    use, left = views.use(), Counter(dict(enumerate(free.tolist())))
    for i in _late_first(views):
        queue, gpus = int(now.queue[i]), int(now.gpus[i])
        if use.guarantees(queue, gpus) and (found := divide(now, np.array([i]), left, views.leased)):
            given |= found
            use.add(queue, gpus)
            left.subtract(found[i])
    # Divided at once, nobody has to leave its place for another who fits elsewhere; but nobody may lose by that.
    at_once = divide(now, np.array(list(given), np.int64), dict(enumerate(free.tolist())), views.leased)
    return at_once if len(at_once) == len(given) else given


def _late_first(views: AppViews) -> Iterator[int]:
    """Jobs without a lease: those of the app that is worst off first, and of each app in its own order."""
    asking = {app: jobs[~views.leased[jobs]] for app, jobs in enumerate(views.jobs_of)}
    rho = {app: round(views.view(app).rho_now, 9) for app, jobs in asking.items() if len(jobs)}
    for app in sorted(rho, key=lambda app: (-rho[app], app)):
        yield from asking[app].tolist()
