"""Takes Horae's marks off users' pods, as if it had never been there. Pods that run, run on."""

from __future__ import annotations

from typing import Any

from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod

from horae.backends.driver import OutOfSight
from horae.backends.kubernetes.api import NOT_FOUND, STRATEGIC_PATCH, ApiRefusal, KubernetesApi
from horae.backends.kubernetes.gang_pods import read_user_pod
from horae.backends.kubernetes.namespace_lease import NAME
from horae.backends.kubernetes.objects import FINALIZER
from horae.backends.kubernetes.pods import SCHEDULER


def release_pods(api: KubernetesApi, namespaces: tuple[str, ...]) -> tuple[int, int]:
    """Take the finalizer off users' pods, and the Leases away; returns how many pods had it, and how many wait."""
    freed, waiting = 0, 0
    for namespace in namespaces:
        params = {"fieldSelector": f"spec.schedulerName={SCHEDULER}"}
        listed = _call(api, "list", Pod, namespace=namespace, params=params)
        found = filter(None, map(read_user_pod, listed.get("items", ())))
        for pod in (pod for pod in found if not pod.looks_own):
            waiting += pod.is_fresh
            if pod.pod.is_kept:
                changed = {"metadata": {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
                _call(api, "patch", Pod, pod.name, changed, namespace=namespace, content_type=STRATEGIC_PATCH)
                freed += 1
        _call(api, "delete", Lease, NAME, namespace=namespace)
    return freed, waiting


def _call(api: KubernetesApi, *words: Any, **more: Any) -> dict[str, Any]:
    """A call. What is gone meanwhile is no trouble."""
    try:
        return api.call(*words, **more)
    except ApiRefusal as why:
        if why.code != NOT_FOUND:
            raise OutOfSight(f"The API server refuses: {why}.") from None
        return {}
