"""Everything that people, jobs and operators may ask of a running service, whoever carries the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from horae.backends.protocol import Backend
from horae.core.bidding import Ask, BidAnswer
from horae.core.cluster import Cluster
from horae.core.engine import Engine
from horae.core.errors import UserError, did_you_mean
from horae.core.events import (
    AgentChanged,
    BidReceived,
    Event,
    JobCancelled,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobStarted,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    SettingsChanged,
)
from horae.core.job import JobSpec
from horae.core.policy import Particular
from horae.core.queues import Queue
from horae.core.states import CANCELLING, ENDED, HELD, HOLDING, LAUNCHING, RUNNING, STATES, State
from horae.plugins.setting_files import with_files
from horae.policies import CONTENT_HASH, make_policy
from horae.service.app_owners import AppOwners, Tenures
from horae.service.daemon import Change, Daemon, Prepare
from horae.service.job_file import BadJobFile, JobFile, spec_of, task_of
from horae.service.roles import Caller, NotFound, Role
from horae.service.store.stored_records import Act
from horae.service.warm_up import warm_up
from horae.solve.auction.bids import BadBid, Bid, Bundles, Offer, Taker, check_bid

_Request = JobCancelled | JobHeld | JobReleased
_REQUESTS: dict[str, type[_Request]] = {"cancel": JobCancelled, "hold": JobHeld, "release": JobReleased}


@dataclass(frozen=True)
class Progress:
    """What a running attempt says of itself. The first report, whatever it says, means that it works."""

    step: float
    total: float | None = None
    loss: float | None = None


class Operations:
    """What may be asked. Every change is in the journal, and in the audit trail, when its method returns."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._apps, self._tenures = AppOwners(), Tenures()
        #: The last number that a job was given; those of one batch are not in the engine yet when the next is made.
        self._numbered = 0

    # -------------------------------------------------------------------- jobs

    def submit(self, who: Caller, jobs: Sequence[JobFile], dry_run: bool = False) -> list[str]:
        """Take jobs, all or none; returns their ids. A dry run only says whether they would be taken."""
        who.must_not_only_look("submit jobs")
        if any(job.weight > 1 for job in jobs):
            who.must_be_admin("give a job a weight above 1")
        check_secrets(jobs, self._daemon.backend)

        def prepare(engine: Engine, now_s: float) -> tuple[Change, list[str]]:
            self._apps.catch_up(engine, now_s)
            ids = self._new_ids(engine, jobs)
            cluster = engine.gpus.cluster
            specs = [spec_of(job, name, who.user, now_s, cluster) for job, name in zip(jobs, ids, strict=True)]
            check_startable(specs, cluster, engine)
            apps = self._apps.check(who.user, specs, engine, self._daemon.tasks)
            if dry_run or not ids:
                return Change(), ids
            self._apps.claim(apps)
            self._numbered = _number(ids[-1])
            tasks = [task_of(job, spec.id, who.user, spec.work) for job, spec in zip(jobs, specs, strict=True)]
            acts = [Act(now_s, who.user, "submit", name) for name in ids]
            return Change(tuple(JobSubmitted(now_s, spec) for spec in specs), tuple(tasks), tuple(acts)), ids

        return self._daemon.ask(prepare)

    def _new_ids(self, engine: Engine, jobs: Sequence[JobFile]) -> list[str]:
        """Names with numbers that no job had before; nor is one the name of an app, which is the job's own."""
        last = max(_number(engine.jobs.specs[-1].id) if len(engine.jobs) else 0, self._numbered)
        ids: list[str] = []
        for job in jobs:
            names = (f"{job.name}-{number}" for number in count(last + 1))
            ids.append(next(name for name in names if not self._apps.knows(name)))
            last = _number(ids[-1])
        return ids

    def request(self, who: Caller, what: str, jobs: Sequence[str]) -> dict[str, str]:
        """Cancel, hold or release jobs; says of each what became of it."""
        who.must_not_only_look(f"{what} jobs")
        kind = _REQUESTS[what]

        def prepare(engine: Engine, now_s: float) -> tuple[Change, dict[str, str]]:
            rows = {job: self._own_row(who, engine, job) for job in jobs}
            answer = {job: _objection(what, _state(engine, row)) or "done" for job, row in rows.items()}
            done = [job for job, said in answer.items() if said == "done"]
            events = tuple(kind(now_s, job, who.user) for job in done)
            acts = tuple(Act(now_s, who.user, what, job) for job in done)
            return Change(events, (), acts), answer

        return self._daemon.ask(prepare)

    def progress(self, job: str, attempt: int, said: Progress) -> bool:
        """What an attempt reports; answers whether it is to stop."""

        def prepare(engine: Engine, now_s: float) -> tuple[Change, bool]:
            row = engine.jobs.rows.get(job, -1)
            state = _state(engine, row) if row >= 0 else None
            if state is None or engine.jobs.attempt[row] != attempt or state not in (LAUNCHING, RUNNING):
                return Change(), True
            events: list[Event] = [JobStarted(now_s, job, attempt)] if state is LAUNCHING else []
            done = self._daemon.tasks[job].work_done(said.step, said.total)
            events.append(JobProgressed(now_s, job, attempt, done, said.loss))
            return Change(tuple(events)), False

        return self._daemon.ask(prepare)

    def _own_row(self, who: Caller, engine: Engine, job: str) -> int:
        """Row of a job that somebody may act on; for others' jobs the answer is as if there were none."""
        row = engine.jobs.rows.get(job, -1)
        if row < 0 or (not who.sees_all and self._daemon.tasks[job].user != who.user):
            raise NotFound(f"There is no job {job!r}; `horae queue --all` lists yours.")
        return row

    # ------------------------------------------------------------------- agents

    def register_agent(self, who: Caller, app: str, present: bool) -> None:
        """An app's own agent comes, to be asked for bids from now on, or goes."""
        who.must_not_only_look("speak for an app")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            self._check_own_app(who, engine, now_s, app)
            act = Act(now_s, who.user, "register agent" if present else "dismiss agent", app)
            return Change((AgentChanged(now_s, app, present, who.user),), (), (act,)), None

        self._daemon.ask(prepare)

    def bid(self, who: Caller, answer: BidAnswer) -> str:
        """An agent's answer to an offer. What is wrong with it is told, and recorded; the built-in agent bids then."""
        who.must_not_only_look("speak for an app")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, str]:
            self._check_own_app(who, engine, now_s, answer.app)
            if refused := engine.talk.refusal(answer, now_s):
                # The journal keeps that it came, not all that it said.
                return Change((BidReceived(now_s, replace(answer, rho=None, table=(), problem=refused)),)), refused
            problem = problem_of(answer, engine.talk.asked[answer.app])
            said = replace(answer, rho=None, table=(), problem=problem) if problem else answer
            return Change((BidReceived(now_s, said),)), problem

        return self._daemon.ask(prepare)

    def check_app_shown(self, who: Caller, app: str) -> None:
        """Refuse who may not see an app."""
        if not self.sees_app(who, app, self._daemon.clock()):
            raise NotFound(f"There is no app {app!r} of yours.")

    def sees_app(self, who: Caller, app: str, at_s: float) -> bool:
        """Whether somebody may know what was said and done for an app at a moment."""
        owner = self._tenures.owner(app, at_s, self._daemon.standing, self._daemon.tasks)
        return owner is not None and (who.sees_all or owner == who.user)

    def offer(self, app: str) -> Ask | None:
        """What an app's own agent is asked at this moment, if anything."""
        return next((ask for ask in self._daemon.standing.asks if ask.app == app), None)

    def _check_own_app(self, who: Caller, engine: Engine, now_s: float, app: str) -> None:
        """Only who owns an app may speak for it; to others it is as if there were none."""
        self._apps.catch_up(engine, now_s)
        owner = self._apps.owner(app, engine, self._daemon.tasks)
        if owner is None or (who.role is not Role.ADMIN and who.user != owner):
            raise NotFound(f"No job of an app {app!r} of yours waits or runs: submit one first, with --app {app}.")

    # ---------------------------------------------------------------- operators

    def drain(self, who: Caller, node: str, evict: bool) -> None:
        """A node takes no new jobs; with `evict`, those it runs are stopped, and run elsewhere."""
        who.must_be_admin("drain nodes")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            _check_node(engine.gpus.cluster, node)
            act = Act(now_s, who.user, "drain", node, "and stop its jobs" if evict else "")
            return Change((NodeDraining(now_s, node, evict),), (), (act,)), None

        self._daemon.ask(prepare)

    def resume(self, who: Caller, node: str) -> None:
        """A node that was drained takes jobs again."""
        who.must_be_admin("resume nodes")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            number = _check_node(engine.gpus.cluster, node)
            if not engine.gpus.node_up[number]:
                raise NotFound(f"Node {node} is not there: start the service with it, and it takes jobs again.")
            act = Act(now_s, who.user, "resume", node)
            return Change((NodeJoined(now_s, engine.gpus.nodes()[number]),), (), (act,)), None

        self._daemon.ask(prepare)

    def configure(
        self,
        who: Caller,
        policy: str | None,
        settings: Mapping[str, str],
        queues: Sequence[Queue] = (),
    ) -> None:
        """Change the policy, its settings, or queues. Wrong ones are refused before anything is written.

        Files and modules are named on the service's own command line alone: here, only what is loaded already.
        """
        _check_loaded(policy, settings, self._daemon.standing.policy)
        self._daemon.ask(self.configuring(who, policy, settings, queues))

    def configuring(
        self, who: Caller, policy: str | None, settings: Mapping[str, str], queues: Sequence[Queue]
    ) -> Prepare[None]:
        """What the daemon has to do for that."""
        who.must_be_admin("change the policy or queues")
        if policy is not None:
            # What is wrong with it is told here, too; and nobody waits in the loop for what it has to load.
            warm_up(replace(self._daemon.beginning, policy=policy, settings=dict(settings)))

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            chosen = engine.policy_name if policy is None else policy
            before = engine.policy_settings if chosen == engine.policy_name else {}
            wanted = {**before, **with_files(chosen, settings)}
            made = make_policy(chosen, wanted)
            if isinstance(made, Particular):
                made.check(engine.gpus.cluster.gpu_types, pairs_known=False)
            # Policy and settings whole, as they were checked: somebody else may be changing the policy just now.
            changed = chosen != engine.policy_name or wanted != engine.policy_settings
            event = SettingsChanged(now_s, chosen if changed else None, wanted if changed else {}, tuple(queues))
            words = [policy or "", *(f"{key}={value}" for key, value in settings.items())]
            detail = " ".join([*filter(None, words), *(f"queue {queue.path}" for queue in queues)])
            return Change((event,), (), (Act(now_s, who.user, "configure", "service", detail),)), None

        return prepare


