"""`KubernetesDriver`: one pod for each piece, made and bound to its node by Horae.

The driver decides nothing, and remembers little: how many GPUs a node had, and nodes that were deleted. Nodes and pods
are mirrored (`mirror.py`). Each look asks the API server first whether it is there and can read its store, so that a
look is never older than a broken watch takes to be noticed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightkube.resources.core_v1 import Node, Pod, PodBinding

from horae.backends.driver import ClusterDriver, Look, OutOfSight, Piece, PieceId, PiecesRefused
from horae.backends.kubernetes.api import (
    CONFLICT,
    EVERYWHERE,
    NOT_FOUND,
    STRATEGIC_PATCH,
    ApiRefusal,
    KubernetesApi,
)
from horae.backends.kubernetes.mirror import Mirror
from horae.backends.kubernetes.node_sizes import NodeSizes
from horae.backends.kubernetes.objects import (
    FINALIZER,
    REFUSED_NOTE,
    SERVICE_LABEL,
    SLOW_S,
    KubeNode,
    KubePod,
    beside_others,
    cannot_start,
    foreign_by_node,
    read_node,
    read_pod,
    seen_node,
    state_of,
)
from horae.backends.kubernetes.pods import KubernetesSettings, binding_of, pod_name, pod_of
from horae.backends.kubernetes.rights import SEE_ALL_PODS
from horae.backends.kubernetes.shared_volume import SharedVolume
from horae.backends.kubernetes.site_checks import may
from horae.core.errors import UserError

#: Seconds of a grace period that ends a pod at once. 0 would drop the pod while its processes may live on.
AT_ONCE_S = 1


class BadKubernetesSettings(UserError):
    """A service id that cannot be used with Kubernetes."""


class KubernetesDriver(ClusterDriver):
    """A `ClusterDriver` for the nodes with GPUs of a Kubernetes cluster, with pods in one namespace."""

    honours = frozenset({"cpus_per_gpu", "memory_per_gpu", "image"})
    launch_limit_s = SLOW_S

    def __init__(self, settings: KubernetesSettings, api: KubernetesApi) -> None:
        if not re.fullmatch(r"[a-z0-9]{1,16}", settings.service):
            raise BadKubernetesSettings(
                f"{settings.service!r} cannot be the id of a service: use 1 to 16 of a-z and 0-9."
            )
        self._settings, self._api = settings, api
        label = f"{SERVICE_LABEL}={settings.service}"
        self._own = Mirror(api, Pod, read_pod, api.namespace, {"labelSelector": label})
        self._nodes = Mirror(api, Node, read_node)
        self._foreign: Mirror[KubePod] | None = None
        self._sizes = NodeSizes()
        #: Nodes of the last look.
        self._last_nodes: dict[str, KubeNode] = {}

    # --- looking

    def look(self) -> Look:
        """The nodes, and the pieces of this service, as they are now."""
        now_s = self._probe()
        nodes = {node.name: node for node in self._nodes.snapshot().values()}
        own = list(self._own.snapshot().values())
        self._give_up_stuck(own, now_s)
        states = ((pod.piece, state_of(pod, nodes.get(pod.node), now_s)) for pod in own)
        self._last_nodes = {**self._deleted(nodes, own), **nodes}
        others = list(self._others())
        seen = {name: seen_node(node, *self._sizes.believe(node)) for name, node in self._last_nodes.items()}
        return Look(
            nodes={name: beside_others(node, self._last_nodes[name], others) for name, node in seen.items()},
            pieces={piece: state for piece, state in states if piece and state},
            foreign=foreign_by_node(others, nodes),
        )

    def _deleted(self, nodes: Mapping[str, KubeNode], own: Iterable[KubePod]) -> dict[str, KubeNode]:
        """Nodes that were deleted while pods of this service may live there: lost, but not out of sight."""
        held = {pod.node for pod in own if pod.holds_gpus} - {*nodes}
        gone = {name: node for name, node in self._last_nodes.items() if name in held}
        return {name: replace(node, is_lost=True, is_open=False, why="deleted") for name, node in gone.items()}

    def _probe(self) -> float:
        """Ask for one pod, which reads the store. Returns the API server's time."""
        params = {"labelSelector": f"{SERVICE_LABEL}={self._settings.service}", "limit": 1}
        try:
            answered_s = self._api.call("list", Pod, namespace=self._api.namespace, params=params).get("answered_s")
        except ApiRefusal as why:
            raise OutOfSight(f"Pods in namespace {self._api.namespace} cannot be listed: {why}.") from None
        return time.time() if answered_s is None else float(answered_s)

    def _others(self) -> Iterable[KubePod]:
        """Pods of others that are bound and have not ended: of the whole cluster, if that is allowed."""
        if not self._foreign:
            namespace = EVERYWHERE if may(self._api, SEE_ALL_PODS) else self._api.namespace
            fields = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
            params = {"labelSelector": f"{SERVICE_LABEL}!={self._settings.service}", "fieldSelector": fields}
            self._foreign = Mirror(self._api, Pod, read_pod, namespace, params)
        return self._foreign.snapshot().values()

    def _give_up_stuck(self, pods: Iterable[KubePod], now_s: float) -> None:
        """Delete pods that cannot start, and note why: their attempts have failed."""
        for pod in filter(lambda pod: cannot_start(pod, now_s), pods):
            name, why = pod.key.partition("/")[2], pod.stuck or f"it did not start within {SLOW_S / 60:.0f} minutes"
            self._patch(name, {"metadata": {"annotations": {REFUSED_NOTE: why}}})
            self._delete(name)

    # --- acting

    def submit(self, pieces: Sequence[Piece]) -> None:
        """Make a pod for each piece, then bind all. If a pod or binding is refused, the pods are deleted.

        While pods that should be gone still hold GPUs of a node, nothing is done: the node would refuse the pods. The
        pieces stay unknown, and are submitted again.
        """
        attempts = {(piece.id.job, piece.id.attempt) for piece in pieces}
        assert len(attempts) <= 1, f"pieces of several attempts: {attempts}"
        nodes = {node.name: node for node in self._nodes.snapshot().values()}
        own, others = list(self._own.snapshot().values()), list(self._others())
        for piece in pieces:
            if piece.id.node not in nodes:
                raise PiecesRefused(f"Kubernetes has no node {piece.id.node} with GPUs.")
        if not all(has_room(piece, nodes[piece.id.node], (*own, *others)) for piece in pieces):
            return
        try:
            for piece in pieces:
                self._create(piece, nodes[piece.id.node], others)
            for piece in pieces:
                self._bind(piece)
        except ApiRefusal as why:
            for piece in pieces:
                self._withdraw(pod_name(self._settings.service, piece.id))
            raise PiecesRefused(why.why) from None

    def _create(self, piece: Piece, node: KubeNode, others: Iterable[KubePod]) -> None:
        """Make a pod, unless it is there."""
        beside = [pod for pod in others if pod.node == node.name]
        cpus_m = node.cpus_m - sum(pod.cpus_m for pod in beside)
        memory_mb = node.memory_mb - sum(pod.memory_mb for pod in beside)
        pod = pod_of(self._settings, piece, node, max(cpus_m, 0), max(memory_mb, 0))
        try:
            self._own.put(read_pod(self._api.call("post", Pod, content=pod)))
        except ApiRefusal as why:
            if why.code != CONFLICT:
                raise

    def _bind(self, piece: Piece) -> None:
        """Bind a pod to its node, unless it is bound or deleted. A second binding is refused, even to the same node."""
        name = pod_name(self._settings.service, piece.id)
        pod = self._read(name)
        if not pod or pod.node or pod.deleted_s is not None:
            return
        try:
            self._api.call("post", PodBinding, name, binding_of(name, piece.id.node))
        except ApiRefusal as why:
            pod = self._read(name)
            if why.code not in (CONFLICT, NOT_FOUND) or (pod and not pod.node and pod.deleted_s is None):
                raise
        self._read(name)

    def _withdraw(self, name: str) -> None:
        """Delete a pod of a refused gang. One that is not bound can never run, and is dropped."""
        pod = self._read(name)
        if pod and pod.node:
            self._delete(name)
        elif pod:
            self._drop(name)

    def kill(self, piece: PieceId) -> None:
        """Delete a pod with hardly any grace period."""
        self._delete(pod_name(self._settings.service, piece))

    def forget(self, piece: PieceId) -> None:
        """Let a pod's object go. It stays until its kubelet has ended it, if that has not happened yet."""
        name = pod_name(self._settings.service, piece)
        pod = self._own.get(f"{self._api.namespace}/{name}")
        if pod and (pod.is_kept or pod.deleted_s is None):
            self._drop(name)

    # --- single calls

    def _read(self, name: str) -> KubePod | None:
        """A pod as it is now; None if it is gone."""
        try:
            pod = read_pod(self._api.call("get", Pod, name))
        except ApiRefusal as why:
            if why.code == NOT_FOUND:
                return None
            raise
        self._own.put(pod)
        return pod

    def _delete(self, name: str) -> None:
        try:
            self._api.call("delete", Pod, name, params={"gracePeriodSeconds": AT_ONCE_S})
        except ApiRefusal as why:
            if why.code != NOT_FOUND:
                raise OutOfSight(f"The pod {name} cannot be deleted: {why}.") from None

    def _patch(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            self._api.call("patch", Pod, name, content, content_type=STRATEGIC_PATCH)
        except ApiRefusal as why:
            if why.code != NOT_FOUND:
                raise OutOfSight(f"The pod {name} cannot be changed: {why}.") from None

    def _drop(self, name: str) -> None:
        """Delete a pod, and take Horae's finalizer from it. Other finalizers stay."""
        self._delete(name)
        self._patch(name, {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}})


def has_room(piece: Piece, node: KubeNode, pods: Iterable[KubePod]) -> bool:
    """Whether no pod holds GPUs that a piece needs, as far as Kubernetes knows."""
    taken = sum(pod.gpus for pod in pods if pod.node == node.name and pod.holds_gpus and pod.piece != piece.id)
    return taken + piece.gpus <= max(node.gpus, node.gpus_claimed)


def settings_of_this_process(service: str, image: str, volume: SharedVolume) -> KubernetesSettings:
    """Settings whose pods run as this process does: it owns the files on the shared folder."""
    return KubernetesSettings(service, image, volume, os.getuid(), os.getgid())
