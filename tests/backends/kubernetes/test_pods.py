"""Pods of pieces, and the shared volume. Tests backends/kubernetes/shared_volume.py, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from horae.backends.driver import Piece, PieceId
from horae.backends.kubernetes.objects import KubeNode, read_node, read_pod
from horae.backends.kubernetes.pods import KubernetesSettings, binding_of, pod_name, pod_of, resources_of
from horae.backends.kubernetes.shared_volume import BadVolume, SharedVolume, read_volume
from tests.backends.kubernetes.made_objects import node

SETTINGS = KubernetesSettings("s1", "image:1", SharedVolume("claim", Path("/mnt/horae")), 1000, 100)


def v1() -> KubeNode:
    found = read_node(node())
    assert found
    return found


def piece(gpus: int = 2, **more: Any) -> Piece:
    return Piece(PieceId("Ann_train.7-", 3, "v1.rack.example"), "v100", gpus, ("python3", "run.py"), **more)


def made(settings: KubernetesSettings = SETTINGS) -> dict[str, Any]:
    found: dict[str, Any] = pod_of(settings, piece(), v1(), 16_000, 64_000).to_dict()
    return found


def test_a_pod_is_read_as_the_piece_that_it_was_made_for() -> None:
    content = made()
    content["metadata"] |= {"namespace": "train", "resourceVersion": "1"}
    seen = read_pod(content)
    assert (seen.piece, seen.gpus, seen.is_kept, seen.node) == (piece().id, 2, True, "")


def test_names_are_the_same_each_time_valid_and_of_one_piece_only() -> None:
    ids = [piece().id, PieceId("ann-train-7", 3, "v1"), PieceId("ann-train-7", 4, "v1"), PieceId("x" * 63, 3, "v1")]
    names = [pod_name("s1", each) for each in ids]
    assert names == [pod_name("s1", each) for each in ids]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) and len(name) < 64 for name in names)


def test_labels_keep_within_what_kubernetes_takes() -> None:
    labels = made()["metadata"]["labels"]
    job = {"horae.dev/job": "ann-train-7", "horae.dev/attempt": "3", "horae.dev/node": "v1.rack.example"}
    assert labels == {"horae.dev/service": "s1", **job}


def test_horae_places_the_pod_and_decides_what_becomes_of_it() -> None:
    spec = made()["spec"]
    assert (spec["schedulerName"], spec["restartPolicy"]) == ("horae", "Never")
    assert "nodeName" not in spec
    kept = [each for each in spec["tolerations"] if each.get("effect") == "NoExecute"]
    assert {each["key"] for each in kept} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert all("tolerationSeconds" not in each for each in kept)


def test_the_shared_folder_is_where_the_service_has_it() -> None:
    spec = made()["spec"]
    assert spec["containers"][0]["volumeMounts"][0] == {"name": "shared", "mountPath": "/mnt/horae"}
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "claim"}
    host = KubernetesSettings("s1", "image:1", SharedVolume("", Path("/mnt/horae")), 1000, 100)
    assert made(host)["spec"]["volumes"][0]["hostPath"] == {"path": "/mnt/horae", "type": "Directory"}


def test_the_pod_runs_the_command_as_the_user_of_the_service() -> None:
    spec = made()["spec"]
    assert spec["containers"][0]["command"] == ["python3", "run.py"]
    assert spec["containers"][0]["env"] == [{"name": "HORAE_NODE", "value": "v1.rack.example"}]
    assert spec["securityContext"] == {"runAsUser": 1000, "runAsGroup": 100}
    assert spec["automountServiceAccountToken"] is False


def test_a_job_may_name_its_image() -> None:
    images = [pod_of(SETTINGS, piece(image=name), v1(), 1, 1).to_dict()["spec"] for name in ("", "mine:2")]
    assert [spec["containers"][0]["image"] for spec in images] == ["image:1", "mine:2"]


@pytest.mark.parametrize(
    ("asked", "cpu", "memory"),
    [
        (piece(2), "8000m", "32000Mi"),
        (piece(4), "16000m", "64000Mi"),
        (piece(2, cpus_per_gpu=3, memory_mb_per_gpu=1000), "6000m", "2000Mi"),
    ],
)
def test_cpus_and_memory_are_the_share_of_the_gpus_or_as_asked_for(asked: Piece, cpu: str, memory: str) -> None:
    found = resources_of(asked, v1(), 16_000, 64_000)
    gpus = {"nvidia.com/gpu": str(asked.gpus)}
    assert found.requests == {"cpu": cpu, "memory": memory, **gpus}
    assert found.limits == {"memory": memory, **gpus}


def test_a_node_whose_memory_is_unknown_limits_none() -> None:
    assert resources_of(piece(), v1(), 0, 0).limits == {"nvidia.com/gpu": "2"}


def test_a_binding_names_pod_and_node() -> None:
    found = binding_of("p", "v1").to_dict()
    assert (found["metadata"]["name"], found["target"]) == ("p", {"apiVersion": "v1", "kind": "Node", "name": "v1"})


def test_a_volume_is_a_claim_or_a_folder_of_the_nodes() -> None:
    assert read_volume("claim:/mnt/horae") == SharedVolume("claim", Path("/mnt/horae"))
    assert read_volume("host:/mnt/horae") == SharedVolume("", Path("/mnt/horae"))
    assert [str(read_volume(text)) for text in ("claim:/a", "host:/a")] == ["claim:/a", "host:/a"]


@pytest.mark.parametrize("text", ["", "/mnt/horae", "claim", "claim:mnt", "Claim:/mnt", "a:/b:c", "-a:/b"])
def test_what_is_no_volume_is_refused(text: str) -> None:
    with pytest.raises(BadVolume, match="write NAME:/mnt/horae"):
        read_volume(text)
