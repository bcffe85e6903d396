"""Reads what Ray's dashboard answers: nodes, jobs, actors, placement groups, tasks. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from horae.backends.driver import EndCause, PieceEnded, PieceRunning, PieceState, PieceWaiting, SeenNode
from horae.backends.ray.gang import LOST_PIECE, NO_GPUS, NO_LOCKS, NO_RAY, STILL_USED

#: Label with the GPU type, and the resource that stands for it where nobody set the label.
TYPE_LABEL, TYPE_RESOURCE = "ray.io/accelerator-type", "accelerator_type:"
#: Label with the rack of a node.
RACK_LABEL = "horae.dev/rack"
#: The resource that each node has one of, by its address.
_NODE_RESOURCE, _HEAD_RESOURCE = "node:", "node:__internal_head__"

_ALIVE = "ALIVE"
#: What Ray says of jobs that its own parts kept from running: no fault of the job.
_FAULTS_OF_RAY = (
    "JOB_SUPERVISOR_ACTOR_DIED",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
)
#: What an exit code of `gang.py` means.
_EXIT_WORDS = {
    NO_GPUS: "Ray did not give the GPUs in time: something else may hold them.",
    NO_RAY: "The program python3 on Ray's head has no package ray: start Ray with its environment activated.",
    STILL_USED: "Processes of an earlier attempt still use the GPUs.",
    NO_LOCKS: (
        "GPUs cannot be locked on a node: horae-gpus-UID in its temporary folder (/tmp) must be a folder of the "
        "account that runs Ray, which nobody else may use. Remove it there."
    ),
}


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray lists it. After a restart it is another one, with the same name."""

    id: str
    name: str
    address: str
    is_alive: bool
    gpu_type: str
    gpus: int
    cpus: int
    memory_mb: int
    rack: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class RayJob:
    """A job of the Jobs API."""

    submission_id: str
    #: Ray's own number for the job's driver; empty until the driver has connected.
    driver_id: str
    metadata: Mapping[str, str]
    state: PieceState


def read_nodes(entries: Iterable[Mapping[str, Any]]) -> list[RayNode]:
    """Nodes of the state API, dead ones included."""
    return [
        _node(entry, str(entry["node_id"]), str(entry.get("node_name") or ""), str(entry.get("node_ip") or ""))
        for entry in entries
    ]


def _node(entry: Mapping[str, Any], node_id: str, name: str, address: str) -> RayNode:
    resources, labels = entry.get("resources_total") or {}, entry.get("labels") or {}
    return RayNode(
        id=node_id,
        name=name or address,
        address=address,
        is_alive=entry.get("state") == _ALIVE,
        gpu_type=gpu_type_of(labels, resources),
        gpus=int(resources.get("GPU", 0)),
        cpus=int(resources.get("CPU", 0)),
        memory_mb=int(resources.get("memory", 0)) // 2**20,
        rack=str(labels.get(RACK_LABEL, "")),
        why=str(entry.get("state_message") or ""),
    )


def read_summary(answer: Mapping[str, Any]) -> list[RayNode]:
    """Nodes of `/nodes?view=summary`, which writes some names in another way than the state API."""
    rows = [row.get("raylet") or {} for row in (answer.get("data") or {}).get("summary") or []]
    return [
        _node(
            {
                "state": row.get("state"),
                "resources_total": row.get("resourcesTotal") or {},
                "labels": row.get("labels") or {},
                "state_message": row.get("stateMessage"),
            },
            str(row["nodeId"]),
            str(row.get("nodeName") or ""),
            str(row.get("nodeManagerAddress") or ""),
        )
        for row in rows
        if row.get("nodeId")
    ]


def gpu_type_of(labels: Mapping[str, str], resources: Mapping[str, float]) -> str:
    """The GPU type of a node, in small letters; `gpu` if Ray does not know it."""
    named = [
        name.partition(":")[2] for name in resources if name.lower().replace("_", "").startswith("acceleratortype:")
    ]
    return (labels.get(TYPE_LABEL) or next(iter(named), "") or "gpu").lower()


def living_nodes(nodes: Iterable[RayNode]) -> dict[str, RayNode]:
    """The living nodes with GPUs, by name."""
    return {node.name: node for node in nodes if node.is_alive and node.gpus}


