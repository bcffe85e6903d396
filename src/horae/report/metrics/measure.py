"""From a history to the numbers of a report. Every definition is in docs/reference/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.errors import UserError
from horae.core.history import History
from horae.core.states import State
from horae.report.metrics.auction_payments import Auctions
from horae.report.metrics.deadlines import Deadlines
from horae.report.metrics.fairness import Fairness
from horae.report.metrics.fragmentation import fragmentation
from horae.report.metrics.gpu_holdings import Holdings, parts
from horae.report.metrics.job_outcomes import Outcomes, outcomes


class BadWindow(UserError):
    """A window that holds no job of the run."""


@dataclass(frozen=True)
class Delay:
    """A distribution of seconds in three numbers."""

    avg: float
    median: float
    p95: float

    @staticmethod
    def of(seconds: Floats) -> Delay:
        """Summarise seconds; NaN is left out."""
        return Delay(_mean(seconds), _percentile(seconds, 50), _percentile(seconds, 95))


@dataclass(frozen=True)
class Overhead:
    """GPU-time held to no avail, and its share of all GPU-time held."""

    gpu_seconds: float
    share: float

    @staticmethod
    def of(by_job: Floats, held_gpu_s: float) -> Overhead:
        """Sum up the GPU-seconds of jobs."""
        gpu_seconds = float(by_job.sum())
        return Overhead(gpu_seconds, gpu_seconds / held_gpu_s if held_gpu_s else 0.0)


@dataclass(frozen=True)
class QueueReport:
    """The measured jobs of one queue."""

    jobs: int
    finished: int
    avg_jct_s: float
    p95_jct_s: float
    avg_queueing_delay_s: float
    gpu_hours: float
    preemptions: int
    rho: Fairness
    isolated_rho: Fairness
    app_isolated_rho: Fairness


@dataclass(frozen=True)
class TypeReport:
    """One GPU type: how full it was, and what the measured jobs held of it."""

    gpus: int
    utilization: float
    gpu_hours: float
    jobs: int


@dataclass(frozen=True)
class Window:
    """Which jobs were measured, by position in order of submission, and the time they span."""

    first_job: int
    #: One past the last.
    end_job: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Report:
    """The numbers of one run. NaN says that there was nothing to measure; JSON shows it as null."""

    policy: str
    jobs: int
    finished: int
    failed: int
    #: By users; trials that an app gave up are counted apart.
    cancelled: int
    given_up: int
    #: Jobs that reached their time limit.
    timeout: int
    apps: int
    gpus: int
    avg_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    makespan_s: float
    utilization: float
    #: Share of the GPU-time held in which two jobs held the same GPU.
    shared_gpu_share: float
    preemptions: int
    rho: Fairness
    isolated_rho: Fairness
    app_isolated_rho: Fairness
    rho_paper: Fairness
    app_completion_s: Delay
    queueing_delay_s: Delay
    waiting_s: Delay
    restart_overhead: Overhead
    #: Work that was done and lost: of attempts that were preempted and had saved nothing.
    lost_work: Overhead
    gpu_hours: float
    #: GPU-hours of trials that were given up, included above.
    given_up_gpu_hours: float
    fragmentation: float
    deadlines: Deadlines
    auctions: Auctions
    by_queue: dict[str, QueueReport]
    by_gpu_type: dict[str, TypeReport]
    window: Window
    settings: dict[str, str]
    counters: dict[str, int]
    #: Every job of the run, inside the window or not; kept for the jobs file and the page.
    outcomes: Outcomes = field(repr=False, compare=False)

    @property
    def jobs_in_company(self) -> int:
        """Jobs that are not the first of their app; none where every job is an app of its own."""
        return self.jobs - self.apps

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts and numbers, ready for JSON: what is not a finite number is None."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "outcomes"}


def measure(history: History, measure_from: int = 0, measure_to: int | None = None) -> Report:
    """Report on the jobs at positions `measure_from` up to, not including, `measure_to` in order of submission.

    Job numbers count those jobs alone. Numbers about the cluster (utilisation,
    sharing, fragmentation) cover everything that ran between the first submission and the
    last end of those jobs.
    """
    inside = _window_jobs(len(history.jobs), measure_from, measure_to)
    holdings = Holdings.of_gangs(history.attempts)
    result, states = outcomes(history, holdings), history.state[inside]
    window = _window(history, inside)
    length_s = window.end_s - window.begin_s
    jct_s, gpu_seconds = result.jct_s[inside], float(result.gpu_seconds[inside].sum())
    apps = _apps_inside(result, inside)
    by_gpu_type, there = _by_gpu_type(history, holdings, window), _gpus_there(history, window)
    given_up = np.zeros(len(states), bool) if history.given_up is None else history.given_up[inside]
    return Report(
        policy=history.policy,
        jobs=inside.stop - inside.start,
        finished=int((states == State.FINISHED).sum()),
        failed=int((states == State.FAILED).sum()),
        cancelled=int((states == State.CANCELLED).sum() - given_up.sum()),
        given_up=int(given_up.sum()),
        timeout=int((states == State.TIMEOUT).sum()),
        apps=len(apps),
        gpus=int(history.gpus_by_type.sum()),
        avg_jct_s=_mean(jct_s),
        median_jct_s=_percentile(jct_s, 50),
        p95_jct_s=_percentile(jct_s, 95),
        p99_jct_s=_percentile(jct_s, 99),
        makespan_s=length_s,
        utilization=_share_held(by_gpu_type, there),
        shared_gpu_share=holdings.inside(window.begin_s, window.end_s).shared_share,
        preemptions=int(result.preemptions[inside].sum()),
        rho=Fairness.of(result.apps.rho[apps]),
        isolated_rho=Fairness.of(result.isolated_rho[inside]),
        app_isolated_rho=Fairness.of(result.isolated_rho_by_app[apps]),
        rho_paper=Fairness.of(result.apps.rho_paper[apps]),
        app_completion_s=Delay.of(result.apps.shared_s[apps]),
        queueing_delay_s=Delay.of(result.queueing_s[inside]),
        waiting_s=Delay.of(result.waiting_s[inside]),
        restart_overhead=Overhead.of(result.overhead_gpu_s[inside], gpu_seconds),
        lost_work=Overhead.of(result.lost_gpu_s[inside], gpu_seconds),
        gpu_hours=gpu_seconds / 3600,
        given_up_gpu_hours=float(result.gpu_seconds[inside][given_up].sum()) / 3600,
        fragmentation=fragmentation(holdings, history.cluster, float(there.sum()), window.begin_s, window.end_s)
        if length_s > 0
        else math.nan,
        deadlines=Deadlines.of(history, inside),
        auctions=Auctions.of(history.counters),
        by_queue=_by_queue(history, result, inside),
        by_gpu_type=by_gpu_type,
        window=window,
        settings=dict(history.settings),
        counters=dict(history.counters),
        outcomes=result,
    )


#: The columns of the jobs file.
JOB_COLUMNS = (
    "job_id", "submit_s", "start_s", "end_s", "jct_s", "gpus", "gpu_seconds", "preemptions", "rho", "isolated_rho",
    "app_isolated_rho",
)  # fmt: skip


def job_columns(history: History, report: Report | None = None) -> dict[str, Any]:
    """What the jobs file says of each job, by the names of `JOB_COLUMNS`: the ids, then arrays of numbers.

    Pass the run's report, if there is one, so that its outcomes are not computed again.
    """
    result = report.outcomes if report else outcomes(history, Holdings.of_gangs(history.attempts))
    own = {name: getattr(result, name) for name in JOB_COLUMNS if name not in ("job_id", "gpus")}
    columns = {"job_id": [job.id for job in history.jobs], "gpus": history.gpus, **own}
    return {name: columns[name] for name in JOB_COLUMNS}


def job_rows(history: History, report: Report | None = None) -> Iterator[tuple[str, ...]]:
    """One row of text for each job, by `JOB_COLUMNS`; empty where there is nothing to say."""
    ids, *columns = job_columns(history, report).values()
    return zip(ids, *map(_texts, columns), strict=True)


def _window_jobs(jobs: int, measure_from: int, measure_to: int | None) -> slice:
    """The window as a slice; BadWindow if it holds no job."""
    end = jobs if measure_to is None else min(measure_to, jobs)
    if measure_from < 0 or (jobs and measure_from >= end):
        asked = f"{measure_from} to {'the end' if measure_to is None else measure_to}"
        raise BadWindow(
            f"The window of jobs {asked} is empty: jobs are counted from 0 in order of submission and the run has "
            f"{jobs}; choose a window inside them."
        )
    return slice(measure_from, end)


def _window(history: History, inside: slice) -> Window:
    """From the first submission to the last end among the window's jobs, ended or cut off."""
    attempts = history.attempts
    own = (attempts.job >= inside.start) & (attempts.job < inside.stop)
    ends = np.concatenate((history.end_s[inside], attempts.end_s[own]))
    ends = ends[~np.isnan(ends)]
    begin_s = float(history.submit_s[inside].min()) if inside.stop > inside.start else math.nan
    return Window(inside.start, inside.stop, begin_s, float(ends.max()) if len(ends) else math.nan)


