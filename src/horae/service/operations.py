"""All operations on a running service, for users, attempts and admins, independent of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from horae.backends.found_jobs import FoundJob
from horae.core.bidding import Ask, BidAnswer
from horae.core.cluster import UNCOUNTED, Cluster
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
    SettingsChanged,
)
from horae.core.limits import NO_LIMITS, check_limits
from horae.core.policy import ChecksCluster, Policy
from horae.core.queues import Queue, UnknownQueues
from horae.core.states import CANCELLING, ENDED, HELD, HOLDING, LAUNCHING, RUNNING, STATES, TIMEOUT, TIMING_OUT, State
from horae.plugins.setting_files import with_files
from horae.policies import CONTENT_HASH, make_policy
from horae.policies.node_checks import check_nodes
from horae.policies.type_awareness import ignored_speeds, ignored_speeds_in_words
from horae.service.app_owners import AppOwnerHistory, AppOwners
from horae.service.daemon import Change, Daemon, Prepare
from horae.service.job_checks import QueuedJobs, admitted, check_images, check_startable, find_secrets
from horae.service.job_file import BadJobFile, JobFile, read_job, spec_of, task_of
from horae.service.machines import BACKEND, node_numbers, reopened
from horae.service.rights import Rights
from horae.service.roles import Caller, NotFound, Role
from horae.service.standby import Follower
from horae.service.store.connection import StoreFull
from horae.service.store.stored_records import Act
from horae.service.warm_up import warm_up
from horae.solve.auction.bids import BadBid, Bid, Bundles, Offer, Taker, check_bid

_JobRequest = JobCancelled | JobHeld | JobReleased
_REQUESTS: dict[str, type[_JobRequest]] = {"cancel": JobCancelled, "hold": JobHeld, "release": JobReleased}

#: What it means for a job that it does not save.
STARTS_OVER = (
    "a job that has saved nothing by then starts over, and what it lost counts as GPU time that it has had. "
    "horae.train saves its work; --not-preemptible keeps it running."
)


class Operations:
    """Checks and performs requests. Every change is in the journal and the audit trail when its method returns."""

    def __init__(self, daemon: Daemon | Follower) -> None:
        self._daemon = daemon
        self._apps, self._owner_history, self._queued = AppOwners(), AppOwnerHistory(), QueuedJobs()
        #: The last job number given. Jobs accepted in this cycle are not in the engine yet.
        self._last_number = 0

    @property
    def rights(self) -> Rights:
        """What callers may do with the jobs and queues of this moment."""
        return Rights.of(self._daemon.status)

    # -------------------------------------------------------------------- jobs

    def submit(self, caller: Caller, jobs: Sequence[JobFile], dry_run: bool = False) -> list[str]:
        """Accept all jobs or none; returns their ids. A dry run only checks whether they would be accepted."""
        caller.require_write("submit jobs")
        if any(job.weight > 1 for job in jobs):
            caller.require_admin("give a job a weight above 1")
        if self._daemon.reserve and self._daemon.reserve.is_short:
            raise StoreFull("The service's disk is nearly full: ask its operator to free some space, and try again.")
        if how := self._daemon.backend.submit_with:
            raise BadJobFile(f"This service orders the jobs that users give to the cluster itself: use `{how}`.")
        if why := self._daemon.backend.refusal(caller.user):
            raise BadJobFile(why)
        files = admitted(caller, jobs, self.rights)
        secrets = find_secrets(caller, files, self._daemon.backend)
        check_images(files, self._daemon.backend)

        def prepare(engine: Engine, now_s: float) -> tuple[Change, list[str]]:
            change, ids = self._submission(caller.user, files, engine, now_s, dry_run, exempt=caller.is_admin)
            tasks = [replace(task, secret_files=found) for task, found in zip(change.tasks, secrets, strict=False)]
            return replace(change, tasks=tuple(tasks)), ids

        return self._daemon.ask(prepare)

    def take_in(self, found: FoundJob) -> str:
        """Accept a job that the backend found, in its user's name, once; returns its id."""
        job = read_job(found.document, "the job")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, str]:
            taken = next((task.job for task in self._daemon.tasks.values() if task.found_as == found.key), None)
            if taken is not None:
                return Change(), taken
            change, (name,) = self._submission(found.user, [_without_nodes(job, engine)], engine, now_s)
            return replace(change, tasks=tuple(replace(task, found_as=found.key) for task in change.tasks)), name

        return self._daemon.ask(prepare)

    def _submission(
        self,
        user: str,
        jobs: Sequence[JobFile],
        engine: Engine,
        now_s: float,
        dry_run: bool = False,
        exempt: bool = False,
    ) -> tuple[Change, list[str]]:
        """The change by which jobs are submitted, and their ids. `exempt`: no limits of users hold for them."""
        self._apps.catch_up(engine, now_s)
        ids = self._new_ids(engine, jobs)
        cluster = engine.gpus.cluster
        named = zip(jobs, ids, strict=True)
        specs = [replace(spec_of(job, name, user, now_s, cluster), exempt=exempt) for job, name in named]
        check_startable(specs, cluster, engine)
        check_nodes(specs, engine.policy_name, engine.policy, engine.flat)
        apps = self._apps.check(user, specs, engine, self._daemon.tasks)
        queued = self._queued.check(specs, engine, now_s)
        if dry_run or not ids:
            return Change(), ids
        self._apps.claim(apps)
        self._queued.accept(queued)
        self._last_number = _number(ids[-1])
        tasks = [task_of(job, spec.id, user, spec.work) for job, spec in zip(jobs, specs, strict=True)]
        acts = [Act(now_s, user, "submit", name) for name in ids]
        return Change(tuple(JobSubmitted(now_s, spec) for spec in specs), tuple(tasks), tuple(acts)), ids

    def notes_on(self, jobs: Sequence[JobFile]) -> list[str]:
        """What the submitter of these jobs should know. A job file that says how the job saves is taken at its word."""
        asked = {key for job in jobs for key in job.resources.beside_gpus()}
        cluster, loose = self._daemon.status.cluster, sorted(asked - self._daemon.backend.honours)
        room = {"cpus_per_gpu": cluster.least_share[0], "memory_per_gpu": cluster.least_share[1]}
        counts = [f"resources.{key}" for key in loose if room.get(key, UNCOUNTED) < UNCOUNTED]
        ignored = [f"resources.{key}" for key in loose if f"resources.{key}" not in counts]
        notes = (
            [f"This service's backend ignores {' and '.join(ignored)}: it does not divide those."] if ignored else []
        )
        if counts:
            notes.append(f"Jobs are placed by {' and '.join(counts)}, but nothing keeps a job from using more.")
        unsaved = any(job.preemptible and "checkpoint" not in job.model_fields_set for job in jobs)
        if not unsaved or not getattr(self._daemon.engine.policy, "preempts", True):
            return notes
        return [*notes, f"The policy {self._daemon.status.policy} preempts jobs: {STARTS_OVER}"]

    def _new_ids(self, engine: Engine, jobs: Sequence[JobFile]) -> list[str]:
        """Job ids NAME-NUMBER with new numbers. An id must not be the name of an app."""
        newest = _number(engine.jobs.specs[-1].id) if len(engine.jobs) else 0
        last = max(newest, self._last_number, engine.job_number_floor)
        ids: list[str] = []
        for job in jobs:
            names = (f"{job.name}-{number}" for number in count(last + 1))
            ids.append(next(name for name in names if not self._apps.has_app(name)))
            last = _number(ids[-1])
        return ids

    def end_orphans(self, caller: Caller) -> list[str]:
        """Stop all attempts that the journal does not know; returns them as JOB@NUMBER."""
        caller.require_admin("end attempts that the journal does not know")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, list[str]]:
            orphans = list(self._daemon.orphans.attempts)
            for job, attempt in orphans:
                self._daemon.backend.stop(job, attempt)
            names = [f"{job}@{attempt}" for job, attempt in orphans]
            return Change(acts=tuple(Act(now_s, caller.user, "end orphan", name) for name in names)), names

        return self._daemon.ask(prepare)

    def request(self, caller: Caller, what: str, jobs: Sequence[str]) -> dict[str, str]:
        """Cancel, hold or release jobs; returns "done" or an objection for each."""
        caller.require_write(f"{what} jobs")
        event_type = _REQUESTS[what]

        def prepare(engine: Engine, now_s: float) -> tuple[Change, dict[str, str]]:
            rows = {job: self._own_row(caller, engine, job, what) for job in jobs}
            answer = {job: _objection(what, _state(engine, row)) or "done" for job, row in rows.items()}
            done = [job for job, outcome in answer.items() if outcome == "done"]
            events = tuple(event_type(now_s, job, caller.user) for job in done)
            acts = tuple(Act(now_s, caller.user, what, job) for job in done)
            return Change(events, (), acts), answer

        return self._daemon.ask(prepare)

    def progress(
        self, job: str, attempt: int, step: float, total: float | None = None, loss: float | None = None
    ) -> bool:
        """Record a progress report of an attempt; returns whether the attempt must stop.

        The first report, whatever its content, means that the attempt has started.
        """

        def prepare(engine: Engine, now_s: float) -> tuple[Change, bool]:
            row = engine.jobs.rows.get(job, -1)
            state = _state(engine, row) if row >= 0 else None
            if state is None or engine.jobs.attempt[row] != attempt or state not in (LAUNCHING, RUNNING):
                return Change(), True
            events: list[Event] = [JobStarted(now_s, job, attempt)] if state is LAUNCHING else []
            done = self._daemon.tasks[job].work_done(step, total)
            events.append(JobProgressed(now_s, job, attempt, done, loss))
            return Change(tuple(events)), False

        return self._daemon.ask(prepare)

    def _own_row(self, caller: Caller, engine: Engine, job: str, what: str) -> int:
        """Row of a job that the caller may change. A job that the caller may not see is reported as not found."""
        row, rights = engine.jobs.rows.get(job, -1), self.rights
        if row < 0 or not rights.sees(caller, self._daemon.tasks[job].user, engine.jobs.specs[row]):
            raise NotFound(f"There is no job {job!r}; `horae queue --all` lists yours.")
        rights.check_act(caller, self._daemon.tasks[job].user, engine.jobs.specs[row], what)
        return row

    # ------------------------------------------------------------------- agents

    def register_agent(self, caller: Caller, app: str, present: bool) -> None:
        """Register (`present`) or dismiss the agent by which an app bids for itself."""
        caller.require_write("speak for an app")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            self._check_own_app(caller, engine, now_s, app)
            act = Act(now_s, caller.user, "register agent" if present else "dismiss agent", app)
            return Change((AgentChanged(now_s, app, present, caller.user),), (), (act,)), None

        self._daemon.ask(prepare)

    def bid(self, caller: Caller, answer: BidAnswer) -> str:
        """Record an agent's bid; returns what is wrong with it, or "". If it is wrong, the built-in agent bids."""
        caller.require_write("speak for an app")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, str]:
            self._check_own_app(caller, engine, now_s, answer.app)
            if refused := engine.bidding.refusal(answer, now_s):
                # The journal keeps only that the bid came, not its content.
                return Change((BidReceived(now_s, replace(answer, rho=None, table=(), problem=refused)),)), refused
            problem = problem_of(answer, engine.bidding.asked[answer.app])
            outcome = replace(answer, rho=None, table=(), problem=problem) if problem else answer
            return Change((BidReceived(now_s, outcome),)), problem

        return self._daemon.ask(prepare)

    def check_app_visible(self, caller: Caller, app: str) -> None:
        """Refuse a caller who may not see an app."""
        if not self.sees_app(caller, app, self._daemon.clock()):
            raise NotFound(f"There is no app {app!r} of yours.")

    def sees_app(self, caller: Caller, app: str, at_s: float) -> bool:
        """Whether the caller may see the events of an app at the time `at_s`."""
        owner = self._owner_history.owner(app, at_s, self._daemon.status, self._daemon.tasks)
        in_scope = not caller.scope or app == caller.scope.app
        return owner is not None and in_scope and (caller.role is not Role.USER or owner == caller.user)

    def offer(self, app: str) -> Ask | None:
        """The open offer to an app's agent; None if there is none."""
        return next((ask for ask in self._daemon.status.asks if ask.app == app), None)

    def _check_own_app(self, caller: Caller, engine: Engine, now_s: float, app: str) -> None:
        """Refuse a caller who neither owns the app nor is an admin. The app is then reported as not found."""
        self._apps.catch_up(engine, now_s)
        owner = self._apps.owner(app, engine, self._daemon.tasks)
        out_of_scope = caller.scope and app != caller.scope.app
        if owner is None or out_of_scope or (caller.role is not Role.ADMIN and caller.user != owner):
            raise NotFound(f"You have no waiting or running job of app {app!r}: submit one first, with --app {app}.")

    # ---------------------------------------------------------------- operators

    def drain(self, caller: Caller, node: str, evict: bool) -> None:
        """Start no new jobs on a node; with `evict`, also stop its jobs, to run elsewhere."""
        caller.require_admin("drain nodes")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            name = engine.gpus.cluster.nodes[_check_node(engine.gpus.cluster, node)].name
            act = Act(now_s, caller.user, "drain", node, "and stop its jobs" if evict else "")
            return Change((NodeDraining(now_s, name, evict, caller.user),), (), (act,)), None

        self._daemon.ask(prepare)

    def lose(self, caller: Caller, node: str) -> None:
        """Take a node out of service of which the caller is sure that nothing runs there any more."""
        caller.require_admin("say that a node is lost")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            at = engine.gpus.cluster.nodes[_check_node(engine.gpus.cluster, node)]
            self._daemon.backend.gone(at.host)
            act = Act(now_s, caller.user, "lose", node, "being sure that nothing runs there")
            return Change((NodeDraining(now_s, at.name, True, caller.user),), (), (act,)), None

        self._daemon.ask(prepare)

    def resume(self, caller: Caller, node: str) -> None:
        """Start jobs on a drained node again."""
        caller.require_admin("resume nodes")

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            ledger, number = engine.gpus, _check_node(engine.gpus.cluster, node)
            if not ledger.node_up[number]:
                raise NotFound(
                    f"Node {node} is down: resume it when it is back; for this machine, restart the service."
                )
            if ledger.closed_by.get(ledger.cluster.nodes[number].name) == BACKEND:
                raise ClosedNode(f"Node {node} is closed in the cluster itself: open it there.")
            act = Act(now_s, caller.user, "resume", node)
            return Change(reopened(self._daemon.backend.sight(), ledger, number, now_s), (), (act,)), None

        self._daemon.ask(prepare)

    def configure(
        self,
        caller: Caller,
        policy: str | None,
        settings: Mapping[str, str],
        queues: Sequence[Queue] = (),
        unknown_queues: UnknownQueues | None = None,
    ) -> str:
        """Change the policy, its settings, or queues. Wrong values are refused before anything is written.

        Returns a sentence if the policy ignores that jobs are not equally fast on all GPU types, or "".

        Files and modules are named on the service's own command line only: here, a policy that is loaded already.
        """
        _check_loaded(policy, settings, self._daemon.status.policy)
        return self._daemon.ask(self.configuration_change(caller, policy, settings, queues, unknown_queues))

    def configuration_change(
        self,
        caller: Caller,
        policy: str | None,
        settings: Mapping[str, str],
        queues: Sequence[Queue],
        unknown_queues: UnknownQueues | None = None,
    ) -> Prepare[str]:
        """The change behind `configure`, for `Daemon.ask` or `Daemon.start`."""
        caller.require_admin("change the policy or queues")
        if policy is not None:
            # Refuses wrong values, and compiles what the policy needs outside the daemon's loop.
            warm_up(replace(self._daemon.initial_settings, policy=policy, settings=dict(settings)))

        def prepare(engine: Engine, now_s: float) -> tuple[Change, str]:
            chosen = engine.policy_name if policy is None else policy
            before = engine.policy_settings if chosen == engine.policy_name else {}
            new_settings = {**before, **with_files(chosen, settings)}
            new_policy = make_policy(chosen, new_settings)
            if isinstance(new_policy, ChecksCluster):
                new_policy.check(engine.gpus.cluster.gpu_types, pairs_known=False)
            check_sharing(new_policy, chosen, self._daemon.backend.shares_gpus)
            # Held jobs, too: they are released some day.
            left = [spec for row, spec in enumerate(engine.jobs.specs) if STATES[engine.jobs.state[row]] not in ENDED]
            check_nodes(left, chosen, new_policy, engine.flat)
            # Record the complete policy settings that were checked: another request may change them at the same time.
            changed = chosen != engine.policy_name or new_settings != engine.policy_settings
            event = SettingsChanged(
                now_s,
                chosen if changed else None,
                new_settings if changed else {},
                tuple(queues),
                unknown_queues=unknown_queues,
            )
            unknown = f"unknown queues: {unknown_queues}" if unknown_queues is not None else ""
            words = [policy or "", *(f"{key}={value}" for key, value in settings.items()), unknown]
            detail = " ".join([*filter(None, words), *(f"queue {queue.path}" for queue in queues)])
            act = Act(now_s, caller.user, "configure", "service", detail)
            return Change((event,), (), (act,)), speeds_ignored(engine, chosen, new_policy)

        return prepare

    def set_limits(self, caller: Caller, whom: str, change: Mapping[str, Any]) -> None:
        """Change limits by name, for a user or a queue; None drops one. What is not named stays."""
        caller.require_write("set limits")
        self.rights.check_set_limits(caller, whom)

        def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
            limits = replace(engine.queues.limits.get(whom, NO_LIMITS), **dict(change))
            check_limits(whom, limits)
            detail = ", ".join(f"{name}={'none' if value is None else value}" for name, value in change.items())
            act = Act(now_s, caller.user, "limit", whom, detail)
            return Change((SettingsChanged(now_s, limits={whom: limits}),), (), (act,)), None

        self._daemon.ask(prepare)


