"""`KubernetesAdoption`: orders the pods that users hand to Horae (`schedulerName: horae`), gang by gang.

Nothing of Horae runs on the nodes. One thread looks at pods, Jobs and nodes, and does what `gang_steps.see_to` says;
the records of `adopted_gang.py` say what was begun, also after a crash. Users are told by Events of their pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Node, Pod, PodBinding

from horae.backends.adopting_backend import AdoptingBackend
from horae.backends.adoption_options import BadRequest
from horae.backends.driver import OutOfSight
from horae.backends.found_jobs import FoundJob, TakenJob
from horae.backends.kubernetes.adopted_gang import AdoptedGang, GangRecords, Member
from horae.backends.kubernetes.api import (
    CONFLICT,
    EVERYWHERE,
    FORBIDDEN,
    NOT_FOUND,
    STRATEGIC_PATCH,
    ApiRefusal,
    KubernetesApi,
)
from horae.backends.kubernetes.gang_pods import (
    RANK_NOTE,
    GangView,
    UserJob,
    UserPod,
    read_user_job,
    read_user_pod,
    view_of,
)
from horae.backends.kubernetes.gang_steps import GangMoment, GangPatience, GangStep, GangTodo, see_to
from horae.backends.kubernetes.mirror import SYNC_S, Mirror
from horae.backends.kubernetes.namespace_lease import NamespaceLeases
from horae.backends.kubernetes.node_sizes import NodeSizes
from horae.backends.kubernetes.objects import (
    ATTEMPT_NOTE,
    FINALIZER,
    JOB_NOTE,
    KubeNode,
    KubePod,
    foreign_by_node,
    read_any_node,
    read_pod,
    seen_node,
)
from horae.backends.kubernetes.pod_events import PodEvents
from horae.backends.kubernetes.pods import SCHEDULER, binding_of
from horae.backends.kubernetes.rights import SEE_ALL_PODS
from horae.backends.kubernetes.site_checks import may
from horae.backends.protocol import Place, Seen, Sight
from horae.core.cluster import BadCluster
from horae.core.states import ENDED, State

#: Calls for pods of one gang that are made at the same time.
_AT_A_TIME = 8
#: How a patch takes a finalizer away.
_TAKE_AWAY = "$deleteFromPrimitiveList/finalizers"
#: A gang among those that there are now: its namespace and `UserPod.group`.
Group = tuple[str, str]


class KubernetesAdoption(AdoptingBackend[AdoptedGang]):
    """A backend for pods of users in some namespaces."""

    manager = "Kubernetes"

    def __init__(
        self,
        state: Path,
        namespaces: tuple[str, ...],
        api: KubernetesApi,
        leases: NamespaceLeases | None = None,
        patience: GangPatience | None = None,
        fence: str = "",
        trust_annotations: bool = False,
    ) -> None:
        self._trust_annotations = trust_annotations
        self._patience = patience or GangPatience()
        super().__init__(GangRecords(state), self._patience.silence_s, fence)
        self._namespaces, self._api, self._leases = namespaces, api, leases
        handed = {"fieldSelector": f"spec.schedulerName={SCHEDULER}"}
        self._pods = {name: Mirror(api, Pod, read_user_pod, name, handed) for name in namespaces}
        self._jobs = {name: Mirror(api, Job, read_user_job, name) for name in namespaces}
        self._nodes = Mirror(api, Node, read_any_node)
        self._bound: Mirror[KubePod] | None = None
        self._sees_all: bool | None = None
        self._sizes = NodeSizes()
        self._pod_events = PodEvents(api)
        #: Since when nodes with living pods are silent; monotonic.
        self._silent_since_s: dict[str, float] = {}
        #: Namespaces that are out of sight, and why.
        self._blind: dict[str, str] = {}
        self._workers = ThreadPoolExecutor(_AT_A_TIME, "horae-adoption-call")
        #: Whether something was changed in the last round: then it is worth looking again soon.
        self._acted = False
        self._begin()

    @property
    def submit_with(self) -> str:
        """How users submit jobs."""
        return f"kubectl apply -n {self._namespaces[0]} -f job.yaml"

    def close(self) -> None:
        """End the threads. Running pods run on."""
        super().close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    # --- what is common to adopting backends

    def _pause_s(self) -> float:
        return self._patience.look_soon_s if self._acted else self._patience.look_every_s

    def _comment(self, job: AdoptedGang, text: str) -> None:
        """Look again: each round tells users why their gang was refused."""
        self._wake.set()

    def _where_is_output(self, job: AdoptedGang) -> str:
        names = [member.name for member in job.members] or ["POD"]
        return f"The output of {job.name} is in its pods: kubectl logs -n {job.namespace} {names[0]}"

    def _prepare(self, job: AdoptedGang, places: tuple[Place, ...]) -> str:
        job.seats = tuple((place.node, len(place.gpus)) for place in places)
        seen = {node.name: node for node in (self._sight.nodes if self._sight else ())}
        job.machines = {
            name: (seen[name].gpu_type, seen[name].gpus, seen[name].rack) for name, _ in job.seats if name in seen
        }
        return ""

    # --- a round

    def _round(self, taken: Mapping[str, TakenJob]) -> None:
        self._acted = False
        taken = {**self._forgotten_jobs(), **taken}
        server_s = self._probe()
        pods, jobs = self._look()
        nodes = {node.name: node for node in self._nodes.snapshot().values()}
        bound = self._bound_pods(pods)
        self._pod_events.begin_round(pod.uid for pod in pods)
        found = self._match(pods, taken)
        self._take_up(found.pop(None), jobs)
        trouble = self._show(nodes, bound)
        at = GangMoment(time.monotonic(), server_s, nodes, _held(bound), self._patience)
        views = {key: view_of(mine, jobs[self._space(key)], self._owners(key)) for key, mine in found.items() if key}
        for gang in [gang for gang in self._records.jobs.values() if gang.key in views]:
            if self._closing:
                return
            self._see_to(gang, views[gang.key], taken.get(gang.key), at, jobs[gang.namespace])
        self._offer(views, taken, at)
        self._observe_jobs()
        self._trouble, self._looked_s = " ".join(filter(None, (trouble, self._troubles()))), time.monotonic()

    def _forgotten_jobs(self) -> dict[str, TakenJob]:
        """Jobs that were over when the service last knew them: their gangs are not taken in again."""
        gangs = self._records.jobs.values()
        return {gang.key: TakenJob(gang.job, State[gang.ended_as]) for gang in gangs if gang.ended_as}

    def _look(self) -> tuple[list[UserPod], dict[str, dict[str, UserJob]]]:
        """All users' pods, and Jobs by namespace and uid. A namespace that is out of sight is left out."""
        blind = self._leases.check() if self._leases else {}
        pods, jobs = list[UserPod](), dict[str, dict[str, UserJob]]()
        for name in self._namespaces:
            # What was out of sight a moment ago must not keep the others waiting.
            wait_s = 0.0 if name in self._blind else SYNC_S
            try:
                if name not in blind:
                    found = self._pods[name].snapshot(wait_s).values()
                    jobs[name] = _by_uid(self._jobs[name].snapshot(wait_s))
                    pods += found
            except OutOfSight as why:
                blind = {**blind, name: f"Namespace {name} is out of sight: {_sentence(str(why))}"}
        self._blind = blind
        if not jobs:
            raise OutOfSight(next(iter(blind.values())))
        return pods, jobs

    def _troubles(self) -> str:
        """What is wrong with namespaces and gangs, in sentences. They name no job."""
        refused = sorted({gang.namespace for gang in self._records.jobs.values() if gang.timers.trouble})
        return " ".join(
            [f"{why} Nothing is concluded about its jobs." for why in self._blind.values()]
            + [
                f"The API server refuses changes of pods in {name}: see Events of the pods, and the rights that "
                f"`horae kubernetes manifests --adopt {name}` prints."
                for name in refused
            ]
        )

    def _space(self, key: str) -> str:
        return self._records.jobs[key].namespace

    def _owners(self, key: str) -> tuple[str, ...]:
        return self._records.jobs[key].owners

    def _probe(self) -> float:
        """Ask for one pod, which reads the store. Returns the API server's time."""
        whys = []
        for namespace in self._namespaces:
            try:
                answer = self._api.call("list", Pod, namespace=namespace, params={"limit": 1})
            except ApiRefusal as why:
                whys.append(f"Pods in namespace {namespace} cannot be listed: {why}.")
                continue
            answered_s = answer.get("answered_s")
            return time.time() if answered_s is None else float(answered_s)
        raise OutOfSight(whys[0])

    def _bound_pods(self, own: Iterable[UserPod]) -> list[KubePod]:
        """All pods that are bound and have not ended: of the whole cluster, if that is allowed."""
        if self._sees_all is None:
            self._sees_all = may(self._api, SEE_ALL_PODS)
        if self._sees_all and not self._bound:
            fields = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
            self._bound = Mirror(self._api, Pod, read_pod, EVERYWHERE, {"fieldSelector": fields})
        seen = self._bound.snapshot() if self._bound else {}
        return list({**seen, **{pod.key: pod.pod for pod in own}}.values())

    def _match(self, pods: Iterable[UserPod], taken: Mapping[str, TakenJob]) -> dict[str | None, list[UserPod]]:
        """Pods by the key of their gang; those of gangs that are not known yet under None."""
        by_group: dict[Group, list[AdoptedGang]] = {}
        by_uid: dict[str, str] = {}
        found: dict[str | None, list[UserPod]] = {None: []}
        for gang in self._records.jobs.values():
            if gang.namespace not in self._pods or gang.namespace in self._blind:
                continue  # of a namespace that this service does not adopt any more, or does not see
            by_group.setdefault((gang.namespace, gang.group), []).append(gang)
            found[gang.key] = []
            by_uid |= {member.uid: gang.key for member in gang.members if member.tried or gang.is_active}
        for pod in pods:
            # Labels and owners may change while a pod runs.
            ran = [by_uid[pod.uid]] if pod.uid in by_uid else []
            if pod.looks_own and not ran:
                continue
            gangs = by_group.get((pod.namespace, pod.group), [])
            sure = [each.key for each in gangs if _is_of(pod, each)]
            living = [each.key for each in gangs if not _has_ended(each, taken)]
            found[next(iter(ran + sure + living), None)].append(pod)
        return found

    # --- new gangs

    def _take_up(self, pods: Iterable[UserPod], jobs: Mapping[str, Mapping[str, UserJob]]) -> None:
        """Begin to follow gangs that are new and complete."""
        groups: dict[Group, list[UserPod]] = {}
        for pod in pods:
            groups.setdefault((pod.namespace, pod.group), []).append(pod)
        for (namespace, _), members in groups.items():
            view = view_of(members, jobs[namespace])
            if not view.fresh:
                continue
            if why := view.problem or (f"{view.lacks.capitalize()}." if view.lacks else self._adopt(view)):
                self._explain(view.fresh, "Waiting", why)

    def _adopt(self, view: GangView) -> str:
        """Follow a complete gang; returns why that is not possible, empty if it is."""
        try:
            gang = AdoptedGang.of(view.fresh[: view.wanted], self._trust_annotations)
        except BadRequest as why:
            return str(why)
        self._records.save(gang)
        return ""

    def _offer(self, views: Mapping[str, GangView], taken: Mapping[str, TakenJob], at: GangMoment) -> None:
        """Name the gangs to take in."""
        found = [
            FoundJob(gang.key, gang.user, gang.document)
            for gang in self._records.jobs.values()
            if gang.key not in taken
            and gang.key in views
            and not views[gang.key].lacks
            and at.now_s - gang.timers.refused_s >= self._patience.refused_s
        ]
        with self._lock:
            self._found = found

    # --- gangs

    def _see_to(
        self,
        gang: AdoptedGang,
        view: GangView,
        taken: TakenJob | None,
        at: GangMoment,
        jobs: Mapping[str, UserJob],
    ) -> None:
        if taken:
            gang.job, gang.ended_as = taken.job, taken.state.name if taken.state in ENDED else ""
        todo = see_to(gang, view, taken.state if taken else None, at)
        self._records.save(gang)
        self._use_fence(gang, at)
        self._try_to_perform(gang, todo)
        self._explain_gang(gang, view, taken)
        self._tell_requests(todo.events, at.now_s)
        self._tell_outcome(gang)
        if not view.pods and not ({*gang.owners} & {*jobs}) and (not taken or _is_over(gang, taken)):
            self._records.drop(gang)

    def _use_fence(self, gang: AdoptedGang, at: GangMoment) -> None:
        """Fence nodes with living pods that are silent for long, but none that were taken out of the cluster."""
        for member in gang.members if gang.is_active else ():
            if not member.tried or member.ended:
                continue
            node = at.nodes.get(member.node)
            if node is None or not node.is_managed or at.answers(member.node):
                self._silent_since_s.pop(member.node, None)
            elif at.now_s - self._silent_since_s.setdefault(member.node, at.now_s) >= self._patience.fence_s:
                self._fence.use_on(member.node)

    def _try_to_perform(self, gang: AdoptedGang, todo: GangTodo) -> None:
        """Do the steps. If the API server fails at them and answers otherwise, that is this gang's trouble alone."""
        if todo.steps:
            gang.timers.trouble = ""
        try:
            self._perform(gang, todo)
        except OutOfSight as why:
            self._probe()
            gang.timers.trouble = str(why)
        self._tell_steps(gang, todo)

    def _perform(self, gang: AdoptedGang, todo: GangTodo) -> None:
        """Do the steps, those of one sort at the same time.

        A Job controller that sees pods fail before it has replaced all that were deleted counts them as failures.
        """
        members = {member.uid: member for member in gang.members}
        for step in GangStep:
            pods = [(uid, name) for each, uid, name in todo.steps if each is step]
            if not pods:
                continue
            # A binding may be refused again and again: that is tried at the usual pace.
            self._acted = self._acted or step is not GangStep.BIND or not gang.timers.stuck
            match step:
                case GangStep.KEEP:
                    whys = self._each(pods, lambda uid, name: self._mark(gang, uid, name, "finalizers"))
                case GangStep.RELEASE:
                    whys = self._each(pods, lambda uid, name: self._mark(gang, uid, name, _TAKE_AWAY))
                case GangStep.BIND:
                    whys = self._each(pods, lambda uid, name: self._bind(gang, members[uid]))
                    self._note_refused_bindings(gang, [members[uid] for uid, _ in pods], whys)
                case GangStep.DELETE:
                    whys = self._each(pods, lambda uid, name: self._delete(gang, uid, name))
            if step is not GangStep.BIND:
                gang.timers.trouble = gang.timers.trouble or next(filter(None, whys), "")

    def _note_refused_bindings(self, gang: AdoptedGang, members: Iterable[Member], whys: Iterable[str]) -> None:
        """A pod whose binding was refused is as if it had not been tried."""
        for member, why in zip(members, whys, strict=True):
            if why:
                member.tried, gang.timers.bind_refusal = False, why
        self._records.save(gang)

    def _each(self, pods: Iterable[tuple[str, str]], do: Callable[[str, str], str]) -> list[str]:
        """Do something for each pod, some of them at the same time; returns what was refused, in words."""
        return list(self._workers.map(lambda pod: do(*pod), pods))

    def _mark(self, gang: AdoptedGang, uid: str, name: str, how: str) -> str:
        """Change the finalizers of a pod; returns why Horae may not. Of other refusals the next look tells more."""
        content = {"metadata": {"uid": uid, how: [FINALIZER]}}
        try:
            self._api.call("patch", Pod, name, content, namespace=gang.namespace, content_type=STRATEGIC_PATCH)
        except ApiRefusal as why:
            return why.why if why.code == FORBIDDEN else ""
        return ""

    def _delete(self, gang: AdoptedGang, uid: str, name: str) -> str:
        """Delete a pod, with its own grace period; returns why that is refused."""
        content = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            self._api.call("delete", Pod, name, content, namespace=gang.namespace)
        except ApiRefusal as why:
            return "" if why.code in (CONFLICT, NOT_FOUND) else why.why
        return ""

    def _bind(self, gang: AdoptedGang, member: Member) -> str:
        """Bind a pod to its node. A second binding is refused, even to the same node: the next look tells."""
        notes = {JOB_NOTE: gang.job, ATTEMPT_NOTE: str(gang.attempt), RANK_NOTE: str(member.rank)}
        binding = binding_of(member.name, member.node, member.uid, notes)
        try:
            self._api.call("post", PodBinding, member.name, binding, namespace=gang.namespace)
        except ApiRefusal as why:
            return "" if why.code in (CONFLICT, NOT_FOUND) else why.why
        return ""

    def _tell_steps(self, gang: AdoptedGang, todo: GangTodo) -> None:
        """Tell users of bindings and deletions."""
        members = {member.uid: member for member in gang.members}
        for step, uid, name in todo.steps:
            if step is GangStep.BIND and members[uid].tried and not gang.timers.trouble:
                text = f"Horae has assigned the pod to {members[uid].node}: {gang.job}, attempt {gang.attempt}."
                self._pod_events.tell(gang.namespace, name, uid, "Scheduled", text)
            elif step is GangStep.DELETE:
                text = f"Horae stops {gang.job}, attempt {gang.attempt}."
                if gang.timers.trouble:
                    text = f"Horae cannot stop {gang.job}, attempt {gang.attempt}: {_sentence(gang.timers.trouble)}"
                self._pod_events.tell(gang.namespace, name, uid, "Stopping", text)

    # --- telling

    def _explain_gang(self, gang: AdoptedGang, view: GangView, taken: TakenJob | None) -> None:
        """Tell users why the pods of a gang wait."""
        if gang.is_active:
            if gang.timers.stuck:
                self._explain(view.pods, "Waiting", f"{gang.job} cannot start: {_sentence(gang.timers.stuck)}")
            return
        if taken is None:
            why = f"Not taken in. {gang.refused}" if gang.refused else ""
        elif taken.state in ENDED:
            how = taken.state.name.lower()
            why = f"For Horae, {taken.job} is over ({how}): delete it in Kubernetes, too."
        elif view.lacks:
            why = f"{taken.job} waits: {view.lacks}."
        else:
            why = f"{taken.job} waits. {taken.why}" if taken.why else ""
        if why:
            self._explain(view.fresh, "Waiting", why)

    def _explain(self, pods: Iterable[UserPod], reason: str, text: str) -> None:
        for pod in pods:
            self._pod_events.tell(pod.namespace, pod.name, pod.uid, reason, text)

    def _show(self, every: Mapping[str, KubeNode], bound: Iterable[KubePod]) -> str:
        """Make the look the backend's sight; returns what is wrong with its nodes. It names no job."""
        nodes = {name: node for name, node in every.items() if node.is_managed}
        active = [gang for gang in self._records.jobs.values() if gang.is_active]
        seen_gangs = [gang for gang in active if gang.namespace not in self._blind]
        own = {f"{gang.namespace}/{member.name}" for gang in self._records.jobs.values() for member in gang.members}
        foreign = foreign_by_node((pod for pod in bound if pod.key not in own), nodes)
        living = {node for gang in active for node in gang.nodes}
        seen, misnamed = [], []
        for node in nodes.values():
            if node.is_lost and node.name not in living:
                continue
            shown = seen_node(node, *self._sizes.believe(node))
            is_open = shown.is_open and not node.is_lost and node.name not in foreign
            why = "" if is_open else "; ".join(foreign.get(node.name, ())) or shown.why
            try:
                seen.append(Seen(shown.name, shown.gpu_type, shown.gpus, shown.rack or "rack-0", is_open, why))
            except BadCluster:
                misnamed.append(node.name)
        gone = {name: facts for gang in active for name, facts in gang.machines.items() if name not in nodes}
        seen += [
            Seen(name, *facts, False, "not managed any more" if name in every else "deleted")
            for name, facts in sorted(gone.items())
        ]
        self._show_sight(Sight(tuple(seen)))
        vanished = self._vanished(seen_gangs, bound)
        return " ".join(
            [f"Work of others runs on {', '.join(sorted(foreign))}: closed for new jobs."] * bool(foreign)
            + [f"Cannot be used because of their names: {', '.join(misnamed)}."] * bool(misnamed)
            + [f"Pods have vanished from {', '.join(vanished)}: `horae nodes lost NODE --sure` if it is off."]
            * bool(vanished)
        )

    @staticmethod
    def _vanished(active: Iterable[AdoptedGang], bound: Iterable[KubePod]) -> list[str]:
        """Nodes of pods that Kubernetes does not have any more though nothing proves their end."""
        there = {pod.key for pod in bound}
        return sorted(
            {
                member.node
                for gang in active
                for member in gang.members
                if member.tried and not member.ended and f"{gang.namespace}/{member.name}" not in there
            }
        )


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."


def _by_uid(jobs: Mapping[str, UserJob]) -> dict[str, UserJob]:
    return {job.uid: job for job in jobs.values()}


def _held(bound: Iterable[KubePod]) -> dict[str, int]:
    """GPUs that pods hold, by node."""
    held: dict[str, int] = {}
    for pod in bound:
        if pod.holds_gpus:
            held[pod.node] = held.get(pod.node, 0) + pod.gpus
    return held


def _is_of(pod: UserPod, gang: AdoptedGang) -> bool:
    """Whether a pod of the same group is surely of this gang, even if its job is over.

    The group has a uid, the same controller has made the pod, or it was seen before.
    """
    has_uid = gang.group.count("/") == 2 and not gang.group.endswith("/")
    return has_uid or pod.uid in gang.pods or (pod.owner is not None and pod.owner.uid in gang.owners)


def _has_ended(gang: AdoptedGang, taken: Mapping[str, TakenJob]) -> bool:
    return gang.key in taken and taken[gang.key].state in ENDED


def _is_over(gang: AdoptedGang, taken: TakenJob) -> bool:
    return taken.state in ENDED and not gang.is_active