class NotLoaded(UserError):
    """A policy that the service would have to load from a file or a module."""


def _check_loaded(policy: str | None, settings: Mapping[str, str], current: str) -> None:
    if policy is not None and policy != current and (":" in policy or "/" in policy):
        raise NotLoaded(
            f"{policy!r} is a file or a module: have the operator start the service with --policy {policy}; "
            "here, name a policy that is loaded already."
        )
    if CONTENT_HASH in settings:
        raise NotLoaded(f"{CONTENT_HASH} is set by the service itself: leave it out.")


def problem_of(answer: BidAnswer, ask: Ask) -> str:
    """What is wrong with an answer to a question, in one sentence; nothing, if it is a bid."""
    offer = Offer.of({machine: count for machine, count, _ in ask.offer})
    unknown = next((name for row in answer.table for name, _ in row.gpus if name not in offer.number), None)
    if unknown is not None:
        return f"Machine {unknown!r} is not in the offer: bid for {', '.join(offer.machines)}."
    if not answer.table:
        return "The bid has no rows: say the rho of at least one bundle, or do not answer."
    try:
        bundles = Bundles.named(offer, ((dict(row.gpus), row.rho) for row in answer.table))
        check_bid(offer, Bid(Taker(answer.app, ask.gang), bundles, answer.rho))
    except BadBid as wrong:
        return str(wrong)
    return ""


