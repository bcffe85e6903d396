"""What must be true after every step of a seeded world, whatever went wrong before."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from horae.backends.local import runner
from horae.backends.protocol import Attempt
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import JobFailed, JobFinished, JobStopped, JobSubmitted, LaunchFailed
from horae.core.invariants import check
from horae.core.states import CANCELLED, CANCELLING, ENDED, HELD, HOLDING, STATES, State
from horae.service.daemon import Daemon
from horae.service.store.record_rows import Record, job_number
from tests.simulation.trouble import difference, same
from tests.world.model_cluster import JobPlan, ModelCluster

_ENDS = (JobFinished, JobStopped, JobFailed, LaunchFailed)


class Broken(AssertionError):
    """Something that must always be true is not."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


@dataclass
class Promises:
    """What the service has acknowledged, and what it has written down."""

    #: Jobs that were acknowledged; jobs that a cancel, or a hold, was acknowledged for.
    jobs: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    #: Jobs for which a cancel was sent, whatever the answer.
    may_be_cancelled: set[str] = field(default_factory=set)
    #: Attempts in the journal: launched, stopped, ended; jobs that finished, and how often.
    launched: set[Attempt] = field(default_factory=set)
    stopped: set[Attempt] = field(default_factory=set)
    ended: set[Attempt] = field(default_factory=set)
    finished: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Promises:
        """All of them, as they are now."""
        return replace(self, **{name: type(value)(value) for name, value in vars(self).items()})


