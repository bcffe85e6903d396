"""Settings of policies: what is read, and what is refused with which words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from horae.policies import POLICIES, UnknownPolicy, describe, make_policy
from horae.policies.settings import BadSetting

ORDERING = [
    "fifo-backfill",
    "smallest-first",
    "srtf",
    "srsf",
    "las",
    "time-slice",
    "highest-rho",
    "slaq",
    "sjf-aware",
    "tiresias",
    "tiresias-gittins",
]
BY_TIME_LEFT = ["fifo-aware", "sjf-aware", "allox"]
FEEDBACK = ["tiresias", "tiresias-gittins"]
PRICED = ["cost", "cost-deadline"]
ROUNDS = [
    "max-min",
    "water-filling",
    "hierarchical",
    "finish-time",
    "makespan",
    "total-throughput",
    "strategy-proof",
    *PRICED,
]

#: Every setting of every policy, a text for it and the value it must become.
VALUES: list[tuple[str, str, str, Any]] = [
    *((policy, "reserve", "90", 90.0) for policy in ORDERING),
    *((policy, "round", "60", 60.0) for policy in ROUNDS),
    *((policy, "stay", "60", 60.0) for policy in ROUNDS),
    *((policy, "half-life", "60", 60.0) for policy in ROUNDS),
    *((policy, "aware", "false", False) for policy in ROUNDS),
    *((policy, "space-sharing", "true", True) for policy in ROUNDS),
    *((policy, "gain", "90", 90.0) for policy in BY_TIME_LEFT),
    *((policy, "aware", "false", False) for policy in BY_TIME_LEFT),
    *((policy, "prices", "v100:1", "v100:1") for policy in PRICED),
    *((policy, "thresholds", "100,2e3", "100,2e3") for policy in FEEDBACK),
    *((policy, "promote-knob", "2.5", 2.5) for policy in FEEDBACK),
    *((policy, "patience", "90", 90.0) for policy in FEEDBACK),
    *((policy, "normalise", "true", True) for policy in FEEDBACK),
    ("tiresias-gittins", "samples", "history", "history"),
    ("tiresias-gittins", "index", "supremum", "supremum"),
    ("gandiva", "round", "60", 60.0),
    ("gandiva", "stay", "60", 60.0),
    ("gandiva", "seed", "7", 7),
    ("las", "quantum", "12.5", 12.5),
    ("time-slice", "quantum", "1e3", 1000.0),
    ("highest-rho", "lease", "60", 60.0),
    ("slaq", "quantum", "60", 60.0),
    ("slaq", "chance", "90", 90.0),
    ("optimus", "quantum", "60", 60.0),
    ("optimus", "gain", "5", 5.0),
    ("isolated", "round", "60", 60.0),
    ("themis", "f", "0.5", 0.5),
    ("themis", "lease", "60", 60.0),
    ("themis", "denominator", "isolated", "isolated"),
    ("themis", "bid-error", "0.1", 0.1),
    ("themis", "answer", "0.5", 0.5),
    ("themis", "seed", "7", 7),
    ("themis", "by-user", "false", False),
    ("highest-rho", "by-user", "false", False),
]


@pytest.mark.parametrize(("policy", "name", "text", "value"), VALUES)
def test_every_setting_is_read(policy: str, name: str, text: str, value: Any) -> None:
    assert getattr(make_policy(policy, {name: text}), name.replace("-", "_")) == value


def test_no_setting_is_left_untested() -> None:
    known = {(info.name, one.name) for info in map(describe, POLICIES) for one in info.parameters}
    assert {(policy, name) for policy, name, _, _ in VALUES} == known


@pytest.mark.parametrize("policy", ORDERING)
def test_a_reservation_is_off_unless_asked_for_and_can_be_switched_off(policy: str) -> None:
    assert make_policy(policy, {}) == make_policy(policy, {"reserve": "off"})
    assert make_policy(policy, {}).reserve == math.inf  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", FEEDBACK)
def test_promotion_can_be_switched_off_though_it_is_on(policy: str) -> None:
    assert make_policy(policy, {"promote-knob": "off"}).promote_knob == math.inf  # type: ignore[attr-defined]
    assert make_policy(policy, {}).promote_knob == 64  # type: ignore[attr-defined]
    for text in ("0", "-1", "never"):
        with pytest.raises(BadSetting, match="promote-knob"):
            make_policy(policy, {"promote-knob": text})


def test_an_index_that_is_none_is_refused() -> None:
    with pytest.raises(BadSetting, match="choose quantum or supremum"):
        make_policy("tiresias-gittins", {"index": "best"})


def test_defaults_are_shown_as_they_would_be_typed() -> None:
    shown = {(info.name, one.name): one.default for info in map(describe, POLICIES) for one in info.parameters}
    for (policy, name), text in shown.items():
        assert make_policy(policy, {name: text}) == make_policy(policy, {})
    assert shown["las", "quantum"] == "600"


@pytest.mark.parametrize("text", ["-1", "nan", "0"])
@pytest.mark.parametrize(("policy", "name"), [("las", "quantum"), ("time-slice", "quantum"), ("isolated", "round")])
def test_a_quantum_that_is_no_time_is_refused(policy: str, name: str, text: str) -> None:
    with pytest.raises(BadSetting, match=r"use at least 0\.001"):
        make_policy(policy, {name: text})


@pytest.mark.parametrize("policy", [*ROUNDS, "gandiva", "isolated"])
def test_a_round_without_an_end_is_refused(policy: str) -> None:
    with pytest.raises(BadSetting, match="round=inf is not a finite number"):
        make_policy(policy, {"round": "inf"})


@pytest.mark.parametrize("policy", ROUNDS)
def test_who_tells_no_speeds_apart_cannot_share_gpus(policy: str) -> None:
    with pytest.raises(BadSetting, match="leave one of them out"):
        make_policy(policy, {"aware": "false", "space-sharing": "true"})


@pytest.mark.parametrize("text", ["soon", "", "1s", "off"])
def test_a_value_that_is_no_number_is_refused_with_what_the_setting_means(text: str) -> None:
    with pytest.raises(BadSetting, match="seconds between decisions"):
        make_policy("las", {"quantum": text})


def test_an_unknown_setting_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(BadSetting, match="Did you mean 'quantum'") as error:
        make_policy("las", {"quantom": "5"})
    assert "quantum, reserve" in str(error.value)


def test_a_policy_without_settings_says_so() -> None:
    with pytest.raises(BadSetting, match="has no settings"):
        make_policy("fifo", {"reserve": "0"})


def test_an_unknown_policy_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownPolicy, match="Did you mean 'srtf'"):
        make_policy("strf", {})


@pytest.mark.parametrize("info", [describe(name) for name in POLICIES], ids=POLICIES)
def test_every_policy_says_what_it_does_by_what_and_after_whom(info: Any) -> None:
    assert info.summary.endswith((".", ";", "arrival."))
    assert all((info.objective, info.unit, info.paper))
    assert all(one.summary for one in info.parameters)
