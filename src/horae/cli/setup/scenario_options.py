"""A scenario from the options of a command: what `simulate` and `audit` run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from horae.cli.setup import inputs
from horae.cli.setup.job_source import JobOptions
from horae.experiments.prices import with_prices
from horae.simulator.scenario import Scenario
from horae.workload.clusters import parse_cluster


def read_scenario(
    policy: str,
    words: Sequence[str],
    asked: JobOptions,
    *,
    cluster: str,
    placement: str,
    restart_cost: float,
    throughputs: Path | None,
    profile_share: float,
    profile_noise: float,
    queues: Path | None,
    faults: Sequence[str],
    seed: int,
) -> Scenario:
    """Read everything; whatever is wrong is told now. `words` are the policy's settings."""
    chosen = inputs.read_policy(policy, words)
    machines = parse_cluster(cluster)
    trouble, tree = inputs.read_faults(faults), inputs.read_queues(queues, cluster)
    workload, speeds = asked.read(machines, inputs.read_throughputs(throughputs), {})
    believed = inputs.read_profile(speeds, profile_share, profile_noise, seed)
    return Scenario(
        workload,
        machines,
        policy,
        with_prices(chosen, machines).settings,
        placement,
        restart_cost,
        believed,
        None if believed is speeds else speeds,
        tree,
        seed,
        trouble,
    )
