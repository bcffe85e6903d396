"""Metrics of a running service for Prometheus, computed at each request. Public: metric names and labels stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from horae import __version__
from horae.core.commands import StopWhy
from horae.core.states import STATES
from horae.core.status import ClusterStatus
from horae.service.daemon import Daemon
from horae.service.loop_counters import BOUNDS_S, LoopCounters
from horae.service.standby import Follower
from horae.service.views.job_list import STATE_NAMES
from horae.service.views.live_fairness import slowdowns_by_queue
from horae.service.views.views import LIVE


def exposition(daemon: Daemon | Follower) -> bytes:
    """All metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_DaemonCollector(daemon))
    return generate_latest(registry)


class _DaemonCollector(Collector):
    """Reads all metrics from the daemon."""

    def __init__(self, daemon: Daemon | Follower) -> None:
        self._daemon = daemon

    def collect(self) -> Iterable[Metric]:
        """Every metric."""
        daemon, status, counters = self._daemon, self._daemon.status, self._daemon.counters
        now_s = daemon.clock()
        yield InfoMetricFamily("horae", "Release and policy.", value={"version": __version__, "policy": status.policy})
        yield _gauge("horae_loop_age_seconds", "Time since the loop last came round.", now_s - counters.cycle_s)
        is_standby = float(isinstance(daemon, Follower))
        yield _gauge("horae_standby", "1 while this service is a standby, and another one is active.", is_standby)
        yield _gauge("horae_journal_sequence", "Number of the journal's last record.", daemon.seq)
        yield _gauge("horae_journal_trouble", "1 while the journal cannot be written.", float(bool(counters.trouble)))
        if daemon.reserve:
            text = "Free space of the disk with the state folder."
            yield _gauge("horae_disk_free_bytes", text, float(daemon.reserve.free_bytes))
        trouble = float(bool(daemon.backend.trouble))
        yield _gauge("horae_backend_trouble", "1 while the backend has trouble, as `horae nodes` tells.", trouble)
        yield _gauge("horae_stop_trouble", "The same, under its older name.", trouble)
        yield from _decisions(counters)
        yield _jobs(status)
        yield from _gpus(status)
        yield from _slowdowns(status, now_s)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _decisions(counters: LoopCounters) -> Iterator[Metric]:
    buckets = [(f"{bound:g}", float(count)) for bound, count in zip(BOUNDS_S, counters.by_bound, strict=True)]
    buckets.append(("+Inf", float(counters.decisions)))
    yield HistogramMetricFamily(
        "horae_decision_seconds", "How long decisions took.", buckets=buckets, sum_value=counters.decision_s
    )
    yield CounterMetricFamily("horae_launches", "Attempts launched since the service started.", value=counters.launches)
    stops = CounterMetricFamily("horae_stops", "Attempts told to stop since the service started.", labels=["why"])
    for why in StopWhy:
        stops.add_metric([why.value], counters.stops.get(why, 0))
    yield stops
    preempted = sum(counters.stops.get(why, 0) for why in (StopWhy.PREEMPTED, StopWhy.MOVED))
    yield CounterMetricFamily(
        "horae_preemptions",
        "Attempts that lost their GPUs to others, or moved.",
        value=preempted,
    )


def _jobs(status: ClusterStatus) -> Metric:
    """Jobs that have not ended, by queue and state. A queue with jobs has all states, so that no series breaks off."""
    family = GaugeMetricFamily("horae_jobs", "Jobs that have not ended.", labels=["queue", "state"])
    states, queues = np.asarray(status.columns["state"], np.int64), np.asarray(status.columns["queue"], np.int64)
    counts = np.zeros((len(status.queue_paths), len(STATES)), np.int64)
    np.add.at(counts, (queues, states), 1)
    for queue in np.flatnonzero(counts.any(axis=1)).tolist():
        for state in LIVE:
            family.add_metric([status.queue_paths[queue], STATE_NAMES[state]], float(counts[queue, int(state)]))
    return family


def _gpus(status: ClusterStatus) -> Iterator[Metric]:
    type_of_gpu, types = status.cluster.gpu_type, status.cluster.gpu_types
    occupied = list({gpu for gpus in status.occupied.values() for gpu in gpus})
    texts: dict[str, tuple[str, Any]] = {
        "horae_gpus": ("GPUs of nodes that are up.", np.bincount(type_of_gpu[status.gpu_there], minlength=len(types))),
        "horae_gpus_open": ("GPUs of nodes that are up and take jobs.", status.open_by_type),
        "horae_gpus_used": ("GPUs that processes sit on.", np.bincount(type_of_gpu[occupied], minlength=len(types))),
    }
    for name, (text, values) in texts.items():
        family = GaugeMetricFamily(name, text, labels=["type"])
        for gpu_type, value in zip(types, values, strict=True):
            family.add_metric([gpu_type], float(value))
        yield family


def _slowdowns(status: ClusterStatus, now_s: float) -> Iterator[Metric]:
    means = GaugeMetricFamily(
        "horae_rho_mean", "Mean slow-down versus the fair share, of apps that ended in a day.", labels=["queue"]
    )
    maxima = GaugeMetricFamily(
        "horae_rho_max", "Largest slow-down versus the fair share, of apps that ended in a day.", labels=["queue"]
    )
    for queue, rho in slowdowns_by_queue(status, now_s).items():
        means.add_metric([queue], rho.avg)
        maxima.add_metric([queue], rho.max)
    yield means
    yield maxima
