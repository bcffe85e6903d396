"""A service's own history, run again under other policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horae.client.journal import JournalReader, NothingYet
from horae.core.cluster import Cluster
from horae.core.errors import UserError
from horae.core.history import History
from horae.service.history.replay import align_with_past, complete_changes
from horae.service.history.simulation_costs import replayable
from horae.simulator.driver import Progress
from horae.simulator.run import simulate
from horae.simulator.scenario import PolicyChoice, Scenario
from horae.workload.clusters import parse_cluster

#: Name of the column of what really happened.
AS_IT_WAS = "as it was"


class UnknownSpeed(UserError):
    """Machines on which no job was ever seen."""


def replay_scenario(
    past: JournalReader, chosen: PolicyChoice, cluster: str | None = None, placement: str | None = None, seed: int = 0
) -> Scenario:
    """What happened as a scenario for another policy: the service's jobs, nodes, queues and placement.

    Jobs have the speeds and the costs that they showed, so a restart costs nothing beside. The service's nodes come,
    drain and go when they did so; those of another cluster are always there.
    """
    jobs = replayable(past.history)
    if not jobs:
        raise NothingYet("No job of the journal has done anything yet: there is nothing to replay.")
    nodes = past.beginning.nodes
    return Scenario(
        jobs,
        Cluster(nodes) if cluster is None else _other_cluster(past, cluster),
        chosen.policy,
        chosen.settings,
        placement or past.beginning.placement,
        restart_cost_s=0.0,
        queues=past.queues,
        seed=seed,
        node_changes=() if cluster is not None else tuple(complete_changes(nodes, past.node_changes)),
    )


def replayed(
    past: JournalReader, scenario: Scenario, progress: Progress | None = None
) -> tuple[History, Mapping[str, str]]:
    """Run a replay: its history, counted as the service's own, and why jobs that did not end were waiting."""
    history = simulate(scenario, progress)
    return align_with_past(past.history, history), history.waiting


def labels_of(past: JournalReader, chosen: Sequence[PolicyChoice]) -> list[str]:
    """Names of the runs: what really happened first."""
    return [f"{AS_IT_WAS} ({past.history.policy})", *(choice.name for choice in chosen)]


def _other_cluster(past: JournalReader, asked: str) -> Cluster:
    """Another cluster of the same GPU types: only of these it is known how fast jobs are there."""
    machines, measured = parse_cluster(asked), past.history.cluster.gpu_types
    strange = [gpu_type for gpu_type in machines.gpu_types if gpu_type not in measured]
    if strange:
        raise UnknownSpeed(
            f"No job ever ran on {', '.join(strange)} here, so nobody knows how fast they are on {', '.join(strange)}: "
            f"name machines with {', '.join(sorted(measured))}."
        )
    return machines
