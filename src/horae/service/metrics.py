"""What a running service tells Prometheus. Everything is read at the moment it is asked for."""

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
from horae.service.views.job_list import STATE_NAMES
from horae.service.views.live_fairness import slowdowns_by_queue
from horae.service.views.views import LIVE


def exposition(daemon: Daemon) -> bytes:
    """All metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(daemon))
    return generate_latest(registry)


class _Now(Collector):
    """One look at the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterable[Metric]:
        """Every metric."""
        daemon, at, meter = self._daemon, self._daemon.standing, self._daemon.meter
        now_s = daemon.clock()
        yield InfoMetricFamily("horae", "Release and policy.", value={"version": __version__, "policy": at.policy})
        yield _gauge("horae_loop_age_seconds", "Time since the loop last came round.", now_s - meter.cycle_s)
        yield _gauge("horae_journal_sequence", "Number of the journal's last record.", daemon.seq)
        yield _gauge("horae_journal_trouble", "1 while the journal cannot be written.", float(bool(meter.trouble)))
        yield _gauge("horae_stop_trouble", "1 while a job cannot be told to stop.", float(bool(meter.unstopped)))
        yield from _decisions(meter)
        yield _jobs(at)
        yield from _gpus(at)
        yield from _slowdowns(at, now_s)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _decisions(meter: LoopCounters) -> Iterator[Metric]:
    buckets = [(f"{bound:g}", float(count)) for bound, count in zip(BOUNDS_S, meter.by_bound, strict=True)]
    buckets.append(("+Inf", float(meter.decisions)))
    yield HistogramMetricFamily(
        "horae_decision_seconds", "How long decisions took.", buckets=buckets, sum_value=meter.decision_s
    )
    yield CounterMetricFamily("horae_launches", "Attempts launched since the service started.", value=meter.launches)
    stops = CounterMetricFamily("horae_stops", "Attempts told to stop since the service started.", labels=["why"])
    for why in StopWhy:
        stops.add_metric([why.value], meter.stops.get(why, 0))
    yield stops
    preempted = sum(meter.stops.get(why, 0) for why in (StopWhy.PREEMPTED, StopWhy.MOVED))
    yield CounterMetricFamily(
        "horae_preemptions",
        "Attempts that lost their GPUs to others, or moved.",
        value=preempted,
    )


def _jobs(at: ClusterStatus) -> Metric:
    """Live jobs by queue and state; every state of a queue that has any, so that lines do not break off."""
    family = GaugeMetricFamily("horae_jobs", "Jobs that have not ended.", labels=["queue", "state"])
    states, queues = np.asarray(at.columns["state"], np.int64), np.asarray(at.columns["queue"], np.int64)
    counts = np.zeros((len(at.queue_paths), len(STATES)), np.int64)
    np.add.at(counts, (queues, states), 1)
    for queue in np.flatnonzero(counts.any(axis=1)).tolist():
        for state in LIVE:
            family.add_metric([at.queue_paths[queue], STATE_NAMES[state]], float(counts[queue, int(state)]))
    return family


def _gpus(at: ClusterStatus) -> Iterator[Metric]:
    kinds, types = at.cluster.gpu_type, at.cluster.gpu_types
    sat_on = list({gpu for gpus in at.occupied.values() for gpu in gpus})
    texts: dict[str, tuple[str, Any]] = {
        "horae_gpus": ("GPUs of nodes that are up.", np.bincount(kinds[at.gpu_there], minlength=len(types))),
        "horae_gpus_open": ("GPUs of nodes that are up and take jobs.", at.open_by_type),
        "horae_gpus_used": ("GPUs that processes sit on.", np.bincount(kinds[sat_on], minlength=len(types))),
    }
    for name, (text, values) in texts.items():
        family = GaugeMetricFamily(name, text, labels=["type"])
        for kind, value in zip(types, values, strict=True):
            family.add_metric([kind], float(value))
        yield family


def _slowdowns(at: ClusterStatus, now_s: float) -> Iterator[Metric]:
    mean = GaugeMetricFamily(
        "horae_rho_mean", "Mean slow-down versus the fair share, of apps that ended in a day.", labels=["queue"]
    )
    worst = GaugeMetricFamily(
        "horae_rho_max", "Largest slow-down versus the fair share, of apps that ended in a day.", labels=["queue"]
    )
    for queue, rho in slowdowns_by_queue(at, now_s).items():
        mean.add_metric([queue], rho.avg)
        worst.add_metric([queue], rho.max)
    yield mean
    yield worst
