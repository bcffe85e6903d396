"""The objects that let Horae run in a Kubernetes cluster: rights, a shared folder, the service itself. Pure.

`horae kubernetes manifests` prints them, for `kubectl apply -f -`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from horae.backends.kubernetes.rights import NEEDED, NEEDED_TO_ADOPT, SEE_ALL_PODS, TELL_USERS, USEFUL, Right
from horae.backends.kubernetes.shared_volume import SharedVolume

NAME = "horae"
PORT = 8642
#: The journal has a claim of its own: a database does not belong on a file server.
_STATE, _STATE_PATH = "horae-state", "/var/lib/horae"
_TLS_PATH = "/etc/horae/tls"
_RBAC = "rbac.authorization.k8s.io"


def rights_objects(namespace: str, adopt: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The namespace, the service's account and the least rights with which it works.

    With `adopt` these are the rights to order users' pods in those namespaces, and no right to make pods anywhere.
    """
    rights = (*NEEDED_TO_ADOPT, TELL_USERS, SEE_ALL_PODS) if adopt else (*NEEDED, *USEFUL)
    inside = [right for right in rights if not right.whole_cluster]
    roles = [
        made
        for where in adopt or (namespace,)
        for made in (_role("Role", inside, where), _role_binding("Role", namespace, where))
    ]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": namespace}},
        *roles,
        _role("ClusterRole", [right for right in rights if right.whole_cluster]),
        _role_binding("ClusterRole", namespace),
    ]


def _role(role_type: str, rights: Iterable[Right], namespace: str = "") -> dict[str, Any]:
    rules = [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)} for right in rights
    ]
    meta = {"name": NAME, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": f"{_RBAC}/v1", "kind": role_type, "metadata": meta, "rules": rules}


def _role_binding(role_type: str, namespace: str, where: str = "") -> dict[str, Any]:
    """Gives the account of a namespace the rights of a role, which may be of another namespace (`where`)."""
    meta = {"name": NAME, **({"namespace": where} if role_type == "Role" else {})}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{role_type}Binding",
        "metadata": meta,
        "roleRef": {"apiGroup": _RBAC, "kind": role_type, "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }


def service_objects(
    namespace: str, image: str, volume: SharedVolume | None, storage: str, tls_secret: str = "", adopt: str = ""
) -> list[dict[str, Any]]:
    """The service with an address of its own, its journal's folder, and the shared folder.

    With `adopt`, the names of namespaces, it orders users' pods there, and has no shared folder.
    `tls_secret` names a Secret with tls.crt, tls.key and ca.crt. Without it, the service speaks plain HTTP.
    """
    labels = {"app": NAME}
    command = serve_command(namespace, image, volume, bool(tls_secret), adopt)
    meta = {"name": NAME, "namespace": namespace}
    claims = [_claim(_STATE, namespace, "ReadWriteOnce", "10Gi")]
    if volume and volume.claim:
        claims.append(_claim(volume.claim, namespace, "ReadWriteMany", storage))
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        # Never two at a time: the second would find the journal locked.
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _service_pod(image, volume, tls_secret, command)},
        },
    }
    ports = [{"port": PORT, "targetPort": PORT}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": labels, "ports": ports}}
    return [*claims, deployment, service]


def _claim(name: str, namespace: str, access: str, storage: str) -> dict[str, Any]:
    spec = {"accessModes": [access], "resources": {"requests": {"storage": storage}}}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def _service_pod(image: str, volume: SharedVolume | None, tls_secret: str, command: str) -> dict[str, Any]:
    mounts = {"state": _STATE_PATH}
    volumes: list[dict[str, Any]] = [{"name": "state", "persistentVolumeClaim": {"claimName": _STATE}}]
    if volume:
        mounts["shared"] = str(volume.path)
        folder = {"hostPath": {"path": str(volume.path), "type": "Directory"}}
        volumes.append(
            {"name": "shared", **({"persistentVolumeClaim": {"claimName": volume.claim}} if volume.claim else folder)}
        )
    if tls_secret:
        mounts["tls"] = _TLS_PATH
        volumes.append({"name": "tls", "secret": {"secretName": tls_secret}})
    container = {
        "name": NAME,
        "image": image,
        "command": shlex.split(command),
        "ports": [{"containerPort": PORT}],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
    }
    return {"serviceAccountName": NAME, "containers": [container], "volumes": volumes}


def serve_command(namespace: str, image: str, volume: SharedVolume | None, tls: bool, adopt: str = "") -> str:
    """The command that starts the service inside the cluster."""
    words = ["horae", "serve", "--backend", "kubernetes"]
    words += ["--adopt", adopt] if adopt else ["--namespace", namespace, "--image", image, "--volume", str(volume)]
    words += ["--url", f"{'https' if tls else 'http'}://{NAME}.{namespace}:{PORT}"]
    words += ["--state", _STATE_PATH, "--host", "0.0.0.0", "--port", str(PORT)]
    files = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
    encrypted = [word for option, file in files.items() for word in (f"--tls-{option}", f"{_TLS_PATH}/{file}")]
    words += encrypted if tls else ["--allow-plain-http"]
    return shlex.join(words)


def as_yaml(objects: Iterable[dict[str, Any]]) -> str:
    """Objects as one YAML document each."""
    # Through JSON, so that what occurs twice is written twice.
    return str(yaml.safe_dump_all(json.loads(json.dumps(list(objects))), sort_keys=False))
