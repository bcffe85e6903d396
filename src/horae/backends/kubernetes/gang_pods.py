"""Pods that users hand to Horae (`schedulerName: horae`), the Jobs that made them, and the gangs that they form. Pure.

A gang is told by Horae's own label, or by those of JobSet, the Kubeflow training operator and `batch/v1` Jobs:

    horae.dev/gang: NAME            with horae.dev/gang-size: N, unless Jobs made all its pods
    jobset.sigs.k8s.io/...          all Jobs of the JobSet
    training.kubeflow.org/...       all replicas
    (a Job's own pods)              as many as the Job's parallelism
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horae.backends.adoption_options import DEFAULT_S, OPTIONS, BadRequest, duration_of, put_option, read_value
from horae.backends.kubernetes.mirror import key_of
from horae.backends.kubernetes.objects import (
    ENDED,
    NODE_NOTE,
    PRODUCT_LABELS,
    SERVICE_LABEL,
    KubePod,
    read_pod,
    seconds_of_time,
)
from horae.backends.kubernetes.pods import SCHEDULER
from horae.backends.local.gpu_detection import type_name
from horae.core.errors import did_you_mean

GANG_LABEL, SIZE_LABEL, RANK_NOTE = "horae.dev/gang", "horae.dev/gang-size", "horae.dev/rank"
#: How many seconds a pod has to end if it does not say.
DEFAULT_GRACE_S = 30.0
_OWN = "horae.dev/"
_JOBSET, _KUBEFLOW = "jobset.sigs.k8s.io/", "training.kubeflow.org/"
#: Labels of JobSet with the number of its Jobs; the second one counts Jobs of one template only, and is older.
_JOB_COUNTS = ("global-replicas", "replicatedjob-replicas")
_INDEX = "batch.kubernetes.io/job-completion-index"
#: Names after `horae.dev/` that are no options of a job file.
_NO_OPTIONS = {"gang", "gang-size", "user", "gpu-type", "job", "attempt", "rank", "refused", "node", "managed"}
#: Names of users, as in `horae token create`.
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
#: Node labels that a pod may ask for; Horae's nodes have them, or they say the GPU type.
_KNOWN_SELECTORS = {*PRODUCT_LABELS, "kubernetes.io/os", "kubernetes.io/arch"}


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller that made a pod, and makes it again."""

    resource: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class UserPod:
    """A pod of a user, with what tells its gang."""

    pod: KubePod
    uid: str
    name: str
    namespace: str
    #: Identifies the gang among those that there are now, such as `job/train/UID`.
    group: str
    gang_name: str
    owner: Owner | None
    #: How many pods the gang has, if the pod says so; and how many Jobs its JobSet has.
    said_size: int | None
    said_jobs: int | None
    #: Orders the pods of a gang: their ranks.
    order: tuple[Any, ...]
    gpu_type: str
    grace_s: float
    #: When its containers began and ended, in seconds since 1970; 0 if they have not.
    started_s: float
    finished_s: float
    #: Horae's options, by name, and why the pod cannot be ordered; empty if it can.
    options: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    #: Whether its marks are those of pods that Horae makes. Anybody may put them on a pod that runs.
    looks_own: bool = False

    @property
    def key(self) -> str:
        """As the mirror knows it."""
        return self.pod.key

    @property
    def version(self) -> int:
        """The resourceVersion."""
        return self.pod.version

    @property
    def is_fresh(self) -> bool:
        """Whether it waits to be bound."""
        return not self.pod.node and self.pod.deleted_s is None and self.pod.phase not in ENDED


@dataclass(frozen=True, slots=True)
class UserJob:
    """A `batch/v1` Job."""

    key: str
    version: int
    name: str
    uid: str
    parallelism: int
    #: None for a Job that is done when one pod has succeeded and all have ended.
    completions: int | None
    succeeded: int
    is_complete: bool
    is_failed: bool
    #: The JobSet that made it; empty if none did.
    jobset: str = ""

    @property
    def wants(self) -> int:
        """Pods that it keeps."""
        if self.is_complete or self.is_failed:
            return 0
        left = self.parallelism if self.completions is None else self.completions - self.succeeded
        return max(0, min(self.parallelism, left))


