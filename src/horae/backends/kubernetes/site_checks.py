"""Checks what the service may do in a cluster, and whether its namespace and claim are there, in sentences."""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Namespace, PersistentVolumeClaim

from horae.backends.kubernetes.api import NOT_FOUND, ApiRefusal, KubernetesApi
from horae.backends.kubernetes.rights import NEEDED, SEE_ALL_PODS, Right
from horae.backends.kubernetes.shared_volume import SharedVolume


@dataclass(frozen=True, slots=True)
class RightsReport:
    """What was found: errors keep jobs from running, warnings are worth knowing."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def may(api: KubernetesApi, right: Right) -> bool:
    """Whether the service has all verbs of a right. Everybody may ask that about himself."""
    return all(_may(api, right, verb) for verb in right.verbs)


def _may(api: KubernetesApi, right: Right, verb: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = ResourceAttributes(
        verb=verb,
        resource=resource,
        subresource=subresource or None,
        namespace=None if right.whole_cluster else api.namespace,
    )
    review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=attributes))
    try:
        return bool(api.call("post", SelfSubjectAccessReview, content=review)["status"].get("allowed"))
    except ApiRefusal:
        return False


def check_rights(api: KubernetesApi, volume: SharedVolume) -> RightsReport:
    """Check the namespace, the service's rights and the claim of the shared folder."""
    errors = []
    if not _is_there(api, Namespace, api.namespace, None):
        errors.append(f"There is no namespace {api.namespace!r}: `kubectl create namespace {api.namespace}`.")
    errors += [
        f"The service may not {verb} {right.resource} {_where(api, right)}: "
        "`horae kubernetes manifests` prints the rights it needs."
        for right in NEEDED
        for verb in right.verbs
        if not _may(api, right, verb)
    ]
    if volume.claim and not errors and not _is_there(api, PersistentVolumeClaim, volume.claim, api.namespace):
        errors.append(f"Namespace {api.namespace} has no PersistentVolumeClaim {volume.claim!r}.")
    warnings = []
    if not may(api, SEE_ALL_PODS):
        warnings.append("Pods of others cannot be seen in other namespaces: nodes that they use look free.")
    return RightsReport(tuple(errors), tuple(warnings))


def _is_there(api: KubernetesApi, resource: type, name: str, namespace: str | None) -> bool:
    """Whether an object exists. One that may not be read counts as there."""
    try:
        api.call("get", resource, name, namespace=namespace)
    except ApiRefusal as why:
        return why.code != NOT_FOUND
    return True


def _where(api: KubernetesApi, right: Right) -> str:
    return "in the cluster" if right.whole_cluster else f"in namespace {api.namespace}"
