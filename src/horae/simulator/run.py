"""The simulator: the engine driven by a virtual clock and a model of the world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from horae.core.cluster import Cluster
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobSubmitted
from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.policy import Particular
from horae.core.queues import Queue
from horae.core.throughputs import Throughputs
from horae.placement.rules import make_placement
from horae.policies import make_policy, with_seed
from horae.simulator.checks import check_fit, check_quotas, check_trials
from horae.simulator.driver import Driver, Progress
from horae.simulator.faults import Faults
from horae.simulator.world import World


class Onlooker(Protocol):
    """Somebody who looks on while a run goes by, and changes nothing."""

    def expect(self, engine: Engine, now_s: float) -> None:
        """A decision is about to be made."""
        ...

    def see(self, engine: Engine, what: Event | Decided) -> None:
        """An event was applied, or a decision made."""
        ...


def simulate(
    jobs: Sequence[JobSpec],
    cluster: Cluster,
    *,
    policy: str,
    settings: Mapping[str, str] | None = None,
    placement: str = "best-effort",
    restart_cost_s: float = 30.0,
    throughputs: Throughputs | None = None,
    truth: Throughputs | None = None,
    queues: Iterable[Queue] = (),
    seed: int = 0,
    faults: Faults | None = None,
    progress: Progress | None = None,
    until: int | None = None,
    onlooker: Onlooker | None = None,
) -> History:
    """Run a workload on a cluster under a policy, in virtual time, to the end.

    With `until`, to the moment when the first so many jobs have ended, while the others still keep the cluster busy.
    With `truth`, jobs really run at those speeds, while the scheduler believes `throughputs` until it sees better.
    A policy that draws at random draws from `seed`, unless its settings name another.
    An `onlooker` is told of every event and decision; the run is the same without.
    """
    throughputs, queues = throughputs or Throughputs(), tuple(queues)
    settings = with_seed(policy, settings or {}, seed)
    check_fit(jobs, cluster, throughputs)
    if truth is not None:
        check_fit(jobs, cluster, truth)
    check_quotas(jobs, queues)
    check_trials(jobs)
    rule = make_placement(placement)
    engine = Engine(cluster, make_policy, policy, settings, rule, throughputs, queues, learn=truth is not None)
    if isinstance(engine.policy, Particular):
        engine.policy.check(cluster.gpu_types, throughputs.knows_pairs)
    world = World(engine.jobs, cluster, restart_cost_s, faults, seed, truth)
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    script = [JobSubmitted(job.submit_s, job) for job in ordered]
    watch, expect = (onlooker.see, onlooker.expect) if onlooker else (None, None)
    driver = Driver(engine, world, script, watch, until, expect)
    driver.run(progress)
    return driver.history(
        {"placement": placement, "restart_cost_s": f"{restart_cost_s:g}", "seed": str(seed), **settings}
    )
