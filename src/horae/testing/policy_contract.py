"""What every policy promises, checked on small random clusters and workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horae.core.cluster import Cluster, Node
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.events import Event
from horae.core.history import History
from horae.core.invariants import check
from horae.core.job import JobSpec
from horae.core.policy import ChecksCluster, Policy
from horae.core.queues import Queue
from horae.policies.outside import CheckedPolicy
from horae.policies.settings import text_of
from horae.simulator.faults import Faults
from horae.simulator.run import simulate
from horae.simulator.scenario import PolicyChoice, Scenario

#: More decisions than any of these small runs needs.
MOST_DECISIONS = 20_000


def check_policy(
    policy: str | type[Any] | Policy,
    settings: Mapping[str, object] | None = None,
    *,
    seeds: Iterable[int] = range(20),
    finishes: bool = True,
    starvation_free: bool = False,
) -> None:
    """Run a policy on small random worlds and raise an AssertionError, with the seed, at the first broken promise.

    1. It never fails, and its wishes are well-formed, with several GPU types, quotas, elastic jobs and lost nodes.
    2. Every invariant of the engine holds after every event and decision.
    3. It is deterministic: run twice, also with the same object, it decides the same.
    4. It lets every job end, unless `finishes` is false.
    5. With `starvation_free`, a gang as large as the cluster starts while small jobs keep coming.
    """
    chosen = PolicyChoice(policy, {key: text_of(value) for key, value in (settings or {}).items()})
    for seed in seeds:
        try:
            _check_seed(chosen, seed, finishes)
        except UserError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    if starvation_free:
        _check_starvation(chosen)


def random_scenario(seed: int, policy: str | type[Any] | Policy, settings: Mapping[str, str]) -> Scenario:
    """A small world: up to 3 GPU types, up to 12 jobs, quotas and faults in some."""
    rng = np.random.default_rng(seed)
    types = tuple(f"type-{k}" for k in range(int(rng.integers(1, 4))))
    nodes = [
        Node(f"node-{k}", types[k % len(types)], int(rng.integers(1, 5)), f"rack-{k % 2}")
        for k in range(int(rng.integers(len(types), 7)))
    ]
    cluster = Cluster(tuple(nodes))
    queues = (Queue("org/a", gpus_max=cluster.gpus), Queue("org/b", weight=2.0)) if rng.random() < 0.5 else ()
    faults = Faults(node_losses_per_day=20.0, node_repair_s=600.0, launch_failures=0.1) if rng.random() < 0.3 else None
    jobs = [_job(number, rng, cluster) for number in range(int(rng.integers(1, 13)))]
    return Scenario(jobs, cluster, policy, settings, restart_cost_s=10.0, queues=queues, seed=seed, faults=faults)


def _job(number: int, rng: np.random.Generator, cluster: Cluster) -> JobSpec:
    """A job that some GPU type of the cluster can hold; every third is elastic."""
    usable = cluster.gpu_types[: int(rng.integers(1, len(cluster.gpu_types) + 1))]
    room = max(int(n) for n, name in zip(cluster.gpus_by_type, cluster.gpu_types, strict=True) if name in usable)
    gpus = int(rng.integers(1, room + 1))
    return JobSpec(
        f"job-{number}",
        float(np.round(rng.uniform(0, 500), 3)),
        gpus,
        float(np.round(rng.uniform(10, 3000), 3)),
        unit="steps",
        gpus_min=int(rng.integers(1, gpus + 1)) if number % 3 == 0 else 0,
        throughput={name: float(np.round(rng.uniform(0.5, 4), 3)) for name in usable},
        weight=float(rng.choice([1.0, 2.0])),
        queue=str(rng.choice(["default", "org/a", "org/b"])),
        deadline_s=float(rng.uniform(100, 5000)) if rng.random() < 0.3 else None,
    )


@dataclass
class _Notes:
    """An onlooker that checks the engine, and writes down what was decided."""

    decided: list[str] = field(default_factory=list)

    def expect(self, engine: Engine, now_s: float) -> None:
        """Nothing to do."""

    def see(self, engine: Engine, what: Event | Decided) -> None:
        """Check every invariant; note what a decision does."""
        check(engine, quotas_fixed=False)
        if isinstance(what, Decided):
            self.decided.append(repr((what.at_s, what.stops, what.withdrawn, what.placed, what.launches)))
            assert len(self.decided) <= MOST_DECISIONS, f"{MOST_DECISIONS:,} decisions and no end, at {what.at_s:g} s"


class _Same(Scenario):
    """A scenario whose runs share one policy object: what it remembers of one run must not change the next."""

    def make_policy(self, name: str, settings: Mapping[str, str]) -> Policy:
        """The policy itself, not a copy; its wishes are checked."""
        return _always_checked(name, self.built_policy)


def _always_checked(name: str, policy: Policy) -> Policy:
    return policy if isinstance(policy, CheckedPolicy) else CheckedPolicy(name, policy)


def _check_seed(chosen: PolicyChoice, seed: int, finishes: bool) -> None:
    drawn = random_scenario(seed, chosen.policy, chosen.settings)
    world = _Same(**{name: getattr(drawn, name) for name in drawn.__dataclass_fields__})
    if not _suits(world):
        return
    first, history = _run(world)
    again, _ = _run(world)
    assert first == again, f"two runs of one object differ, at decision {_difference(first, again)}"
    anew, _ = _run(drawn)
    assert first == anew, f"a new object decides otherwise, at decision {_difference(first, anew)}"
    if finishes:
        left = [job.id for job, end_s in zip(history.jobs, history.end_s, strict=True) if not np.isfinite(end_s)]
        assert not left, f"{left[0]} never ends: {history.waiting.get(left[0], 'it waits')}"


def _suits(world: Scenario) -> bool:
    """Whether the policy takes the cluster: one that goes by prices may not know its GPU types."""
    policy = world.built_policy
    if isinstance(policy, ChecksCluster):
        try:
            policy.check(world.cluster.gpu_types, False)
        except UserError:
            return False
    return True


def _run(world: Scenario) -> tuple[list[str], History]:
    notes = _Notes()
    history = simulate(world, onlooker=notes)
    return notes.decided, history


def _difference(first: list[str], second: list[str]) -> int:
    same = (k for k, (first_decision, other) in enumerate(zip(first, second, strict=False)) if first_decision != other)
    return next(same, min(len(first), len(second)))


def _check_starvation(chosen: PolicyChoice) -> None:
    """Jobs of one GPU come as fast as they end; a gang of all GPUs that came early must start before they are over."""
    count, gpus, work_s = 400, 4, 100.0
    small = [JobSpec(f"small-{k}", 30.0 * k, 1, work_s) for k in range(count)]
    gang = JobSpec("gang", 1.0, gpus, work_s)
    cluster = Cluster((Node("node-0", "gpu", gpus),))
    scenario = Scenario([*small, gang], cluster, chosen.policy, chosen.settings, restart_cost_s=0.0)
    history = simulate(scenario)
    start_s = float(history.start_s[[job.id for job in history.jobs].index("gang")])
    last_s = small[-1].submit_s
    assert start_s < last_s, f"a gang of all GPUs starts only when no small job comes any more ({start_s:g} s)"
