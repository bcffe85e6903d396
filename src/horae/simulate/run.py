"""The simulator: the engine driven by a virtual clock and a model of the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol, assert_never

from horae.core.apps import check_apps
from horae.core.cluster import Cluster
from horae.core.commands import Decided, Launch, Stop, WakeAt
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.events import PRECEDENCE, Event, JobSubmitted
from horae.core.history import History, Recorder
from horae.core.job import JobSpec
from horae.core.job_table import along
from horae.core.plan import Particular
from horae.core.queues import Queue
from horae.core.run_history import history_of
from horae.core.throughputs import Throughputs
from horae.placement.rules import make_placement
from horae.policies import make_policy, with_seed
from horae.simulate.faults import Faults
from horae.simulate.world import World

Progress = Callable[[int, int], None]
#: Called after every event applied and every decision made, with the engine as it then is.
Watch = Callable[[Engine, Event | Decided], None]


class Onlooker(Protocol):
    """Somebody who looks on while a run goes by, and changes nothing."""

    def expect(self, engine: Engine, now_s: float) -> None:
        """A decision is about to be made."""
        ...

    def see(self, engine: Engine, what: Event | Decided) -> None:
        """An event was applied, or a decision made."""
        ...


_REPORT_EVERY = 500
#: So many reports without any gain, and a run is given up.
_LOOKS_WITHOUT_GAIN = 100


class CannotRun(UserError):
    """A job that this cluster could never run."""


class NoProgress(UserError):
    """A world in which work is lost as fast as it is done."""


def simulate(
    jobs: Sequence[JobSpec],
    cluster: Cluster,
    *,
    policy: str,
    settings: Mapping[str, str] | None = None,
    placement: str = "best-effort",
    restart_cost_s: float = 30.0,
    throughputs: Throughputs | None = None,
    truth: Throughputs | None = None,
    queues: Iterable[Queue] = (),
    seed: int = 0,
    faults: Faults | None = None,
    progress: Progress | None = None,
    until: int | None = None,
    onlooker: Onlooker | None = None,
) -> History:
    """Run a workload on a cluster under a policy, in virtual time, to the end.

    With `until`, to the moment when the first so many jobs have ended, while the others still keep the cluster busy.
    With `truth`, jobs really run at those speeds, while the scheduler believes `throughputs` until it sees better.
    A policy that draws at random draws from `seed`, unless its settings name another.
    An `onlooker` is told of every event and decision; the run is the same without.
    """
    throughputs, queues = throughputs or Throughputs(), tuple(queues)
    settings = with_seed(policy, settings or {}, seed)
    check_fit(jobs, cluster, throughputs)
    if truth is not None:
        check_fit(jobs, cluster, truth)
    check_quotas(jobs, queues)
    check_trials(jobs)
    rule = make_placement(placement)
    engine = Engine(cluster, make_policy, policy, settings, rule, throughputs, queues, learn=truth is not None)
    if isinstance(engine.policy, Particular):
        engine.policy.check(cluster.gpu_types, throughputs.knows_pairs)
    world = World(engine.jobs, cluster, restart_cost_s, faults, seed, truth)
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    script = [JobSubmitted(job.submit_s, job) for job in ordered]
    watch, expect = (onlooker.see, onlooker.expect) if onlooker else (None, None)
    driver = Driver(engine, world, script, watch, until, expect)
    driver.run(progress)
    return driver.history(
        {"placement": placement, "restart_cost_s": f"{restart_cost_s:g}", "seed": str(seed), **settings}
    )


class _Patience:
    """Notices a run in which nothing is ever gained, such as one that loses nodes faster than jobs save their work."""

    def __init__(self) -> None:
        self._most_gained, self._looks = -inf, 0

    def look(self, engine: Engine) -> None:
        """Raise `NoProgress` if for a long time no work was gained that was not had before."""
        table, rows = engine.jobs, engine.jobs.active
        left = float(along(engine.now_s, rows, table.work_left, table.rate, table.since_s, -1.0).sum())
        gained = float(table.work[: len(table)].sum()) - left
        if gained > self._most_gained:
            self._most_gained, self._looks = gained, 0
            return
        self._looks += 1
        if self._looks > _LOOKS_WITHOUT_GAIN:
            raise NoProgress(
                f"After {engine.now_s:g} s no job gains anything any more ({len(rows)} have not ended): "
                "make faults rarer, checkpoints more frequent, or restarts cheaper."
            )


class Driver:
    """Moves virtual time from event to event. The service has one like it, with a real clock."""

    def __init__(
        self,
        engine: Engine,
        world: World,
        script: Sequence[Event],
        watch: Watch | None = None,
        until: int | None = None,
        expect: Callable[[Engine, float], None] | None = None,
    ) -> None:
        self.engine, self._world, self._watch, self._until = engine, world, watch, until
        self._expect = expect
        #: What users and operators do: submissions, and whatever else a test wants to happen.
        self._script = sorted(script, key=lambda event: (event.at_s, PRECEDENCE[type(event)]))
        self._next = 0
        self._recorder = Recorder()
        self._submissions = sum(isinstance(event, JobSubmitted) for event in script)

    def run(self, progress: Progress | None = None) -> None:
        """Go on until every job has ended, or nothing more can happen."""
        instants, patience = 0, _Patience()
        while not self._seen_enough() and (now_s := self._next_instant()) < inf:
            for event in self._events(now_s):
                self._apply(event)
            while self.engine.due(now_s):
                self._decide(now_s)
                for event in self._world.pop(now_s):
                    self._apply(event)
            instants += 1
            if instants % _REPORT_EVERY == 0:
                patience.look(self.engine)
                if progress:
                    progress(*self._done())
        if progress:
            progress(*self._done())

    def _seen_enough(self) -> bool:
        """Whether all jobs that a run is to see to their end have ended."""
        jobs, until = self.engine.jobs, self._until
        if until is None or len(jobs) < until:
            return False
        return len(jobs.active) == 0 or int(jobs.active[0]) >= until

    def _next_instant(self) -> float:
        """The next moment at which something happens; never, once all jobs are done or nobody can ever run."""
        scripted_s = self._script[self._next].at_s if self._next < len(self._script) else inf
        engine = self.engine
        if scripted_s == inf and not engine.gpus.occupied:
            # On an idle cluster everybody who can run does, so those who wait for nothing but time wait for ever.
            nothing_comes = self._world.next_s == inf and not engine.retries
            if nothing_comes or len(engine.jobs.active) == 0:
                return inf
        return min(scripted_s, self._world.next_s, max(engine.wake_s, engine.now_s))

    def _events(self, now_s: float) -> Sequence[Event]:
        """All events of this instant: completions, then node changes, then arrivals."""
        events = self._world.pop(now_s)
        first = self._next
        while self._next < len(self._script) and self._script[self._next].at_s <= now_s:
            self._world.heed(self._script[self._next])
            self._next += 1
        if events and self._next > first:
            return sorted((*events, *self._script[first : self._next]), key=lambda event: PRECEDENCE[type(event)])
        return events or self._script[first : self._next]

    def _apply(self, event: Event) -> None:
        self.engine.apply(event)
        self._recorder.see(event, self.engine.jobs.rows)
        if self._watch:
            self._watch(self.engine, event)

    def _decide(self, now_s: float) -> None:
        if self._expect:
            self._expect(self.engine, now_s)
        record = self.engine.decide(now_s)
        self._recorder.see(record, self.engine.jobs.rows)
        if self._watch:
            self._watch(self.engine, record)
        for command in record.commands:
            match command:
                case Launch():
                    self._world.launch(self.engine.jobs.rows[command.job], command, now_s)
                case Stop():
                    self._world.stop(command, now_s)
                case WakeAt():
                    pass
                case _:
                    assert_never(command)

    def _done(self) -> tuple[int, int]:
        return len(self.engine.jobs) - len(self.engine.jobs.active), self._submissions

    def history(self, settings: Mapping[str, str]) -> History:
        """What happened, for reports."""
        return history_of(self.engine, self._recorder, self._world.rates(), settings)


def check_fit(jobs: Sequence[JobSpec], cluster: Cluster, throughputs: Throughputs) -> None:
    """Refuse a job that no GPU type of the cluster could ever run, by name, and a name that is used twice."""
    known: set[tuple[object, ...]] = set()
    names: set[str] = set()
    for job in jobs:
        if job.id in names:
            raise CannotRun(f"Two jobs are called {job.id!r}: give each an id of its own.")
        names.add(job.id)
        alike = (job.job_class, job.gpus, job.gpus_min, job.gpu_types, job.unit, bool(job.throughput))
        if alike in known and not job.throughput:
            continue
        rates = throughputs.rates(job, cluster.gpu_types)
        if not (rates > 0).any():
            raise CannotRun(_no_speed(job, cluster))
        most = int(cluster.gpus_by_type[rates > 0].max())
        if most < job.gpus_min:
            raise CannotRun(
                f"Job {job.id!r} needs {job.gpus_min} GPUs of one type and the cluster has {most}: "
                "give a larger --cluster, or take the job out of the trace."
            )
        known.add(alike)


def check_quotas(jobs: Sequence[JobSpec], queues: Sequence[Queue]) -> None:
    """Refuse a gang that is larger than its queue, or one above it, may ever have."""
    limits = {queue.path: queue.gpus_max for queue in queues if queue.gpus_max is not None}
    for job in jobs if limits else ():
        parts = job.queue.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if job.gpus_min > limits.get(path, job.gpus_min):
                raise CannotRun(
                    f"Job {job.id!r} needs {job.gpus_min} GPUs and queue {path} may have {limits[path]}: "
                    "raise gpus_max, or take the job out of the trace."
                )


def check_trials(jobs: Sequence[JobSpec]) -> None:
    """Refuse apps that cannot agree on a scheduler, and trials whose loss nobody could ever report."""
    check_apps(jobs)
    for job in jobs:
        if job.loss is None and (job.app_scheduler or job.report_every):
            raise CannotRun(
                f"Job {job.id!r} is to report its loss (app scheduler {job.app_scheduler!r}, every "
                f"{job.report_every:g}) and has none: give the trace a column loss, or leave these columns out."
            )


def _no_speed(job: JobSpec, cluster: Cluster) -> str:
    types = ", ".join(cluster.gpu_types)
    if job.gpu_types and not set(job.gpu_types) & set(cluster.gpu_types):
        return (
            f"Job {job.id!r} accepts only {', '.join(job.gpu_types)} and the cluster has {types}: change one of them."
        )
    what = f"class {job.job_class!r} on {job.gpus} GPUs" if job.job_class else f"its {job.gpus} GPUs"
    return (
        f"Job {job.id!r} counts its work in steps, and no throughput is known for {what} of type {types}: "
        "give --throughputs FILE, or a cluster whose type names the table knows."
    )
