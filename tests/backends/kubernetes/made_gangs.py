"""Users' pods and Jobs, and a gang of them, of which only the interesting part is named."""

from __future__ import annotations

from typing import Any

from horae.backends.kubernetes.adopted_gang import AdoptedGang
from horae.backends.kubernetes.gang_pods import UserJob, UserPod, read_user_job, read_user_pod
from horae.backends.kubernetes.gang_steps import GangMoment
from horae.backends.kubernetes.objects import KubeNode, read_any_node
from tests.backends.kubernetes.made_objects import NOW, NOW_S, node

FINALIZER = "horae.dev/journalled"
JOB_UID = "uid-of-job"


def content(name: str = "a", **more: Any) -> dict[str, Any]:
    """A pod of the Job `train` that waits, with one GPU; Horae's finalizer is on it."""
    meta = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": NOW,
        "labels": more.pop("labels", {}),
        "annotations": more.pop("notes", {}),
        "finalizers": [FINALIZER] if more.pop("kept", True) else [],
        **more.pop("meta", {}),
    }
    owner = more.pop("owner", ("Job", "train", JOB_UID))
    if owner:
        meta["ownerReferences"] = [dict(zip(("kind", "name", "uid"), owner, strict=True), controller=True)]
    resources = {"limits": {"nvidia.com/gpu": str(more.pop("gpus", 1))}}
    env = [{"name": key, "value": value} for key, value in more.pop("env", {}).items()]
    spec = {"schedulerName": "horae", "containers": [{"name": "c", "resources": resources, "env": env}]}
    state, phase = more.pop("state", None), more.pop("phase", "Pending")
    status = {"phase": phase, "containerStatuses": [{"state": state}] if state else None}
    if bound := more.pop("node", ""):
        spec["nodeName"] = bound
    return {"metadata": meta, "spec": {**spec, **more.pop("spec", {})}, "status": {**status, **more}}


def user_pod(name: str = "a", **more: Any) -> UserPod:
    """The same, read."""
    found = read_user_pod(content(name, **more))
    assert found
    return found


def running(name: str = "a", at: str = "v1", **more: Any) -> UserPod:
    """A pod that runs."""
    return user_pod(name, node=at, phase="Running", state={"running": {"startedAt": NOW}}, **more)


def over(name: str = "a", code: int = 0, at: str = "v1", **more: Any) -> UserPod:
    """A pod that has ended."""
    ended = {"terminated": {"exitCode": code, "startedAt": NOW, "finishedAt": NOW}}
    return user_pod(name, node=at, phase="Failed" if code else "Succeeded", state=ended, **more)


def user_job(parallelism: int = 2, uid: str = JOB_UID, **more: Any) -> UserJob:
    """A Job, with as many completions."""
    conditions = [{"type": each, "status": "True"} for each in more.pop("conditions", ())]
    meta = {"name": "train", "namespace": "team", "uid": uid, "resourceVersion": "1", "labels": more.pop("labels", {})}
    spec = {"parallelism": parallelism, "completions": more.pop("completions", parallelism)}
    return read_user_job({"metadata": meta, "spec": spec, "status": {"conditions": conditions, **more}})


def kube_node(name: str = "v1", boot: str = "first", **more: Any) -> KubeNode:
    """A ready node with four GPUs."""
    return read_any_node(node(name, nodeInfo={"bootID": boot}, **more))


def gang(**more: Any) -> AdoptedGang:
    """The Job's gang of two pods, which the service knows as train-1."""
    given: dict[str, Any] = {"job": "train-1", "work": 100.0, "owners": (JOB_UID,), **more}
    return AdoptedGang(
        key=f"kubernetes:team/train@{JOB_UID}",
        user="ann",
        document={},
        duration_s=1000.0,
        namespace="team",
        group=f"job/train/{JOB_UID}",
        name="train",
        **given,
    )


def attempt(**more: Any) -> AdoptedGang:
    """The same gang with its first attempt, which has two GPUs of v1."""
    return gang(**{"attempt": 1, "nodes": ("v1",), "seats": (("v1", 2),), **more})


def moment(now_s: float = 1000.0, *nodes: KubeNode, **more: Any) -> GangMoment:
    """A moment; by default the nodes v1 and v2 answer."""
    found = nodes or (kube_node("v1"), kube_node("v2"))
    return GangMoment(now_s, NOW_S + now_s, {each.name: each for each in found}, **more)
