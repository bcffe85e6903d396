"""CPUs and memory in placement, against a reference that counts them by hand and tries every way to spread a gang.

Tests placement/room_checks.py, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.events import JobFinished, JobStopped, NodeJoined
from horae.core.invariants import _check_jobs, _check_room, check
from horae.core.job import JobSpec
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.states import State
from horae.policies import POLICIES
from tests.builders import Cell, Script, job, times
from tests.placement.random_wishes import RandomWalks

#: Two nodes of 4 GPUs, with 8 CPUs and 400 MiB each: a GPU's share is 2 CPUs and 100 MiB.
TWO = Cluster(tuple(Node(f"n{k}", "gpu", 4, cpus=8, memory_mb=400) for k in range(2)))
ONE = Cluster(TWO.nodes[:1])


# ------------------------------------------------------------------ the reference


def need(spec: JobSpec, node: Node) -> tuple[int, int]:
    """CPUs and memory that a job takes with one GPU of a node."""
    cpus = spec.cpus_per_gpu or node.cpus // node.gpus
    return cpus, spec.memory_mb_per_gpu or node.memory_mb // node.gpus


def most_gpus(spec: JobSpec, node: Node, beside: list[tuple[JobSpec, int]]) -> int:
    """GPUs of a node that a job could have beside jobs with so many GPUs there: tried one by one."""
    most = node.gpus - sum(gpus for _, gpus in beside)
    for what, total in enumerate((node.cpus, node.memory_mb)):
        used = sum(gpus * need(other, node)[what] for other, gpus in beside)
        while total and most > 0 and used + most * need(spec, node)[what] > total:
            most -= 1
    return max(most, 0)


def spreads(spec: JobSpec, cluster: Cluster, limits: list[int]) -> Iterator[tuple[int, ...]]:
    """Every way to take a job's GPUs from nodes of one type."""
    for counts in product(*(range(limit + 1) for limit in limits)):
        types = {node.gpu_type for node, count in zip(cluster.nodes, counts, strict=True) if count}
        if sum(counts) == spec.gpus_min and len(types) == 1:
            used = [count for count in counts if count]
            if not spec.nodes or (len(used) == spec.nodes and len(set(used)) == 1):
                yield counts


def fewest(ways: Iterator[tuple[int, ...]]) -> int:
    """The fewest nodes of any of these ways; 0 if there is none."""
    return min((sum(count > 0 for count in counts) for counts in ways), default=0)


def limits_now(engine: Engine, spec: JobSpec) -> list[int]:
    """GPUs of each node that a job could have now, from who has which GPUs."""
    cluster, beside = engine.gpus.cluster, [[] for _ in engine.gpus.cluster.nodes]
    for row, gpu_ids in engine.gpus.held.items():
        for node, gpus in cluster.gpus_by_node(gpu_ids).items():
            beside[node].append((engine.jobs.specs[row], len(gpus)))
    return [most_gpus(spec, node, beside[k]) for k, node in enumerate(cluster.nodes)]


def could_start(engine: Engine, spec: JobSpec, placement: str) -> bool:
    """Whether a job could have GPUs now, by a rule."""
    cluster = engine.gpus.cluster
    now = fewest(spreads(spec, cluster, limits_now(engine, spec)))
    if placement != "consolidated" or spec.nodes:
        return now > 0
    by_type = [
        fewest(spreads(spec, cluster, [most_gpus(spec, n, []) * (n.gpu_type == t) for n in cluster.nodes]))
        for t in cluster.gpu_types
    ]
    limits = list(zip(limits_now(engine, spec), cluster.nodes, strict=True))
    free = [fewest(spreads(spec, cluster, [k * (n.gpu_type == t) for k, n in limits])) for t in cluster.gpu_types]
    return any(found and found == least for found, least in zip(free, by_type, strict=True))


def random_cluster(rng: np.random.Generator, types: int = 2) -> Cluster:
    return Cluster(
        tuple(
            Node(
                f"n{k}",
                f"t{rng.integers(types)}",
                gpus := int(rng.integers(1, 5)),
                f"r{k % 2}",
                cpus=int(rng.choice([0, 2 * gpus, 3 * gpus + 1])),
                memory_mb=int(rng.choice([0, 8 * gpus, 8 * gpus + 5])),
            )
            for k in range(int(rng.integers(2, 4)))
        )
    )