def _state(engine: Engine, row: int) -> State:
    return STATES[int(engine.jobs.state[row])]


def _number(job: str) -> int:
    """The number of a job, which ends its id."""
    return int(job.rpartition("-")[2])


def _objection(what: str, state: State) -> str:
    """Why what somebody asks for a job would change nothing; nothing, if it would."""
    held = state in (HELD, HOLDING)
    if state in ENDED:
        return f"is {state.name.lower()} already"
    if state is CANCELLING:
        return "is being cancelled already"
    if what == "hold" and held:
        return "is held already"
    return "is not held" if what == "release" and not held else ""


def _check_node(cluster: Cluster, node: str) -> int:
    number = cluster.node_numbers.get(node)
    if number is None:
        raise NotFound(
            f"There is no node {node!r}.{did_you_mean(node, cluster.node_numbers)} `horae nodes` lists them."
        )
    return number


def check_secrets(jobs: Sequence[JobFile], backend: Backend) -> None:
    """Refuse jobs that ask for secrets which nobody keeps here: they would be started in vain, again and again."""
    wanted = dict.fromkeys(name for job in jobs for name in job.secrets)
    kept = backend.secrets(wanted)
    for name in wanted:
        if name not in kept:
            raise BadJobFile(
                f"This service keeps no secret {name!r}: leave it out, or have the operator put it into the folder of "
                "`horae serve --secrets`."
            )


def check_startable(specs: Sequence[JobSpec], cluster: Cluster, engine: Engine) -> None:
    """Refuse jobs that could never run here: a gang larger than all GPUs of a type, or than its queue may have."""
    limits = {queue.path: queue.gpus_max for queue in engine.queues.configured if queue.gpus_max is not None}
    by_type = dict(zip(cluster.gpu_types, cluster.gpus_by_type.tolist(), strict=True))
    for spec in specs:
        most = max(by_type[kind] for kind in spec.gpu_types or cluster.gpu_types)
        if spec.gpus_min > most:
            raise BadJobFile(
                f"Job {spec.id.rpartition('-')[0]!r} needs {spec.gpus_min} GPUs of one type and there are {most}: "
                "ask for fewer."
            )
        parts = spec.queue.split("/")
        for path in ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1)):
            if spec.gpus_min > limits.get(path, spec.gpus_min):
                raise BadJobFile(
                    f"Queue {path} may have {limits[path]} GPUs and the job needs {spec.gpus_min}: "
                    "ask for fewer, or for a larger quota."
                )