class Invariants:
    """Looks at the cluster itself, the journal, and the service as it lives."""

    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster, self.promises = cluster, Promises()
        #: An engine that only hears what is in the journal.
        self.shadow: Engine | None = None
        #: Whether the file server has lost power.
        self.power_was_cut = False
        #: Whether an older journal was accepted, and attempts that it takes for living though they may have ended.
        self.loss_accepted = False
        self._in_doubt: set[Attempt] = set()
        #: Numbers of jobs, and attempts, that were ever given by any journal, and those that are not confirmed yet.
        self._given: set[int | Attempt] = set()
        self._unconfirmed: set[int | Attempt] = set()

    def accept_loss(self, promises: Promises, engine: Engine) -> None:
        """An older journal is accepted, which leads to `engine`: what it does not know is not promised any more.

        `promises` are those of its time. What was used after it, however, is not used again.
        """
        self.loss_accepted = True
        self._go_back(promises, engine)
        self._in_doubt = self.promises.launched - self.promises.ended

    def lose_unconfirmed(self, promises: Promises, engine: Engine) -> None:
        """An older journal is taken without a word: nothing was acknowledged since its time."""
        forgotten = set(self.promises.jobs) - set(promises.jobs) | self.promises.cancelled - promises.cancelled
        require(not forgotten, f"what was acknowledged of {forgotten} is lost, and no start was refused")
        self._go_back(promises, engine)

    def _go_back(self, promises: Promises, engine: Engine) -> None:
        self.promises = replace(promises.copy(), may_be_cancelled=self.promises.may_be_cancelled)
        self.shadow = engine
        # A commit that nobody has heard of is lost with all that it gave.
        self._unconfirmed = set()

    # --- when it happens

    def written(self, record: Record) -> None:
        """A record is in the journal."""
        promises = self.promises
        if isinstance(record, JobSubmitted):
            self._give({job_number(record.spec.id)})
        elif isinstance(record, Decided):
            launched = {(launch.job, launch.attempt) for launch in record.launches}
            self._give(launched)
            promises.launched |= launched
            promises.stopped |= {(stop.job, stop.attempt) for stop in record.stops}
        elif isinstance(record, _ENDS):
            attempt = (record.job, record.attempt)
            lives = self._cluster.attempt_lives(attempt)
            require(
                not lives or self._forges_its_end(record.job),
                f"{record} is written, and its processes live: its GPUs are given away",
            )
            require(attempt not in promises.ended, f"{record} is written, and {attempt} had ended")
            promises.ended.add(attempt)
            if isinstance(record, JobFinished):
                promises.finished[record.job] = promises.finished.get(record.job, 0) + 1
            if isinstance(record, JobStopped | JobFailed):
                self._check_progress(record)

    def _give(self, numbers: AbstractSet[int | Attempt]) -> None:
        again = numbers & (self._given | self._unconfirmed)
        require(not again, f"the numbers {again} are given again")
        self._unconfirmed |= numbers

    def confirmed(self) -> None:
        """The high-water mark covers all that is written."""
        self._given |= self._unconfirmed
        self._unconfirmed = set()

    def _forges_its_end(self, job: str) -> bool:
        """Whether a job writes the last word of its own runner: who does so gives its GPUs away."""
        return runner.EXIT in self._plan(job).garbage

    def _plan(self, job: str) -> JobPlan:
        return self._cluster.plans[job.rpartition("-")[0]]

    def _check_progress(self, record: JobStopped | JobFailed) -> None:
        plan = self._plan(record.job)
        saved = self._cluster.saved.get(record.job, 0.0)
        # What a file server that lost power has lost of old orders may lead to a checkpoint.
        require(
            bool(plan.garbage)
            or self.power_was_cut
            or (record.job, record.attempt) in self._in_doubt
            or record.work_done >= saved - 1e-6,
            f"{record} forgets work: {saved} was saved",
        )

    def started(self, job: str, attempt: int) -> None:
        """The service has told the backend to start an attempt."""
        require((job, attempt) in self.promises.launched, f"attempt {job} {attempt} starts, and is not in the journal")

    def stopped(self, job: str, attempt: int) -> None:
        """The service has told the backend to stop an attempt."""
        require((job, attempt) in self.promises.stopped, f"attempt {job} {attempt} stops, and is not in the journal")

    # --- after each step

    def check_cluster(self) -> None:
        """No attempt begins twice, a job has one living attempt, and no GPU has two."""
        # Sentences are made when they are needed: this is looked at thousands of times a second.
        for piece, times in self._cluster.begun.items():
            if times != 1:
                raise Broken(f"{piece} began {times} times")
        attempts: dict[str, int] = {}
        seats: dict[tuple[str, int], Attempt] = {}
        for each in self._cluster.living():
            job, attempt = each.piece.job, each.piece.attempt
            if self._forges_its_end(job):
                continue
            other = attempts.setdefault(job, attempt)
            if other != attempt:
                raise Broken(f"attempts {other} and {attempt} of {job} live at once")
            for seat in each.seats:
                holder = seats.setdefault((each.piece.node, seat), (job, attempt))
                if holder != (job, attempt):
                    raise Broken(f"{holder} and {(job, attempt)} hold GPU {seat} of {each.piece.node}")

    def check_service(self, daemon: Daemon) -> None:
        """The engine keeps its own invariants and every promise, and the journal says the same."""
        if daemon._engine_ahead:
            return
        engine, promises = daemon.engine, self.promises
        check(engine, quotas_fixed=False)
        rows, states = engine.jobs.rows, engine.jobs.state
        for job in promises.jobs:
            require(job in rows and job in daemon.tasks, f"{job} was acknowledged, and is not known")
        for job in promises.cancelled:
            state = STATES[states[rows[job]]]
            require(state in (CANCELLING, *ENDED), f"{job} was cancelled, and is {state.name}")
        for job in promises.held:
            state = STATES[states[rows[job]]]
            require(state in (HELD, HOLDING, CANCELLING, *ENDED), f"{job} was held, and is {state.name}")

    def check_journal(self, live: Engine, recovered: Engine, whole: bool = True) -> None:
        """Both engines are equal: the one that lived, and the one that the journal leads to.

        Without `whole` only the columns are compared that decide who runs where: that costs a tenth.
        """
        one, other = _essence(live), _essence(recovered)
        if one != other:
            raise Broken(f"the journal leads to another engine: {one} {other}")
        if whole and not same(ours := live.contents(), theirs := recovered.contents()):
            raise Broken(f"the journal leads to another engine: {difference(ours, theirs)}")

    # --- in the end

    def check_end(self, daemon: Daemon) -> None:
        """Every job that was acknowledged has finished once, or was cancelled as asked; no GPU is lost."""
        engine, promises = daemon.engine, self.promises
        for job, state in self._states(engine):
            fine = state is State.FINISHED or (state is CANCELLED and job in promises.may_be_cancelled)
            fine = fine or (state is State.TIMEOUT and self._plan(job).limited)
            require(fine or job not in promises.jobs, f"{job} is {state.name} in the end")
            require(
                promises.finished.get(job, 0) == (state is State.FINISHED), f"{job} finished {promises.finished} times"
            )
            require(
                state is not State.FINISHED or self._cluster.completed.get(job, 0) > 0 or self._lies(job),
                f"{job} is FINISHED, and never completed its work",
            )
        require(not engine.gpus.occupied, f"GPUs are lost to {engine.gpus.occupied}")
        living = [each.piece for each in self._cluster.living()]
        require(not living, f"{living} live on")

    def _lies(self, job: str) -> bool:
        return bool(self._plan(job).garbage)

    def _states(self, engine: Engine) -> Iterator[tuple[str, State]]:
        for row, spec in enumerate(engine.jobs.specs):
            yield spec.id, STATES[engine.jobs.state[row]]


def _essence(engine: Engine) -> tuple[object, ...]:
    """Who runs where, how often it was tried, and how much is left to do."""
    jobs, count = engine.jobs, len(engine.jobs)
    columns = (jobs.state, jobs.attempt, jobs.work_left, jobs.failures, jobs.lease_until_s)
    return (
        *(column[:count].tolist() for column in columns),
        dict(engine.gpus.occupied),
        dict(engine.gpus.held),
        engine.wake_s,
        engine.now_s,
    )
