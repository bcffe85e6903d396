"""What Ray's dashboard answers, in the forms that Ray 2.60 was seen to use."""

from __future__ import annotations

import pytest

from horae.backends.driver import EndCause, PieceEnded, PieceRunning, PieceState, PieceWaiting
from horae.backends.ray import gang
from horae.backends.ray.dashboard_answers import (
    foreign_by_node,
    gpu_type_of,
    living_nodes,
    read_job_state,
    read_jobs,
    read_nodes,
    read_summary,
    seen_nodes,
)
from tests.backends.ray.fake_dashboard import job_entry, node_entry


def test_a_node_has_its_name_address_type_and_share() -> None:
    (node,) = read_nodes([node_entry("v1", labels={"ray.io/accelerator-type": "A100", "horae.dev/rack": "r7"})])
    assert (node.name, node.address, node.gpu_type, node.gpus, node.cpus, node.memory_mb, node.rack) == (
        ("v1", "10.0.0.2", "a100", 4, 8, 8192, "r7")
    )


def test_a_node_without_a_name_goes_by_its_address() -> None:
    (node,) = read_nodes([node_entry("v1", node_name=None)])
    assert node.name == "10.0.0.2"


@pytest.mark.parametrize(
    ("labels", "resources", "gpu_type"),
    [
        ({"ray.io/accelerator-type": "V100"}, {"accelerator_type:P100": 1.0}, "v100"),
        ({}, {"accelerator_type:P100": 1.0}, "p100"),
        ({}, {"acceleratorType:P100": 1.0}, "p100"),
        ({}, {"GPU": 4.0}, "gpu"),
    ],
)
def test_the_type_is_that_of_the_label_or_of_the_resource(
    labels: dict[str, str], resources: dict[str, float], gpu_type: str
) -> None:
    assert gpu_type_of(labels, resources) == gpu_type


def test_the_summary_says_the_same_as_the_state() -> None:
    entry = node_entry("v1", rack="r")
    raylet = {
        "nodeId": entry["node_id"],
        "nodeName": "v1",
        "nodeManagerAddress": entry["node_ip"],
        "state": "ALIVE",
        "resourcesTotal": entry["resources_total"],
        "labels": entry["labels"],
    }
    assert read_summary({"data": {"summary": [{"raylet": raylet}, {"raylet": {}}]}}) == read_nodes([entry])


def test_a_dead_node_stands_back_behind_its_successor_whatever_the_order() -> None:
    dead, alive = node_entry("v1", "DEAD", gpus=2), node_entry("v1", gpus=4, number=3)
    for entries in ([dead, alive], [alive, dead]):
        seen = seen_nodes(read_nodes(entries))["v1"]
        assert (seen.gpus, seen.is_lost, seen.is_open) == (4, False, True)
        assert living_nodes(read_nodes(entries))["v1"].id == "v1-3"


def test_a_node_that_is_only_dead_is_lost_and_says_why() -> None:
    seen = seen_nodes(read_nodes([node_entry("v1", "DEAD", state_message="health check failed")]))["v1"]
    assert (seen.is_lost, seen.is_open, seen.why) == (True, False, "health check failed")
    assert living_nodes(read_nodes([node_entry("v1", "DEAD")])) == {}


def test_nodes_without_gpus_are_left_out() -> None:
    assert seen_nodes(read_nodes([node_entry("head", gpus=0)])) == {}


def test_two_living_nodes_of_one_name_are_closed() -> None:
    seen = seen_nodes(read_nodes([node_entry("v1"), node_entry("v1", number=3)]))["v1"]
    assert not seen.is_open
    assert "--node-name" in seen.why


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        ({"status": "PENDING", "message": "waits\nfor long"}, PieceWaiting("waits")),
        ({"status": "RUNNING"}, PieceRunning()),
        ({"status": "A NEW WORD"}, PieceRunning()),
        ({"status": "SUCCEEDED"}, PieceEnded(None, EndCause.EXITED)),
        ({"status": "STOPPED", "message": "by ann"}, PieceEnded(None, EndCause.CANCELLED, "by ann")),
        ({"status": "FAILED", "driver_exit_code": -9, "message": "x"}, PieceEnded(None, EndCause.STOPPED, "x")),
        ({"status": "FAILED", "driver_exit_code": 137, "message": "x"}, PieceEnded(None, EndCause.STOPPED, "x")),
        ({"status": "FAILED", "driver_exit_code": gang.LOST_PIECE}, PieceEnded(None, EndCause.STOPPED)),
        ({"status": "FAILED", "error_type": "JOB_SUPERVISOR_ACTOR_DIED"}, PieceEnded(None, EndCause.STOPPED)),
        ({"status": "FAILED", "driver_exit_code": 1, "message": "x"}, PieceEnded(None, EndCause.FAILED, "x")),
        ({"status": "FAILED", "error_type": "RUNTIME_ENV_SETUP_FAILURE"}, PieceEnded(None, EndCause.FAILED)),
    ],
)
def test_the_state_of_a_job_is_that_of_its_pieces(entry: dict[str, object], state: PieceState) -> None:
    assert read_job_state(entry) == state


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (gang.NO_GPUS, "GPUs in time"),
        (gang.NO_RAY, "no package ray"),
        (gang.STILL_USED, "still use"),
        (gang.NO_LOCKS, "cannot be locked"),
    ],
)
def test_exit_codes_of_the_gangs_driver_are_told_in_words(code: int, words: str) -> None:
    state = read_job_state({"status": "FAILED", "driver_exit_code": code, "message": "exit code"})
    assert isinstance(state, PieceEnded)
    assert state.cause is EndCause.FAILED
    assert words in state.why


def test_drivers_that_nobody_submitted_are_no_jobs() -> None:
    assert [job.submission_id for job in read_jobs([job_entry("a"), {"type": "DRIVER", "submission_id": None}])] == [
        "a"
    ]


def test_what_holds_gpus_and_is_not_ours_is_named_by_node() -> None:
    actors = [
        {"job_id": "01", "class_name": "Ours", "node_id": "n1", "required_resources": {"GPU": 1.0}},
        {"job_id": "02", "class_name": "Trainer", "node_id": "n1", "required_resources": {"GPU_group_0_ab": 1.0}},
        {"job_id": "02", "class_name": "Idle", "node_id": "n2", "required_resources": {"CPU": 1.0}},
    ]
    groups = [
        {"creator_job_id": "02", "bundles": [{"node_id": "n3", "unit_resources": {"GPU": 2.0}}]},
        {"creator_job_id": "01", "bundles": [{"node_id": "n4", "unit_resources": {"GPU": 2.0}}]},
    ]
    tasks = [{"job_id": "03", "name": "work", "node_id": "n1", "required_resources": {"GPU": 0.5}}]
    assert foreign_by_node(actors, groups, tasks, ["01"]) == {
        "n1": ("Ray actor Trainer of job 02", "Ray task work of job 03"),
        "n3": ("Ray placement group of job 02",),
    }
