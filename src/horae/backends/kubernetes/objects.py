"""Reads nodes and pods as the API server describes them. Pure functions.

Answers are plain JSON. Of each object only what matters is kept, so that a heartbeat of a node is no change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from horae.backends.driver import (
    EndCause,
    PieceEnded,
    PieceId,
    PieceRunning,
    PieceState,
    PieceWaiting,
    SeenNode,
)
from horae.backends.kubernetes.mirror import key_of
from horae.backends.local.gpu_detection import type_name
from horae.backends.protocol import KILLED

#: Labels and annotations of Horae's pods. Labels are for people and selectors; annotations hold the names in full.
SERVICE_LABEL, JOB_LABEL, ATTEMPT_LABEL = "horae.dev/service", "horae.dev/job", "horae.dev/attempt"
NODE_LABEL = "horae.dev/node"
JOB_NOTE, ATTEMPT_NOTE, NODE_NOTE = "horae.dev/job", "horae.dev/attempt", "horae.dev/node"
#: Why Horae gave a pod up that could not start.
REFUSED_NOTE = "horae.dev/refused"
#: A node with this label and the value "false" is left alone.
MANAGED_LABEL = "horae.dev/managed"
#: Keeps a pod's end readable until Horae has journalled it.
FINALIZER = "horae.dev/journalled"
#: Resources that are GPUs.
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
#: Node labels with the GPU's product, and with the number of GPUs, which stays while a device plugin restarts.
PRODUCT_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
COUNT_LABELS = ("nvidia.com/gpu.count", "amd.com/gpu.count")
RACK_LABELS = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
#: Taints that Horae's pods tolerate. The last one is an operator's, to keep other pods off Horae's nodes.
TOLERATED = (*GPU_RESOURCES, "horae.dev/only")
#: A taint by which an operator says that a machine is off.
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
#: Phases of a pod that has ended.
ENDED = ("Succeeded", "Failed")
#: Seconds for which a node must be ready after a deletion, before a pod that never began there is over.
NEVER_BEGAN_S = 30.0
#: Seconds after which a pod that was never bound is given up: its service crashed between the two calls.
NEVER_BOUND_S = 30.0
#: Seconds after which a pod is given up that cannot start, for want of its image for example, and one that does not
#: start for no reason that is told: a large image takes its time.
STUCK_S, SLOW_S = 60.0, 1800.0
#: Reasons of a failed pod with which the node or the cluster ended it: no fault of the job.
_STOPPED = {"Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "DeadlineExceeded"}
_UNITS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
#: What a container waits for if all is well.
_NORMAL_WAITS = {"ContainerCreating", "PodInitializing"}


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node of the cluster."""

    name: str
    version: int
    address: str
    #: The resource that its GPUs are; empty on a node without GPUs.
    resource: str
    gpu_type: str
    #: GPUs that pods can have now, and GPUs that the node is said to have.
    gpus: int
    gpus_claimed: int
    #: CPUs in thousandths.
    cpus_m: int
    memory_mb: int
    rack: str
    is_open: bool
    is_lost: bool
    #: Whether its kubelet gives no sign of life, so that what its pods do is not certain.
    is_silent: bool
    #: Since when it is ready, in seconds since 1970; 0 if it is not.
    ready_since_s: float
    why: str
    #: Changes each time that the machine starts; empty if it is not told.
    boot: str = ""
    #: Whether it has GPUs, and is for Horae.
    is_managed: bool = True

    @property
    def key(self) -> str:
        """As the mirror knows it."""
        return f"/{self.name}"


