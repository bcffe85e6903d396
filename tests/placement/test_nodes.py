"""Gangs that ask for a number of nodes, alike, against brute force over every set of nodes.

Tests core/alike_nodes.py, too.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.alike_nodes import choose_alike, is_alike
from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.events import JobFinished, NodeDraining, NodeJoined
from horae.core.gpu_moves import FREE
from horae.core.invariants import BrokenInvariant, check
from horae.core.job import JobSpec
from horae.core.reasons import Reason
from horae.core.states import PLACED, WAITING
from horae.placement.choose import BEST_EFFORT, CONSOLIDATED, LEAST_FRAGMENTATION, Gang, choose
from horae.placement.kernel_args import (
    BY_CAPACITY,
    CAPACITY,
    CHOSEN_GPUS,
    CHOSEN_POOL,
    POOL_RACK,
    POOL_TYPE,
    Pools,
)
from horae.placement.turns import entry_of_nodes
from tests.builders import Cell, Script, cluster, job, times
from tests.placement.plain import plain
from tests.placement.random_wishes import RandomWalks

Pool = tuple[int, int, int]  # free GPUs, type, rack

pools_of_nodes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=7)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))
RULES = (CONSOLIDATED, BEST_EFFORT, LEAST_FRAGMENTATION)


def chosen(rule: int, nodes: int, each: int, pools: list[Pool], flat: bool = False) -> dict[int, int]:
    """GPUs taken from each pool of type 0; nothing if there is no place."""
    free, types, racks = (np.array(column, np.int64) for column in zip(*pools, strict=True))
    block = np.zeros((15, len(pools)), np.int64)
    block[FREE], block[POOL_TYPE], block[POOL_RACK], block[CAPACITY] = free, types, racks, 5
    block[BY_CAPACITY] = np.arange(len(pools))
    record = Pools(rule, 0.5, flat, int(racks.max()) + 1, False, block)
    taken = plain(choose)(Gang(rule, nodes * each, 0, nodes), block[FREE], record)
    return dict(zip(block[CHOSEN_POOL, :taken].tolist(), block[CHOSEN_GPUS, :taken].tolist(), strict=True))


def possible(nodes: int, each: int, pools: list[Pool]) -> list[tuple[int, ...]]:
    """Every set of nodes on which the gang fits."""
    enough = [p for p, (free, gpu_type, _) in enumerate(pools) if gpu_type == 0 and free >= each]
    return list(combinations(enough, nodes))


def cost(rule: int, each: int, places: tuple[int, ...], pools: list[Pool]) -> tuple[bool, int]:
    """What the rule avoids, the worst first: more than one rack, and GPUs left over on the nodes."""
    spread = len({pools[p][2] for p in places}) > 1 and rule != LEAST_FRAGMENTATION
    return spread, sum(pools[p][0] - each for p in places)


@pytest.mark.parametrize("rule", RULES)
@given(pools=pools_of_nodes, shape=shapes)
@settings(max_examples=400, deadline=None)
def test_the_nodes_are_as_many_as_asked_for_and_the_best_by_the_rule(
    rule: int, pools: list[Pool], shape: tuple[int, int]
) -> None:
    nodes, each = shape
    sets, taken = possible(nodes, each, pools), chosen(rule, nodes, each, pools)
    assert bool(taken) == bool(sets)
    if taken:
        assert list(taken.values()) == [each] * nodes
        assert tuple(sorted(taken)) in sets
        best = min(cost(rule, each, places, pools) for places in sets)
        assert cost(rule, each, tuple(taken), pools) == best


@given(pools=pools_of_nodes, shape=shapes)
@settings(max_examples=300, deadline=None)
def test_gpus_that_come_free_sooner_are_chosen_alike(pools: list[Pool], shape: tuple[int, int]) -> None:
    nodes, each = shape
    there = Cluster(tuple(Node(f"n{k}", "t", 5, f"r{rack}") for k, (_, _, rack) in enumerate(pools)))
    one_type = [(free, 0, rack) for free, _, rack in pools]
    ids = np.array([5 * k + g for k, (free, _, _) in enumerate(pools) for g in range(free)], np.int64)
    found = choose_alike(ids, there.nodes_as_machines, nodes, nodes * each)
    sets = possible(nodes, each, one_type)
    assert bool(found) == bool(sets)
    if found:
        assert is_alike(found, nodes, there.gpu_node)
        assert set(found) <= set(ids.tolist())
        places = tuple(sorted({gpu // 5 for gpu in found}))
        assert cost(BEST_EFFORT, each, places, one_type) == min(cost(BEST_EFFORT, each, p, one_type) for p in sets)


def test_where_only_the_count_matters_no_nodes_can_be_asked_for() -> None:
    assert chosen(CONSOLIDATED, 1, 2, [(4, 0, 0)]) == {0: 2}
    assert chosen(CONSOLIDATED, 1, 2, [(4, 0, 0)], flat=True) == {}
    cell = Cell("2x4", placement="anywhere")
    cell.submit(0, job("a", gpus=2, nodes=1))
    assert (cell.running, cell.reason("a")) == ([], Reason.CLUSTER_TOO_SMALL)


def test_each_shape_has_an_entry_of_its_own() -> None:
    largest, all_nodes, plain_sizes = 4, 6, 9
    entries = plain_sizes + largest * all_nodes
    found = {
        (nodes, each): plain(entry_of_nodes)(nodes * each, nodes, largest, all_nodes, entries)
        for nodes in range(1, all_nodes + 1)
        for each in range(1, largest + 1)
    }
    assert sorted(found.values()) == list(range(plain_sizes, entries))
    for gpus, nodes in ((5, 1), (7, 7), (5, 2), (10, 2)):
        assert plain(entry_of_nodes)(gpus, nodes, largest, all_nodes, entries) == entries


# ----------------------------------------------------------------- in a walk


def nodes_of(cell: Cell, name: str) -> list[str]:
    there = cell.engine.gpus.cluster
    return sorted({there.nodes[there.gpu_node[gpu]].name for gpu in cell.gpus(name)})


def waits_for_nothing(engine: Engine) -> list[str]:
    """Jobs that wait although nodes as they ask for are free, by brute force."""
    free, there, table = engine.gpus.by_node[FREE], engine.gpus.cluster, engine.jobs
    idle = []
    for row in table.active.tolist():
        nodes, spec = int(table.nodes[row]), table.specs[row]
        if nodes and table.state[row] == int(WAITING):
            for gpu_type in range(len(there.gpu_types)):
                enough = (free >= spec.gpus_per_node) & (there.node_type == gpu_type)
                if table.types[row] >> gpu_type & 1 and enough.sum() >= nodes:
                    idle.append(spec.id)
    return idle


clusters = st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.integers(0, 1)), min_size=1, max_size=6).map(
    lambda nodes: Cluster(tuple(Node(f"n{k}", t, g, f"r{r}") for k, (g, t, r) in enumerate(nodes)))
)
wanted = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=12)


def gang(number: int, shape: tuple[int, int], **more: Any) -> JobSpec:
    """A job of `nodes` nodes with `each` GPUs; 0 nodes leave it to the rule."""
    nodes, each = shape
    return job(str(number), gpus=max(nodes, 1) * each, nodes=nodes, **more)


@pytest.mark.parametrize("placement", ["best-effort", "consolidated", "least-fragmentation", "tiresias"])
@given(there=clusters, sizes=wanted, ended=st.lists(st.integers(0, 11), max_size=6))
@settings(max_examples=50, deadline=None)
def test_with_backfill_no_job_waits_for_nodes_that_are_free(
    placement: str, there: Cluster, sizes: list[tuple[int, int]], ended: list[int]
) -> None:
    cell = Cell(there, "fifo-backfill", placement=placement)
    cell.submit(0, *(gang(n, shape, skew=n / 20) for n, shape in enumerate(sizes)))
    assert waits_for_nothing(cell.engine) == []
    for number in dict.fromkeys(ended):
        if str(number) in cell.running:
            cell.at(1, JobFinished(1, str(number), 1))
            assert waits_for_nothing(cell.engine) == []


@given(there=clusters, sizes=wanted)
@settings(max_examples=50, deadline=None)
def test_what_could_never_fit_is_told_so(there: Cluster, sizes: list[tuple[int, int]]) -> None:
    cell = Cell(there, "fifo-backfill")
    jobs = [gang(n, shape) for n, shape in enumerate(sizes)]
    cell.submit(0, *jobs)
    assert {spec.id for spec in jobs if cell.reason(spec.id) is Reason.CLUSTER_TOO_SMALL} == {
        spec.id for spec in jobs if not able(spec, there)
    }


def able(spec: JobSpec, there: Cluster) -> bool:
    """Whether an empty cluster holds a job."""
    pools = [[node for node in there.nodes if node.gpu_type == gpu_type] for gpu_type in there.gpu_types]
    if not spec.nodes:
        return any(sum(node.gpus for node in pool) >= spec.gpus for pool in pools)
    return any(sum(node.gpus >= spec.gpus_per_node for node in pool) >= spec.nodes for pool in pools)


@given(there=clusters, first=wanted, second=wanted)
@settings(max_examples=60, deadline=None)
def test_who_goes_first_gets_its_nodes_from_whoever_has_them(
    there: Cluster, first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    cell, jobs = Cell(there, "srtf"), []
    for now_s, batch in ((0.0, first), (10.0, second)):
        new = [gang(len(jobs) + n, shape, work=10_000.0 - 100 * (len(jobs) + n)) for n, shape in enumerate(batch)]
        jobs += new
        cell.submit(now_s, *new)
        shortest = next((spec.id for spec in reversed(jobs) if able(spec, there)), None)
        assert shortest is None or shortest in cell.running
        assert not {spec.id for spec in jobs if not able(spec, there)} & set(cell.running)


class WalksWithNodes(RandomWalks):
    """The same, with jobs of which half ask for nodes; wishes leave their GPU counts alone, and pair none."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.style["sized"] = self.style["paired"] = False

    def _job(self) -> JobSpec:
        spec = super()._job()
        shape = int(self.rng.integers(1, 4)), int(self.rng.integers(1, 3))
        if spec.elastic or self.rule.flat or self.rng.random() < 0.5:
            return spec
        fields = {name: getattr(spec, name) for name in ("id", "submit_s", "work", "gpu_types", "skew", "queue")}
        return JobSpec(**fields, gpus=shape[0] * shape[1], nodes=shape[0], min_runtime_s=spec.min_runtime_s)


