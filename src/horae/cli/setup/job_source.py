"""Where a command's jobs come from: a trace, or a workload that is made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from horae.cli.setup import inputs, workload_options
from horae.core.errors import UserError

if TYPE_CHECKING:
    from horae.core.cluster import Cluster
    from horae.core.job import JobSpec
    from horae.core.throughputs import Throughputs
    from horae.workload.generated_jobs import GeneratedJobs


@dataclass(frozen=True)
class JobOptions:
    """What the user said about the jobs; None where nothing was said."""

    trace: Path | None
    format: str | None
    skip_bad: bool
    generate: str | None = None
    jobs: int | None = None
    load: float | None = None
    rate: float | None = None
    hours_from: Path | None = None
    workload: Sequence[str] | None = None

    def read(
        self, cluster: Cluster, speeds: Throughputs | None, only_generated: Mapping[str, object]
    ) -> tuple[Sequence[JobSpec] | GeneratedJobs, Throughputs | None]:
        """The jobs, and their speeds: those measured, and estimates for models of the catalogue that nobody measured.

        Options that would do nothing with the jobs, such as those in `only_generated`, are refused.
        """
        if self.trace is not None and self.generate is None:
            jobs = self._read_trace(self.trace, speeds, only_generated)
            return jobs, inputs.with_estimates(speeds, jobs, cluster)
        if self.generate is not None and self.trace is None:
            from horae.workload.generated_jobs import GeneratedJobs

            _refuse({"--format": self.format, "--skip-bad": self.skip_bad or None}, "--trace", "--generate")
            more = self.jobs, self.load, self.rate, self.hours_from, self.workload or ()
            return GeneratedJobs(workload_options.read_workload(self.generate, *more, speeds)), speeds
        raise UserError("Name either a trace with --trace FILE or a workload with --generate PRESET.")

    def _read_trace(
        self, trace: Path, speeds: Throughputs | None, only_generated: Mapping[str, object]
    ) -> tuple[JobSpec, ...]:
        from horae.workload.skew import profiled

        shaping = {"--jobs": self.jobs, "--load": self.load, "--rate": self.rate, "--hours-from": self.hours_from}
        _refuse({**shaping, "--workload": self.workload, **only_generated}, "--generate", "--trace")
        return profiled(inputs.read_trace(trace, self.format, self.skip_bad, speeds).jobs)


def _refuse(given: Mapping[str, object], where: str, here: str) -> None:
    """An option that would change nothing is a mistake worth telling."""
    for option, value in given.items():
        if value is not None:
            raise UserError(f"{option} does nothing with {here}; leave it out, or use {where} instead.")
