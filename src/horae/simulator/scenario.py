"""A scenario: everything that a simulated run depends on. The same scenario gives the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

from horae.core.cluster import BadCluster, Cluster
from horae.core.events import NodeChange, NodeJoined
from horae.core.job import JobSpec
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.core.throughputs import Speeds, Throughputs
from horae.plugins.setting_files import with_files
from horae.policies import POLICIES, class_of, make_policy
from horae.policies.outside import BadPolicy, checked, make_of
from horae.policies.settings import Parameter, parameters_of, settings_of
from horae.policies.type_awareness import IgnoredSpeeds, ignored_speeds
from horae.simulator.faults import Faults


@runtime_checkable
class JobSource(Protocol):
    """Jobs that are drawn anew for every seed."""

    def jobs(self, cluster: Cluster, throughputs: Throughputs | None, seed: int) -> Sequence[JobSpec]:
        """The jobs of a seed; the same arguments give the same jobs."""
        ...


class PolicyChoice(NamedTuple):
    """A policy and the settings given to it: a registered name, a class, or a policy that is made already."""

    policy: str | type[Any] | Policy
    settings: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """Name of the policy in reports. A class or an object that is not registered has the name of its class."""
        if isinstance(self.policy, str):
            return self.policy
        made = self._class
        return next((name for name, registered in POLICIES.items() if registered is made), made.__name__)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What can be set: nothing, once the policy is made."""
        return parameters_of(self._class) if isinstance(self.policy, str | type) else ()

    @property
    def shown_settings(self) -> dict[str, str]:
        """The settings that are not at their defaults, for people."""
        return dict(self.settings) if isinstance(self.policy, str | type) else settings_of(self.policy)

    @property
    def _class(self) -> type[Any]:
        if isinstance(self.policy, str):
            return class_of(self.policy)
        return self.policy if isinstance(self.policy, type) else type(self.policy)

    def with_seed(self, seed: int) -> dict[str, str]:
        """The settings, with the run's seed for a policy that draws at random and is not told its own."""
        draws = any(parameter.name == "seed" for parameter in self.parameters)
        return {"seed": str(seed), **self.shown_settings} if draws else self.shown_settings

    def make(self, settings: Mapping[str, str] | None = None) -> Policy:
        """The policy; what is wrong with it or its settings is an error here."""
        given = self.settings if settings is None else settings
        name, chosen = self.name, self.policy
        if isinstance(chosen, str):
            return make_policy(name, with_files(name, given))
        if isinstance(chosen, type):
            return make_of(name, chosen, with_files(chosen, given))
        if self.settings:
            raise BadPolicy(f"Policy {name!r} is made already: give its settings to the class, or name a policy.")
        return checked(name, chosen)


@dataclass(frozen=True)
class Scenario:
    """One policy on one workload and one cluster, and all that the run depends on beside."""

    #: The jobs themselves, or what they are drawn from, by the seed.
    workload: Sequence[JobSpec] | JobSource
    #: The nodes that are there in the beginning.
    cluster: Cluster
    #: A registered name, a class, or a policy that is made already.
    policy: str | type[Any] | Policy
    #: Settings of a policy that is named, as text.
    settings: Mapping[str, str] = field(default_factory=dict)
    placement: str = "best-effort"
    #: Seconds that a preempted job takes to come back, unless the job says otherwise.
    restart_cost_s: float = 30.0
    #: Speeds that the scheduler believes in.
    throughputs: Throughputs | None = None
    #: Speeds at which jobs really run, if they are others; the scheduler learns them from what jobs report.
    truth: Throughputs | None = None
    queues: tuple[Queue, ...] = ()
    #: Seed of the jobs that are drawn, of faults, and of policies that draw at random.
    seed: int = 0
    faults: Faults | None = None
    #: Stop when the first `until` jobs have ended; without it, when all have.
    until: int | None = None
    #: Nodes that join, are lost or drain at known times, as in a journal.
    node_changes: tuple[NodeChange, ...] = ()

    def __post_init__(self) -> None:
        if not self.whole_cluster.nodes:
            raise BadCluster("A cluster needs at least one node.")

    @cached_property
    def whole_cluster(self) -> Cluster:
        """All nodes that are ever there, in the order in which they join."""
        nodes = {node.name: node for node in self.cluster.nodes}
        for event in self.node_changes:
            if isinstance(event, NodeJoined):
                # A node may come back smaller; it counts as large as it joined first.
                nodes.setdefault(event.node.name, event.node)
        return Cluster(tuple(nodes.values())) if self.node_changes else self.cluster

    @cached_property
    def jobs(self) -> Sequence[JobSpec]:
        """The jobs of the run, drawn once."""
        if isinstance(self.workload, JobSource):
            return self.workload.jobs(self.whole_cluster, self.truth or self.throughputs, self.seed)
        return self.workload

    @property
    def choice(self) -> PolicyChoice:
        """The policy with the settings given to it."""
        return PolicyChoice(self.policy, self.settings)

    @cached_property
    def policy_settings(self) -> dict[str, str]:
        """Settings of the policy as reports show them, with the run's seed for a policy that draws at random."""
        return self.choice.with_seed(self.seed)

    @cached_property
    def built_policy(self) -> Policy:
        """The policy, made once; what is wrong with it or its settings is an error here. Runs use copies of it."""
        return self.choice.make(self.policy_settings)

    @property
    def ignored_speeds(self) -> IgnoredSpeeds | None:
        """A job that is not equally fast on all GPU types, if the policy does not go by speeds; else None."""
        return ignored_speeds(self.built_policy, self._true_speeds(), self.whole_cluster)

    def _true_speeds(self) -> Iterator[tuple[JobSpec, list[float]]]:
        """Jobs with their true speed on each GPU type; one job stands for all that cannot differ from it."""
        speeds = Speeds(self.truth or self.throughputs or Throughputs())
        seen: set[tuple[int, int]] = set()
        for job in self.jobs:
            alike = (speeds.job_kind(job), job.gpus_min)
            if alike in seen and not job.throughput:
                continue
            seen.add(alike)
            yield job, speeds.rates(job, self.whole_cluster.gpu_types).tolist()

    def make_policy(self, name: str, settings: Mapping[str, str]) -> Policy:
        """A policy for an engine: a copy of the scenario's own."""
        if (name, dict(settings)) == (self.choice.name, self.policy_settings):
            return deepcopy(self.built_policy)
        return make_policy(name, settings)