def _without_nodes(job: JobFile, engine: Engine) -> JobFile:
    """A job that the backend found, without its number of nodes where the policy chooses nodes itself.

    The cluster manager knows how many there must be: a place that does not suit is a failed launch with a sentence.
    """
    if not getattr(engine.policy, "chooses_machines", False):
        return job
    return job.model_copy(update={"resources": job.resources.model_copy(update={"nodes": None})})


def speeds_ignored(engine: Engine, name: str, policy: Policy) -> str:
    """A sentence if a policy ignores that active jobs are not equally fast on all GPU types, or ""."""
    jobs = engine.jobs
    by_job = ((jobs.specs[row], jobs.rates[row].tolist()) for row in jobs.active.tolist())
    return ignored_speeds_in_words([(name, ignored_speeds(policy, by_job, engine.gpus.cluster))])


class ClosedNode(UserError):
    """A node that the backend keeps closed."""


class SharedGpus(UserError):
    """A policy that lets two jobs share GPUs, with a backend that cannot do that."""


def check_sharing(policy: Policy, name: str, shares_gpus: bool) -> None:
    """Refuse a policy that lets two jobs share GPUs if the backend cannot do that."""
    if not shares_gpus and getattr(policy, "shares_gpus", getattr(policy, "space_sharing", False)):
        raise SharedGpus(
            f"The policy {name} lets two jobs share GPUs, which this service's backend cannot do: "
            "leave out space-sharing=true, or choose another policy."
        )


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
    """What is wrong with a bid, in one sentence; empty if the bid is valid."""
    offer = Offer.of({machine: count for machine, count, _ in ask.offer})
    unknown = next((name for row in answer.table for name, _ in row.gpus if name not in offer.number), None)
    if unknown is not None:
        return f"Machine {unknown!r} is not in the offer: bid for {', '.join(offer.machines)}."
    if not answer.table:
        return "The bid has no rows: give the rho of at least one bundle, or do not answer."
    try:
        bundles = Bundles.named(offer, ((dict(row.gpus), row.rho) for row in answer.table))
        check_bid(offer, Bid(Taker(answer.app, ask.gang), bundles, answer.rho))
    except BadBid as wrong:
        return str(wrong)
    return ""


def _state(engine: Engine, row: int) -> State:
    return STATES[int(engine.jobs.state[row])]


def _number(job: str) -> int:
    """The number at the end of a job id."""
    return int(job.rpartition("-")[2])


def _objection(what: str, state: State) -> str:
    """Why a request would not change a job in this state; empty if it would."""
    held = state in (HELD, HOLDING)
    if state in (TIMING_OUT, TIMEOUT):
        return "has reached its time limit already"
    if state in ENDED:
        return f"is {state.name.lower()} already"
    if state is CANCELLING:
        return "is being cancelled already"
    if what == "hold" and held:
        return "is held already"
    return "is not held" if what == "release" and not held else ""


def _check_node(cluster: Cluster, node: str) -> int:
    """Number of a host's node."""
    numbers = node_numbers(cluster)
    if node not in numbers:
        raise NotFound(f"There is no node {node!r}.{did_you_mean(node, numbers)} `horae nodes` lists them.")
    return numbers[node]