class Controller(enum.Enum):
    """What became of that which made the pods of a gang."""

    #: Makes pods again that end without success.
    ACTIVE = "active"
    COMPLETE = "complete"
    FAILED = "failed"
    GONE = "gone"
    #: Something that is not looked at, such as a PyTorchJob.
    UNKNOWN = "unknown"
    #: Nobody: the pods were made by hand.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GangView:
    """A gang as Kubernetes shows it."""

    pods: tuple[UserPod, ...]
    #: Pods with which it can run; 0 if nothing is left to run.
    wanted: int
    controller: Controller
    #: Why it cannot be ordered; empty if it can.
    problem: str = ""

    @property
    def fresh(self) -> tuple[UserPod, ...]:
        """Pods that wait to be bound, by rank."""
        return tuple(sorted((pod for pod in self.pods if pod.is_fresh), key=lambda pod: pod.order))

    @property
    def lacks(self) -> str:
        """What is missing before it can run; empty if nothing is."""
        there = len(self.fresh)
        return f"{there} of its {self.wanted} pods are there" if there < max(self.wanted, 1) else ""


# --- reading


def read_user_pod(content: Mapping[str, Any]) -> UserPod | None:
    """A pod that a user hands to Horae, or one of Horae's own; None for those of other schedulers."""
    meta, spec, status = content["metadata"], content.get("spec", {}), content.get("status", {})
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    if spec.get("schedulerName") != SCHEDULER:
        return None
    both = {**labels, **notes}
    owner = _owner(meta)
    group, gang_name = _group(meta, labels, owner)
    size = _number(both.get(SIZE_LABEL))
    return UserPod(
        pod=read_pod(content),
        uid=meta["uid"],
        name=meta["name"],
        namespace=meta["namespace"],
        group=group,
        gang_name=gang_name,
        owner=owner,
        said_size=_size(group, spec) if size is None else size,
        said_jobs=next(filter(None, (_number(both.get(f"{_JOBSET}{name}")) for name in _JOB_COUNTS)), None),
        order=_order(meta["name"], both),
        gpu_type=both.get(f"{_OWN}gpu-type") or _product(spec),
        grace_s=float(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)),
        started_s=_moment(status, "startedAt"),
        finished_s=_moment(status, "finishedAt"),
        options=_options(both),
        problem=_problem(group, owner, spec, both),
        looks_own=SERVICE_LABEL in labels and NODE_NOTE in notes,
    )


def _owner(meta: Mapping[str, Any]) -> Owner | None:
    owners = (ref for ref in meta.get("ownerReferences") or () if ref.get("controller"))
    return next((Owner(ref["kind"], ref["name"], ref["uid"]) for ref in owners), None)


def _group(meta: Mapping[str, Any], labels: Mapping[str, str], owner: Owner | None) -> tuple[str, str]:
    """The gang of a pod, and its name for people. Two gangs of one name, one after the other, differ by a uid."""
    if name := labels.get(GANG_LABEL):
        return f"gang/{name}", name
    if name := labels.get(f"{_JOBSET}jobset-name"):
        return f"jobset/{name}/{labels.get(f'{_JOBSET}jobset-uid', '')}", name
    if owner and (name := labels.get(f"{_KUBEFLOW}job-name")):
        return f"kubeflow/{name}/{owner.uid}", name
    if owner and owner.resource == "Job":
        return f"job/{owner.name}/{owner.uid}", owner.name
    return f"pod/{meta['name']}/{meta['uid']}", meta["name"]


def _size(group: str, spec: Mapping[str, Any]) -> int | None:
    """How many pods a gang has by what its pods say; None if Jobs must say, or nobody does."""
    if group.startswith("pod/"):
        return 1
    if not group.startswith("kubeflow/"):
        return None
    pairs = (each for container in spec.get("containers") or () for each in container.get("env") or ())
    env = {each["name"]: each.get("value", "") for each in pairs}
    # The training operator tells a pod the number of nodes, or that of processes, one in each pod.
    return _number(env.get("PET_NNODES")) or (None if "PET_NPROC_PER_NODE" in env else _number(env.get("WORLD_SIZE")))


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[1-9]\d{0,5}", text) else None