@dataclass(frozen=True, slots=True)
class KubePod:
    """A pod of this service or of others."""

    key: str
    version: int
    #: None for pods of others.
    piece: PieceId | None
    #: The node that it is bound to; empty if it is not bound.
    node: str
    phase: str
    created_s: float
    #: Whether Horae's finalizer keeps it.
    is_kept: bool
    #: When it was deleted, in seconds since 1970, and how long it has from then.
    deleted_s: float | None
    grace_s: int | None
    #: Whether a container of it was ever seen to run.
    began: bool
    code: int | None
    cause: EndCause
    why: str
    #: What it waits for, if that is unusual, and since when.
    stuck: str
    bound_s: float | None
    gpus: int
    cpus_m: int
    memory_mb: int

    @property
    def holds_gpus(self) -> bool:
        """Whether its node keeps GPUs for it."""
        return bool(self.node) and self.gpus > 0 and self.phase not in ENDED


def read_node(content: Mapping[str, Any]) -> KubeNode | None:
    """A node; None if it has never had a GPU, or is not for Horae."""
    node = read_any_node(content)
    return node if node.is_managed else None


def read_any_node(content: Mapping[str, Any]) -> KubeNode:
    """A node, for Horae or not."""
    meta, spec, status = content["metadata"], content.get("spec", {}), content.get("status", {})
    labels = meta.get("labels", {})
    allocatable, capacity = status.get("allocatable", {}), status.get("capacity", {})
    resource = next((name for name in GPU_RESOURCES if name in allocatable or name in capacity), "")
    gpus = int(read_quantity(allocatable.get(resource, "0")))
    counted = next((int(labels[name]) for name in COUNT_LABELS if labels.get(name, "").isdigit()), 0)
    claimed = max(gpus, int(read_quantity(capacity.get(resource, "0")))) or counted
    ready: Mapping[str, Any] = next((entry for entry in status.get("conditions", []) if entry["type"] == "Ready"), {})
    taints = [taint for taint in spec.get("taints", []) if taint.get("effect") in ("NoSchedule", "NoExecute")]
    why = _why_closed(ready, spec.get("unschedulable", False), taints)
    is_ready = ready.get("status") == "True"
    return KubeNode(
        name=meta["name"],
        version=int(meta["resourceVersion"]),
        address=_address(status.get("addresses", []), meta["name"]),
        resource=resource or GPU_RESOURCES[0],
        gpu_type=type_name(next((labels[name] for name in PRODUCT_LABELS if labels.get(name)), "")),
        gpus=gpus,
        gpus_claimed=claimed,
        cpus_m=int(read_quantity(allocatable.get("cpu", "0")) * 1000),
        memory_mb=int(read_quantity(allocatable.get("memory", "0")) / 2**20),
        rack=next((labels[name] for name in RACK_LABELS if labels.get(name)), ""),
        is_open=not why,
        is_lost=any(taint.get("key") == OUT_OF_SERVICE for taint in taints),
        is_silent=ready.get("status") not in ("True", "False"),
        ready_since_s=seconds_of_time(ready.get("lastTransitionTime")) or 0.0 if is_ready else 0.0,
        why=why,
        boot=str((status.get("nodeInfo") or {}).get("bootID") or ""),
        is_managed=bool(claimed) and labels.get(MANAGED_LABEL) != "false",
    )


