"""Histories made without an engine: a small first-come loop with preemption, enough to report on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from horae.core.cluster import Cluster, Span
from horae.core.history import Attempts, History
from horae.core.job import JobSpec
from horae.core.states import State
from horae.core.throughputs import Throughputs


def random_jobs(
    seed: int,
    count: int,
    types: Sequence[str],
    most_gpus: int = 4,
    spacing_s: float = 60.0,
    apps: int = 0,
    queues: int = 1,
) -> list[JobSpec]:
    """Jobs with whole submission times; durations spread over three decades."""
    draw = np.random.default_rng(seed)
    submit = np.cumsum(draw.integers(0, int(2 * spacing_s) + 1, count))
    sizes = [size for size in (1, 1, 1, 2, 4, 8) if size <= most_gpus]
    return [
        JobSpec(
            id=f"job-{number}",
            submit_s=float(submit[number]),
            gpus=int(draw.choice(sizes)),
            work=float(np.round(10 ** draw.uniform(1, 4))),
            unit="steps",
            throughput={name: float(draw.choice([0.5, 1.0, 2.0, 3.0])) for name in types},
            app=f"app-{draw.integers(apps)}" if apps else "",
            queue=f"org/team-{draw.integers(queues)}" if queues > 1 else "default",
        )
        for number in range(count)
    ]


@dataclass
class Attempt:
    """One launch; see `Attempts` for what the times mean."""

    job: int
    gpus: list[int]
    begin_s: float
    work_s: float = np.nan
    stop_s: float = np.nan
    end_s: float = np.nan
    preempted: bool = False


def columns(attempts: Sequence[Attempt], until_s: float) -> Attempts:
    """Attempts as a history keeps them; those that have not ended are cut off."""
    end_s = np.array([until_s if np.isnan(a.end_s) else a.end_s for a in attempts])
    return Attempts(
        job=np.array([a.job for a in attempts], dtype=np.int64),
        begin_s=np.array([a.begin_s for a in attempts]),
        work_s=np.array([a.work_s for a in attempts]),
        stop_s=np.fmin([a.stop_s for a in attempts], end_s),
        end_s=end_s,
        span=np.full(len(attempts), Span.NODE, dtype=np.int64),
        preempted=np.array([a.preempted for a in attempts], dtype=bool),
        first=np.concatenate(([0], np.cumsum([len(a.gpus) for a in attempts]))).astype(np.int64),
        gpu_ids=np.array([gpu for a in attempts for gpu in a.gpus], dtype=np.int64),
    )


class Loop:
    """First come first served with backfill; every `preempt_every`-th arrival throws a running job out."""

    def __init__(
        self,
        jobs: Sequence[JobSpec],
        cluster: Cluster,
        load_s: float = 0.0,
        save_s: float = 0.0,
        preempt_every: int = 0,
    ) -> None:
        self.jobs, self.cluster = tuple(jobs), cluster
        self.load_s, self.save_s, self.preempt_every = load_s, save_s, preempt_every
        table = Throughputs()
        self.rates = np.array([table.rates(job, cluster.gpu_types) for job in jobs]).reshape(len(jobs), -1)
        self.left = [job.work for job in jobs]
        self.free: list[list[int]] = [
            np.flatnonzero(cluster.gpu_type == k).tolist() for k in range(self.rates.shape[1])
        ]
        self.start, self.end = np.full(len(jobs), np.nan), np.full(len(jobs), np.nan)
        self.waiting: list[int] = []
        #: GPU type and open attempt of each job that holds GPUs, and those among them that were told to stop.
        self.running: dict[int, tuple[int, Attempt]] = {}
        self.stopping: dict[int, tuple[int, Attempt]] = {}
        self.attempts: list[Attempt] = []
        #: When, which first at one instant, what, and to whom.
        self.due: list[tuple[float, int, str, int]] = []

    def run(self, policy: str = "sample", until_s: float = np.inf) -> History:
        """Play until all have finished, or until a moment."""
        for number, job in enumerate(self.jobs):
            heappush(self.due, (job.submit_s, 2, "submit", number))
        now = 0.0
        while self.due and self.due[0][0] <= until_s:
            now, _, what, job = heappop(self.due)
            getattr(self, what)(job, now)
            if not self.due or self.due[0][0] > now:
                self._fill(now)
        state = np.where(np.isnan(self.end), State.WAITING, State.FINISHED).astype(np.uint8)
        attempts = columns(self.attempts, until_s if until_s < np.inf else now)
        return History(self.cluster, self.jobs, state, self.start, self.end, self.rates, attempts, policy)

    def submit(self, job: int, now: float) -> None:
        self.waiting.append(job)
        if self.preempt_every and job % self.preempt_every == 0 and self.running:
            self._preempt(min(self.running), now)

    def finish(self, job: int, now: float) -> None:
        # The end foreseen by an attempt that was preempted since is not an end.
        if job in self.running and abs(self._finish_s(job) - now) < 1e-6:
            self.end[job] = now
            self._close(*self.running.pop(job), now)

    def stopped(self, job: int, now: float) -> None:
        self._close(*self.stopping.pop(job), now)
        self.waiting.insert(0, job)

    def _close(self, kind: int, attempt: Attempt, now: float) -> None:
        attempt.end_s = now
        self.free[kind].extend(attempt.gpus)

    def _preempt(self, job: int, now: float) -> None:
        kind, attempt = self.stopping[job] = self.running.pop(job)
        self.left[job] -= max(now - attempt.work_s, 0.0) * self.rates[job, kind]
        if attempt.work_s >= now:
            attempt.work_s = np.nan
        attempt.stop_s, attempt.preempted = now, True
        heappush(self.due, (now + self.save_s, 0, "stopped", job))

    def _fill(self, now: float) -> None:
        for job in list(self.waiting):
            need = self.jobs[job].gpus
            fitting = [k for k, free in enumerate(self.free) if len(free) >= need and self.rates[job, k] > 0]
            if not fitting:
                continue
            kind = max(fitting, key=lambda k: self.rates[job, k])
            self.free[kind].sort()
            gpus, self.free[kind] = self.free[kind][:need], self.free[kind][need:]
            self.waiting.remove(job)
            works_s = now + (self.load_s if not np.isnan(self.start[job]) else 0.0)
            if np.isnan(self.start[job]):
                self.start[job] = now
            self.attempts.append(Attempt(job, gpus, now, works_s))
            self.running[job] = (kind, self.attempts[-1])
            heappush(self.due, (self._finish_s(job), 1, "finish", job))

    def _finish_s(self, job: int) -> float:
        kind, attempt = self.running[job]
        return attempt.work_s + self.left[job] / float(self.rates[job, kind])


def history_of(
    jobs: Sequence[JobSpec], cluster: Cluster, start_s: Sequence[float], end_s: Sequence[float], policy: str = "by-hand"
) -> History:
    """A history given by hand: each job runs once from start to end, on the cluster's first GPUs."""
    table = Throughputs()
    attempts = [
        Attempt(k, list(range(min(job.gpus, cluster.gpus))), start_s[k], start_s[k], end_s[k], end_s[k])
        for k, job in enumerate(jobs)
    ]
    state = np.where(np.isnan(end_s), State.RUNNING, State.FINISHED).astype(np.uint8)
    rates = np.array([table.rates(job, cluster.gpu_types) for job in jobs])
    until_s = float(np.nanmax([*start_s, *end_s]))
    return History(
        cluster, tuple(jobs), state, np.array(start_s), np.array(end_s), rates, columns(attempts, until_s), policy
    )
