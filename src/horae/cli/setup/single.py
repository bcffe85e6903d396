"""One policy on one workload, read and checked before anything takes time: what `simulate` and `audit` run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from horae.cli.output import note
from horae.cli.output_files import written_whole
from horae.cli.setup import inputs

if TYPE_CHECKING:
    from horae.cli.setup.job_source import JobOptions
    from horae.core.cluster import Cluster
    from horae.core.history import History
    from horae.core.job import JobSpec
    from horae.core.queues import Queue
    from horae.core.throughputs import Throughputs
    from horae.simulator.faults import Faults
    from horae.simulator.run import Onlooker


@dataclass(frozen=True)
class Conditions:
    """Where a policy runs, as the options have it."""

    cluster: str
    placement: str
    restart_cost_s: float
    throughputs: Path | None
    profile_share: float
    profile_noise: float
    queues: Path | None
    faults: Sequence[str]
    seed: int


@dataclass(frozen=True)
class Single:
    """A run that can begin."""

    policy: str
    settings: dict[str, str]
    jobs: Sequence[JobSpec]
    machines: Cluster
    #: Speeds as they are, and as the policy believes them to be.
    speeds: Throughputs | None
    believed: Throughputs | None
    queues: tuple[Queue, ...]
    faults: Faults | None
    conditions: Conditions

    @staticmethod
    def read(policy: str, words: Sequence[str], asked: JobOptions, conditions: Conditions) -> Single:
        """Read everything; whatever is wrong is told now. `words` are the policy's settings."""
        from horae.policies import make_policy
        from horae.workload.clusters import parse_cluster

        settings = inputs.read_pairs("--set quantum=600", words)
        make_policy(policy, settings)
        machines = parse_cluster(conditions.cluster)
        faults, queues = (
            inputs.read_faults(conditions.faults),
            inputs.read_queues(conditions.queues, conditions.cluster),
        )
        settings = inputs.with_prices(policy, settings, machines)
        source, speeds = asked.source(machines, inputs.read_throughputs(conditions.throughputs), {})
        believed = inputs.read_profile(speeds, conditions.profile_share, conditions.profile_noise, conditions.seed)
        return Single(
            policy, settings, source.jobs(conditions.seed), machines, speeds, believed, queues, faults, conditions
        )

    def run(self, advance: Callable[[int, int], None] | None, onlooker: Onlooker | None = None) -> History:
        """Simulate it."""
        from horae.simulator.run import simulate

        return simulate(
            self.jobs,
            self.machines,
            policy=self.policy,
            settings=self.settings,
            placement=self.conditions.placement,
            restart_cost_s=self.conditions.restart_cost_s,
            throughputs=self.believed,
            truth=None if self.believed is self.speeds else self.speeds,
            queues=self.queues,
            seed=self.conditions.seed,
            faults=self.faults,
            progress=advance,
            onlooker=onlooker,
        )


def write_viewer_file(path: Path | None, history: History) -> None:
    """Write the run for a trace viewer, if a file was named."""
    if path is None:
        return
    from horae.report.perfetto import write_perfetto

    with written_whole(path) as temporary:
        write_perfetto(temporary, history)
    note(f"for ui.perfetto.dev: {path}")