def random_job(rng: np.random.Generator, name: str, **more: float) -> JobSpec:
    gpus = int(rng.choice([1, 1, 2, 3, 4]))
    return job(
        name,
        gpus,
        work=float(rng.integers(20, 200)),
        nodes=int(rng.choice([0, 0, 0, 2 if gpus % 2 == 0 else 1])),
        cpus_per_gpu=int(rng.choice([0, 0, 1, 2, 4])),
        memory_mb_per_gpu=int(rng.choice([0, 0, 5, 16])),
        **more,
    )


@pytest.mark.parametrize("placement", ["best-effort", "consolidated", "least-fragmentation", "anywhere"])
def test_a_job_starts_if_and_only_if_there_is_any_way_to_place_it(placement: str) -> None:
    refused = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        cell = Cell(random_cluster(rng), "fifo-backfill", placement=placement)
        for number in range(14):
            if cell.running and rng.random() < 0.4:
                name = str(rng.choice(cell.running))
                cell.at(10.0 * number, JobFinished(10.0 * number, name, cell.attempt(name)))
            spec = replace(random_job(rng, f"j{number}"), **({"nodes": 0} if placement == "anywhere" else {}))
            # Jobs that wait come first: what they leave is what this one may have.
            waiting = [other for other in cell.engine.jobs.specs if cell.state(other.id) is State.WAITING]
            assert not any(could_start(cell.engine, other, placement) for other in waiting), (seed, number)
            expected = could_start(cell.engine, spec, placement)
            cell.submit(10.0 * number + 1, spec)
            assert (cell.state(spec.id) is State.RUNNING) == expected, (
                seed,
                number,
                spec,
                limits_now(cell.engine, spec),
            )
            refused += not expected and sum(cell.engine.gpus.by_node[0]) >= spec.gpus
    assert refused > 5, "CPUs or memory must have been lacking now and then"


def test_what_preemption_could_free_is_used_and_nobody_is_stopped_for_nothing() -> None:
    """A job that goes first waits only if it could not run even alone; each stop serves a job."""
    stops = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        cell = Cell(random_cluster(rng, types=1), "srtf")
        nodes = cell.engine.gpus.cluster.nodes
        for number in range(10):
            # Far shorter than all before it.
            spec = replace(random_job(rng, f"j{number}"), work=1e6 / 3.0**number, nodes=0)
            made = cell.submit(float(number + 1), spec)
            alone = any(spreads(spec, cell.engine.gpus.cluster, [most_gpus(spec, node, []) for node in nodes]))
            assert (cell.state(spec.id) is State.RUNNING) == alone, (seed, number)
            assert all(stop.by for stop in made.stops), (seed, number, made.stops)
            assert alone or not made.stops, (seed, number)
            stops += len(made.stops)
    assert stops > 50


# --------------------------------------------------------------------- properties


class RandomRoom(RandomWalks):
    """Random wishes on nodes that count CPUs and memory, of jobs that ask for more or less than their share."""

    def _cluster(self) -> Cluster:
        rng = self.rng
        return Cluster(
            tuple(
                replace(
                    node,
                    cpus=int(rng.integers(0, 4)) * node.gpus + int(rng.integers(0, 3)),
                    memory_mb=int(rng.choice([0, 8 * node.gpus, 8 * node.gpus + 5])),
                )
                for node in super()._cluster().nodes
            )
        )

    def _job(self) -> JobSpec:
        cpus, memory = (int(self.rng.choice(some)) for some in ([0, 0, 1, 2, 3, 5], [0, 0, 0, 4, 12]))
        return replace(super()._job(), cpus_per_gpu=cpus, memory_mb_per_gpu=memory)


def room_is_kept(seeds: range) -> None:
    lacking = 0
    for seed in seeds:
        walks = RandomRoom(seed)
        for step in range(50):
            now_s = 10.0 * (step + 1)
            walks._happen(now_s)
            while walks.engine.due(now_s):
                walks.engine.decide(now_s)
                _check_room(walks.engine)
                _check_jobs(walks.engine)
            lacking += int((walks.engine.jobs.reason == int(Reason.LACKS_CPUS_OR_MEMORY)).sum())
    assert lacking


def test_no_node_gives_more_than_it_has_whatever_is_wished() -> None:
    """Pairs, moves, elastic jobs, quotas, leases, reservations, nodes that go and come back."""
    room_is_kept(range(25))


@pytest.mark.long
def test_no_node_gives_more_than_it_has_in_many_walks() -> None:
    room_is_kept(range(25, 1500))