def _order(name: str, both: Mapping[str, str]) -> tuple[Any, ...]:
    """Sorts the pods of a gang: masters first, then by index, then by name."""
    indices = (f"{_JOBSET}job-global-index", f"{_JOBSET}job-index", _INDEX, f"{_KUBEFLOW}replica-index")
    is_worker = both.get(f"{_KUBEFLOW}replica-type", "") == "worker"
    numbers = tuple(int(both[key]) if re.fullmatch(r"[0-9]{1,6}", both.get(key, "")) else -1 for key in indices)
    return (is_worker, both.get(f"{_JOBSET}replicatedjob-name", ""), *numbers, name)


def _product(spec: Mapping[str, Any]) -> str:
    """The GPU type that a pod asks for by a node label; empty for any."""
    selector = spec.get("nodeSelector") or {}
    product = next((selector[name] for name in PRODUCT_LABELS if selector.get(name)), "")
    return type_name(product) if product else ""


def _moment(status: Mapping[str, Any], what: str) -> float:
    """The last time at which a container began (`startedAt`) or ended (`finishedAt`); 0 if one has not."""
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    times = [seconds_of_time((state.get("terminated") or state.get("running") or {}).get(what)) for state in states]
    return max((time for time in times if time), default=0.0) if all(times) else 0.0


def _options(both: Mapping[str, str]) -> dict[str, str]:
    """Labels and annotations `horae.dev/...`, without that part of their names."""
    return {name.removeprefix(_OWN): value for name, value in both.items() if name.startswith(_OWN)}


def _problem(group: str, owner: Owner | None, spec: Mapping[str, Any], both: Mapping[str, str]) -> str:
    """Why a pod cannot be ordered; empty if it can."""
    if SIZE_LABEL in both and _number(both[SIZE_LABEL]) is None:
        return f"{SIZE_LABEL} must be a number of pods, and is {both[SIZE_LABEL]!r}."
    if group.startswith("pod/") and owner:
        return f"Horae cannot tell the gang of a pod that a {owner.resource} made: label its pods with {GANG_LABEL}."
    others = {*(spec.get("nodeSelector") or {})} - _KNOWN_SELECTORS
    if others:
        return f"Horae does not choose nodes by {', '.join(sorted(others))}: take the nodeSelector out."
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    is_needed = "requiredDuringSchedulingIgnoredDuringExecution" in affinity
    return "Horae does not choose nodes by required node affinity: take it out." if is_needed else ""


def read_user_job(content: Mapping[str, Any]) -> UserJob:
    """A Job."""
    meta, spec, status = content["metadata"], content.get("spec", {}), content.get("status", {})
    conditions = {each["type"] for each in status.get("conditions") or () if each.get("status") == "True"}
    completions = spec.get("completions")
    return UserJob(
        key=key_of(content),
        version=int(meta["resourceVersion"]),
        name=meta["name"],
        uid=meta["uid"],
        parallelism=int(spec.get("parallelism", 1)),
        completions=None if completions is None else int(completions),
        succeeded=int(status.get("succeeded") or 0),
        is_complete="Complete" in conditions,
        is_failed="Failed" in conditions,
        jobset=(meta.get("labels") or {}).get(f"{_JOBSET}jobset-name", ""),
    )


# --- gangs


def view_of(pods: Sequence[UserPod], jobs: Mapping[str, UserJob], owners: Iterable[str] = ()) -> GangView:
    """A gang from its pods. `jobs` are those of the namespace by uid, `owners` the Jobs that made its last pods."""
    living = [pod for pod in pods if pod.pod.phase not in ENDED]
    by_jobs = bool(living) and all(pod.owner and pod.owner.resource == "Job" for pod in living)
    # Pods that have lost their owner are nobody's, also when they have ended.
    is_known = bool(living) or (bool(pods) and not any(pod.owner for pod in pods))
    uids = {pod.owner.uid for pod in living if pod.owner} if by_jobs else (set() if is_known else {*owners})
    made = {uid: jobs[uid] for uid in uids if uid in jobs}
    jobset = next((job.jobset for job in made.values() if job.jobset), "")
    made |= {job.uid: job for job in jobs.values() if jobset and job.jobset == jobset}
    wanted, problem = _wanted(pods, list(made.values()))
    problem = next((pod.problem for pod in pods if pod.problem), "") or problem
    return GangView(tuple(pods), wanted, _controller(living, uids, made), problem)