def _why_closed(ready: Mapping[str, Any], cordoned: bool, taints: Iterable[Mapping[str, Any]]) -> str:
    """Why a node takes no pods; empty if it does."""
    words = []
    if ready.get("status") != "True":
        words.append(f"not ready: {ready.get('reason') or ready.get('status') or 'no kubelet'}")
    if cordoned:
        words.append("cordoned")
    own = ("node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    keys = {str(taint.get("key")) for taint in taints} - {*TOLERATED, *own}
    return ", ".join([*words, *(f"tainted: {key}" for key in sorted(keys))])


def _address(addresses: Iterable[Mapping[str, str]], name: str) -> str:
    """Where a node is reached: its internal address, if it has one."""
    by_type = {entry["type"]: entry["address"] for entry in addresses}
    return next((by_type[each] for each in ("InternalIP", "ExternalIP", "Hostname") if each in by_type), name)


def read_pod(content: Mapping[str, Any]) -> KubePod:
    """A pod, of this service or of others."""
    meta, spec, status = content["metadata"], content.get("spec", {}), content.get("status", {})
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or []), {})
    ended = (container.get("state") or {}).get("terminated")
    began = status.get("phase") == "Running" or "running" in (container.get("state") or {}) or ended is not None
    deleted_s = seconds_of_time(meta.get("deletionTimestamp"))
    conditions: Iterable[Mapping[str, Any]] = status.get("conditions") or []
    scheduled = next((each.get("lastTransitionTime") for each in conditions if _is_scheduled(each)), None)
    asked = _requests(spec)
    cause, why = _end(status, ended or {}, meta.get("annotations") or {}, deleted_s is not None)
    return KubePod(
        key=key_of(content),
        version=int(meta["resourceVersion"]),
        piece=_piece(meta),
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "",
        created_s=seconds_of_time(meta.get("creationTimestamp")) or 0.0,
        is_kept=FINALIZER in (meta.get("finalizers") or ()),
        # The API tells when the deletion will be over, not when it began.
        deleted_s=None if deleted_s is None else deleted_s - float(meta.get("deletionGracePeriodSeconds") or 0),
        grace_s=meta.get("deletionGracePeriodSeconds"),
        began=began,
        code=int(ended["exitCode"]) if ended else None,
        cause=cause,
        why=why,
        stuck=_stuck((container.get("state") or {}).get("waiting") or {}),
        bound_s=seconds_of_time(scheduled),
        gpus=int(sum(asked.get(name, 0.0) for name in GPU_RESOURCES)),
        cpus_m=int(asked.get("cpu", 0.0) * 1000),
        memory_mb=int(asked.get("memory", 0.0) / 2**20),
    )


def _is_scheduled(condition: Mapping[str, Any]) -> bool:
    return condition["type"] == "PodScheduled" and condition.get("status") == "True"


def _piece(meta: Mapping[str, Any]) -> PieceId | None:
    notes = meta.get("annotations") or {}
    try:
        return PieceId(notes[JOB_NOTE], int(notes[ATTEMPT_NOTE]), notes[NODE_NOTE])
    except (KeyError, ValueError):
        return None


def _requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """What the containers of a pod ask for, in all; limits count where there are no requests."""
    sums: dict[str, float] = {}
    for container in spec.get("containers") or []:
        resources = container.get("resources") or {}
        for name, text in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            sums[name] = sums.get(name, 0.0) + read_quantity(text)
    return sums


def _end(
    status: Mapping[str, Any], ended: Mapping[str, Any], notes: Mapping[str, str], deleted: bool
) -> tuple[EndCause, str]:
    """What ended a pod, if it has ended or was given up, and why, in Kubernetes' words."""
    reason = status.get("reason") or ended.get("reason") or ""
    text = status.get("message") or ended.get("message") or ""
    why = ": ".join(filter(None, (reason, text.strip().splitlines()[-1] if text.strip() else "")))
    if notes.get(REFUSED_NOTE):
        return EndCause.FAILED, notes[REFUSED_NOTE]
    if status.get("phase") not in ENDED:
        return EndCause.STOPPED, ""
    if reason == "OOMKilled":
        return EndCause.FAILED, "OOMKilled: the pod used more memory than it asked for"
    if reason in _STOPPED or (deleted and ended):
        return EndCause.STOPPED, why
    if not ended:
        return EndCause.FAILED, why or "refused by its node"
    return EndCause.EXITED, why if ended.get("exitCode") else ""


def _stuck(waiting: Mapping[str, Any]) -> str:
    """What a container waits for if that may never come, such as an image that is not there."""
    reason = waiting.get("reason") or ""
    return "" if reason in ("", *_NORMAL_WAITS) else ": ".join(filter(None, (reason, waiting.get("message") or "")))