#: Policies that a plain trace can be run under without further settings.
RUNNABLE = sorted(POLICIES)


@pytest.mark.parametrize("policy", RUNNABLE)
def test_every_policy_comes_to_an_end_and_leaves_nothing_idle_that_fits(policy: str) -> None:
    rng = np.random.default_rng(5)
    jobs = [replace(random_job(rng, f"j{n}", submit_s=float(5 * n)), nodes=0) for n in range(25)]
    nodes = (
        Node("n0", "gpu", 4, cpus=9, memory_mb=33),
        Node("n1", "gpu", 4, cpus=12, memory_mb=70),
        Node("n2", "gpu", 2, cpus=4, memory_mb=32),
    )
    jobs = [replace(spec, memory_mb_per_gpu=min(spec.memory_mb_per_gpu, 8), job_class="a") for spec in jobs]
    script = Script(jobs, Cluster(nodes), policy, restart_cost_s=1.0)
    assert all(np.isfinite(end) for _, end in times(script.history).values())


# ------------------------------------------------------------------------ by hand


def test_jobs_that_ask_for_nothing_take_their_share_and_leave_the_rest() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("share"), job("greedy", 1, cpus_per_gpu=6), job("none-left"))
    assert cell.running == ["share", "greedy"]
    assert cell.reason("none-left") is Reason.LACKS_CPUS_OR_MEMORY
    cell.at(1, JobFinished(1, "share", 1))
    assert cell.running == ["greedy", "none-left"], "the share that came free is used at once"


def test_memory_runs_out_like_cpus() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("greedy", 1, memory_mb_per_gpu=301), job("b"), job("small", 1, memory_mb_per_gpu=99))
    assert (cell.running, cell.reason("b")) == (["greedy", "small"], Reason.LACKS_CPUS_OR_MEMORY)


def test_a_node_that_counts_neither_gives_any_amount() -> None:
    cell = Cell(Cluster((Node("n0", "gpu", 2),)))
    cell.submit(0, job("a", cpus_per_gpu=1000), job("b", memory_mb_per_gpu=10**6))
    assert cell.running == ["a", "b"]


def test_a_gang_is_consolidated_on_the_fewest_nodes_that_have_cpus_for_it() -> None:
    cell = Cell(TWO, placement="consolidated")
    cell.submit(0, job("wide", 4, cpus_per_gpu=4))
    assert sorted(cell.engine.gpus.cluster.gpus_by_node(cell.gpus("wide"))) == [0, 1]


def test_alike_nodes_need_the_cpus_on_each() -> None:
    cell = Cell(TWO)
    cell.submit(0, job("small", 1, cpus_per_gpu=5), job("alike", 4, nodes=2, cpus_per_gpu=2))
    assert (cell.running, cell.reason("alike")) == (["small"], Reason.LACKS_CPUS_OR_MEMORY)
    cell.at(1, JobFinished(1, "small", 1))
    assert cell.running == ["alike"]


def test_a_job_is_preempted_for_its_cpus_only_if_the_taker_is_placed_and_is_told_who_took_them() -> None:
    cell = Cell(ONE, "srtf")
    cell.submit(0, job("long", 1, work=1000, cpus_per_gpu=7))
    made = cell.submit(700, job("short", 1, work=10, cpus_per_gpu=4))
    assert [(stop.job, stop.by) for stop in made.stops] == [("long", "short")]
    assert (cell.running, cell.gpus("short")) == (["short"], (1,)), "it needs the CPUs alone, not the GPU"


def test_a_job_does_not_start_before_the_cpus_of_the_one_that_leaves_are_unused() -> None:
    cell = Cell(ONE, "srtf", slow_stops=True)
    cell.submit(0, job("long", 1, work=1000, cpus_per_gpu=7))
    cell.submit(700, job("short", 2, work=10, cpus_per_gpu=4))
    assert (cell.state("short"), cell.reason("short")) == (State.PLACED, Reason.VACATING)
    assert set(cell.gpus("short")).isdisjoint(cell.engine.gpus.occupied[0]), "its GPUs are free, its CPUs are not"
    cell.at(705, JobStopped(705, "long", 1, 700.0))
    assert cell.running == ["short"]


