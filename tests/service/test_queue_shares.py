"""What `horae share` says, against sums done by hand and whatever runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.backends.fake import FakeJob
from horae.core.cluster import Node
from horae.core.queues import Queue
from horae.service.views.queue_shares import QueueShares, divide_by_weight
from tests.service.stepped_service import ADMIN, SteppedService

NODES = (Node("v", "v100", 4), Node("k", "k80", 4))
#: A V100 is four times as fast as a K80, to whoever may choose.
ESTIMATE = {"steps": 10_000, "throughput": {"v100": 4.0, "k80": 1.0}}


def opened(
    folder: Path, policy: str = "fifo-backfill", queues: Sequence[Queue] = (), **settings: str
) -> SteppedService:
    cell = SteppedService(folder, policy, nodes=NODES, queues=queues, **settings)
    cell.world.default = FakeJob()
    return cell


def submit(cell: SteppedService, queue: str, gpus: int | str = 1, **said: Any) -> str:
    return cell.submit(queue=queue, resources={"gpus": gpus}, estimate=ESTIMATE, **said)


def told(cell: SteppedService, *what: str) -> dict[str, tuple[Any, ...]]:
    """Some numbers of each queue."""
    return {one["queue"]: tuple(one[key] for key in what) for one in cell.views().shares()}


@pytest.mark.parametrize("policy", ["fifo-backfill", "themis", "max-min", "tiresias", "hierarchical"])
def test_used_and_entitled_by_hand_whatever_the_policy(policy: str, tmp_path: Path) -> None:
    """Team a has all K80s, b half of the V100s and three times the weight; bob alone could have had either."""
    cell = opened(tmp_path, policy, [Queue("b", weight=3.0)])
    submit(cell, "a", "k80:4")
    submit(cell, "b/ann", "v100:1")
    submit(cell, "b/bob", 1)
    cell.to(2.0)
    assert told(cell, "running", "waiting", "used_gpus", "entitled_gpus") == {
        "(all)": (3, 0, 6, 8),
        "a": (1, 0, 4, 2),
        "b": (2, 0, 2, 6),
        "b/ann": (1, 0, 1, 3),
        "b/bob": (1, 0, 1, 3),
    }
    # A K80 counts for a quarter, and all GPUs for 4 + 4 / 4.
    shares = told(cell, "used_share", "used_share_normalised", "entitled_share")
    assert shares["(all)"] == pytest.approx((6 / 8, 3 / 5, 1.0))
    assert shares["a"] == pytest.approx((4 / 8, 1 / 5, 1 / 4))
    assert shares["b"] == pytest.approx((2 / 8, 2 / 5, 3 / 4))


def test_all_that_is_used_is_all_there_is_though_jobs_accept_some_types_alone(tmp_path: Path) -> None:
    cell = opened(tmp_path)
    submit(cell, "slow", "k80:4")
    submit(cell, "fast", 4)
    cell.to(2.0)
    shares = told(cell, "used_share", "used_share_normalised")
    assert shares["(all)"] == pytest.approx((1.0, 1.0))
    assert (shares["slow"][1], shares["fast"][1]) == pytest.approx((0.2, 0.8))


def test_a_quota_bounds_what_a_queue_is_entitled_to_and_the_others_have_the_rest(tmp_path: Path) -> None:
    cell = opened(tmp_path, queues=[Queue("a/x", gpus_max=1), Queue("b", gpus_min=5), Queue("c", gpus_max=6)])
    for queue in ("a/x", "b", "c"):
        submit(cell, queue)
    # b is guaranteed 5, x may have 1 and so does a: 2 are left for c.
    assert told(cell, "entitled_gpus") == {"(all)": (8,), "a": (1,), "a/x": (1,), "b": (5,), "c": (2,)}
    submit(cell, "a/y")
    assert told(cell, "entitled_gpus") == {
        "(all)": (8,),
        "a": (1.5,),
        "a/x": (0.75,),
        "b": (5,),
        "c": (1.5,),
        "a/y": (0.75,),
    }


def test_who_is_held_wants_nothing_and_a_node_that_is_down_is_nobodys(tmp_path: Path) -> None:
    cell = opened(tmp_path)
    held = submit(cell, "a")
    submit(cell, "b", "v100:4")
    cell.ask(lambda: cell.operations.request(ADMIN, "hold", [held]))
    cell.to(2.0)
    assert told(cell, "waiting", "entitled_gpus") == {"(all)": (0, 8), "a": (0, 0), "b": (0, 8)}
    cell.backend.lose("k")
    cell.to(3.0)
    assert told(cell, "entitled_gpus", "used_share") == {"(all)": (4, 1.0), "a": (0, 0.0), "b": (4, 1.0)}


def test_of_a_gpu_that_two_share_each_has_half(tmp_path: Path) -> None:
    cell = opened(tmp_path)
    submit(cell, "a")
    submit(cell, "b")
    shared = replace(cell.daemon.status, occupied={0: (0,), 1: (0,)})
    used = {one["queue"]: one["used_gpus"] for one in QueueShares(shared).records()}
    assert used == {"(all)": 1.0, "a": 0.5, "b": 0.5}


BOUNDS = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda ends: (min(ends), max(ends)))


@given(st.integers(0, 20), st.lists(st.tuples(st.sampled_from([0.5, 1.0, 3.0]), BOUNDS), min_size=1, max_size=6))
def test_a_division_gives_all_there_is_and_nobody_less_for_their_weight_than_another(
    amount: int, wanted: list[tuple[float, tuple[int, int]]]
) -> None:
    weights, bounds = [weight for weight, _ in wanted], [ends for _, ends in wanted]
    parts = divide_by_weight(amount, weights, bounds)
    assert sum(parts) == pytest.approx(min(amount, sum(top for _, top in bounds)))
    if sum(low for low, _ in bounds) >= amount:
        return
    for part, weight, (low, top) in zip(parts, weights, bounds, strict=True):
        assert low - 1e-9 <= part <= top + 1e-9
        for other, its_weight, (its_low, _) in zip(parts, weights, bounds, strict=True):
            # Whoever has more for its weight is guaranteed it, or this one may not have more.
            assert other / its_weight <= part / weight + 1e-9 or other <= its_low + 1e-9 or part >= top - 1e-9
