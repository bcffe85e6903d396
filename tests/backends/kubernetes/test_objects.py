"""What is read of nodes and pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from horae.backends.driver import EndCause, PieceEnded, PieceId, PieceRunning, PieceState, PieceWaiting
from horae.backends.kubernetes.objects import (
    KubeNode,
    foreign_by_node,
    read_node,
    read_pod,
    read_quantity,
    seen_node,
    state_of,
)
from tests.backends.kubernetes.made_objects import NOW_S, deleted, ended, node, pod


def found(**more: Any) -> KubeNode:
    seen = read_node(node(**more))
    assert seen
    return seen


def state(content: dict[str, Any], later_s: float = 0.0, **of_node: Any) -> PieceState | None:
    return state_of(read_pod(content), found(**of_node), NOW_S + later_s)


def test_a_node_has_the_type_of_its_product_and_the_room_that_pods_can_have() -> None:
    seen = seen_node(found(), 4, "")
    assert (seen.gpu_type, seen.gpus, seen.cpus, seen.memory_mb, seen.address) == ("v100", 4, 16, 64_000, "10.0.0.7")
    assert (seen.is_open, seen.is_lost) == (True, False)


@pytest.mark.parametrize(
    ("labels", "gpu_type"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "a100"),
        ({"nvidia.com/gpu.product": "", "cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "t4"),
        ({"nvidia.com/gpu.product": ""}, "gpu"),
    ],
)
def test_types_come_from_labels(labels: dict[str, str], gpu_type: str) -> None:
    assert found(labels=labels).gpu_type == gpu_type


def test_gpus_of_amd_are_another_resource() -> None:
    room = {"cpu": "8", "memory": "1Gi", "amd.com/gpu": "8"}
    seen = found(allocatable=room, capacity=room)
    assert (seen.resource, seen.gpus) == ("amd.com/gpu", 8)


def test_racks_come_from_the_topology() -> None:
    assert found(labels={"topology.kubernetes.io/zone": "z1"}).rack == "z1"
    assert found(labels={"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r7"}).rack == "r7"


def test_nodes_without_gpus_and_nodes_for_others_are_left_out() -> None:
    assert read_node(node(allocatable={"cpu": "8"}, capacity={"cpu": "8"})) is None
    assert read_node(node(labels={"horae.dev/managed": "false"})) is None


def test_a_node_whose_device_plugin_restarts_keeps_the_gpus_that_its_label_counts() -> None:
    seen = found(allocatable={"cpu": "8"}, capacity={"cpu": "8"}, labels={"nvidia.com/gpu.count": "8"})
    assert (seen.gpus, seen.gpus_claimed) == (0, 8)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"ready": "Unknown"}, "not ready: r"),
        ({"ready": "False"}, "not ready: r"),
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"spec": {"taints": [{"key": "broken", "effect": "NoExecute"}]}}, "tainted: broken"),
    ],
)
def test_a_node_that_takes_no_pods_is_closed_not_lost(more: dict[str, Any], why: str) -> None:
    seen = found(**more)
    assert (seen.is_open, seen.is_lost, seen.why) == (False, False, why)


@pytest.mark.parametrize("key", ["nvidia.com/gpu", "amd.com/gpu", "horae.dev/only"])
def test_taints_that_keep_others_off_close_nothing(key: str) -> None:
    assert found(spec={"taints": [{"key": key, "effect": "NoSchedule"}]}).is_open


def test_a_node_out_of_service_is_lost() -> None:
    assert found(spec={"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}).is_lost


def test_silence_is_a_kubelet_that_says_nothing_not_one_that_says_no() -> None:
    assert [found(ready=ready).is_silent for ready in ("True", "False", "Unknown")] == [False, False, True]


def test_a_heartbeat_changes_only_the_version() -> None:
    assert replace(found(version=7), version=1) == found(version=1)


def test_a_pod_names_its_piece_and_what_it_holds() -> None:
    seen = read_pod(pod())
    assert seen.piece == PieceId("a-1", 2, "v1")
    assert (seen.gpus, seen.cpus_m, seen.memory_mb, seen.is_kept, seen.holds_gpus) == (2, 500, 1024, True, True)


@pytest.mark.parametrize("notes", [{}, {"horae.dev/job": "a", "horae.dev/attempt": "x", "horae.dev/node": "v1"}])
def test_pods_of_others_have_no_piece(notes: dict[str, str]) -> None:
    assert read_pod(pod(meta={"annotations": notes})).piece is None


def test_a_pod_runs_though_it_was_deleted_by_force() -> None:
    assert state(pod()) == PieceRunning()
    assert state(pod(meta=deleted(0)), later_s=999.0) == PieceRunning()


def test_a_pod_that_waits_says_for_what() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    assert state(pod("Pending", state=waiting)) == PieceWaiting("ErrImagePull: no such image")
    assert state(pod("Pending", state={"waiting": {"reason": "ContainerCreating"}})) == PieceWaiting("Pending")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (pod("Succeeded", state=ended(0)), PieceEnded(0, EndCause.EXITED)),
        (
            pod("Failed", state=ended(3, reason="Error", message="one\ntwo\n")),
            PieceEnded(3, EndCause.EXITED, "Error: two"),
        ),
        (pod("Failed", state=ended(143), meta=deleted(0)), PieceEnded(143, EndCause.STOPPED)),
        (
            pod("Failed", reason="OutOfnvidia.com/gpu", message="no room"),
            PieceEnded(None, EndCause.FAILED, "OutOfnvidia.com/gpu: no room"),
        ),
        (pod("Failed", reason="Evicted", message="disk"), PieceEnded(None, EndCause.STOPPED, "Evicted: disk")),
        (
            pod("Failed", state=ended(137, reason="OOMKilled")),
            PieceEnded(137, EndCause.FAILED, "OOMKilled: the pod used more memory than it asked for"),
        ),
    ],
    ids=["good", "bad", "deleted", "refused", "evicted", "memory"],
)
def test_a_terminal_phase_is_an_end(content: dict[str, Any], expected: PieceEnded) -> None:
    assert state(content) == expected


def test_a_new_pod_that_is_not_bound_may_be_submitted_again_and_an_old_one_is_over() -> None:
    assert state(pod("Pending", node=None), later_s=5.0) is None
    over = PieceEnded(None, EndCause.STOPPED, "it was never bound to its node")
    assert state(pod("Pending", node=None), later_s=31.0) == over
    assert state(pod("Pending", node=None, meta=deleted(0))) == over


def test_what_a_silent_or_deleted_node_runs_is_for_the_beat_to_say() -> None:
    expected = PieceEnded(None, EndCause.STOPPED, "node v1 gives no sign of life")
    assert state(pod(), ready="Unknown") == expected
    assert state_of(read_pod(pod()), None, NOW_S) == expected
    assert state(pod(), ready="False") == PieceRunning()


def test_a_pod_deleted_before_its_kubelet_looked_is_over_once_the_kubelet_must_have() -> None:
    content = pod("Pending", meta=deleted(0))
    assert state(content, later_s=29.0) == PieceWaiting("deleted before it began")
    assert state(content, later_s=31.0) == PieceEnded(None, EndCause.STOPPED, "deleted before it began")
    assert state(content, later_s=31.0, ready="False") == PieceWaiting("deleted before it began")


def test_a_pod_that_horae_gave_up_tells_why() -> None:
    notes = {"horae.dev/refused": "ErrImagePull: no such image"}
    content = pod("Pending", meta={**deleted(0), "annotations": {**read_notes(), **notes}})
    assert state(content, later_s=31.0) == PieceEnded(None, EndCause.FAILED, "ErrImagePull: no such image")


def read_notes() -> dict[str, str]:
    notes: dict[str, str] = pod()["metadata"]["annotations"]
    return notes


def test_a_deletion_began_its_grace_period_before_it_is_over() -> None:
    assert read_pod(pod(meta=deleted(20))).deleted_s == NOW_S - 20.0


def test_pods_of_others_with_gpus_are_named_by_node() -> None:
    theirs = read_pod(pod())
    idle = replace(theirs, gpus=0, key="train/idle")
    over = replace(theirs, phase="Failed", key="train/over")
    elsewhere = replace(theirs, node="cpu-only", key="train/elsewhere")
    assert foreign_by_node([theirs, idle, over, elsewhere], {"v1": found()}) == {"v1": ("pod train/p with 2 GPUs",)}


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", 0.5), ("16", 16.0), (4, 4.0), ("2Gi", 2.0**31), ("1k", 1000.0), ("1e3", 1000.0), ("", 0.0), ("x", 0.0)],
)
def test_quantities(text: object, number: float) -> None:
    assert read_quantity(text) == number