def _apps_inside(result: Outcomes, inside: slice) -> Ints:
    """Apps whose first job lies in the window, so that windows side by side share none."""
    first = result.apps.first_job
    return np.flatnonzero((first >= inside.start) & (first < inside.stop))


def _by_queue(history: History, result: Outcomes, inside: slice) -> dict[str, QueueReport]:
    """The job numbers again for each queue path, by name."""
    queue_of = [job.queue for job in history.jobs]
    names = sorted(set(queue_of[inside]))
    number = {name: k for k, name in enumerate(names)}
    own = np.array([number[name] for name in queue_of[inside]], dtype=np.int64)
    members = _groups(own, len(names))
    apps = _apps_inside(result, inside)
    app_members = _groups(own[result.apps.first_job[apps] - inside.start], len(names))
    return {
        name: _queue_report(history, result, inside.start + jobs, apps[of_apps])
        for name, jobs, of_apps in zip(names, members, app_members, strict=True)
    }


def _queue_report(history: History, result: Outcomes, jobs: Ints, apps: Ints) -> QueueReport:
    return QueueReport(
        jobs=len(jobs),
        finished=int(history.finished[jobs].sum()),
        avg_jct_s=_mean(result.jct_s[jobs]),
        p95_jct_s=_percentile(result.jct_s[jobs], 95),
        avg_queueing_delay_s=_mean(result.queueing_s[jobs]),
        gpu_hours=float(result.gpu_seconds[jobs].sum()) / 3600,
        preemptions=int(result.preemptions[jobs].sum()),
        rho=Fairness.of(result.apps.rho[apps]),
        isolated_rho=Fairness.of(result.isolated_rho[jobs]),
        app_isolated_rho=Fairness.of(result.isolated_rho_by_app[apps]),
    )


