"""One decision of Themis at scale, taken apart: what its agents cost, what the arbiter costs, and what is left."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.events import JobSubmitted
from horae.core.plan import Memory, Snapshot
from horae.placement.rules import make_placement
from horae.policies import make_policy
from horae.policies.agent import TruthfulAgent
from horae.policies.app_views import Views
from horae.policies.finish_fairness import alone_s, look, whole_demand
from horae.policies.themis import Themis
from horae.solve.auction.auction import hold_auction
from horae.solve.auction.bids import Offer
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
    peak_mb: float

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
            "mb": round(self.peak_mb, 1),
            "of capacity": f"{self.whole_s / _LEASE_S:.4%}",
        }


def measure_arbiter(bench: Bench) -> Part:
    """CPU seconds in this process, the fastest of some tries, code compiled before."""
    _measure(4, 16)
    rows = []
    for apps, gpus in bench.sizes.auctions:
        note(f"decision of themis, {apps:,} apps, {gpus:,} GPUs")
        rows.append(_measure(apps, gpus).row())
    notes = [
        "One decision of themis with f = 0, so that all apps bid, on an empty cluster of machines of 4, 16 to a rack.",
        "agents: rho and bids of all apps, one after the other here; live, each may be a process of its own.",
        "arbiter: the auction, from bids to leftovers. decision: all of it, with the split among jobs and placement.",
        f"of capacity: the share of a lease of {_LEASE_S:g} s that GPUs would wait if they idled while it is decided.",
    ]
    return Part("A decision of Themis, taken apart", rows, notes)


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
    engine = _engine(apps, gpus)
    parts = [_taken_apart(engine) for _ in range(_TRIES)]
    whole_s = min(_decision_s(engine) for _ in range(_TRIES))
    tracemalloc.start()
    _decision_s(engine)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    agents_s, arbiter_s = (min(part[k] for part in parts) for k in range(2))
    return Measured(apps, gpus, len(engine.jobs), agents_s, arbiter_s, whole_s, parts[0][2], peak / 1e6)


def _decision_s(engine: Engine) -> float:
    """A whole decision, by an engine that is thrown away."""
    engine = engine.fork()
    began_s = time.process_time()
    engine.decide(0.0)
    return time.process_time() - began_s


def _taken_apart(engine: Engine) -> tuple[float, float, float]:
    """Agents, arbiter, and the gap."""
    now, memory = engine.snapshot(), Memory(Themis.memory, 1)
    memory.fit(len(engine.jobs), 1)
    views = _views(now, memory)
    free = np.bincount(now.machines.of_gpu).astype(np.int64)
    offer, agent = Offer(now.machines.names, free, now.machines.gpu_type), TruthfulAgent()
    began_s = time.process_time()
    shown = [views.view(app) for app in range(len(views.apps))]
    for view in shown:
        agent.rho(view)
    bids = [agent.bid(view, offer, now.machines) for view in shown]
    agents_s = time.process_time() - began_s
    began_s = time.process_time()
    outcome = hold_auction(offer, bids)
    return agents_s, time.process_time() - began_s, outcome.gap


def _views(now: Snapshot, memory: Memory) -> Views:
    apps = look(now, memory)
    return Views(now, apps, alone_s(whole_demand(now, apps), now.cluster.gpus_by_type, apps.contention), _LEASE_S)
