"""What people see of a cluster and its queues, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.backends.fake import FakeJob
from horae.core.cluster import Node
from horae.core.queues import Queue
from horae.service.views.views import Filters
from tests.service.stepped_service import ANN, SteppedService

QUEUES = (Queue("red", weight=3.0), Queue("red/ann", weight=2.0), Queue("blue", gpus_max=6))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[SteppedService]:
    """Four fast GPUs and four slow ones, and jobs without an end."""
    cell = SteppedService(tmp_path, nodes=[Node("a", "v100", 4), Node("b", "k80", 4)], queues=QUEUES)
    cell.world.default = FakeJob(lasts_s=1e6)
    yield cell
    cell.crash()


def shares(cell: SteppedService, key: str) -> dict[str, float]:
    return {record["queue"]: record[key] for record in cell.views().shares()}


def test_shares_are_counted_up_the_tree_and_gpus_by_their_speed(cell: SteppedService) -> None:
    speeds = {"throughput": {"v100": 2.0, "k80": 1.0}, "steps": 1000}
    cell.submit(queue="red/ann", resources={"gpus": "v100:4"}, estimate=speeds)
    cell.submit(queue="red/bob", resources={"gpus": {"any_of": ["v100:2", "k80:2"]}}, estimate=speeds)
    cell.submit(queue="blue", resources={"gpus": "k80:4"}, estimate=speeds)
    cell.to(1)
    assert shares(cell, "used_gpus") == {"(all)": 6, "red": 6, "red/ann": 4, "red/bob": 2, "blue": 0}
    assert shares(cell, "waiting") == {"(all)": 1, "red": 0, "red/ann": 0, "red/bob": 0, "blue": 1}
    assert shares(cell, "running") == {"(all)": 2, "red": 2, "red/ann": 1, "red/bob": 1, "blue": 0}
    assert shares(cell, "entitled_gpus") == {
        "(all)": 8,
        "red": 6,
        "red/ann": pytest.approx(4),
        "red/bob": pytest.approx(2),
        "blue": 2,
    }
    normalised = shares(cell, "used_share_normalised")
    assert normalised["red/bob"] == pytest.approx(normalised["red/ann"] / 4), "half as many GPUs, half as fast"
    assert normalised["(all)"] == pytest.approx(normalised["red"])
    assert normalised["red"] == pytest.approx(normalised["red/ann"] + normalised["red/bob"])


def test_a_queue_whose_jobs_are_all_held_is_entitled_to_nothing(cell: SteppedService) -> None:
    cell.submit(queue="red")
    kept = cell.submit(queue="blue")
    cell.to(1)
    assert shares(cell, "entitled_share") == {"(all)": 1, "red": 0.75, "red/ann": 0, "blue": 0.25}
    cell.ask(lambda: cell.operations.request(ANN, "hold", [kept]))
    cell.to(2)
    assert cell.state(kept) == "held"
    assert shares(cell, "entitled_share") == {"(all)": 1, "red": 1, "red/ann": 0, "blue": 0}


def test_nodes_say_how_many_gpus_are_used_and_by_whom(cell: SteppedService) -> None:
    one, two = cell.submit(resources={"gpus": "v100:3"}), cell.submit(resources={"gpus": "v100:1"})
    cell.to(1)
    told = {record["node"]: (record["used"], record["jobs"]) for record in cell.views().nodes()}
    assert told == {"a": (4, {one: 3, two: 1}), "b": (0, {})}


def test_a_list_that_is_too_long_keeps_what_runs_the_head_of_the_line_and_the_newest_and_counts_all(
    cell: SteppedService,
) -> None:
    held = [cell.submit() for _ in range(2)]
    cell.ask(lambda: cell.operations.request(ANN, "hold", held))
    running = [cell.submit(resources={"gpus": 4}) for _ in range(2)]
    cell.to(1)
    waiting = [cell.submit(resources={"gpus": 4}) for _ in range(5)]
    cell.to(2)

    def listed(limit: int) -> list[str]:
        records, by_state = cell.views().jobs(ANN, Filters(limit=limit))
        assert by_state == {"waiting": 5, "running": 2, "held": 2}
        return [record["id"] for record in records]

    assert listed(0) == listed(9) == [*held, *running, *waiting]
    assert listed(1) == running[:1]
    assert listed(4) == [*running, *waiting[:2]]
    assert listed(8) == [held[1], *running, *waiting]
