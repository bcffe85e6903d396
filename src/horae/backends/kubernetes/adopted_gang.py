"""A gang of users' pods that Horae orders, and the records of such gangs on disk. Stored: change by addition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horae.backends.adopted_job import AdoptedJob, JobRecords, known_values
from horae.backends.kubernetes.gang_pods import UserPod, document_of, user_of

#: How keys begin, and so the names of records.
PREFIX = "kubernetes"


@dataclass(slots=True, kw_only=True)
class Member:
    """A pod of an attempt, and its node."""

    uid: str
    name: str
    node: str
    gpus: int
    rank: int
    #: The machine's boot id when the pod was chosen: with another one, its processes are gone.
    boot: str = ""
    #: Whether Horae has begun to bind it; before that it cannot run.
    tried: bool = False
    #: Whether its containers were seen to have begun.
    begun: bool = False
    #: Whether Horae has deleted it, and whether somebody else has.
    deleted: bool = False
    taken_away: bool = False
    #: Whether its end is proven; its exit code, None if it never ran; why its node refused it.
    ended: bool = False
    code: int | None = None
    why: str = ""
    #: Whether another pod of its Job has its place now: it has succeeded, and the Job has more to do.
    replaced: bool = False


@dataclass(slots=True)
class GangTimers:
    """What one process remembers of a gang; monotonic seconds."""

    announced: bool = False
    launched_s: float | None = None
    last_delete_s: float = -math.inf
    over_s: float | None = None
    lacking_s: float | None = None
    orphan_s: float | None = None
    refused_s: float = -math.inf
    #: Why the API server does not let Horae do what is to be done for the gang; empty if it does.
    trouble: str = ""
    #: Why the API server has refused the last binding, and why pods do not start; empty if all is well.
    bind_refusal: str = ""
    stuck: str = ""
    #: When pods were last seen to lack room on their nodes, and for how long they do, in sight.
    no_room_seen_s: float | None = None
    no_room_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class AdoptedGang(AdoptedJob):
    """All that is known of a gang, with its last attempt."""

    namespace: str
    #: As in `UserPod.group`.
    group: str
    name: str
    #: Uids of the controllers that made its last pods.
    owners: tuple[str, ...] = ()
    #: Uids of its last waiting pods that nobody but their user makes.
    pods: tuple[str, ...] = ()
    #: How its job has ended in the service, which forgets it sooner than Kubernetes may; empty while it has not.
    ended_as: str = ""
    #: GPUs of the last attempt by node, and its pods, once they are chosen.
    seats: tuple[tuple[str, int], ...] = ()
    members: list[Member] = field(default_factory=list)
    #: GPU type, GPUs and rack of the attempt's nodes, for the case that a Node object is deleted.
    machines: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    timers: GangTimers = field(default_factory=GangTimers, compare=False)

    @staticmethod
    def of(pods: tuple[UserPod, ...], trusted: bool = False) -> AdoptedGang:
        """A gang that is complete for the first time; raises `BadRequest`. `trusted`: its annotations are."""
        document, duration_s = document_of(pods, trusted)
        first = pods[0]
        return AdoptedGang(
            key=key_of(pods),
            user=user_of(pods, trusted),
            document=document,
            duration_s=duration_s,
            namespace=first.namespace,
            group=first.group,
            name=first.gang_name,
            owners=owners_of(pods),
            pods=unowned(pods),
        )

    def begin(self, attempt: int, nodes: tuple[str, ...], grace_s: float, work: float) -> None:
        """A new attempt is to run."""
        AdoptedJob.begin(self, attempt, nodes, grace_s, work)
        self.members, self.seats = [], ()
        self.timers = GangTimers(refused_s=self.timers.refused_s)

    def note_refused(self, now_s: float) -> None:
        """Note when the service has refused the gang."""
        self.timers.refused_s = now_s

    @property
    def at_work(self) -> list[Member]:
        """Members whose place no other pod has taken."""
        return [member for member in self.members if not member.replaced]


def key_of(pods: tuple[UserPod, ...]) -> str:
    """What identifies a gang for good: its controller's uid, or that of its first pod."""
    first = min(pods, key=lambda pod: (pod.pod.created_s, pod.uid))
    owner = first.group.rpartition("/")[2] if first.group.count("/") == 2 else ""
    return f"{PREFIX}:{first.namespace}/{first.gang_name[:63]}@{owner or first.uid}"


def owners_of(pods: tuple[UserPod, ...]) -> tuple[str, ...]:
    """The uids of the controllers that made these pods."""
    return tuple(sorted({pod.owner.uid for pod in pods if pod.owner}))


def unowned(pods: tuple[UserPod, ...]) -> tuple[str, ...]:
    """The uids of pods that were made by hand."""
    return tuple(sorted(pod.uid for pod in pods if not pod.owner))


class GangRecords(JobRecords[AdoptedGang]):
    """The adopted gangs of a service, by key, in memory and on disk."""

    def __init__(self, state: Path) -> None:
        super().__init__(state, PREFIX, _load)


def _load(record: Mapping[str, Any]) -> AdoptedGang:
    values = known_values(AdoptedGang, record)
    values |= {name: tuple(values.get(name, ())) for name in ("owners", "pods")}
    values["seats"] = tuple((node, gpus) for node, gpus in values.get("seats", ()))
    values["members"] = [Member(**member) for member in values.get("members", ())]
    values["machines"] = {name: tuple(facts) for name, facts in values.get("machines", {}).items()}
    return AdoptedGang(**values)
