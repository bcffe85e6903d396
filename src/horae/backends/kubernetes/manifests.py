"""The objects that let Horae run in a Kubernetes cluster: rights, a shared folder, the service itself. Pure.

`horae kubernetes manifests` prints them, for `kubectl apply -f -`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import yaml

from horae.backends.kubernetes.pods import SharedVolume
from horae.backends.kubernetes.rights import NEEDED, USEFUL, Right

NAME = "horae"
PORT = 8642
_RBAC = "rbac.authorization.k8s.io"


def rights_objects(namespace: str) -> list[dict[str, Any]]:
    """The namespace, the service's account and the least rights with which it works."""
    rights = (*NEEDED, *USEFUL)
    inside = _role("Role", [right for right in rights if not right.whole_cluster], namespace)
    outside = _role("ClusterRole", [right for right in rights if right.whole_cluster])
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": namespace}},
        inside,
        _role_binding("Role", namespace),
        outside,
        _role_binding("ClusterRole", namespace),
    ]


def _role(role_type: str, rights: Iterable[Right], namespace: str = "") -> dict[str, Any]:
    rules = [{"apiGroups": [""], "resources": [right.resource], "verbs": list(right.verbs)} for right in rights]
    meta = {"name": NAME, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": f"{_RBAC}/v1", "kind": role_type, "metadata": meta, "rules": rules}


def _role_binding(role_type: str, namespace: str) -> dict[str, Any]:
    meta = {"name": NAME, **({"namespace": namespace} if role_type == "Role" else {})}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{role_type}Binding",
        "metadata": meta,
        "roleRef": {"apiGroup": _RBAC, "kind": role_type, "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }


def service_objects(namespace: str, image: str, volume: SharedVolume, storage: str) -> list[dict[str, Any]]:
    """The shared folder, and the service with an address of its own. Journal and jobs are on the shared folder."""
    labels = {"app": NAME}
    meta = {"name": NAME, "namespace": namespace}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": volume.claim, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": storage}}},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        # Never two at a time: the second would find the journal locked.
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _service_pod(namespace, image, volume)},
        },
    }
    ports = [{"port": PORT, "targetPort": PORT}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": labels, "ports": ports}}
    return [*([claim] if volume.claim else []), deployment, service]


def _service_pod(namespace: str, image: str, volume: SharedVolume) -> dict[str, Any]:
    source = (
        {"persistentVolumeClaim": {"claimName": volume.claim}}
        if volume.claim
        else {"hostPath": {"path": str(volume.path), "type": "Directory"}}
    )
    container = {
        "name": NAME,
        "image": image,
        "command": shlex.split(serve_command(namespace, image, volume)),
        "ports": [{"containerPort": PORT}],
        "volumeMounts": [{"name": "shared", "mountPath": str(volume.path)}],
    }
    volumes = [{"name": "shared", **source}]
    return {"serviceAccountName": NAME, "containers": [container], "volumes": volumes}


def serve_command(namespace: str, image: str, volume: SharedVolume) -> str:
    """The command that starts the service inside the cluster."""
    words = ["horae", "serve", "--backend", "kubernetes", "--namespace", namespace, "--image", image]
    words += ["--volume", f"{volume.claim or 'host'}:{volume.path}", "--url", f"http://{NAME}.{namespace}:{PORT}"]
    words += ["--state", str(volume.path / "state"), "--host", "0.0.0.0", "--port", str(PORT), "--allow-remote"]
    return shlex.join(words)


def as_yaml(objects: Iterable[dict[str, Any]]) -> str:
    """Objects as one YAML document each."""
    return yaml.safe_dump_all(list(objects), sort_keys=False)