def test_whatever_a_policy_wishes_the_nodes_are_those_asked_for() -> None:
    placed = 0
    for seed in range(40):
        walks = WalksWithNodes(seed)
        for step in range(60):
            now_s = 10.0 * (step + 1)
            walks._happen(now_s)
            while walks.engine.due(now_s):
                walks.engine.decide(now_s)
                check(walks.engine, quotas_fixed=False)
        placed += sum(int(walks.engine.jobs.nodes[new.row] > 0) for plan in walks.plans for new in plan.placed)
    assert placed > 100


def test_a_gang_takes_the_nodes_that_it_fills_best_in_one_rack() -> None:
    cell = Cell(cluster("4x4", nodes_per_rack=2))
    cell.submit(0, job("corner", gpus=2, nodes=1), job("gang", gpus=4, nodes=2))
    assert nodes_of(cell, "corner") == ["gpu-0"]
    assert nodes_of(cell, "gang") == ["gpu-0", "gpu-1"], "two GPUs are left over there, and four in the other rack"


def test_a_large_gang_is_not_put_on_fewer_nodes_than_it_asks_for() -> None:
    cell = Cell("4x4", placement="consolidated")
    cell.submit(0, job("gang", gpus=4, nodes=4))
    assert len(nodes_of(cell, "gang")) == 4


