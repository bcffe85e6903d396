"""One decision of Themis at scale, taken apart: what its agents cost, what the arbiter costs, and what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import Bench, note
from benchmarks.memory import in_new_process, peak_mb
from benchmarks.part import Part, Row
from benchmarks.scaling import draw_scaling, grown, sizes_of
from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.events import JobSubmitted
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.placement.rules import make_placement
from horae.policies import make_policy
from horae.policies.themis.app_views import AppViews
from horae.policies.themis.bidding_agent import TruthfulAgent
from horae.policies.themis.rho import alone_s, find_apps, whole_demand
from horae.policies.themis.themis import Themis
from horae.solve.auction.auction import hold_auction
from horae.solve.auction.bids import Bid, Offer
from horae.workload.generator import generate, preset

_MACHINE, _RACK = 4, 16
_TRIES = 3
#: Jobs of an app, on average: not all of the paper's 23, or the largest case would have 46,000.
_TRIALS = 6
_LEASE_S = 1200.0


@dataclass(frozen=True)
class Measured:
    """CPU seconds of a decision in which every app bids for every GPU."""

    apps: int
    gpus: int
    jobs: int
    agents_s: float
    arbiter_s: float
    whole_s: float
    gap: float
    #: Resident memory that each adds at its highest: the bids stay, the rest is given back.
    agents_mb: float
    arbiter_mb: float
    whole_mb: float

    def row(self) -> Row:
        """A line of the table."""
        return {
            "apps": self.apps,
            "gpus": self.gpus,
            "jobs": self.jobs,
            "agents ms": round(1e3 * self.agents_s, 1),
            "an agent µs": round(1e6 * self.agents_s / self.apps),
            "arbiter ms": round(1e3 * self.arbiter_s, 1),
            "decision ms": round(1e3 * self.whole_s, 1),
            "gap": f"{self.gap:.3%}",
            "agents mb": round(self.agents_mb, 1),
            "arbiter mb": round(self.arbiter_mb, 1),
            "decision mb": round(self.whole_mb, 1),
            "of capacity": f"{self.whole_s / _LEASE_S:.4%}",
        }


def measure_arbiter(bench: Bench) -> Part:
    """CPU seconds, the fastest of some tries, code compiled before; each size in a process of its own."""
    measured = []
    for apps, gpus in bench.sizes.auctions:
        note(f"decision of themis, {apps:,} apps, {gpus:,} GPUs")
        measured.append(in_new_process(_measure, apps, gpus))
    notes = [
        "One decision of themis with f = 0, so that all apps bid, on an empty cluster of machines of 4, 16 to a rack.",
        "agents: rho and bids of all apps, one after the other here; live, each may be a process of its own.",
        "arbiter: the auction, from bids to leftovers. decision: all of it, with the split among jobs and placement.",
        "mb: resident memory that it adds at its highest; some 5 of it are libraries being read again.",
        f"of capacity: the share of a lease of {_LEASE_S:g} s that GPUs would wait if they idled while it is decided.",
    ]
    return Part("A decision of Themis, taken apart", [one.row() for one in measured], notes)


def draw_arbiter(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows of the part."""
    parts = {"whole decision": "decision", "arbiter": "arbiter", "agents, all of them": "agents"}
    lines = [grown(label, rows, f"{name} ms", f"{name} mb") for label, name in parts.items()]
    draw_scaling(path, "A decision of Themis: every app bids for every GPU", sizes_of(rows), lines)


def _engine(apps: int, gpus: int) -> Engine:
    """All jobs of all apps wait on an empty cluster."""
    nodes = [Node(f"m{m:05}", "gpu", _MACHINE, f"r{m // _RACK:04}") for m in range(gpus // _MACHINE)]
    cluster = Cluster(tuple(nodes))
    trials = {"trials_median": float(_TRIALS), "trials_max": 4 * _TRIALS, "trials_sigma": 0.5}
    jobs = generate(preset("themis", jobs=2 * apps * _TRIALS, **trials), cluster, None, 0)
    wanted = set(list(dict.fromkeys(job.app for job in jobs))[:apps])
    engine = Engine(cluster, make_policy, "themis", {"f": "0"}, make_placement("best-effort"))
    for job in jobs:
        if job.app in wanted:
            engine.apply(JobSubmitted(0.0, job))
    return engine


def _measure(apps: int, gpus: int) -> Measured:
    # Large enough to need every piece of compiled code, so that loading it is no part of what is measured.
    _decide(_engine(50, 256))
    engine = _engine(apps, gpus)
    auction = _Auction(engine)
    agents_mb = peak_mb(auction.ask)
    bids = auction.ask()
    arbiter_mb = peak_mb(lambda: hold_auction(auction.offer, bids))
    whole_mb = peak_mb(lambda: _decide(engine))
    agents_s = min(_cpu_s(auction.ask) for _ in range(_TRIES))
    arbiter_s = min(_cpu_s(lambda: hold_auction(auction.offer, bids)) for _ in range(_TRIES))
    # The fork of an engine is copied before the clock starts: live, an engine decides for itself.
    whole_s = min(_cpu_s(partial(engine.fork().decide, 0.0)) for _ in range(_TRIES))
    gap = hold_auction(auction.offer, bids).gap
    return Measured(apps, gpus, len(engine.jobs), agents_s, arbiter_s, whole_s, gap, agents_mb, arbiter_mb, whole_mb)


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _decide(engine: Engine) -> None:
    """A whole decision, by an engine that is thrown away."""
    engine.fork().decide(0.0)


class _Auction:
    """What the arbiter offers, and agents that bid for it."""

    def __init__(self, engine: Engine) -> None:
        self._now, memory = engine.snapshot(), Memory(Themis.memory, 1)
        memory.fit(len(engine.jobs), 1)
        self._views = _views(self._now, memory)
        machines = self._now.machines
        free = np.bincount(machines.of_gpu).astype(np.int64)
        self.offer = Offer(machines.names, free, machines.gpu_type)

    def ask(self) -> list[Bid]:
        """What all agents do: look at their app, say its rho, and bid."""
        agent, machines = TruthfulAgent(), self._now.machines
        shown = [self._views.view(app) for app in range(len(self._views.apps))]
        for view in shown:
            agent.rho(view)
        return [agent.bid(view, self.offer, machines) for view in shown]


def _views(now: Snapshot, memory: Memory) -> AppViews:
    apps = find_apps(now, memory)
    return AppViews(now, apps, alone_s(whole_demand(now, apps), now.cluster.gpus_by_type, apps.contention), _LEASE_S)
