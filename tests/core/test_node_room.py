"""CPUs and memory of nodes: what jobs take, what is left, across restarts and replays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from horae.core.checkpoint import load, save
from horae.core.cluster import BadCluster, Cluster, Node
from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobSubmitted, NodeJoined
from horae.core.explain import explain
from horae.core.invariants import BrokenInvariant, check
from horae.core.job import BadJob
from horae.core.node_room import LaunchRoom, could_run_out, lack_of_room, room_of, taken_room
from horae.core.reasons import Reason
from horae.placement.rules import make_placement
from horae.policies import make_policy
from tests.builders import Cell, Script, job

NODE = Node("n0", "gpu", 4, cpus=8, memory_mb=400)
ONE = Cluster((NODE,))
LARGEST = "the largest node it could use has 8 CPUs"


def test_a_job_takes_what_it_asks_for_or_the_share_and_gives_back_exactly_that() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("a", 2, cpus_per_gpu=3), job("b", 1, memory_mb_per_gpu=30))
    room = room_of(cell.engine.jobs, cell.engine.gpus)
    assert room is not None
    assert room.free[:, 0].tolist() == [8 - 2 * 3 - 2, 400 - 2 * 100 - 30]
    cell.at(1, JobFinished(1, "a", 1), JobFinished(1, "b", 1))
    assert taken_room(room.asks, cell.engine.gpus.holders, ONE).tolist() == [[0], [0]]


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [((0, 0), (0, 0), (2, 100)), ((3, 0), (0, 30), (3, 100)), ((3, 10), (2, 30), (5, 40)), ((1, 0), (0, 0), (2, 100))],
)
def test_two_jobs_on_a_gpu_take_what_both_ask_for_and_at_least_the_share_if_one_asks_for_nothing(
    first: tuple[int, int], second: tuple[int, int], taken: tuple[int, int]
) -> None:
    asks, seats = np.array((first, second)).T, np.full((2, 4), -1)
    seats[:, 2] = 0, 1
    assert taken_room(asks, seats, ONE)[:, 0].tolist() == list(taken)


def test_nothing_can_run_out_where_nobody_asks_for_more_than_the_share() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("a", cpus_per_gpu=2, memory_mb_per_gpu=100))
    assert not could_run_out(cell.engine.jobs, cell.engine.gpus)
    assert could_run_out(cell.engine.jobs, cell.engine.gpus, pairs=True), "two of them on one GPU would take more"
    cell.submit(1, job("b", cpus_per_gpu=3))
    assert could_run_out(cell.engine.jobs, cell.engine.gpus)
    cell.at(2, JobFinished(2, "b", 1))
    assert not could_run_out(cell.engine.jobs, cell.engine.gpus)


def test_launches_of_one_decision_take_room_one_after_the_other() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("a", cpus_per_gpu=3))
    cell.engine.apply(JobSubmitted(1, job("b", cpus_per_gpu=3)))
    cell.engine.apply(JobSubmitted(1, job("c", cpus_per_gpu=3)))
    room = LaunchRoom(cell.engine.jobs, cell.engine.gpus)
    assert [room.take(1, (1,)), room.take(2, (2,))] == [True, False]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"gpus": 1, "cpus_per_gpu": 8}, ""),
        ({"gpus": 1}, ""),
        ({"gpus": 1, "cpus_per_gpu": 9}, "asks for 9 CPUs with each GPU, and the largest node it could use has 8 CPUs"),
        (
            {"gpus": 1, "cpus_per_gpu": 1, "memory_mb_per_gpu": 1500},
            f"asks for 1 CPU and 1,500 MiB of memory with each GPU, and {LARGEST} and 400 MiB",
        ),
        (
            {"gpus": 4, "cpus_per_gpu": 4},
            "asks for 4 CPUs with each GPU, and the nodes of one type have that for 2 GPUs at most, not for 4",
        ),
        ({"gpus": 4, "gpus_min": 2, "gpus_max": 4, "cpus_per_gpu": 4}, ""),
        (
            {"gpus": 4, "nodes": 2, "cpus_per_gpu": 4},
            "asks for 4 CPUs with each GPU, and only 1 node of one type has that for 2",
        ),
    ],
)
def test_a_job_that_could_never_have_its_room_is_told_the_most_there_is(asked: dict[str, int], sentence: str) -> None:
    small = Node("n1", "gpu", 4, cpus=4, memory_mb=400)
    nodes = [NODE, small] if "nodes" in asked else [NODE]
    assert lack_of_room(job("a", **asked), nodes) == sentence


def test_room_must_be_a_number_that_can_be() -> None:
    with pytest.raises(BadCluster, match="-1 CPUs"):
        Node("n", "gpu", 1, cpus=-1)
    with pytest.raises(BadJob, match="memory_mb_per_gpu is -5"):
        job("a", memory_mb_per_gpu=-5)


def test_policies_that_share_time_do_not_count_on_types_without_room() -> None:
    nodes = (Node("v", "v100", 4, cpus=4), Node("k", "k80", 4, cpus=16))
    cell = Cell(Cluster(nodes), "max-min")
    cell.engine.apply(JobSubmitted(0, job("a", 2, cpus_per_gpu=4)))
    cell.engine.apply(JobSubmitted(0, job("b", 2)))
    assert cell.engine.snapshot().usable.tolist() == [[False, True], [True, True]]


def test_the_reason_says_what_is_lacking_and_how_much_there_is() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("a", cpus_per_gpu=5), job("b", cpus_per_gpu=4, memory_mb_per_gpu=50))
    told = explain(cell.engine.status(), "b")
    assert told.code == "LacksCpusOrMemory"
    assert told.sentence.startswith(
        "It waits for CPUs or memory on nodes with free GPUs (3 of a type it accepts): it takes 4 CPUs and 50 MiB with "
        "each of its 1 GPU, and one of these nodes has at most 3 CPUs and 300 MiB left;"
    )
    assert (told.numbers["most_cpus"], told.numbers["most_memory_mb"]) == (3, 300)


def test_a_broken_count_is_found() -> None:
    cell = Cell(ONE)
    cell.submit(0, job("a", 2, cpus_per_gpu=4))
    cell.engine.apply(NodeJoined(1, replace(NODE, cpus=7)))
    with pytest.raises(BrokenInvariant, match="more CPUs or memory are held"):
        check(cell.engine)


def new_engine() -> Engine:
    return Engine(ONE, make_policy, "srtf", {}, make_placement("best-effort"))


def test_room_is_the_same_after_a_replay_a_checkpoint_and_in_a_fork() -> None:
    """Nothing is stored of it but what nodes have and what jobs ask for: it is derived again."""
    rng = np.random.default_rng(1)
    jobs = [
        job(f"j{n}", int(rng.integers(1, 3)), work=float(rng.integers(5, 60)), submit_s=4.0 * n, cpus_per_gpu=n % 5)
        for n in range(30)
    ]
    told: list[Event | Decided] = []
    grown = [NodeJoined(50.0, replace(NODE, cpus=10, memory_mb=500)), NodeJoined(90.0, Node("n1", "gpu", 2, cpus=6))]
    script = Script(jobs, ONE, "srtf", events=grown, restart_cost_s=2.0, look=lambda _, what: told.append(what))
    assert {int(reason) for record in script.records for reason in record.reason_codes} & {
        int(Reason.LACKS_CPUS_OR_MEMORY)
    }
    half, again = new_engine(), new_engine()
    for record in told[: len(told) // 2]:
        half.apply(decode(encode(record)))
        check(half)
    load(again, save(half))
    for engine in (half, again, half.fork()):
        for record in told[len(told) // 2 :]:
            engine.apply(record)
            check(engine)
        assert engine.gpus.cluster.nodes[0].cpus == 10
        assert engine.gpus.held == script.engine.gpus.held == {}
        assert engine.jobs.cpus_per_gpu[:30].tolist() == [n % 5 for n in range(30)]
