"""The contract of a policy: our own keep it, and every way to break it is noticed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies import POLICIES
from horae.testing import check_policy, random_scenario


class Plain:
    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        return Wishes(now.rows)


@pytest.mark.parametrize("policy", POLICIES)
def test_our_own_policies_keep_it(policy: str) -> None:
    check_policy(policy, seeds=range(3))


def test_a_policy_from_outside_keeps_it() -> None:
    check_policy(Plain, seeds=range(5))
    check_policy(Plain(), seeds=[0])
    check_policy("las", {"quantum": 30}, seeds=[1])


def broken(policy: Any, told: str, **more: Any) -> None:
    with pytest.raises(AssertionError, match=told):
        check_policy(policy, **{"seeds": range(5), **more})


def test_a_policy_that_fails_now_and_then_is_found() -> None:
    class Fails(Plain):
        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            assert len(now) < 4, "too many"
            return super().plan(now, memory)

    broken(Fails, "seed .: Policy 'Fails' failed: AssertionError: too many")


def test_hidden_memory_is_found() -> None:
    class Remembers(Plain):
        def __init__(self) -> None:
            self.count = itertools.count()

        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            return Wishes(now.rows, now.gpus * (-1.0) ** next(self.count))

    broken(Remembers, "two runs of one object differ", seeds=range(20))


def test_chance_without_a_seed_is_found() -> None:
    class Draws(Plain):
        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            return Wishes(now.rows, np.random.default_rng().random(len(now)))

    broken(Draws, "differ|otherwise", seeds=range(20))


def test_a_job_that_never_ends_is_found_unless_that_is_meant() -> None:
    class Lazy(Plain):
        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            return Wishes(now.rows[now.gpus < 2])

    broken(Lazy, "never ends")
    check_policy(Lazy, seeds=range(5), finishes=False)


def test_a_policy_without_rest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Restless(Plain):
        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            return Wishes(now.rows, wake_s=now.now_s + 1e-3)

    monkeypatch.setattr("horae.testing.policy_contract.MOST_DECISIONS", 1000)
    broken(Restless, "1,000 decisions and no end")


def test_starvation_is_found_where_it_matters() -> None:
    broken("smallest-first", "starts only when no small job comes", seeds=(), starvation_free=True)
    check_policy("fifo", seeds=(), starvation_free=True)
    check_policy("smallest-first", {"reserve": 600}, seeds=(), starvation_free=True)


def test_worlds_are_unlike_each_other() -> None:
    worlds = [random_scenario(seed, "fifo", {}) for seed in range(30)]
    assert {len(world.cluster.gpu_types) for world in worlds} == {1, 2, 3}
    assert {bool(world.queues) for world in worlds} == {True, False}
    assert any(world.faults for world in worlds)
    assert any(job.elastic for world in worlds for job in world.jobs)
