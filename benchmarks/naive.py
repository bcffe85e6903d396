"""A scheduler as one would write it in an afternoon: objects, lists and a sort at every event.

It shares no code with Horae and knows only the count of free GPUs: jobs are rigid gangs, restarts
cost nothing, everything happens at whole seconds. Horae must give every job the same start and end
(with `--placement anywhere --restart-cost 0`), and is timed against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from horae.core.job import JobSpec


@dataclass(slots=True, eq=False)
class Job:
    """One job and how far it is."""

    arrival: int
    submit_s: float
    gpus: int
    left_s: float
    running: bool = False
    start_s: float = inf
    end_s: float = inf


#: Puts all active jobs into the order in which they may take GPUs.
Order = Callable[[Job], tuple[float, ...]]

ORDERS: dict[str, Order] = {
    # Running jobs come first, so that nobody is preempted.
    "fifo-backfill": lambda job: (not job.running, job.arrival),
    "srtf": lambda job: (job.left_s, job.arrival),
}


def run(specs: Sequence[JobSpec], gpus: int, policy: str) -> list[Job]:
    """Run jobs on so many GPUs to the end; gives them back in order of submission."""
    ordered = sorted(specs, key=lambda spec: spec.submit_s)
    jobs = [Job(n, spec.submit_s, spec.gpus, spec.work) for n, spec in enumerate(ordered)]
    active: list[Job] = []
    arrived, now_s = 0, 0.0
    while active or arrived < len(jobs):
        # 1. Move to the next arrival or completion.
        ends_s = min((now_s + job.left_s for job in active if job.running), default=inf)
        next_s = min(ends_s, jobs[arrived].submit_s if arrived < len(jobs) else inf)
        for job in active:
            if job.running:
                job.left_s -= next_s - now_s
        now_s = next_s
        # 2. Completions, then arrivals.
        for job in active:
            if job.left_s == 0:
                job.end_s = now_s
        active = [job for job in active if job.left_s > 0]
        while arrived < len(jobs) and jobs[arrived].submit_s == now_s:
            active.append(jobs[arrived])
            arrived += 1
        # 3. Take each that fits, in order; skip the rest.
        active.sort(key=ORDERS[policy])
        free = gpus
        for job in active:
            job.running = job.gpus <= free
            if job.running:
                free -= job.gpus
                job.start_s = min(job.start_s, now_s)
    return jobs