def seen_nodes(nodes: Iterable[RayNode]) -> dict[str, SeenNode]:
    """The nodes with GPUs, by name. A dead node counts only if no living one has its name."""
    known = [node for node in nodes if node.gpus]
    names = Counter(node.name for node in known if node.is_alive)
    ordered = sorted(known, key=lambda node: node.is_alive)
    return {node.name: _seen(node, names[node.name]) for node in ordered}


def _seen(node: RayNode, alike: int) -> SeenNode:
    why = node.why if not node.is_alive else ""
    if alike > 1:
        why = f"{alike} nodes of Ray are called {node.name}: start each with a --node-name of its own."
    return SeenNode(
        name=node.name,
        address=node.address,
        gpu_type=node.gpu_type,
        gpus=node.gpus,
        cpus=node.cpus,
        memory_mb=node.memory_mb,
        rack=node.rack,
        is_open=node.is_alive and alike == 1,
        is_lost=not node.is_alive,
        why=why,
    )


def read_jobs(entries: Iterable[Mapping[str, Any]]) -> list[RayJob]:
    """Jobs that were submitted to the Jobs API."""
    return [
        RayJob(
            str(entry["submission_id"]),
            str(entry.get("job_id") or ""),
            entry.get("metadata") or {},
            read_job_state(entry),
        )
        for entry in entries
        if entry.get("submission_id")
    ]


def read_job_state(entry: Mapping[str, Any]) -> PieceState:
    """The state of a job's pieces. States that are new here count as running: nothing is concluded from them."""
    message = str(entry.get("message") or "").partition("\n")[0]
    match entry.get("status"):
        case "PENDING":
            return PieceWaiting(message)
        case "SUCCEEDED":
            return PieceEnded(None, EndCause.EXITED)
        case "STOPPED":
            return PieceEnded(None, EndCause.CANCELLED, message)
        case "FAILED":
            return _failed(entry.get("driver_exit_code"), entry.get("error_type"), message)
        case _:
            return PieceRunning()


def _failed(code: int | None, error: str | None, message: str) -> PieceEnded:
    """A job whose driver ended badly: killed and lost ones are no fault of the job."""
    if code in _EXIT_WORDS:
        return PieceEnded(None, EndCause.FAILED, _EXIT_WORDS[code])
    if code == LOST_PIECE or (code is not None and (code < 0 or code > 128)) or error in _FAULTS_OF_RAY:
        return PieceEnded(None, EndCause.STOPPED, message)
    return PieceEnded(None, EndCause.FAILED, message)


def foreign_by_node(
    actors: Iterable[Mapping[str, Any]],
    groups: Iterable[Mapping[str, Any]],
    tasks: Iterable[Mapping[str, Any]],
    own: Iterable[str],
) -> dict[str, tuple[str, ...]]:
    """What holds GPUs and is not of this service, in words, by node id. `own` are drivers' ids of this service."""
    ours, found = {*own}, dict[str, list[str]]()
    for entry in actors:
        if entry.get("job_id") not in ours and _holds_gpus(entry.get("required_resources")):
            words = f"Ray actor {entry.get('class_name')} of job {entry.get('job_id')}"
            found.setdefault(str(entry.get("node_id")), []).append(words)
    for entry in tasks:
        if entry.get("job_id") not in ours and _holds_gpus(entry.get("required_resources")):
            words = f"Ray task {entry.get('name')} of job {entry.get('job_id')}"
            found.setdefault(str(entry.get("node_id")), []).append(words)
    for entry in groups:
        for bundle in entry.get("bundles") or () if entry.get("creator_job_id") not in ours else ():
            if _holds_gpus(bundle.get("unit_resources")):
                words = f"Ray placement group of job {entry.get('creator_job_id')}"
                found.setdefault(str(bundle.get("node_id")), []).append(words)
    return {node: tuple(dict.fromkeys(texts)) for node, texts in found.items()}


def _holds_gpus(resources: Mapping[str, float] | None) -> bool:
    """Whether resources have GPUs, also those of a placement group (`GPU_group_...`)."""
    return any(amount > 0 and name.partition("_")[0] == "GPU" for name, amount in (resources or {}).items())