def test_a_gang_preempts_no_more_than_its_nodes_need() -> None:
    cell = Cell("3x2", "srtf")
    cell.submit(0, *(job(str(n), gpus=2, work=1000 + n) for n in range(3)))
    done = cell.submit(5, job("gang", gpus=2, nodes=2, work=10))
    assert sorted(stop.job for stop in done.stops) == ["1", "2"], "the longest two, and one GPU of each would do"
    assert len(nodes_of(cell, "gang")) == 2


def test_a_gang_preempts_for_its_nodes_though_as_many_gpus_are_free_elsewhere() -> None:
    cell = Cell("2x2", "srtf")
    cell.submit(0, job("long", gpus=2, nodes=2, work=1000))
    done = cell.submit(5, job("short", gpus=2, nodes=1, work=10))
    assert [stop.job for stop in done.stops] == ["long"]
    assert (cell.running, cell.reason("long")) == (["short"], Reason.FRAGMENTED)


def test_a_gang_with_a_reservation_starts_when_its_nodes_come_free() -> None:
    short = [job(f"s{n}", gpus=1, work=50, submit_s=20.0 * n) for n in range(1, 30)]
    jobs = [job("a", gpus=2, work=100), job("b", gpus=2, work=300), job("gang", gpus=4, nodes=2, submit_s=1), *short]
    patient = Script(jobs, "2x3", settings={"reserve": "0"})
    assert times(patient.history)["gang"][0] == 300
    assert times(Script(jobs, "2x3").history)["gang"][0] > 300, "without a reservation others pass it"


