"""Nodes and pods as an API server describes them, of which only the interesting part is named."""

from __future__ import annotations

from typing import Any

NOW_S = 1_800_000_000.0
NOW = "2027-01-15T08:00:00Z"
NOTES = {"horae.dev/job": "a-1", "horae.dev/attempt": "2", "horae.dev/node": "v1"}


def node(name: str = "v1", version: int = 1, **more: Any) -> dict[str, Any]:
    """A ready node with four V100."""
    room = {"cpu": "16", "memory": "64000Mi", "nvidia.com/gpu": "4"}
    labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", **more.pop("labels", {})}
    ready = {"type": "Ready", "status": more.pop("ready", "True"), "reason": "r", "lastTransitionTime": NOW}
    return {
        "metadata": {"name": name, "resourceVersion": str(version), "labels": labels},
        "spec": more.pop("spec", {}),
        "status": {
            "allocatable": more.pop("allocatable", room),
            "capacity": more.pop("capacity", room),
            "conditions": [ready],
            "addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "10.0.0.7"}],
            **more,
        },
    }


def pod(phase: str = "Running", version: int = 1, meta: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A pod of Horae on the node v1, with two GPUs; `state` is that of its container."""
    state = more.pop("state", {"running": {}} if phase == "Running" else None)
    found = {"name": "p", "namespace": "train", "resourceVersion": str(version), "annotations": NOTES}
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "2"}}
    return {
        "metadata": {**found, "creationTimestamp": NOW, "finalizers": ["horae.dev/journalled"], **(meta or {})},
        "spec": {"nodeName": more.pop("node", "v1"), "containers": [{"name": "runner", "resources": resources}]},
        "status": {"phase": phase, "containerStatuses": [{"state": state}] if state else None, **more},
    }


def deleted(grace_s: int = 0) -> dict[str, Any]:
    """Metadata of a pod whose deletion was over, or will be, at `NOW`."""
    return {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": grace_s}


def ended(code: int, **more: Any) -> dict[str, Any]:
    """The state of a container that has ended."""
    return {"terminated": {"exitCode": code, **more}}
