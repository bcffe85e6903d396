"""Nobody waits for a policy to be loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from horae.core.cluster import Node
from horae.policies import POLICIES
from horae.service.recovery import InitialSettings
from horae.service.warm_up import warm_up
from horae.solve.auction import winners


def nodes(*types: str) -> tuple[Node, ...]:
    return tuple(Node(name, name, 4) for name in types)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_can_be_rehearsed(policy: str) -> None:
    warm_up(InitialSettings(nodes("v100", "k80"), policy))


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
