"""A comparison: several policies on the same jobs, for one seed or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from horae.experiments.parallel import ALL_JOBS, Advance, Batch, Executor, MeasuredJobs, Outcome
from horae.report.confidence import interval_record, mean_record
from horae.simulator.scenario import PolicyChoice, Scenario


def compare(
    base: Scenario,
    chosen: Sequence[PolicyChoice],
    seeds: Sequence[int],
    measured: MeasuredJobs = ALL_JOBS,
    *,
    execute: Executor,
    keep_histories: bool,
    advance: Advance,
) -> list[list[Outcome]]:
    """Run every policy on every seed, everything else as in the base; gives the outcomes by policy.

    Histories are kept of the first seed, which the page shows.
    """
    scenarios = [
        replace(base, policy=choice.policy, settings=choice.settings, seed=seed) for choice in chosen for seed in seeds
    ]
    histories = frozenset(range(0, len(scenarios), len(seeds))) if keep_histories else frozenset[int]()
    outcomes = execute(Batch(scenarios, measured, histories), advance)
    return [outcomes[first : first + len(seeds)] for first in range(0, len(outcomes), len(seeds))]


def records(by_policy: Sequence[Sequence[Outcome]]) -> list[dict[str, Any]]:
    """One record a policy: its report, or the mean over seeds with half the width of the 95 % intervals."""
    return [_record([outcome.report.as_dict() for outcome in same]) for same in by_policy]


def _record(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(reports) == 1:
        return reports[0]
    return {**mean_record(reports), "ci95": interval_record(reports)}
