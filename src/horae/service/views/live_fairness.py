"""Live fairness: slow-down versus the fair share (rho) of recently ended apps, by queue."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from horae.core.history import History, NodePresence, Recorder
from horae.core.status import ClusterStatus
from horae.report.metrics.fairness import Fairness, finish_time_fairness

#: Apps whose last job ended within this many seconds count.
RECENT_S = 86400.0


def slowdowns_by_queue(status: ClusterStatus, now_s: float) -> dict[str, Fairness]:
    """Fairness of the apps that ended recently, by the queue of their first job."""
    rows = _relevant_rows(status, now_s)
    if not len(rows) or not status.cluster.gpu_types:
        return {}
    history = _history(status, rows)
    apps = finish_time_fairness(history)
    last_s = np.zeros(len(apps.first_job))
    np.maximum.at(last_s, apps.of_job, np.nan_to_num(history.end_s, nan=np.inf))
    recent = np.isfinite(last_s) & (last_s >= now_s - RECENT_S)
    queues = status.columns["queue"][rows[apps.first_job]]
    found = {int(queue): apps.rho[recent & (queues == queue)] for queue in np.unique(queues[recent])}
    return {status.queue_paths[queue]: Fairness.of(rho) for queue, rho in found.items() if not np.isnan(rho).all()}


def _relevant_rows(status: ClusterStatus, now_s: float) -> NDArray[np.int64]:
    """Jobs of recently ended apps, and of all apps that ran at the same time and count as contention."""
    app, apps = np.asarray(status.columns["app"], np.int64), int(np.max(status.columns["app"], initial=-1)) + 1
    begin_s, end_s = np.full(apps, np.inf), np.full(apps, -np.inf)
    np.minimum.at(begin_s, app, np.asarray(status.columns["submit_s"], np.float64))
    np.maximum.at(end_s, app, np.asarray(status.columns["ended_s"], np.float64))
    recent = np.isfinite(end_s) & (end_s >= now_s - RECENT_S)
    if not recent.any():
        return np.empty(0, np.int64)
    present = end_s >= begin_s[recent].min()
    rows: NDArray[np.int64] = np.flatnonzero(present[app])
    return rows


def _history(status: ClusterStatus, rows: NDArray[np.int64]) -> History:
    """These jobs as the history of a run up to now, without attempts."""
    ended_s = np.asarray(status.columns["ended_s"][rows], np.float64)
    started_s = np.asarray(status.columns["first_started_s"][rows], np.float64)
    return History(
        cluster=status.cluster,
        jobs=tuple(status.spec(row) for row in rows.tolist()),
        state=np.asarray(status.columns["state"][rows], np.uint8),
        start_s=np.where(np.isfinite(started_s), started_s, np.nan),
        end_s=np.where(np.isfinite(ended_s), ended_s, np.nan),
        rates=_observed_rates(status, rows),
        attempts=Recorder().attempts(status.now_s),
        policy=status.policy,
        presence=_presence(status),
    )


def _presence(status: ClusterStatus) -> NodePresence:
    """The GPUs that are there now: a status does not know which were there before."""
    gpus = np.where(status.node_up, [node.gpus for node in status.nodes], 0)
    always = np.zeros(len(gpus))
    return NodePresence(status.cluster.node_type, gpus, always, always + max(status.now_s, 1.0))


def _observed_rates(status: ClusterStatus, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Observed speeds: the believed speeds by GPU type, scaled so that work done over time worked is right."""
    rates, column = status.rates[rows], status.columns
    worked_s = np.asarray(column["executed_s"][rows], np.float64)
    done = np.asarray(column["work"][rows], np.float64) - np.asarray(column["work_left"][rows], np.float64)
    last = np.asarray(column["last_type"][rows], np.int64)
    expected = worked_s * np.take_along_axis(rates, np.maximum(last, 0)[:, None], axis=1)[:, 0]
    measured = (expected > 0) & (done > 0) & (last >= 0)
    scale = np.where(measured, done / np.where(measured, expected, 1.0), 1.0)
    observed: NDArray[np.float64] = rates * scale[:, None]
    return observed
