"""Checks what the service may do in a cluster, and whether its namespace and claim are there, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Namespace, PersistentVolumeClaim

from horae.backends.kubernetes.api import NOT_FOUND, ApiRefusal, KubernetesApi
from horae.backends.kubernetes.rights import NEEDED, NEEDED_TO_ADOPT, SEE_ALL_PODS, TELL_USERS, Right
from horae.backends.kubernetes.shared_volume import SharedVolume


@dataclass(frozen=True, slots=True)
class RightsReport:
    """What was found: errors keep jobs from running, warnings are worth knowing."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def may(api: KubernetesApi, right: Right) -> bool:
    """Whether the service has all verbs of a right. Everybody may ask that about himself."""
    return all(_may(api, right, verb, api.namespace) for verb in right.verbs)


def _may(api: KubernetesApi, right: Right, verb: str, namespace: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = ResourceAttributes(
        verb=verb,
        resource=resource,
        subresource=subresource or None,
        group=right.group or None,
        namespace=None if right.whole_cluster else namespace,
    )
    review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=attributes))
    try:
        return bool(api.call("post", SelfSubjectAccessReview, content=review)["status"].get("allowed"))
    except ApiRefusal:
        return False


def check_rights(api: KubernetesApi, volume: SharedVolume) -> RightsReport:
    """Check the namespace, the service's rights and the claim of the shared folder."""
    errors = _errors(api, api.namespace, NEEDED, "horae kubernetes manifests")
    if volume.claim and not errors and not _is_there(api, PersistentVolumeClaim, volume.claim, api.namespace):
        errors.append(f"Namespace {api.namespace} has no PersistentVolumeClaim {volume.claim!r}.")
    return RightsReport(tuple(errors), tuple(_warnings(api)))


def check_adoption(api: KubernetesApi, namespaces: tuple[str, ...]) -> RightsReport:
    """Check the namespaces whose users hand their pods to Horae, and the service's rights there."""
    command = f"horae kubernetes manifests --adopt {','.join(namespaces)}"
    errors = [error for name in namespaces for error in _errors(api, name, NEEDED_TO_ADOPT, command)]
    warnings = _warnings(api)
    silent = [name for name in namespaces if not _may(api, TELL_USERS, "create", name)]
    if silent:
        warnings.append(f"Users of {', '.join(silent)} are not told why their pods wait: Events may not be made there.")
    return RightsReport(tuple(errors), tuple(warnings))


def _errors(api: KubernetesApi, namespace: str, rights: Iterable[Right], command: str) -> list[str]:
    """What keeps a service from working in a namespace; `command` prints the rights."""
    missing = f"There is no namespace {namespace!r}: `kubectl create namespace {namespace}`."
    return [missing] * (not _is_there(api, Namespace, namespace, None)) + [
        f"The service may not {verb} {right.resource} {_where(namespace, right)}: "
        f"`{command}` prints the rights it needs."
        for right in rights
        for verb in right.verbs
        if not _may(api, right, verb, namespace)
    ]


def _warnings(api: KubernetesApi) -> list[str]:
    if may(api, SEE_ALL_PODS):
        return []
    return ["Pods of others cannot be seen in other namespaces: nodes that they use look free."]


def _is_there(api: KubernetesApi, resource: type, name: str, namespace: str | None) -> bool:
    """Whether an object exists. One that may not be read counts as there."""
    try:
        api.call("get", resource, name, namespace=namespace)
    except ApiRefusal as why:
        return why.code != NOT_FOUND
    return True


def _where(namespace: str, right: Right) -> str:
    return "in the cluster" if right.whole_cluster else f"in namespace {namespace}"
