"""One run: simulated, or audited."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from horae.api.scenarios import Conditions, PolicyLike, WorkloadLike, scenario, warn_of_ignored_speeds
from horae.core.counted import counted
from horae.core.history import History
from horae.experiments import audit as audits
from horae.report.audit.verdict import Verdict, all_held
from horae.report.formatting import time_unit
from horae.report.metrics.measure import Report, job_columns, measure
from horae.report.pages.page import write_page
from horae.report.perfetto import write_perfetto
from horae.report.tables import write_jobs_csv
from horae.simulator import run as runs
from horae.simulator.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is over: its jobs, its figures, and where they came from."""

    scenario: Scenario
    history: History = field(repr=False)
    report: Report = field(repr=False)

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """One row a job in order of submission, with the columns of `horae simulate --jobs-out`."""
        return pl.DataFrame(job_columns(self.history, self.report)).with_columns(pl.selectors.float().fill_nan(None))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of the run, as `horae simulate -o json` has them; docs/reference/metrics.md defines each."""
        return self.report.as_dict()

    @property
    def waiting(self) -> dict[str, str]:
        """Why each job that did not end was waiting, by job id."""
        return dict(self.history.waiting)

    def save_html(self, path: str | Path) -> None:
        """Write a page with plots, all in one file."""
        write_page(path, [(self.history, self.report)])

    def save_jobs(self, path: str | Path) -> None:
        """Write the jobs file (CSV)."""
        write_jobs_csv(path, self.history, self.report)

    def save_perfetto(self, path: str | Path) -> None:
        """Write which job held which GPU when, for the trace viewer ui.perfetto.dev."""
        write_perfetto(Path(path), self.history)

    def __repr__(self) -> str:
        report = self.report
        unit = time_unit(report.avg_jct_s)
        return (
            f"<Run of {report.policy}: {report.finished:,} of {report.jobs:,} jobs finished "
            f"on {counted(report.gpus, 'GPU')}, average JCT {report.avg_jct_s / unit.seconds:,.2f} {unit.symbol}>"
        )


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A run and the verdicts on it."""

    run: Run
    verdicts: list[Verdict] = field(repr=False)

    @property
    def holds(self) -> bool | None:
        """Whether every property held; None where nothing could be judged."""
        return all_held(self.verdicts)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row a property: whether it holds, its numbers in words, a counter-example."""
        names = ("name", "claim", "holds", "summary", "counter_example")
        return pl.DataFrame({name: [getattr(verdict, name) for verdict in self.verdicts] for name in names})

    def save_html(self, path: str | Path) -> None:
        """Write the page of the run, with the verdicts."""
        write_page(path, [(self.run.history, self.run.report)], verdicts=self.verdicts)


def simulate(
    workload: WorkloadLike,
    *,
    policy: PolicyLike | None = None,
    measure_from: int = 0,
    measure_to: int | None = None,
    **conditions: Unpack[Conditions],
) -> Run:
    """Run a workload on a cluster under one policy, in virtual time.

    `policy` is a name (`horae.POLICIES`), the place of a class such as `"./mine.py:MyPolicy"`, a class, or an object
    with a method `plan`. The other conditions are those of `horae.scenario`: cluster, settings, placement,
    restart_cost_s, throughputs, truth, queues, seed, faults, until. Jobs from `measure_from` up to, not including,
    `measure_to` are measured, counted by submission.
    """
    chosen = scenario(workload, policy=policy, **conditions)
    warn_of_ignored_speeds([(chosen.choice.name, chosen.ignored_speeds)])
    history = runs.simulate(chosen)
    return Run(chosen, history, measure(history, measure_from, measure_to))


def audit(
    workload: WorkloadLike,
    *,
    policy: PolicyLike | None = None,
    samples: int = audits.SAMPLES,
    **conditions: Unpack[Conditions],
) -> AuditedRun:
    """Run a workload under one policy and judge it: sharing incentive, Pareto efficiency, envy, strategy-proofness.

    `samples` decisions are looked at closely. The conditions are those of `horae.scenario`.
    """
    chosen = scenario(workload, policy=policy, **conditions)
    warn_of_ignored_speeds([(chosen.choice.name, chosen.ignored_speeds)])
    audited = audits.audit(chosen, samples)
    return AuditedRun(Run(chosen, audited.history, measure(audited.history)), audited.verdicts)