def state_of(pod: KubePod, node: KubeNode | None, now_s: float) -> PieceState | None:
    """The state of a piece. None for a new pod that is not bound yet: it runs nowhere, and may be submitted again.

    Only a terminal phase says that a pod has ended. A deleted node, a pod deleted by force and a grace period of 0 do
    not: processes were seen to live on. A node that gives no sign of life is told as "ended": then the beat of the
    piece decides.
    """
    if pod.phase in ENDED:
        return PieceEnded(KILLED if pod.why.startswith("OOMKilled") else pod.code, pod.cause, pod.why)
    if not pod.node:
        is_over = pod.deleted_s is not None or now_s - pod.created_s > NEVER_BOUND_S
        return PieceEnded(None, EndCause.STOPPED, "it was never bound to its node") if is_over else None
    if node is None or node.is_silent:
        return PieceEnded(None, EndCause.STOPPED, f"node {pod.node} gives no sign of life")
    if pod.deleted_s is not None and not pod.began and pod.grace_s == 0:
        return _never_began(pod, node, now_s)
    if pod.phase == "Running":
        return PieceRunning()
    return PieceWaiting(pod.stuck or pod.phase)


def _never_began(pod: KubePod, node: KubeNode, now_s: float) -> PieceState:
    """A pod that was deleted before its kubelet looked at it has no status. It is over once the kubelet must have."""
    assert pod.deleted_s is not None
    if node.ready_since_s and now_s - max(pod.deleted_s, node.ready_since_s) >= NEVER_BEGAN_S:
        return PieceEnded(None, pod.cause, pod.why or "deleted before it began")
    return PieceWaiting("deleted before it began")


def cannot_start(pod: KubePod, now_s: float) -> bool:
    """Whether a pod has waited too long on its node to be started."""
    waits = pod.phase == "Pending" and not pod.began and pod.deleted_s is None
    limit_s = STUCK_S if pod.stuck else SLOW_S
    return waits and pod.bound_s is not None and now_s - pod.bound_s > limit_s


def seen_node(node: KubeNode, gpus: int, why: str) -> SeenNode:
    """A node as Horae sees it, with the number of GPUs that is believed; `why` closes it."""
    why = node.why or why
    return SeenNode(
        name=node.name,
        address=node.address,
        gpu_type=node.gpu_type,
        gpus=gpus,
        cpus=node.cpus_m // 1000,
        memory_mb=node.memory_mb,
        rack=node.rack,
        is_open=not why,
        is_lost=node.is_lost,
        why=why,
    )


def beside_others(seen: SeenNode, node: KubeNode, pods: Iterable[KubePod]) -> SeenNode:
    """A node with the CPUs and memory that pods of others leave; at least 1 of each, for 0 would mean unknown."""
    beside = [pod for pod in pods if pod.node == node.name]
    cpus_m = node.cpus_m - sum(pod.cpus_m for pod in beside)
    memory_mb = node.memory_mb - sum(pod.memory_mb for pod in beside)
    return replace(
        seen,
        cpus=max(1, cpus_m // 1000) if node.cpus_m else 0,
        memory_mb=max(1, memory_mb) if node.memory_mb else 0,
    )


def foreign_by_node(pods: Iterable[KubePod], nodes: Mapping[str, KubeNode]) -> dict[str, tuple[str, ...]]:
    """Pods of others that hold GPUs, in words, by node."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        if pod.holds_gpus and pod.node in nodes:
            found.setdefault(pod.node, []).append(f"pod {pod.key} with {pod.gpus} GPU{'s'[: pod.gpus > 1]}")
    return {node: tuple(sorted(texts)) for node, texts in found.items()}


def read_quantity(text: object) -> float:
    """A quantity of Kubernetes, such as `500m`, `16`, `64Gi` or `1e3`; 0 if it cannot be read."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(text))
    try:
        return float(match[1]) * _UNITS[match[2]] if match else 0.0
    except (ValueError, KeyError):
        return 0.0


def seconds_of_time(text: str | None) -> float | None:
    """A time of the API in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp() if text else None
