"""Nobody waits for a policy to be loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from horae.core.cluster import Node
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.policies import POLICIES
from horae.service.initial_settings import InitialSettings
from horae.service.warm_up import warm_up
from horae.solve.auction import winners


def nodes(*types: str) -> tuple[Node, ...]:
    return tuple(Node(name, name, 4) for name in types)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_warm_up_plans_places_and_starts_jobs_under_every_policy(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not called here is compiled or imported while the first user waits."""
    decisions: list[Decided] = []
    decide = Engine.decide

    def noted(engine: Engine, now_s: float) -> Decided:
        decisions.append(decide(engine, now_s))
        return decisions[-1]

    monkeypatch.setattr(Engine, "decide", noted)
    warm_up(InitialSettings(nodes("v100", "k80"), policy))
    assert sum(decision.planned for decision in decisions) >= 3
    assert len({launch.job for decision in decisions for launch in decision.launches}) > 1
    assert {len(launch.gpu_ids) for decision in decisions for launch in decision.launches} > {1}


@pytest.mark.parametrize("types", [("v100",), ("v100", "k80"), ("a", "b", "c")])
def test_a_rehearsal_of_themis_goes_through_all_that_an_auction_may_need(
    types: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = ("kick", "refill", "polish", "improve", "lower_bound", "list_options", "branch_and_bound")
    used: set[str] = set()

    def noted(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *said: used.add(name) or do(*said)

    for name in needed:
        monkeypatch.setattr(winners, name, noted(name, getattr(winners, name)))
    warm_up(InitialSettings(nodes(*types), "themis"))
    assert used == set(needed)
