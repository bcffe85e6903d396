"""Which nodes a gang gets, against brute force over every set of nodes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.reasons import Reason
from horae.placement.choose import BEST_EFFORT, CONSOLIDATED, LEAST_FRAGMENTATION, Gang, choose
from horae.placement.kernel_args import (
    BY_CAPACITY,
    CAPACITY,
    CHOSEN_GPUS,
    CHOSEN_POOL,
    FREE,
    POOL_RACK,
    POOL_TYPE,
    Pools,
)
from horae.placement.rules import UnknownPlacement, make_placement
from tests.builders import Cell, cluster, job
from tests.placement.plain import plain

Pool = tuple[int, int, int, int]  # capacity, free, type, rack

pools_of_nodes = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(0, 1), st.integers(0, 2)).map(
        lambda pool: (pool[0], min(pool[1], pool[0]), pool[2], pool[3])
    ),
    min_size=1,
    max_size=6,
)
gangs = st.integers(1, 12)


def chosen(rule: int, gpus: int, gpu_type: int, pools: list[Pool]) -> dict[int, int]:
    """GPUs taken from each pool; nothing if the rule finds no place."""
    capacity, free, types, racks = (np.array(column, np.int64) for column in zip(*pools, strict=True))
    block = np.zeros((15, len(pools)), np.int64)
    block[FREE], block[POOL_TYPE], block[POOL_RACK], block[CAPACITY] = free, types, racks, capacity
    block[BY_CAPACITY] = np.argsort(-capacity, kind="stable")
    record = Pools(rule, 0.5, False, int(racks.max()) + 1, False, block)
    taken, choice = plain(choose)(Gang(rule, gpus, gpu_type, 0), block[FREE], record), block
    assert len(set(choice[CHOSEN_POOL, :taken].tolist())) == taken, "a pool is named twice"
    return dict(zip(choice[CHOSEN_POOL, :taken].tolist(), choice[CHOSEN_GPUS, :taken].tolist(), strict=True))


def sets_of(k: int, gpu_type: int, pools: list[Pool]) -> list[tuple[int, ...]]:
    return list(combinations([p for p, pool in enumerate(pools) if pool[2] == gpu_type], k))


def room(nodes: tuple[int, ...], pools: list[Pool], column: int) -> int:
    return sum(pools[node][column] for node in nodes)


def fewest(gpus: int, gpu_type: int, pools: list[Pool], column: int) -> int:
    """The smallest number of nodes whose capacity (0) or free GPUs (1) hold the gang; 0 if none do."""
    for k in range(1, len(pools) + 1):
        if any(room(nodes, pools, column) >= gpus for nodes in sets_of(k, gpu_type, pools)):
            return k
    return 0


def racks_of(nodes: tuple[int, ...] | dict[int, int], pools: list[Pool]) -> set[int]:
    return {pools[node][3] for node in nodes}


def assert_whole(taken: dict[int, int], gpus: int, pools: list[Pool]) -> None:
    assert sum(taken.values()) == gpus
    assert all(0 < take <= pools[node][1] and pools[node][2] == 0 for node, take in taken.items())


@given(pools=pools_of_nodes, gpus=gangs)
@settings(max_examples=400, deadline=None)
def test_consolidated_takes_exactly_the_fewest_nodes_that_could_ever_hold_the_gang_or_waits(
    pools: list[Pool], gpus: int
) -> None:
    k = fewest(gpus, 0, pools, column=0)
    possible = [nodes for nodes in sets_of(k, 0, pools) if room(nodes, pools, 1) >= gpus] if k else []
    taken = chosen(CONSOLIDATED, gpus, 0, pools)
    assert bool(taken) == bool(possible)
    if taken:
        assert_whole(taken, gpus, pools)
        assert len(taken) == k


@given(pools=pools_of_nodes, gpus=gangs)
@settings(max_examples=400, deadline=None)
def test_consolidated_stays_in_one_rack_if_that_is_possible(pools: list[Pool], gpus: int) -> None:
    k = fewest(gpus, 0, pools, column=0)
    possible = [nodes for nodes in sets_of(k, 0, pools) if room(nodes, pools, 1) >= gpus] if k else []
    if any(len(racks_of(nodes, pools)) == 1 for nodes in possible):
        assert len(racks_of(chosen(CONSOLIDATED, gpus, 0, pools), pools)) == 1


@given(pools=pools_of_nodes, gpus=gangs)
@settings(max_examples=400, deadline=None)
def test_best_effort_places_whenever_the_count_suffices_and_as_consolidated_as_that_rule_would(
    pools: list[Pool], gpus: int
) -> None:
    taken = chosen(BEST_EFFORT, gpus, 0, pools)
    assert bool(taken) == (sum(pool[1] for pool in pools if pool[2] == 0) >= gpus)
    if taken:
        assert_whole(taken, gpus, pools)
    together = chosen(CONSOLIDATED, gpus, 0, pools)
    assert not together or taken == together


def test_best_effort_spreads_over_the_rack_that_the_gang_fills_best() -> None:
    pools = [(4, 2, 0, rack) for rack in (0, 0, 0, 1, 1, 2)]
    assert chosen(BEST_EFFORT, 4, 0, pools) == {3: 2, 4: 2}


@given(pools=pools_of_nodes, gpus=gangs)
@settings(max_examples=400, deadline=None)
def test_best_effort_spreads_over_one_rack_before_many_and_over_the_fewest_nodes_there(
    pools: list[Pool], gpus: int
) -> None:
    taken = chosen(BEST_EFFORT, gpus, 0, pools)
    if not taken or chosen(CONSOLIDATED, gpus, 0, pools):
        return
    in_one_rack = {
        rack: fewest(gpus, 0, [(c, f if r == rack else 0, t, r) for c, f, t, r in pools], column=1) for rack in range(3)
    }
    if any(in_one_rack.values()):
        (rack,) = racks_of(taken, pools)
        assert len(taken) == in_one_rack[rack]
    else:
        assert len(taken) == fewest(gpus, 0, pools, column=1)


@given(pools=pools_of_nodes, gpus=gangs)
@settings(max_examples=400, deadline=None)
def test_least_fragmentation_empties_the_nodes_with_the_fewest_free_gpus_first(pools: list[Pool], gpus: int) -> None:
    taken = chosen(LEAST_FRAGMENTATION, gpus, 0, pools)
    assert bool(taken) == (sum(pool[1] for pool in pools if pool[2] == 0) >= gpus)
    if not taken:
        return
    assert_whole(taken, gpus, pools)
    left_over = [node for node, take in taken.items() if take < pools[node][1]]
    assert len(left_over) <= 1, "only the last node taken from may keep free GPUs"
    untouched = [pool[1] for p, pool in enumerate(pools) if p not in taken and pool[2] == 0 and pool[1] > 0]
    assert min(untouched, default=99) >= max(pools[node][1] for node in taken)


def test_the_last_node_of_a_gang_is_the_one_it_fills_best() -> None:
    pools = [(4, 4, 0, 0), (4, 2, 0, 0), (4, 1, 0, 0), (4, 4, 0, 0)]
    assert chosen(CONSOLIDATED, 1, 0, pools) == {2: 1}
    assert chosen(CONSOLIDATED, 6, 0, pools) == {0: 4, 1: 2}


def test_a_gang_never_mixes_gpu_types() -> None:
    cell = Cell("v100:1x2,k80:1x2", placement="anywhere")
    cell.submit(0, job("a", gpus=3))
    assert (cell.running, cell.reason("a")) == ([], Reason.CLUSTER_TOO_SMALL)


@pytest.mark.parametrize(
    ("placement", "nodes"), [("anywhere", 3), ("best-effort", 3), ("least-fragmentation", 3), ("consolidated", 0)]
)
def test_rules_differ_when_only_scraps_are_free(placement: str, nodes: int) -> None:
    cell = Cell(cluster("3x4"), "fifo-backfill", placement="consolidated")
    cell.submit(0, *(job(f"big{n}", gpus=3) for n in range(3)))
    cell.engine._placement = make_placement(placement)
    cell.submit(1, job("a", gpus=3))
    assert len({gpu // 4 for gpu in cell.gpus("a")}) == nodes


@pytest.mark.parametrize("placement", ["anywhere", "best-effort", "least-fragmentation", "consolidated"])
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_no_gpu_is_given_twice_and_every_gang_is_whole(placement: str, sizes: list[int]) -> None:
    cell = Cell(cluster("a:2x3,b:2x2", nodes_per_rack=2), "fifo-backfill", placement=placement)
    cell.submit(0, *(job(str(n), gpus=gpus) for n, gpus in enumerate(sizes)))
    given_out = [gpu for name in cell.running for gpu in cell.gpus(name)]
    assert len(given_out) == len(set(given_out))
    assert all(len(cell.gpus(name)) == sizes[int(name)] for name in cell.running)
    assert all(len({gpu < 6 for gpu in cell.gpus(name)}) == 1 for name in cell.running), "one GPU type each"


def test_an_unknown_rule_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownPlacement, match="Did you mean 'consolidated'"):
        make_placement("consolidatd")


# ---------------------------------------------------------------- tiresias


def skewed(name: str, skew: float | None, gpus: int = 2, **more: Any) -> JobSpec:
    return job(name, gpus=gpus, skew=skew, work=1000, **more)


def test_only_models_that_suffer_wait_for_the_fewest_nodes() -> None:
    cell = Cell("2x2", "fifo-backfill", placement="tiresias")
    cell.submit(0, job("a"), job("b", submit_s=0), skewed("vgg", 0.74), skewed("resnet", 0.09))
    # Single jobs fill one node; the skewed gang takes the other, and nothing is left.
    assert cell.running == ["a", "b", "vgg"]
    cell = Cell("2x3", "fifo-backfill", placement="tiresias")
    cell.submit(0, skewed("a", 0.9), skewed("b", 0.9), skewed("vgg", 0.74), skewed("resnet", 0.09))
    assert cell.running == ["a", "b", "resnet"], "one GPU is left on each node: who does not suffer takes both"
    assert cell.reason("vgg") is Reason.NO_FREE_GPUS


def test_a_job_whose_skew_nobody_knows_is_not_made_to_wait() -> None:
    cell = Cell("2x3", "fifo-backfill", placement="tiresias")
    cell.submit(0, skewed("a", 0.9), skewed("b", 0.9), skewed("who knows", None))
    assert cell.running == ["a", "b", "who knows"]


def test_the_limit_can_be_set() -> None:
    cell = Cell("2x3", "fifo-backfill", placement="tiresias:0.8")
    cell.submit(0, skewed("a", 0.9), skewed("b", 0.9), skewed("vgg", 0.74))
    assert cell.running == ["a", "b", "vgg"]
    for wrong in ("tiresias:2", "tiresias:much", "anywhere:0.3"):
        with pytest.raises(UserError):
            make_placement(wrong)
