"""How jobs that ended lately fared against their fair share, by queue: rho, live."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.history import History, Recorder
from horae.core.status import ClusterStatus
from horae.report.metrics.fairness import Fairness, finish_time_fairness

#: Apps whose last job ended within so long count.
LATELY_S = 86400.0


def slowdowns_by_queue(at: ClusterStatus, now_s: float) -> dict[str, Fairness]:
    """Slow-downs of the apps that ended lately, by the queue of their first job."""
    rows = _rows_that_matter(at, now_s)
    if not len(rows):
        return {}
    history = _history(at, rows)
    apps = finish_time_fairness(history)
    last_s = np.zeros(len(apps.first_job))
    np.maximum.at(last_s, apps.of_job, np.nan_to_num(history.end_s, nan=np.inf))
    lately = np.isfinite(last_s) & (last_s >= now_s - LATELY_S)
    queues = at.columns["queue"][rows[apps.first_job]]
    found = {int(queue): apps.rho[lately & (queues == queue)] for queue in np.unique(queues[lately])}
    return {at.queue_paths[queue]: Fairness.of(rho) for queue, rho in found.items() if not np.isnan(rho).all()}


def _rows_that_matter(at: ClusterStatus, now_s: float) -> NDArray[np.int64]:
    """The jobs of apps that ended lately, and of all that were there in their time, who count as contention."""
    app, apps = np.asarray(at.columns["app"], np.int64), int(np.max(at.columns["app"], initial=-1)) + 1
    begin_s, end_s = np.full(apps, np.inf), np.full(apps, -np.inf)
    np.minimum.at(begin_s, app, np.asarray(at.columns["submit_s"], np.float64))
    np.maximum.at(end_s, app, np.asarray(at.columns["ended_s"], np.float64))
    lately = np.isfinite(end_s) & (end_s >= now_s - LATELY_S)
    if not lately.any():
        return np.empty(0, np.int64)
    there = end_s >= begin_s[lately].min()
    rows: NDArray[np.int64] = np.flatnonzero(there[app])
    return rows


def _history(at: ClusterStatus, rows: NDArray[np.int64]) -> History:
    """Those jobs as a finished run that goes up to now; nothing here asks for its attempts."""
    ended_s = np.asarray(at.columns["ended_s"][rows], np.float64)
    started_s = np.asarray(at.columns["first_started_s"][rows], np.float64)
    return History(
        cluster=at.cluster,
        jobs=tuple(at.spec(row) for row in rows.tolist()),
        state=np.asarray(at.columns["state"][rows], np.uint8),
        start_s=np.where(np.isfinite(started_s), started_s, np.nan),
        end_s=np.where(np.isfinite(ended_s), ended_s, np.nan),
        rates=_true_rates(at, rows),
        attempts=Recorder().attempts(at.now_s),
        policy=at.policy,
    )


def _true_rates(at: ClusterStatus, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Speeds of jobs as they turned out: what a job did over how long it worked, on each type as types differ."""
    rates, column = at.rates[rows], at.columns
    worked_s = np.asarray(column["executed_s"][rows], np.float64)
    done = np.asarray(column["work"][rows], np.float64) - np.asarray(column["work_left"][rows], np.float64)
    last = np.asarray(column["last_type"][rows], np.int64)
    expected = worked_s * np.take_along_axis(rates, np.maximum(last, 0)[:, None], axis=1)[:, 0]
    known = (expected > 0) & (done > 0) & (last >= 0)
    scale = np.where(known, done / np.where(known, expected, 1.0), 1.0)
    true: NDArray[np.float64] = rates * scale[:, None]
    return true
