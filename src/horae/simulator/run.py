"""The simulator: the engine driven by a virtual clock and a model of the world."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobSubmitted
from horae.core.history import History
from horae.core.policy import ChecksCluster
from horae.core.throughputs import Throughputs
from horae.placement.rules import make_placement
from horae.policies.node_checks import check_nodes
from horae.simulator.checks import check_fit, check_quotas, check_trials
from horae.simulator.driver import Driver, Progress
from horae.simulator.scenario import Scenario
from horae.simulator.world import World


class Onlooker(Protocol):
    """Somebody who looks on while a run goes by, and changes nothing."""

    def expect(self, engine: Engine, now_s: float) -> None:
        """A decision is about to be made."""
        ...

    def see(self, engine: Engine, what: Event | Decided) -> None:
        """An event was applied, or a decision made."""
        ...


def simulate(scenario: Scenario, progress: Progress | None = None, onlooker: Onlooker | None = None) -> History:
    """Run a scenario in virtual time, to its end.

    `progress` is told now and then how many jobs have ended, of how many. An `onlooker` is told of every event and
    decision; the run is the same without.
    """
    jobs, cluster, whole, truth = scenario.jobs, scenario.cluster, scenario.whole_cluster, scenario.truth
    throughputs = scenario.throughputs or Throughputs()
    check_fit(jobs, whole, throughputs)
    if truth is not None:
        check_fit(jobs, whole, truth)
    check_quotas(jobs, scenario.queues)
    check_trials(jobs)
    rule = make_placement(scenario.placement)
    name, settings = scenario.choice.name, scenario.policy_settings
    engine = Engine(
        cluster, scenario.make_policy, name, settings, rule, throughputs, scenario.queues, learn=truth is not None
    )
    check_nodes(jobs, name, engine.policy, rule.flat)
    engine.jobs.make_room(len(jobs))
    if isinstance(engine.policy, ChecksCluster):
        engine.policy.check(whole.gpu_types, throughputs.knows_pairs)
    world = World(engine.jobs, cluster, scenario.restart_cost_s, scenario.faults, scenario.seed, truth)
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    script = [*scenario.node_changes, *(JobSubmitted(job.submit_s, job) for job in ordered)]
    watch, expect = (onlooker.see, onlooker.expect) if onlooker else (None, None)
    driver = Driver(engine, world, script, watch, scenario.until, expect)
    with _collecting_seldom():
        driver.run(progress)
    return driver.history(
        {
            "placement": scenario.placement,
            "restart_cost_s": f"{scenario.restart_cost_s:g}",
            "seed": str(scenario.seed),
            **settings,
        }
    )


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Let the garbage collector run less often: a run keeps its events, and makes no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(max(50_000, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
