"""What the code does now is what it did when the scenarios were recorded, to the last decision."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.conformance.comparison import differences, first_difference
from tests.conformance.recorder import (
    FOLDER,
    POLICIES,
    Run,
    Scenario,
    folded,
    from_checkpoint,
    moments_of,
    recorded,
    replayed,
    whys,
)
from tests.conformance.scenarios import SCENARIOS

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)

#: Scenarios in which an engine is restarted in the middle: each has state that the others lack.
RESTARTED = (
    "fifo-quotas-requests",
    "fifo-backfill-reserve-racks",
    "las-quotas-nodes",
    "tiresias-auto-promote",
    "tiresias-retired",
    "max-min-pairs-faults",
    "max-min-learns",
    "themis-agents",
    "highest-rho-hyperband",
    "srtf-failing-jobs",
    "tiresias-alike",
    "switch-themis-max-min-retired",
)
restarted = pytest.mark.parametrize("name", RESTARTED)


def test_every_policy_has_a_scenario_and_every_scenario_a_recording() -> None:
    used = {scenario.policy for scenario in SCENARIOS.values()}
    assert used == set(POLICIES)
    assert {path.name for path in FOLDER.iterdir()} == {scenario.file.name for scenario in SCENARIOS.values()}


@every_scenario
def test_the_run_is_as_it_was_recorded(scenario: Scenario) -> None:
    lines = recorded(scenario)
    found = first_difference(scenario.name, lines, replayed(scenario, moments_of(lines)))
    assert not found, found


@restarted
def test_an_engine_that_folds_the_recorded_journal_says_what_was_said(name: str) -> None:
    """The journal of the code that recorded it is read, and gives the sentences that this code gave."""
    scenario, lines = SCENARIOS[name], recorded(SCENARIOS[name])
    at = _middle(lines)
    told = whys(folded(scenario, lines[:at]), list(lines[at]["why"]))
    _assert_same(name, lines[at]["why"], told)


@restarted
def test_an_engine_that_was_restarted_says_what_the_living_one_says(name: str) -> None:
    """By the journal of the present code, and by its checkpoint."""
    scenario, lines = SCENARIOS[name], recorded(SCENARIOS[name])
    middle, seen = lines[_middle(lines)], {}

    def look(run: Run) -> None:
        jobs = list(middle["why"])
        seen["living"] = whys(run.engine, jobs)
        seen["from its checkpoint"] = whys(from_checkpoint(scenario, run.engine), jobs)
        seen["from its journal"] = whys(folded(scenario, run.lines), jobs)

    Run(scenario, {middle["moment"]: None}, look)
    _assert_same(name, seen["living"], seen["from its checkpoint"])
    _assert_same(name, seen["living"], seen["from its journal"])


def _middle(lines: list[dict[str, Any]]) -> int:
    """Where the line of the middle moment is."""
    moments = [position for position, line in enumerate(lines) if "moment" in line]
    return moments[len(moments) // 2]


def _assert_same(name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert old, f"{name}: no job was asked"
    found = list(differences({"why": old}, {"why": new}))
    assert not found, f"{name}: {found[:3]}"


# ------------------------------------------------------- the comparison itself


def test_a_launch_on_another_gpu_is_found_and_named() -> None:
    lines = recorded(SCENARIOS["srtf"])
    number = next(k for k, line in enumerate(lines, 1) if line.get("decided", {}).get("launches"))
    other = deepcopy(lines)
    launch = other[number - 1]["decided"]["launches"][0]
    launch["gpu_ids"][0] += 100
    found = first_difference("srtf", lines, other)
    assert found.startswith(f"srtf, line {number} (Decided at ")
    assert f".decided.launches[0].gpu_ids[0]: recorded {launch['gpu_ids'][0] - 100}, now" in found


def test_numbers_behind_a_sentence_may_differ_by_rounding_and_nothing_else_may() -> None:
    old: dict[str, Any] = {
        "why": {"a": {"sentence": "It waits 5 s.", "numbers": {"theirs": 3.0, "head": "b"}}},
        "at_s": 3.0,
    }
    near, far, said, late = deepcopy(old), deepcopy(old), deepcopy(old), deepcopy(old)
    near["why"]["a"]["numbers"]["theirs"] *= 1 + 1e-12
    far["why"]["a"]["numbers"]["theirs"] *= 1 + 1e-6
    said["why"]["a"]["sentence"] = "It waits 6 s."
    late["at_s"] *= 1 + 1e-12
    assert [bool(first_difference("x", [old], [new])) for new in (near, far, said, late)] == [False, True, True, True]


def test_what_is_free_to_change_is_not_compared_and_a_missing_line_is() -> None:
    lines = recorded(SCENARIOS["srtf"])
    other = [
        {**line, "decided": {**line["decided"], "evidence": None, "reason_rows": []}} if "decided" in line else line
        for line in lines
    ]
    assert first_difference("srtf", lines, other) == ""
    assert "lines are recorded" in first_difference("srtf", lines, other[:-1])
