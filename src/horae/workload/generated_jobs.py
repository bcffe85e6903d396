"""Jobs that are drawn anew for every seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horae.core.cluster import Cluster
from horae.core.job import JobSpec
from horae.core.throughputs import Throughputs
from horae.workload.generator import Workload, generate


@dataclass(frozen=True)
class GeneratedJobs:
    """A workload to draw jobs from. Its load is that of the cluster on which the jobs run."""

    workload: Workload

    def jobs(self, cluster: Cluster, throughputs: Throughputs | None = None, seed: int = 0) -> Sequence[JobSpec]:
        """The jobs of a seed; the same arguments give the same jobs."""
        return generate(self.workload, cluster, throughputs, seed)