def test_a_claim_does_not_move_to_gpus_without_cpus() -> None:
    cell = Cell(TWO, "srtf", slow_stops=True)
    cell.submit(0, job("long", 4, work=1000), job("greedy", 1, work=100, cpus_per_gpu=8))
    made = cell.submit(10, job("short", 2, work=50, cpus_per_gpu=2))
    assert [stop.job for stop in made.stops] == ["long"]
    assert cell.state("short") is State.PLACED, "three GPUs beside greedy are idle, but have no CPUs"
    cell.at(20, JobFinished(20, "greedy", 1))
    assert cell.running == ["short"], "now they have"


def test_a_reservation_knows_cpus() -> None:
    """The head needs CPUs, not GPUs: backfill may use those that it leaves, and none that it needs."""
    cell = Cell(ONE, "fifo-backfill", settings={"reserve": "0"})
    cell.submit(0, job("a", 1, work=100, cpus_per_gpu=6), job("head", 1, work=100, cpus_per_gpu=7))
    cell.submit(1, job("late", 1, work=500, cpus_per_gpu=2), job("soon", 1, work=50, cpus_per_gpu=2))
    assert (cell.running, cell.reason("late")) == (["a", "soon"], Reason.RESERVED_FOR_LARGER)
    cell.submit(2, job("beside", 1, work=500, cpus_per_gpu=1))
    assert cell.state("beside") is State.WAITING, "no CPU is left while soon runs"
    cell.at(60, JobFinished(60, "soon", 1))
    assert "beside" in cell.running, "the head leaves one CPU"
    cell.at(100, JobFinished(100, "a", 1))
    assert "head" in cell.running


def test_elastic_jobs_grow_as_far_as_cpus_go() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("wide", 1, gpus_min=1, gpus_max=4, cpus_per_gpu=3))
    assert len(cell.gpus("wide")) == 2


def test_quotas_count_gpus_as_before() -> None:
    cell = Cell(ONE, queues=[Queue("q", gpus_max=2)])
    cell.submit(0, *(job(name, queue="q", cpus_per_gpu=1) for name in "abc"), job("d", cpus_per_gpu=7))
    assert cell.running == ["a", "b"]
    assert (cell.reason("c"), cell.reason("d")) == (Reason.OVER_QUOTA, Reason.LACKS_CPUS_OR_MEMORY)


def test_a_node_that_comes_back_with_fewer_cpus_stops_nobody_and_takes_no_more() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("a", 1, cpus_per_gpu=6))
    cell.engine.apply(NodeJoined(1, replace(ONE.nodes[0], cpus=4)))
    check(cell.engine, nodes_fixed=False)
    cell.engine.apply(NodeJoined(2, replace(ONE.nodes[0], cpus=16)))
    cell.submit(3, job("b", 1, cpus_per_gpu=10), job("c", 1, cpus_per_gpu=1))
    assert cell.running == ["a", "b"]


def test_claims_on_a_node_that_lost_cpus_are_placed_anew() -> None:
    cell = Cell(TWO, "srtf", slow_stops=True)
    cell.submit(0, job("long", 4, work=1000), job("more", 4, work=2000))
    cell.submit(700, job("short", 2, work=10, cpus_per_gpu=3))
    assert cell.state("short") is State.PLACED
    left = next(iter(cell.engine.gpus.cluster.gpus_by_node(cell.gpus("short"))))
    name = "more" if left else "long"
    cell.tell(NodeJoined(701, replace(TWO.nodes[left], cpus=4)))
    cell.at(702, JobStopped(702, name, 1, 500.0))
    check(cell.engine)
    assert not set(cell.engine.gpus.cluster.gpus_by_node(cell.gpus("short"))) & {left}


def test_nothing_is_counted_where_nobody_asks_for_more_than_the_share() -> None:
    """Then plans are the same, bit for bit, as on nodes that count nothing."""
    rng = np.random.default_rng(3)
    plain = [
        replace(random_job(rng, f"j{n}", submit_s=3.0 * n), cpus_per_gpu=0, memory_mb_per_gpu=0) for n in range(40)
    ]
    modest = [replace(spec, cpus_per_gpu=n % 3, memory_mb_per_gpu=n % 100) for n, spec in enumerate(plain)]
    uncounted = Cluster(tuple(replace(node, cpus=0, memory_mb=0) for node in TWO.nodes))
    for policy in ("fifo-backfill", "srtf"):
        some, others = (Script(jobs, nodes, policy).records for jobs, nodes in ((plain, uncounted), (modest, TWO)))
        assert [(r.stops, r.placed, r.launches) for r in some] == [(r.stops, r.placed, r.launches) for r in others]
