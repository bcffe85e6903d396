"""A sweep: policies run with many values of one thing, and what came of it as points and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from horae.core.errors import UserError, did_you_mean
from horae.core.job import JobSpec
from horae.experiments.parallel import MeasuredJobs, Outcome
from horae.experiments.sweep_axis import GPUS, LOAD, RATE, Step, SweepAxis
from horae.experiments.sweep_defaults import MEASURE_FROM, MEASURE_TO, MORE_JOBS
from horae.report.confidence import half_width_95
from horae.report.pages.curves import COLUMNS, SHOWN, Axis, Curve, Panel
from horae.report.tables import MEASURES, ReportFigure, shown
from horae.simulator.scenario import JobSource, PolicyChoice, Scenario
from horae.workload.generated_jobs import GeneratedJobs
from horae.workload.generator import Workload


@dataclass(frozen=True)
class SweepWindow:
    """How many jobs are made up, and which are measured; without an end, all are run to the end."""

    jobs: int
    measure_from: int
    measure_to: int | None

    @property
    def measured(self) -> MeasuredJobs:
        """The jobs that reports measure."""
        return MeasuredJobs(self.measure_from, self.measure_to)

    def __str__(self) -> str:
        if self.measure_to is not None:
            return f"jobs {self.measure_from:,} to {self.measure_to - 1:,}"
        return f"jobs {self.measure_from:,} to {self.jobs - 1:,}" if self.measure_from else f"{self.jobs:,} jobs"


@dataclass(frozen=True)
class Point:
    """One policy at one step, or, where the steps mean nothing to it, at any; run once for each seed."""

    label: str
    step: Step | None
    outcomes: Sequence[Outcome]

    def where(self, axis: Axis) -> str:
        """The value at which it lies."""
        return "any" if self.step is None else axis.text(self.step.value)


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep runs: every policy at every step; a policy to which steps mean nothing once, behind the others."""

    variation: SweepAxis
    steps: tuple[Step, ...]
    chosen: tuple[PolicyChoice, ...]
    #: What jobs are made up from; None where they are those of the base, whatever the step.
    workload: Workload | None
    window: SweepWindow
    #: Everything that all runs share; each step may have a cluster and jobs of its own.
    base: Scenario
    seeds: tuple[int, ...]

    @property
    def cells(self) -> list[tuple[Step | None, PolicyChoice]]:
        """The points to come, in order."""
        varied = [choice for choice in self.chosen if self.variation.concerns(choice)]
        flat = [choice for choice in self.chosen if not self.variation.concerns(choice)]
        return [*product(self.steps, varied), *((None, choice) for choice in flat)]

    def scenarios(self) -> list[Scenario]:
        """Every cell on every seed."""
        return [replace(self._scenario(*cell), seed=seed) for cell in self.cells for seed in self.seeds]

    def _scenario(self, step: Step | None, chosen: PolicyChoice) -> Scenario:
        settings = chosen.settings if step is None else {**chosen.settings, **step.settings}
        taken = step or self.steps[0]
        return replace(
            self.base,
            workload=self.jobs(taken),
            cluster=taken.cluster,
            policy=chosen.policy,
            settings=settings,
            until=self.window.measure_to,
        )

    def jobs(self, step: Step) -> Sequence[JobSpec] | JobSource:
        """The jobs of a step."""
        return self.base.workload if self.workload is None else GeneratedJobs(self._drawn(self.workload, step))

    def _drawn(self, workload: Workload, step: Step) -> Workload:
        changes: dict[str, Any] = {"jobs": self.window.jobs}
        if step.rate is not None or step.load is not None:
            changes |= {"arrivals_per_hour": step.rate, "load": step.load}
        return replace(workload, **changes)

    def points(self, outcomes: Sequence[Outcome]) -> list[Point]:
        """Outcomes by step and policy, in the order in which they were planned."""
        many = len(self.seeds)
        return [
            Point(policy_label(choice), step, outcomes[k * many : (k + 1) * many])
            for k, (step, choice) in enumerate(self.cells)
        ]

    def axis(self) -> Axis:
        """The axis of what is varied."""
        return self.variation.axis("apps" if self.workload and self.workload.trials_max > 1 else "jobs")

    def panels(self, points: Sequence[Point], plotted: str) -> list[Panel]:
        """Every measure that is shown, as curves; the one that is plotted first."""
        reports = [outcome.report for point in points for outcome in point.outcomes]
        shown_paths = {measure.path for measure in shown(reports, MEASURES)}
        others = [path for path in dict.fromkeys([*SHOWN, *COLUMNS]) if path != plotted and path in shown_paths]
        paths = [plotted, *others]
        labels = [policy_label(choice) for choice in self.chosen]
        return [Panel.of(path, [_curve(points, label, len(self.steps), path) for label in labels]) for path in paths]

    def about(self, workload_name: str) -> str:
        """What the curves are about, in one line; what they vary stands on the axis."""
        cluster, work = self.steps[0].cluster, self.workload and self._drawn(self.workload, self.steps[0])
        parts = [workload_name, str(self.window)]
        if self.variation.what != GPUS:
            parts += [f"{n} {name}" for name, n in zip(cluster.gpu_types, cluster.gpus_by_type, strict=True)]
        if work and self.variation.what not in (RATE, LOAD):
            parts += [
                f"load {work.load:g}" if work.load is not None else f"{work.arrivals_per_hour:g} arrivals an hour"
            ]
        if len(self.seeds) > 1:
            parts += [f"{len(self.seeds)} seeds with 95 % intervals"]
        return ", ".join(parts)


def choose_window(
    work: Workload, jobs: int | None, measure_from: int | None = None, measure_to: int | None = None
) -> SweepWindow:
    """Which jobs to make up and to measure; a window that they do not fill is refused.

    A number of jobs alone, or a preset of apps, asks for all of them; otherwise the steady state is measured.
    """
    finite = measure_to is None and (jobs is not None or work.trials_max > 1)
    first = measure_from if measure_from is not None else 0 if finite or measure_to is not None else MEASURE_FROM
    end = None if finite else measure_to or MEASURE_TO
    last = work.jobs if end is None else end
    if first >= last:
        raise UserError(
            f"The window of jobs {first} to {last} is empty; lower --measure-from or raise --measure-to or --jobs."
        )
    if end is not None and jobs is not None and jobs < end:
        raise UserError(f"Only {jobs} jobs come and {end} are needed; raise --jobs or lower --measure-to.")
    return SweepWindow(work.jobs if jobs or end is None else MORE_JOBS * end, first, end)


def check_measure(path: str) -> None:
    """Refuse the name of a measure that does not exist."""
    paths = [measure.path for measure in MEASURES]
    if path not in paths:
        raise UserError(f"No measure is called {path!r}.{did_you_mean(path, paths)} Known are {', '.join(paths)}.")


def policy_label(chosen: PolicyChoice) -> str:
    """A policy with its settings, for people."""
    settings = ", ".join(f"{key}={value}" for key, value in chosen.shown_settings.items())
    return f"{chosen.name} ({settings})" if settings else chosen.name


def _curve(points: Sequence[Point], label: str, steps: int, path: str) -> Curve:
    """One measure of one policy."""
    own = [point for point in points if point.label == label]
    samples = [[ReportFigure(path, "").of(outcome.report) for outcome in point.outcomes] for point in own]
    means, halves = np.array([fmean(s) for s in samples]), np.array([half_width_95(s) for s in samples])
    if own[0].step is None:
        return Curve(label, np.repeat(means, steps), np.repeat(halves, steps), flat=True)
    return Curve(label, means, halves)
