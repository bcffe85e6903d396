"""Turns pieces into pods: names, labels, resources, tolerations, the shared volume. Pure functions.

Pods are not placed by Kubernetes' scheduler: `schedulerName` is horae, and Horae binds each pod to its node.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import (
    Container,
    EmptyDirVolumeSource,
    EnvVar,
    HostPathVolumeSource,
    ObjectReference,
    PersistentVolumeClaimVolumeSource,
    PodSecurityContext,
    PodSpec,
    ResourceRequirements,
    Toleration,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, PodBinding

from horae.backends.driver import NODE_VARIABLE, Piece, PieceId
from horae.backends.kubernetes.objects import (
    ATTEMPT_LABEL,
    ATTEMPT_NOTE,
    FINALIZER,
    JOB_LABEL,
    JOB_NOTE,
    NODE_LABEL,
    NODE_NOTE,
    SERVICE_LABEL,
    TOLERATED,
    KubeNode,
)
from horae.backends.kubernetes.shared_volume import SharedVolume

SCHEDULER = "horae"
#: Seconds from a pod's deletion to its end by force. The runner ends its job by the job's own grace period, which is
#: shorter; this is for a runner that does not.
GRACE_S = 3600
#: Taints by which Kubernetes deletes pods of a node that is cut off. Horae decides what becomes of them.
_CUT_OFF = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Where pods of this service go, and what they are made of."""

    #: Short id of the service, unique in the cluster: [a-z0-9]{1,16}.
    service: str
    #: Image of jobs that name none.
    image: str
    volume: SharedVolume
    #: Ids of the user and group that pods run as: those of the service, which owns the files.
    user: int
    group: int


def pod_name(service: str, piece: PieceId) -> str:
    """The name of a piece's pod. It is the same each time, so that a second submission finds the first."""
    digest = hashlib.sha256(f"{piece.job} {piece.attempt} {piece.node}".encode()).hexdigest()[:10]
    return f"horae-{service}-{_slug(piece.job)}-{piece.attempt}-{digest}"


def _slug(job: str) -> str:
    """What of a job's id may stand in names and labels."""
    return re.sub(r"[^a-z0-9]+", "-", job.lower())[:20].strip("-") or "job"


def pod_of(settings: KubernetesSettings, piece: Piece, node: KubeNode, cpus_m: int, memory_mb: int) -> Pod:
    """The pod of a piece. `cpus_m` and `memory_mb` are what the node has for all its GPUs."""
    resources = resources_of(piece, node, cpus_m, memory_mb)
    container = Container(
        name="runner",
        image=piece.image or settings.image,
        command=list(piece.command),
        env=[EnvVar(name=NODE_VARIABLE, value=piece.id.node)],
        resources=resources,
        volumeMounts=[
            VolumeMount(name="shared", mountPath=str(settings.volume.path)),
            # Containers have 64 MB there otherwise, too little for data loaders.
            VolumeMount(name="shm", mountPath="/dev/shm"),
        ],
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    spec = PodSpec(
        schedulerName=SCHEDULER,
        restartPolicy="Never",
        terminationGracePeriodSeconds=GRACE_S,
        containers=[container],
        volumes=[_shared(settings.volume), Volume(name="shm", emptyDir=EmptyDirVolumeSource(medium="Memory"))],
        tolerations=_tolerations(),
        # Ranks reach each other by the addresses of their nodes, at ports that are unique on a node.
        hostNetwork=True,
        dnsPolicy="ClusterFirstWithHostNet",
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        securityContext=PodSecurityContext(runAsUser=settings.user, runAsGroup=settings.group),
    )
    return Pod(metadata=_meta(settings.service, piece.id), spec=spec)


def _meta(service: str, piece: PieceId) -> ObjectMeta:
    labels = {SERVICE_LABEL: service, JOB_LABEL: _slug(piece.job), ATTEMPT_LABEL: str(piece.attempt)}
    labels[NODE_LABEL] = piece.node[:63].rstrip("-.")
    notes = {JOB_NOTE: piece.job, ATTEMPT_NOTE: str(piece.attempt), NODE_NOTE: piece.node}
    return ObjectMeta(name=pod_name(service, piece), labels=labels, annotations=notes, finalizers=[FINALIZER])


def _shared(volume: SharedVolume) -> Volume:
    if volume.claim:
        return Volume(name="shared", persistentVolumeClaim=PersistentVolumeClaimVolumeSource(claimName=volume.claim))
    return Volume(name="shared", hostPath=HostPathVolumeSource(path=str(volume.path), type="Directory"))


def _tolerations() -> list[Toleration]:
    """Without these, Kubernetes deletes the pods of a node five minutes after it was cut off."""
    kept = [Toleration(key=key, operator="Exists", effect="NoExecute") for key in _CUT_OFF]
    return [*kept, *(Toleration(key=key, operator="Exists") for key in TOLERATED)]


def resources_of(piece: Piece, node: KubeNode, cpus_m: int, memory_mb: int) -> ResourceRequirements:
    """GPUs as asked for; CPUs and memory as asked for, or by the piece's share of the node's GPUs."""
    share = piece.gpus / max(node.gpus_claimed, piece.gpus, 1)
    cpus = int(cpus_m * share) if piece.cpus_per_gpu is None else piece.cpus_per_gpu * piece.gpus * 1000
    memory = int(memory_mb * share) if piece.memory_mb_per_gpu is None else piece.memory_mb_per_gpu * piece.gpus
    gpus = {node.resource: str(piece.gpus)}
    sizes = {"memory": f"{memory}Mi"} if memory > 0 else {}
    # More CPUs than asked for may be used while they are idle; memory may not.
    return ResourceRequirements(requests={"cpu": f"{max(cpus, 1)}m", **sizes, **gpus}, limits={**sizes, **gpus})


def binding_of(name: str, node: str, uid: str | None = None, notes: Mapping[str, str] | None = None) -> PodBinding:
    """What binds a pod to a node; only the pod of this uid, if one is given. It gets the notes as annotations."""
    meta = ObjectMeta(name=name, uid=uid, annotations=dict(notes) if notes else None)
    return PodBinding(metadata=meta, target=ObjectReference(apiVersion="v1", kind="Node", name=node))