def _by_gpu_type(history: History, holdings: Holdings, window: Window) -> dict[str, TypeReport]:
    """How full each GPU type was during the window, and what the window's jobs held of it in their lives."""
    attempts, cluster = history.attempts, history.cluster
    types, length_s = len(cluster.gpu_types), window.end_s - window.begin_s
    inside = holdings.inside(window.begin_s, window.end_s)
    held = inside.sums_by_gpu(inside.gpu_s, cluster.gpu_type, types)
    own = (attempts.job >= window.first_job) & (attempts.job < window.end_job)
    of_own = np.where(own[holdings.attempt], holdings.gpu_s, 0.0)
    held_by_own = holdings.sums_by_gpu(of_own, cluster.gpu_type, types)
    visited, gpus, there = _visited(history), history.gpus_by_type, _gpus_there(history, window)
    return {
        name: TypeReport(
            gpus=int(gpus[k]),
            utilization=float(held[k] / (there[k] * length_s)) if length_s > 0 and there[k] > 0 else math.nan,
            gpu_hours=float(held_by_own[k]) / 3600,
            jobs=int(visited[k, window.first_job : window.end_job].sum()),
        )
        for k, name in enumerate(cluster.gpu_types)
    }


def _visited(history: History) -> NDArray[np.bool_]:
    """Whether each job (column) ever held a GPU of each type (row)."""
    attempts, gpu_type = history.attempts, history.cluster.gpu_type
    visited = np.zeros((len(history.cluster.gpu_types), len(history.jobs)), dtype=bool)
    for rows, ids in parts(attempts.first):
        gpus = np.diff(attempts.first[rows.start : rows.stop + 1])
        visited[gpu_type[attempts.gpu_ids[ids]], np.repeat(attempts.job[rows], gpus)] = True
    return visited


def _gpus_there(history: History, window: Window) -> NDArray[np.generic]:
    """GPUs of each type, on average over the window: nodes may have come and gone."""
    length_s = window.end_s - window.begin_s
    if history.presence is None or not length_s > 0:
        return history.gpus_by_type
    types = len(history.cluster.gpu_types)
    return history.presence.gpu_seconds(types, window.begin_s, window.end_s) / length_s


def _share_held(by_gpu_type: dict[str, TypeReport], there: NDArray[np.generic]) -> float:
    """Utilisation of the whole from that of the types, each by the GPUs that were there."""
    gpus = there.tolist()
    held = [count * of_type.utilization for count, of_type in zip(gpus, by_gpu_type.values(), strict=True) if count]
    return float(sum(held) / sum(gpus)) if held else math.nan


def _groups(number: Ints, groups: int) -> list[Ints]:
    """Positions of each group's members, in order."""
    order = np.argsort(number, kind="stable")
    return np.split(order, np.searchsorted(number[order], np.arange(1, groups))) if groups else []


def _without_nan(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _mean(values: Floats) -> float:
    finite = _without_nan(values)
    return float(finite.mean()) if len(finite) else math.nan


def _percentile(values: Floats, percentile: float) -> float:
    """Interpolated between neighbours, as numpy does by default."""
    finite = _without_nan(values)
    return float(np.percentile(finite, percentile)) if len(finite) else math.nan


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, and numbers that JSON does not have as None."""
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _texts(column: NDArray[Any]) -> list[str]:
    """Numbers with six decimals, whole ones without a point, NaN as an empty text."""
    if column.dtype.kind in "iu":
        return [str(value) for value in column.tolist()]
    values: list[float] = np.round(column, 6).tolist()
    return ["" if value != value else str(int(value)) if value.is_integer() else repr(value) for value in values]
