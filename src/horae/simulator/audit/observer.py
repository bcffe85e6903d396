"""An observer that collects during a run what an audit needs beside the history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from horae.core.audit_observations import Observations, ObservedMoment, ObservedPlace, Probe
from horae.core.cluster import Cluster
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event
from horae.core.gpu_moves import NOBODY
from horae.core.job import JobSpec
from horae.core.throughputs import Speeds, Throughputs
from horae.simulator.audit.idle_gpus import IdleWatch
from horae.simulator.audit.misreport_probes import probe

#: Number of apps whose misreports are tried, one app at a time, at each probed decision.
LIARS = 2


def sample_times(
    jobs: Sequence[JobSpec], cluster: Cluster, true: Throughputs, samples: int, seed: int
) -> NDArray[np.float64]:
    """Times, in s, at which the audit probes: a random time in each of `samples` equal parts of the run.

    The run's length is estimated: the time of submissions, or the work divided by all GPUs if that is longer.
    """
    if not jobs:
        return np.empty(0)
    begin_s, last_s = min(job.submit_s for job in jobs), max(job.submit_s for job in jobs)
    speeds = Speeds(true)
    best = np.array([speeds.rates(job, cluster.gpu_types).max() for job in jobs])
    serial = np.array([job.work * job.gpus for job in jobs])
    gpu_s = float((serial[best > 0] / best[best > 0]).sum())
    length_s = max(last_s - begin_s, gpu_s / cluster.gpus)
    positions = np.arange(samples) + np.random.default_rng(seed).random(samples)
    times: NDArray[np.float64] = begin_s + length_s * positions / max(samples, 1)
    return times


class Observer:
    """Counts idle GPUs after every decision, and probes the first decision after each of the given times.

    A decision is probed only if at least two apps have active jobs: fairness needs two apps.
    """

    def __init__(self, times_s: NDArray[np.float64], true: Throughputs, seed: int) -> None:
        self._times_s, self._next = times_s, 0
        self._true = Speeds(true)
        self._rng = np.random.default_rng((seed, 1))
        self._idle = IdleWatch()
        self._decisions = 0
        #: Whether the next decision is a probed one.
        self._probing = False
        self._moments: list[ObservedMoment] = []
        self._probes: list[Probe] = []

    def expect(self, engine: Engine, now_s: float) -> None:
        """A decision is about to be made: probe it if a sampled time has come."""
        if self._next == len(self._times_s) or now_s < self._times_s[self._next] or not _contended(engine):
            return
        probes = list(probe(engine, now_s, self._true, LIARS, self._rng))
        self._probing = bool(probes)
        self._probes += probes

    def see(self, engine: Engine, what: Event | Decided) -> None:
        """An event was applied or a decision made: observe the engine after a decision."""
        if not isinstance(what, Decided):
            return
        self._decisions += what.planned
        self._idle.update(engine)
        if self._probing:
            self._probing = False
            self._moments.append(moment_of(engine))
            self._next = int(np.searchsorted(self._times_s, engine.now_s, side="right"))

    def observations(self) -> Observations:
        """Everything that was observed."""
        return Observations(self._decisions, self._idle.idleness(), tuple(self._moments), tuple(self._probes))


def moment_of(engine: Engine) -> ObservedMoment:
    """Which job holds which GPUs. Jobs that share GPUs are left out: their speeds depend on each other."""
    ledger, machines = engine.gpus, engine.snapshot().machines
    alone = ledger.holders[1] == NOBODY
    places = tuple(
        ObservedPlace(row, gpu_ids, machines.span(gpu_ids))
        for row, gpu_ids in sorted(ledger.held.items())
        if alone[gpu_ids[0]]
    )
    idle = ledger.gpu_open & (ledger.holders[0] == NOBODY) & (ledger.occupants[0] == NOBODY)
    return ObservedMoment(engine.now_s, places, tuple(np.flatnonzero(idle).tolist()), machines)


def _contended(engine: Engine) -> bool:
    """Whether at least two apps have active jobs."""
    apps = engine.jobs.app[engine.jobs.active]
    return len(apps) > 1 and bool((apps != apps[0]).any())
