"""What is to be done for a gang of users' pods: decided from its record, its pods and the service's state. No I/O.

`see_to` compares once. Whatever was missed, lost or done twice, the next comparison settles it:

1. Pods that wait get Horae's finalizer: whoever deletes them later, their end stays readable.
2. An attempt is given pods when as many wait as its controllers make. Pods and nodes are on record before the first
   one is bound, and all are bound or none. Nothing is bound while pods that have not ended hold the GPUs.
3. An attempt that is to stop has its pods deleted, each with its own grace period. If one of them ends without success,
   or somebody deletes it, the others are deleted, too. The pods that the controller makes then are the next attempt.
   An attempt whose pods cannot start, or find no room within the launch limit, is given up in the same way. Pods made
   by hand are not deleted for that: nobody would make them again. They go on waiting, and are told why.
4. An attempt is over when the end of each pod is proven: a terminal phase while its node answers, a machine that has
   started again since, or the word of an operator or the site's fence. A deleted Node object, a pod that has vanished
   and a grace period of 0 prove nothing: processes were seen to live on.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from horae.backends.adopted_job import FAILED, FINISHED, LAUNCH_FAILED, STOPPED
from horae.backends.driver import ClusterDriver
from horae.backends.kubernetes.adopted_gang import AdoptedGang, GangTimers, Member, owners_of, unowned
from horae.backends.kubernetes.gang_pods import Controller, GangView, UserPod, pack
from horae.backends.kubernetes.objects import ENDED as TERMINAL
from horae.backends.kubernetes.objects import NEVER_BEGAN_S, KubeNode, cannot_start
from horae.backends.protocol import KILLED, RUN_AGAIN
from horae.core.events import Event, JobCancelled, JobHeld, JobReleased, JobStarted
from horae.core.states import ENDED, ENDING, HELD, HOLDING, State


class GangStep(enum.Enum):
    """What to do with a pod. Each can be done again without harm."""

    #: Put Horae's finalizer on it, or take it away.
    KEEP = "keep"
    RELEASE = "release"
    BIND = "bind"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class GangPatience:
    """How patient an adopting backend is, in seconds."""

    #: From one look to the next, and after a change.
    look_every_s: float = 1.0
    look_soon_s: float = 0.2
    #: For which a launch waits for pods of the gang that are missing.
    launch_s: float = 30.0
    #: For which pods of an attempt may lack the room to be bound (`launch-limit`); time out of sight does not count.
    launch_limit_s: float = ClusterDriver.launch_limit_s
    #: After which a waiting gang whose pods are missing is held.
    lacking_s: float = 5.0
    #: Between two deletions of the same pods.
    delete_again_s: float = 10.0
    #: After which pods that ended without success are not made again any more.
    remade_s: float = 30.0
    #: For which a node must be ready after a deletion, before a pod that never began there is over.
    never_began_s: float = NEVER_BEGAN_S
    #: For which a node must be silent, in sight of the API server, before it is fenced.
    fence_s: float = 90.0
    #: After which a controller that is not seen is gone.
    orphan_s: float = 3.0
    #: Without an answer, the cluster is out of sight.
    silence_s: float = 30.0
    #: Between two tries to take in a gang that the service refused.
    refused_s: float = 60.0


@dataclass(slots=True)
class GangMoment:
    """When a comparison is made, and what the nodes show."""

    #: Monotonic seconds, and the API server's time.
    now_s: float
    server_s: float
    nodes: Mapping[str, KubeNode]
    #: GPUs that pods hold which have not ended, by node; those that are about to be bound are added.
    held: dict[str, int] = field(default_factory=dict)
    patience: GangPatience = field(default_factory=GangPatience)

    def answers(self, node: str) -> bool:
        """Whether a node's kubelet gives signs of life."""
        return node in self.nodes and not self.nodes[node].is_silent

    def boot(self, node: str) -> str:
        """The boot id of a node; empty if it is not known."""
        return self.nodes[node].boot if node in self.nodes else ""


