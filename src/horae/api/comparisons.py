"""Many runs: policies side by side, as one thing changes, or on what a service has run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from horae.api.scenarios import Conditions, PolicyLike, WorkloadLike, choice_of, scenario, warn_of_ignored_speeds
from horae.client.journal import read_past
from horae.client.service_client import service
from horae.core.errors import UserError
from horae.core.history import History
from horae.experiments import comparison
from horae.experiments import replay as replays
from horae.experiments.executors import executor_for
from horae.experiments.parallel import Batch, MeasuredJobs, Outcome
from horae.experiments.prices import with_prices
from horae.experiments.sweep import Point, SweepPlan, SweepWindow, check_measure, choose_window
from horae.experiments.sweep_axis import LOAD, RATE, SweepAxis, check_policies, check_values
from horae.report.confidence import interval_record, mean_record
from horae.report.metrics.measure import Report, measure
from horae.report.pages import curves
from horae.report.pages.page import write_page
from horae.report.tables import run_labels
from horae.simulator.scenario import PolicyChoice, Scenario
from horae.workload.generated_jobs import GeneratedJobs


class _RunsBySeed(ABC):
    """Groups of runs that differ in their seeds alone, as frames; nested figures are columns such as `rho.max`."""

    @abstractmethod
    def _groups(self) -> Iterator[tuple[dict[str, Any], Sequence[int], Sequence[Outcome]]]:
        """What each group has in common, its seeds, and its runs."""

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row a group and seed."""
        rows = [
            {**common, "seed": seed, **_figures(outcome.report.as_dict())}
            for common, seeds, outcomes in self._groups()
            for seed, outcome in zip(seeds, outcomes, strict=True)
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    @cached_property
    def means(self) -> pl.DataFrame:
        """One row a group: the mean of every figure over the seeds."""
        return self._folded(mean_record)

    @cached_property
    def intervals(self) -> pl.DataFrame:
        """One row a group: half the width of the 95 % confidence interval of every mean; null for one seed."""
        return self._folded(interval_record)

    def _folded(self, fold: Any) -> pl.DataFrame:
        rows = [
            {**common, **_figures(fold([outcome.report.as_dict() for outcome in outcomes]))}
            for common, _, outcomes in self._groups()
        ]
        return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.selectors.float().fill_nan(None))


@dataclass(frozen=True, eq=False)
class Comparison(_RunsBySeed):
    """Several policies on the same jobs, for one seed or many; the runs of a policy are a group."""

    scenario: Scenario
    #: Names of the policies, with settings where a name comes twice.
    labels: list[str]
    seeds: list[int]
    outcomes: list[list[Outcome]] = field(repr=False)

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """One record a policy, as `horae compare -o json` has them under `policies`."""
        return comparison.records(self.outcomes)

    def save_html(self, path: str | Path) -> None:
        """Write a page with plots, all in one file; of several seeds it shows the first."""
        write_page(path, [(same[0].history, same[0].report) for same in self.outcomes if same[0].history], self.labels)

    def _groups(self) -> Iterator[tuple[dict[str, Any], Sequence[int], Sequence[Outcome]]]:
        for label, same in zip(self.labels, self.outcomes, strict=True):
            yield {"policy": label}, self.seeds, same

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.labels)} over {len(self.seeds)} seeds>"


@dataclass(frozen=True, eq=False)
class Sweep(_RunsBySeed):
    """Policies at many values of one thing; the runs of a policy at a value are a group.

    A policy to which the values mean nothing has none: its value is null.
    """

    plan: SweepPlan
    points: list[Point] = field(repr=False)
    name: str

    def _groups(self) -> Iterator[tuple[dict[str, Any], Sequence[int], Sequence[Outcome]]]:
        for point in self.points:
            yield {"policy": point.label, "value": point.step and point.step.value}, self.plan.seeds, point.outcomes

    def save_plot(self, path: str | Path, measure: str = "avg_jct_s") -> None:
        """Draw one figure, such as `rho.max`, as .png or .svg."""
        check_measure(measure)
        plotted = self.plan.panels(self.points, measure)[0]
        curves.write_plot(Path(path), self.plan.axis(), plotted, self.plan.about(self.name))

    def save_html(self, path: str | Path) -> None:
        """Write a page with all curves, all in one file."""
        panels = self.plan.panels(self.points, "avg_jct_s")
        curves.write_page(Path(path), self.plan.axis(), panels, self.plan.about(self.name))

    def __repr__(self) -> str:
        labels = dict.fromkeys(point.label for point in self.points)
        return f"<Sweep of {', '.join(labels)} over {self.plan.variation.what} at {len(self.plan.steps)} values>"