def _wanted(pods: Sequence[UserPod], made: Sequence[UserJob]) -> tuple[int, str]:
    """Pods with which a gang can run, and why that cannot be told."""
    whole = max((pod.said_size or 0 for pod in pods), default=0)
    finished = sum(job.parallelism - job.wants for job in made)
    if whole:
        succeeded = sum(pod.pod.phase == "Succeeded" for pod in pods)
        return max(0, whole - (finished if made else succeeded)), ""
    if not made:
        if any(pod.owner is None or pod.owner.resource != "Job" for pod in pods):
            return 1, f"Horae cannot tell how many pods belong to the gang: label them with {SIZE_LABEL}."
        return len(pods) + 1, ""  # its Job was not seen yet, or is gone
    said_jobs = max((pod.said_jobs or 0 for pod in pods), default=0) if made[0].jobset else 0
    # Each Job of the JobSet that is not there yet will have one pod at least.
    return sum(job.wants for job in made) + max(0, said_jobs - len(made)), ""


def _controller(living: Sequence[UserPod], uids: set[str], made: Mapping[str, UserJob]) -> Controller:
    if uids:
        if uids - {*made}:
            return Controller.GONE
        if any(job.is_failed for job in made.values()):
            return Controller.FAILED
        return Controller.COMPLETE if all(job.is_complete for job in made.values()) else Controller.ACTIVE
    return Controller.UNKNOWN if any(pod.owner for pod in living) else Controller.NONE


def document_of(pods: Sequence[UserPod], trusted: bool = False) -> tuple[dict[str, Any], float]:
    """The gang as a job file, and its estimated seconds; raises `BadRequest`.

    Unless annotations are trusted, the queue is the namespace or below it: who may make pods must not spend the share
    of others.
    """
    first = pods[0]
    where = "the annotations"
    gpus = sum(pod.pod.gpus for pod in pods)
    if not gpus:
        raise BadRequest("Horae orders pods that ask for GPUs: set limits such as nvidia.com/gpu: 1.")
    types = {pod.gpu_type for pod in pods if pod.pod.gpus}
    if len(types) != 1:
        raise BadRequest("The pods of a gang must ask for GPUs of one type.")
    gpu_type = types.pop()
    document: dict[str, Any] = {
        "name": _job_name(first.gang_name),
        "run": ["kubectl", f"{first.namespace}/{first.gang_name}"],
        "resources": {"gpus": f"{gpu_type}:{gpus}" if gpu_type else gpus},
        "estimate": {"duration": DEFAULT_S},
        "checkpoint": {"grace": max(pod.grace_s for pod in pods)},
        "queue": first.namespace,
    }
    if first.owner is None:
        document["preemptible"] = False  # nobody would make the pods again
    for name, value in first.options.items():
        option = name.replace("-", "_")
        if name in _NO_OPTIONS:
            continue
        if option not in OPTIONS or option == "grace":
            raise BadRequest(f"The annotation horae.dev/{name} is not known.{did_you_mean(option, OPTIONS)}")
        put_option(document, option, read_value(option, value, where))
    if not trusted and document["queue"].partition("/")[0] != first.namespace:
        document["queue"] = f"{first.namespace}/{document['queue']}"
    return document, duration_of(document, where)


def user_of(pods: Sequence[UserPod], trusted: bool = False) -> str:
    """Whose job a gang is: its namespace's, or as its annotation says, which counts within the namespace only."""
    user, namespace = pods[0].options.get("user"), pods[0].namespace
    if not user:
        return namespace
    if not _USER.fullmatch(user):
        raise BadRequest(f"{_OWN}user must be letters, digits, and . _ @ -, 63 at most, and is {user!r}.")
    return user if trusted else f"{user}@{namespace}"


def _job_name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")
    return plain[:38].rstrip("-_") or "job"


def pack(sizes: Sequence[int], seats: Sequence[tuple[str, int]]) -> list[str] | None:
    """A node for each pod, by the GPUs that each asks for and those that each node has for the gang.

    None if they do not fit. Large pods come first, each on the fullest node that has room; with pods of one size, which
    is the usual case, that finds a way if there is one.
    """
    room = dict(seats)
    found: dict[int, str] = {}
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        fits = [node for node, _ in seats if room[node] >= sizes[index]]
        if not fits:
            return None
        found[index] = min(fits, key=lambda node: room[node])
        room[found[index]] -= sizes[index]
    return [found[index] for index in range(len(sizes))]