def test_a_job_that_ends_before_the_nodes_come_free_may_pass() -> None:
    jobs = [job("a", gpus=2, work=100), job("b", gpus=2, work=300), job("gang", gpus=4, nodes=2, submit_s=1)]
    script = Script([*jobs, job("passes", work=150, submit_s=2)], "2x3", settings={"reserve": "0"})
    assert times(script.history)["passes"][0] == 2, "four GPUs are free from 100 s on, but not two on each node"
    assert times(script.history)["gang"][0] == 300


@pytest.mark.parametrize(("free", "where"), [("01", ["gpu-2", "gpu-3"]), ("02", ["gpu-0", "gpu-1"])])
def test_gpus_that_come_free_sooner_are_taken_only_on_nodes_alike(free: str, where: list[str]) -> None:
    cell = Cell("4x2", "srtf", slow_stops=True)
    cell.submit(0, *(job(str(n), gpus=1, work=1000 + n) for n in range(8)))
    cell.submit(5, job("gang", gpus=2, nodes=2, work=10))
    assert (nodes_of(cell, "gang"), cell.state("gang")) == (["gpu-2", "gpu-3"], PLACED)
    cell.at(6, *(JobFinished(6, name, 1) for name in free))
    assert nodes_of(cell, "gang") == where
    assert (cell.state("gang") is PLACED) == (free == "01"), "both came free on one node"


def test_a_job_of_another_shape_is_not_given_the_place_of_one_that_loads_late() -> None:
    jobs = [gang(n, (n % 3, 1 + n % 2), work=100 + 37 * n, submit_s=7.0 * n) for n in range(40)]
    script = Script(jobs, "6x2", "las", restart_cost_s=20.0)
    assert any(record.stops for record in script.records)
    assert (script.history.end_s < np.inf).all()


def test_nodes_that_leave_and_return_keep_the_wish() -> None:
    cell = Cell("3x2")
    cell.submit(0, job("gang", gpus=4, nodes=2), job("other", gpus=4, nodes=2))
    assert (cell.running, cell.reason("other")) == (["gang"], Reason.NO_FREE_GPUS)
    cell.at(1, NodeDraining(1, "gpu-2", evict=False))
    cell.at(2, JobFinished(2, "gang", 1))
    assert nodes_of(cell, "other") == ["gpu-0", "gpu-1"]
    cell.submit(3, job("more", gpus=6, nodes=3))
    assert cell.reason("more") is Reason.CLUSTER_TOO_SMALL
    cell.at(4, NodeJoined(4, Node("gpu-2", "gpu", 2)))
    assert cell.reason("more") is Reason.NO_FREE_GPUS


def test_a_gang_on_other_nodes_breaks_an_invariant() -> None:
    cell = Cell("2x2")
    cell.submit(0, job("gang", gpus=2))
    cell.engine.jobs.nodes[0] = 2
    with pytest.raises(BrokenInvariant, match="asks for 2 nodes, alike, and is on"):
        check(cell.engine)


POLICIES = "fifo-backfill fifo las srtf tiresias time-slice max-min finish-time gandiva allox optimus isolated".split()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_that_leaves_the_nodes_to_placement_ends_all_jobs(policy: str) -> None:
    jobs = [gang(n, (n % 4, 1 + n % 2), work=50 + 13 * (n % 7), submit_s=11.0 * n) for n in range(24)]
    script = Script(jobs, cluster("a:3x2,b:4x2", nodes_per_rack=2), policy, restart_cost_s=5.0)
    assert (script.history.end_s < np.inf).all()