@dataclass(frozen=True, eq=False)
class Replay:
    """What a service has run, and the same jobs under other policies."""

    #: The first is what really happened.
    labels: list[str]
    histories: list[History] = field(repr=False)
    reports: list[Report] = field(repr=False)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row a run."""
        rows = [
            {"run": label, **_figures(report.as_dict())}
            for label, report in zip(self.labels, self.reports, strict=True)
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def save_html(self, path: str | Path) -> None:
        """Write a page with plots, all in one file."""
        write_page(path, list(zip(self.histories, self.reports, strict=True)), self.labels)


def compare(
    workload: WorkloadLike,
    *,
    policies: Sequence[PolicyLike],
    seeds: Sequence[int] = (0,),
    workers: int = 1,
    measure_from: int = 0,
    measure_to: int | None = None,
    **conditions: Unpack[Conditions],
) -> Comparison:
    """Run several policies on the same jobs, for each of some seeds, and set them side by side.

    A policy is a name, the place of a class, a class, an object, or `(name, settings)`. With more than one worker the
    runs are made in as many processes; classes of a script or a notebook travel with them. A seed gives other jobs
    where they are generated, and other faults. The conditions are those of `horae.scenario`.
    """
    _check_many(policies, seeds)
    base = scenario(workload, policy=policies[0], **conditions)
    chosen = _choices(policies, base, conditions)
    measured = MeasuredJobs(measure_from, measure_to)
    outcomes = comparison.compare(
        base,
        chosen,
        list(seeds),
        measured,
        execute=executor_for(workers),
        keep_histories=True,
        advance=_silently,
    )
    labels = run_labels([same[0].report for same in outcomes])
    warn_of_ignored_speeds([(label, same[0].ignored_speeds) for label, same in zip(labels, outcomes, strict=True)])
    return Comparison(base, labels, list(seeds), outcomes)


def sweep(
    workload: WorkloadLike,
    *,
    vary: str,
    values: Sequence[float],
    policies: Sequence[PolicyLike],
    seeds: Sequence[int] = (0,),
    workers: int = 1,
    measure_from: int = 0,
    measure_to: int | None = None,
    **conditions: Unpack[Conditions],
) -> Sweep:
    """Run policies with many values of one thing: `load`, `rate`, `gpus`, or a setting of the policies.

    `load` and `rate` need generated jobs. With `measure_to` jobs keep coming until the measured ones have ended, a
    steady state; without it all jobs are run to the end. The conditions are those of `horae.scenario`.
    """
    _check_many(policies, seeds)
    base = scenario(workload, policy=policies[0], **conditions)
    chosen = _choices(policies, base, conditions)
    what = vary.replace("_", "-")
    variation = SweepAxis(what, check_values(what, values, ",".join(f"{value:g}" for value in values)))
    if variation.is_setting:
        check_policies(variation, chosen)
    drawn = base.workload.workload if isinstance(base.workload, GeneratedJobs) else None
    if drawn is None and what in (RATE, LOAD):
        raise UserError(f"Only generated jobs can come at another {what}: use horae.generate(...) as the workload.")
    window = (
        choose_window(drawn, drawn.jobs, measure_from, measure_to)
        if drawn
        else SweepWindow(len(base.jobs), measure_from, measure_to)
    )
    steps = tuple(variation.steps(base.cluster, None, None))
    plan = SweepPlan(variation, steps, tuple(chosen), drawn, window, base, tuple(seeds))
    outcomes = executor_for(workers)(Batch(plan.scenarios(), window.measured), _silently)
    points = plan.points(outcomes)
    warn_of_ignored_speeds([(point.label, outcome.ignored_speeds) for point in points for outcome in point.outcomes])
    return Sweep(plan, points, "generated jobs" if drawn else "a trace")


def replay(
    policies: Sequence[PolicyLike],
    *,
    url: str | None = None,
    cluster: str | None = None,
    placement: str | None = None,
    seed: int = 0,
) -> Replay:
    """Run the jobs of a service again, in virtual time, under other policies, and compare with what happened.

    The service is found as the command line finds it, unless `url` names one. `cluster` and `placement` are the
    service's own unless given. The service's nodes join, drain and leave when they did so; another cluster's stay.
    """
    chosen = [choice_of(policy) for policy in policies]
    with service(url) as at:
        past = read_past(at)
    scenarios = [replays.replay_scenario(past, choice, cluster, placement, seed) for choice in chosen]
    again = [replays.replayed(past, scenario)[0] for scenario in scenarios]
    histories = [past.history, *again]
    return Replay(replays.labels_of(past, chosen), histories, [measure(history) for history in histories])


def _choices(policies: Sequence[PolicyLike], base: Scenario, conditions: Conditions) -> list[PolicyChoice]:
    if conditions.get("settings"):
        raise UserError("Settings go with one policy: write (name, settings) in the list of policies.")
    return [with_prices(choice_of(policy), base.cluster) for policy in policies]


def _check_many(policies: Sequence[PolicyLike], seeds: Sequence[int]) -> None:
    if isinstance(policies, str) or not len(policies):
        raise UserError("policies is a list of at least one policy, such as ['fifo', 'las'].")
    if not len(seeds):
        raise UserError("seeds is a list of at least one seed, such as range(10).")


def _silently(done: float, whole: float) -> None:
    """Nobody looks on."""


def _figures(record: Mapping[str, object]) -> dict[str, float | None]:
    """The numbers of a record, and of those in it, by paths such as `rho.max`."""
    return dict(_paths(record))


def _paths(record: Mapping[str, object], above: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}.") if key not in ("settings", "window", "counters") else ()
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{above}{key}", None if value is None else float(value)