@dataclass(slots=True)
class GangTodo:
    """What a comparison has found: steps for pods by uid and name, and events."""

    steps: list[tuple[GangStep, str, str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def add(self, step: GangStep, pod: UserPod | Member) -> None:
        """One more step."""
        self.steps.append((step, pod.uid, pod.name))


def see_to(gang: AdoptedGang, view: GangView, state: State | None, at: GangMoment) -> GangTodo:
    """What to do and tell now. `state` is the job's state in the service, None if it was not taken in yet."""
    todo = GangTodo()
    if fresh := view.fresh:
        gang.owners, gang.pods = owners_of(fresh), unowned(fresh)
    if view.controller is not Controller.GONE:
        gang.timers.orphan_s = None
    elif gang.timers.orphan_s is None:
        gang.timers.orphan_s = at.now_s
    if gang.is_active:
        _see_attempt(gang, view, state, at, todo)
    if not gang.is_active:
        _see_idle(gang, view, state, at, todo)
    return todo


def _is_orphan(gang: AdoptedGang, at: GangMoment) -> bool:
    """Whether the controller of a gang was deleted. Pods may be seen a moment before that which made them."""
    return gang.timers.orphan_s is not None and at.now_s - gang.timers.orphan_s >= at.patience.orphan_s


def cancelled(gang: AdoptedGang, why: str = "") -> JobCancelled:
    """The event of a gang that ended in Kubernetes without Horae."""
    return JobCancelled(0.0, gang.job, f"{_by(gang)}{why}")


def _by(gang: AdoptedGang) -> str:
    return f"kubernetes: {gang.namespace}"


# --- gangs without an attempt


def _see_idle(gang: AdoptedGang, view: GangView, state: State | None, at: GangMoment, todo: GangTodo) -> None:
    for pod in view.pods:
        if pod.pod.is_kept and _needs_no_finalizer(pod, state):
            todo.add(GangStep.RELEASE, pod)
    if state is None or state in ENDED or (gang.attempt and not gang.forgotten):
        return
    if _is_orphan(gang, at) or _has_nothing_left(view):
        why = ", its Job has failed" if view.controller is Controller.FAILED else ""
        _after(gang, at, at.patience.orphan_s, lambda: todo.events.append(cancelled(gang, why)))
        return
    gang.timers.over_s = None
    for pod in view.fresh:
        if not pod.pod.is_kept:
            todo.add(GangStep.KEEP, pod)
    _hold_while_incomplete(gang, view, state, at, todo)


def _needs_no_finalizer(pod: UserPod, state: State | None) -> bool:
    """Whether a pod has ended, can never run, or is not Horae's business any more."""
    if pod.pod.phase in TERMINAL or (pod.pod.deleted_s is not None and not pod.pod.node):
        return True
    return state in ENDED and not pod.pod.node


def _has_nothing_left(view: GangView) -> bool:
    if view.controller in (Controller.COMPLETE, Controller.FAILED):
        return True
    return view.controller is Controller.NONE and not view.fresh


def _after(gang: AdoptedGang, at: GangMoment, wait_s: float, do: Callable[[], None]) -> None:
    """Do something if this has been so for a while."""
    if gang.timers.over_s is None:
        gang.timers.over_s = at.now_s
    if at.now_s - gang.timers.over_s >= wait_s:
        do()


def _hold_while_incomplete(gang: AdoptedGang, view: GangView, state: State, at: GangMoment, todo: GangTodo) -> None:
    """A gang that lacks pods would only take GPUs from others: it is held, and released when all are there."""
    if not view.lacks:
        gang.timers.lacking_s = None
        if gang.user_hold and state in (HELD, HOLDING):
            todo.events.append(JobReleased(0.0, gang.job, _by(gang)))
        else:
            gang.user_hold = False
        return
    if gang.timers.lacking_s is None:
        gang.timers.lacking_s = at.now_s
    if at.now_s - gang.timers.lacking_s >= at.patience.lacking_s and state not in (HELD, HOLDING, *ENDING):
        gang.user_hold = True
        todo.events.append(JobHeld(0.0, gang.job, f"{_by(gang)}, {view.lacks}"))


# --- attempts


def _see_attempt(gang: AdoptedGang, view: GangView, state: State | None, at: GangMoment, todo: GangTodo) -> None:
    if not gang.members:
        _choose_pods(gang, view, state, at, todo)
    if gang.members:
        _see_members(gang, view, state, at, todo)
    if gang.outcome:
        gang.timers = GangTimers(refused_s=gang.timers.refused_s)


def _choose_pods(gang: AdoptedGang, view: GangView, state: State | None, at: GangMoment, todo: GangTodo) -> None:
    """Give the attempt its pods, if all are there and have the finalizer."""
    if gang.stopping or state in (*ENDING, *ENDED):
        gang.outcome = STOPPED
        return
    if _is_orphan(gang, at):
        todo.events.append(cancelled(gang))
        return
    if view.controller in (Controller.COMPLETE, Controller.FAILED):
        gang.outcome = FINISHED if view.controller is Controller.COMPLETE else f"{FAILED}{KILLED}"
        return
    fresh = view.fresh
    for pod in fresh:
        if not pod.pod.is_kept:
            todo.add(GangStep.KEEP, pod)
    kept = [pod for pod in fresh if pod.pod.is_kept]
    if len(kept) >= view.wanted > 0:
        _seat(gang, kept[: view.wanted], at)
        return
    if gang.timers.launched_s is None:
        gang.timers.launched_s = at.now_s
    elif at.now_s - gang.timers.launched_s > at.patience.launch_s:
        gang.outcome = f"{LAUNCH_FAILED}{view.lacks or 'its pods cannot be changed'}"


def _seat(gang: AdoptedGang, pods: list[UserPod], at: GangMoment) -> None:
    nodes = pack([pod.pod.gpus for pod in pods], gang.seats)
    if nodes is None:
        asked = " + ".join(str(pod.pod.gpus) for pod in pods)
        had = " + ".join(f"{gpus} on {node}" for node, gpus in gang.seats)
        gang.outcome = f"{LAUNCH_FAILED}pods with {asked} GPUs do not fit into {had}"
        return
    gang.members = [
        Member(uid=pod.uid, name=pod.name, node=node, gpus=pod.pod.gpus, rank=rank, boot=at.boot(node))
        for rank, (pod, node) in enumerate(zip(pods, nodes, strict=True))
    ]


def _see_members(gang: AdoptedGang, view: GangView, state: State | None, at: GangMoment, todo: GangTodo) -> None:
    pods = {pod.uid: pod for pod in view.pods}
    for member in gang.members:
        pod = pods.get(member.uid)
        _see_member(gang, member, pod, at)
        if member.ended and pod and pod.pod.is_kept and not pod.is_fresh:
            todo.add(GangStep.RELEASE, member)
    if all(member.begun or (member.ended and member.code == 0) for member in gang.at_work):
        gang.begun = True
        gang.run_s = max(gang.run_s, _run_s(gang, pods, at))
    if _is_orphan(gang, at) and state not in (None, *ENDED, *ENDING):
        todo.events.append(cancelled(gang))
    if view.controller is Controller.ACTIVE and gang.begun and not _must_end(gang, state):
        _fill_places(gang, view, at, todo)
    if all(member.ended for member in gang.members):
        _conclude(gang, view, state, at, todo)
    elif _must_end(gang, state):
        _delete(gang, pods, at, todo)
    else:
        _go_on(gang, view, at, todo)


def _must_end(gang: AdoptedGang, state: State | None) -> bool:
    """Whether the attempt is to stop, or one of its pods has ended without success or was deleted."""
    if gang.stopping or gang.gave_up or state in (*ENDING, *ENDED):
        return True
    return any(member.taken_away or (member.ended and member.code != 0) for member in gang.at_work)


def _see_member(gang: AdoptedGang, member: Member, pod: UserPod | None, at: GangMoment) -> None:
    """Note what a pod shows, and whether its end is proven."""
    if member.ended:
        return
    if pod and pod.pod.node:
        member.node, member.tried = pod.pod.node, True
    if pod:
        member.begun = member.begun or pod.pod.began
        member.taken_away = member.taken_away or (pod.pod.deleted_s is not None and not member.deleted)
    if not member.tried and pod is None:
        member.ended = True  # it has vanished before anything was done with it
    elif gang.gave_up and not member.tried and _is_unbound(pod):
        member.ended = True  # nothing was done with it: it waits for the next attempt
    elif pod and pod.pod.deleted_s is not None and not pod.pod.node:
        member.ended = True  # deleted before it was bound: it can never run
    elif pod and pod.pod.phase in TERMINAL and at.answers(member.node):
        member.ended = True
        member.code = 0 if pod.pod.phase == "Succeeded" else pod.pod.code or KILLED
        member.why = "" if pod.pod.began else pod.pod.why
    elif pod and _never_began(pod, at):
        member.ended = True
    elif member.tried and not _is_unbound(pod) and (member.node in gang.gone or _has_started_again(member, at)):
        member.ended, member.code = True, KILLED


def _has_started_again(member: Member, at: GangMoment) -> bool:
    boot = at.boot(member.node)
    return bool(boot and member.boot and boot != member.boot)


def _never_began(pod: UserPod, at: GangMoment) -> bool:
    """Whether a pod was deleted before its kubelet looked at it, and the kubelet must have looked since."""
    node = at.nodes.get(pod.pod.node)
    if pod.pod.deleted_s is None or pod.pod.began or pod.pod.grace_s != 0 or node is None or not node.ready_since_s:
        return False
    return at.server_s - max(pod.pod.deleted_s, node.ready_since_s) >= at.patience.never_began_s


def _run_s(gang: AdoptedGang, pods: Mapping[str, UserPod], at: GangMoment) -> float:
    """Seconds for which all pods of the attempt have run, or had run."""
    found = [pods[member.uid] for member in gang.at_work if member.uid in pods]
    began_s = max((pod.started_s for pod in found), default=0.0)
    if not began_s:
        return 0.0
    ended_s = [pod.finished_s or at.server_s for pod in found]
    return max(0.0, max(ended_s) - began_s)


def _delete(gang: AdoptedGang, pods: Mapping[str, UserPod], at: GangMoment, todo: GangTodo) -> None:
    if at.now_s - gang.timers.last_delete_s < at.patience.delete_again_s:
        return
    for member in gang.members:
        pod = pods.get(member.uid)
        if not member.ended and pod and pod.pod.deleted_s is None and pod.pod.phase not in TERMINAL:
            gang.timers.last_delete_s = at.now_s
            member.deleted = True
            todo.add(GangStep.DELETE, member)


def _go_on(gang: AdoptedGang, view: GangView, at: GangMoment, todo: GangTodo) -> None:
    """Give up pods that cannot start, bind what is not bound, and tell the start."""
    pods = {pod.uid: pod for pod in view.pods}
    unbound = [member for member in gang.members if not member.ended and _is_unbound(pods.get(member.uid))]
    has_room = _has_room(unbound, at)
    why = gang.timers.bind_refusal or _why_stuck(gang, view, at) or _why_no_room(gang, [] if has_room else unbound, at)
    gang.timers.bind_refusal, gang.timers.stuck = "", why
    if why and (view.controller is not Controller.NONE or not any(member.tried for member in gang.members)):
        gang.gave_up = why
        return
    for member in unbound if has_room else ():
        # What the node did before says nothing about this pod.
        member.tried, member.boot = True, at.boot(member.node)
        at.held[member.node] = at.held.get(member.node, 0) + member.gpus
        todo.add(GangStep.BIND, member)
    if gang.begun and not gang.timers.announced:
        gang.timers.announced = True
        todo.events.append(JobStarted(0.0, gang.job, gang.attempt, up_s=gang.run_s))


def _why_stuck(gang: AdoptedGang, view: GangView, at: GangMoment) -> str:
    """Why pods that are bound cannot start; empty if they can."""
    working = {member.uid for member in gang.members if not member.ended}
    stuck = next((pod for pod in view.pods if pod.uid in working and cannot_start(pod.pod, at.server_s)), None)
    return (stuck.pod.stuck or "its pods did not start in time") if stuck else ""


def _why_no_room(gang: AdoptedGang, unbound: list[Member], at: GangMoment) -> str:
    """Why pods that lack room on their nodes have waited too long; empty if they have not. Those that run, run on."""
    timers, limit_s = gang.timers, at.patience.launch_limit_s
    if not unbound or gang.begun:
        timers.no_room_seen_s, timers.no_room_s = None, 0.0
        return ""
    if timers.no_room_seen_s is not None:
        timers.no_room_s += min(at.now_s - timers.no_room_seen_s, at.patience.silence_s)
    timers.no_room_seen_s = at.now_s
    nodes = ", ".join(sorted({member.node for member in unbound}))
    why = f"its pods did not find room on {nodes} within {limit_s:.0f} s (launch-limit)"
    return why if timers.no_room_s >= limit_s else ""


def _is_unbound(pod: UserPod | None) -> bool:
    return pod is not None and pod.is_fresh


def _has_room(members: list[Member], at: GangMoment) -> bool:
    """Whether the nodes of these pods have GPUs for all of them, as far as Kubernetes knows."""
    needed: dict[str, int] = {}
    for member in members:
        needed[member.node] = needed.get(member.node, 0) + member.gpus
    return all(
        node in at.nodes
        and at.nodes[node].is_managed
        and at.held.get(node, 0) + gpus <= max(at.nodes[node].gpus, at.nodes[node].gpus_claimed)
        for node, gpus in needed.items()
    )


def _fill_places(gang: AdoptedGang, view: GangView, at: GangMoment, todo: GangTodo) -> None:
    """Give the places of pods that have succeeded to further pods of a Job with more completions than parallelism."""
    chosen = {member.uid for member in gang.members}
    for pod in view.fresh:
        free = (each for each in gang.at_work if each.ended and each.code == 0 and each.gpus >= pod.pod.gpus)
        place = next(free, None) if pod.uid not in chosen else None
        if place is None:
            continue
        if not pod.pod.is_kept:
            todo.add(GangStep.KEEP, pod)
            continue
        place.replaced = True
        boot = at.boot(place.node)
        gang.members.append(
            Member(uid=pod.uid, name=pod.name, node=place.node, gpus=place.gpus, rank=place.rank, boot=boot)
        )


# --- ends


def _conclude(gang: AdoptedGang, view: GangView, state: State | None, at: GangMoment, todo: GangTodo) -> None:
    """All pods of the attempt have ended."""
    codes = [member.code for member in gang.at_work]
    if all(code == 0 for code in codes):
        _conclude_success(gang, view, state, at)
    elif gang.stopping or state in (*ENDING, *ENDED):
        _count_saved(gang, codes)
        gang.outcome = STOPPED
    elif view.controller is Controller.NONE and any(member.taken_away for member in gang.at_work):
        todo.events.append(cancelled(gang))  # nobody will make its pods again
    elif why := gang.gave_up or next((member.why for member in gang.at_work if member.why), ""):
        gang.outcome = f"{LAUNCH_FAILED}{why}"
    else:
        _conclude_failure(gang, view, codes, at)


def _conclude_success(gang: AdoptedGang, view: GangView, state: State | None, at: GangMoment) -> None:
    """All pods have succeeded; a Job may have more to do."""
    if view.controller is not Controller.ACTIVE or not view.wanted:
        gang.outcome = FINISHED
    elif gang.stopping or state in (*ENDING, *ENDED):
        gang.outcome = STOPPED
    else:
        _after(gang, at, at.patience.remade_s, lambda: _end_as(gang, STOPPED))


def _conclude_failure(gang: AdoptedGang, view: GangView, codes: list[int | None], at: GangMoment) -> None:
    """A pod has ended without success, or somebody has deleted it: its controller says what becomes of the job."""
    failed = f"{FAILED}{next((code for code in codes if code), KILLED)}"
    if view.controller in (Controller.FAILED, Controller.NONE):
        gang.outcome = failed
    elif view.fresh and view.controller is not Controller.GONE:
        _count_saved(gang, codes)
        gang.outcome = STOPPED
    elif view.controller is Controller.ACTIVE:
        _after(gang, at, at.patience.remade_s, lambda: _end_as(gang, STOPPED))
    elif view.controller is Controller.UNKNOWN:
        _after(gang, at, at.patience.remade_s, lambda: _end_as(gang, failed))


def _end_as(gang: AdoptedGang, outcome: str) -> None:
    gang.outcome = outcome


def _count_saved(gang: AdoptedGang, codes: list[int | None]) -> None:
    """Exit code 75 of all pods that have not succeeded says that the job has saved its work."""
    if all(code in (0, RUN_AGAIN) for code in codes):
        gang.saved_s += gang.run_s
