"""What every backend promises, as checks that run against a backend in a world where jobs can be made to behave.

from horae.testing import BACKEND_CHECKS, check_backend

check_backend(MyRig)                                      # all of them, each with a rig of its own
@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)      # or one test for each
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.backends.protocol import Attempt, Backend, Place, Seen, Start
from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed, NodeObserved

#: The machines that a rig's backend has.
NODES = (Node("v100", "v100", 4), Node("k80", "k80", 4))
#: How long a check waits for something to happen: far more than anything takes.
PATIENCE_S = 30.0
#: Far more than a start, a stop or a look for events may take, which wait for nobody.
AT_ONCE_S = 1.0

#: What a job may do: run until told to stop and be run again, end by itself in some way, or never come up.
#: `finishes late` gets its notice first. All but the last have 40 of 100 in their checkpoint.
BEHAVIOURS = {
    "runs": FakeJob(),
    "finishes": FakeJob(lasts_s=5.0),
    "finishes late": FakeJob(lasts_s=5.0, stop_s=50.0),
    "fails": FakeJob(lasts_s=5.0, exit_code=3),
    "asks to run again": FakeJob(lasts_s=5.0, exit_code=75),
    "asks in vain": FakeJob(lasts_s=5.0, exit_code=75, saves=False),
    "cannot launch": FakeJob(launch_fails="no disk"),
}


#: Every check by its name, which is a sentence.
BACKEND_CHECKS: dict[str, Callable[[Rig], None]] = {}


class Rig(Protocol):
    """A backend in a world where jobs can be made to behave."""

    @property
    def backend(self) -> Backend:
        """The backend as it is now."""
        ...

    def start(self, behaviour: str, job: str = "a-1", attempt: int = 1, node: str = "v100") -> None:
        """Order an attempt of a job that does what `BEHAVIOURS` says, on GPU 0 of a node of `NODES`."""
        ...

    def up(self, job: str = "a-1", attempt: int = 1) -> None:
        """Return once an attempt is up, so that it hears a notice."""
        ...

    def events(self) -> list[Event]:
        """The next events that the backend tells; there is at least one."""
        ...

    def quiet(self) -> bool:
        """Whether the backend tells nothing more."""
        ...

    def begun(self, job: str = "a-1") -> int:
        """How many attempts of a job were really begun."""
        ...

    def reopen(self) -> None:
        """Close the backend and open another on the same records, as after a crash."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class FakeRig:
    """The rig of `FakeBackend`: an example, and what the checks themselves are tested with."""

    def __init__(self) -> None:
        self.world = FakeWorld()
        self.backend = FakeBackend(NODES, self.world)

    def start(self, behaviour: str, job: str = "a-1", attempt: int = 1, node: str = "v100") -> None:
        """Order an attempt."""
        self.world.jobs[job] = BEHAVIOURS[behaviour]
        self.world.saved.setdefault(job, 40.0)
        what = Task(job=job, user="ann", name="a", run=("sleep", "60"), work=100.0, grace_s=20.0)
        self.backend.start(Start(job, attempt, what, node, (Place(node, (0,)),)))

    def up(self, job: str = "a-1", attempt: int = 1) -> None:
        """Fake jobs are up at once."""

    def events(self) -> list[Event]:
        """Let time pass until something happens."""
        for _ in range(100):
            if found := self.backend.watch(self.world.now_s + 1.0):
                return found
        raise AssertionError("nothing happens")

    def quiet(self) -> bool:
        """Let much time pass."""
        return not any(self.backend.watch(self.world.now_s + 10.0) for _ in range(10))

    def begun(self, job: str = "a-1") -> int:
        """As the world counted."""
        return sum(attempt[0] == job for attempt in self.world.started)

    def reopen(self) -> None:
        """The world stays."""
        self.backend = FakeBackend(NODES, self.world)

    def close(self) -> None:
        """Nothing runs."""


def check_backend(make_rig: Callable[[], Rig]) -> None:
    """Run every check, each with a rig of its own; the first that fails raises an AssertionError with its name."""
    for name, check in BACKEND_CHECKS.items():
        rig = make_rig()
        try:
            check(rig)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        finally:
            rig.close()


class _ObservedRig:
    """A rig whose nodes were observed. `alive` is what was observed; other events are kept for `events`."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._kept: list[Event] = []
        self.alive = self._observe()

    @property
    def backend(self) -> Backend:
        return self._rig.backend

    def start(self, behaviour: str, job: str = "a-1", attempt: int = 1, node: str = "v100") -> None:
        self._rig.start(behaviour, job, attempt, node)

    def up(self, job: str = "a-1", attempt: int = 1) -> None:
        self._rig.up(job, attempt)

    def events(self) -> list[Event]:
        kept, self._kept = self._kept, []
        return kept or self._rig.events()

    def quiet(self) -> bool:
        return not self._kept and self._rig.quiet()

    def begun(self, job: str = "a-1") -> int:
        return self._rig.begun(job)

    def reopen(self) -> None:
        self._rig.reopen()
        self._kept = []
        self.alive = self._observe()

    def _observe(self) -> dict[str, tuple[Attempt, ...]]:
        """Watch until every node was observed, and once only; the rig's time does not pass."""
        alive: dict[str, tuple[Attempt, ...]] = {}
        end_s = time.monotonic() + PATIENCE_S
        while len(alive) < len(NODES):
            assert time.monotonic() < end_s, f"of the nodes, only {list(alive)} were observed"
            for event in self.backend.watch(0.0):
                if isinstance(event, NodeObserved):
                    assert event.node not in alive, f"{event.node} was observed twice"
                    alive[event.node] = event.alive
                else:
                    self._kept.append(event)
        return alive


def _promise(check: Callable[[_ObservedRig], None]) -> Callable[[_ObservedRig], None]:
    BACKEND_CHECKS[check.__name__.strip("_").replace("_", " ")] = lambda rig: check(_ObservedRig(rig))
    return check


# ------------------------------------------------------------------ the checks


def _end(rig: _ObservedRig) -> Event:
    """The next event that is not a start."""
    while True:
        found = [event for event in rig.events() if not isinstance(event, JobStarted)]
        if found:
            assert len(found) == 1
            return found[0]


def _stamped(event: Event) -> Event:
    """Make a time of its own of when it was told, which the rigs differ in."""
    object.__setattr__(event, "at_s", 0.0)
    return event


def _next(rig: _ObservedRig, now_s: float) -> list[Event]:
    """What the backend tells next, asked at a given time."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if found := rig.backend.watch(now_s):
            return found
        time.sleep(0.01)
    raise AssertionError(f"the backend told nothing for {PATIENCE_S:g} s")


def _until_told(rig: _ObservedRig, event_type: type[Event]) -> None:
    """Take events until one of a kind is told; a rig that has no more raises."""
    while not any(isinstance(event, event_type) for event in rig.events()):
        pass


@_promise
def _it_has_the_nodes_it_was_given(rig: _ObservedRig) -> None:
    sight = rig.backend.sight()
    assert sight
    # CPUs and memory are the machine's own.
    seen = {node.name: replace(node, cpus=0, memory_mb=0) for node in sight.nodes}
    assert seen == {node.name: Seen.of(node) for node in NODES}
    assert rig.backend.sight() is sight, "nothing has changed"


@_promise
def _nobody_has_to_wait_for_it(rig: _ObservedRig) -> None:
    begun_s = time.monotonic()
    rig.start("runs")
    rig.backend.watch(0.0)
    rig.backend.stop("a-1", 1)
    rig.backend.watch(0.0)
    assert time.monotonic() - begun_s < AT_ONCE_S


@_promise
def _it_has_no_trouble(rig: _ObservedRig) -> None:
    assert rig.backend.trouble == ""
    assert rig.backend.shares_gpus in (True, False)
    assert rig.backend.honours <= {"cpus_per_gpu", "memory_per_gpu", "image"}


@_promise
def _a_job_that_runs_is_started_once(rig: _ObservedRig) -> None:
    rig.start("runs")
    (started,) = rig.events()
    assert isinstance(started, JobStarted)
    assert (started.job, started.attempt, started.up_s >= 0) == ("a-1", 1, True)
    assert rig.quiet()


@_promise
def _a_good_end_is_told_once(rig: _ObservedRig) -> None:
    _check_told_once(rig, "finishes", JobFinished(0.0, "a-1", 1))


@_promise
def _a_bad_end_is_told_once(rig: _ObservedRig) -> None:
    _check_told_once(rig, "fails", JobFailed(0.0, "a-1", 1, exit_code=3, work_done=40.0))


def _check_told_once(rig: _ObservedRig, behaviour: str, expected: Event) -> None:
    rig.start(behaviour)
    assert _stamped(_end(rig)) == expected
    assert rig.quiet()
    rig.reopen()
    assert rig.alive == {"v100": (), "k80": ()}


@_promise
def _a_job_may_ask_to_be_run_again(rig: _ObservedRig) -> None:
    rig.start("asks to run again")
    event = _end(rig)
    assert isinstance(event, JobStopped)
    assert event.work_done >= 40.0


@_promise
def _a_job_that_asks_to_be_run_again_and_has_done_nothing_has_failed(rig: _ObservedRig) -> None:
    rig.start("fails")
    _end(rig)
    rig.start("asks in vain", attempt=2)
    assert _stamped(_end(rig)) == JobFailed(0.0, "a-1", 2, exit_code=75, work_done=40.0)


@_promise
def _events_carry_the_time_of_the_watch(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.events()
    rig.up()
    rig.backend.stop("a-1", 1)
    found = _next(rig, 1234.5)
    assert [event.at_s for event in found] == [1234.5]


@_promise
def _a_stopped_job_reports_what_its_checkpoint_holds(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.stop("a-1", 1)
    assert _stamped(_end(rig)) == JobStopped(0.0, "a-1", 1, work_done=40.0)
    rig.reopen()
    assert rig.alive["v100"] == ()


@_promise
def _stopping_twice_changes_nothing(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.stop("a-1", 1)
    rig.backend.stop("a-1", 1)
    assert isinstance(_end(rig), JobStopped)
    rig.backend.stop("a-1", 1)
    assert rig.quiet()


@_promise
def _a_job_that_finishes_after_its_notice_has_finished(rig: _ObservedRig) -> None:
    rig.start("finishes late")
    rig.up()
    rig.backend.stop("a-1", 1)
    assert _stamped(_end(rig)) == JobFinished(0.0, "a-1", 1)


@_promise
def _an_attempt_is_started_once_however_often_it_is_ordered(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.start("runs")
    rig.events()
    rig.start("runs")
    rig.reopen()
    rig.start("runs")
    rig.up()
    assert rig.begun() == 1
    rig.reopen()
    assert rig.alive["v100"] == (("a-1", 1),)


@_promise
def _an_attempt_that_is_over_never_starts_again(rig: _ObservedRig) -> None:
    rig.start("fails")
    _end(rig)
    rig.start("fails")
    assert rig.quiet()
    rig.backend.forget("a-1", 1)
    _check_stays_over(rig)
    rig.reopen()
    _check_stays_over(rig)
    assert rig.begun() == 1


def _check_stays_over(rig: _ObservedRig) -> None:
    """Start an attempt that is over and forgotten. A backend may say that the launch has failed: the id is used."""
    rig.start("fails")
    if not rig.quiet():
        rig.backend.forget("a-1", 1)
    assert rig.quiet()


@_promise
def _the_next_attempt_of_a_job_is_another_one(rig: _ObservedRig) -> None:
    rig.start("fails")
    _end(rig)
    rig.start("fails", attempt=2)
    assert _stamped(_end(rig)) == JobFailed(0.0, "a-1", 2, exit_code=3, work_done=40.0)
    assert rig.begun() == 2


@_promise
def _an_unknown_attempt_is_reported_as_stopped_and_never_begins(rig: _ObservedRig) -> None:
    rig.backend.stop("new-1", 1)
    assert _stamped(_end(rig)) == JobStopped(0.0, "new-1", 1, work_done=0.0)
    rig.start("runs", job="new-1")
    assert rig.quiet()
    assert rig.begun("new-1") == 0


@_promise
def _an_unknown_attempt_of_a_known_job_reports_its_checkpoint(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.stop("a-1", 1)
    _end(rig)
    rig.backend.forget("a-1", 1)
    rig.backend.stop("a-1", 2)
    assert _stamped(_end(rig)) == JobStopped(0.0, "a-1", 2, work_done=40.0)


@_promise
def _a_stop_is_told_again_after_a_restart_until_it_is_forgotten(rig: _ObservedRig) -> None:
    rig.backend.stop("new-1", 1)
    rig.reopen()
    assert isinstance(_end(rig), JobStopped)
    rig.backend.forget("new-1", 1)
    rig.reopen()
    assert rig.quiet()


@_promise
def _the_living_are_told_by_node(rig: _ObservedRig) -> None:
    rig.start("runs", "a-1")
    rig.start("runs", "b-2", node="k80")
    rig.start("runs", "c-3", attempt=4, node="k80")
    for job, attempt in (("a-1", 1), ("b-2", 1), ("c-3", 4)):
        rig.up(job, attempt)
    rig.reopen()
    assert rig.alive == {"v100": (("a-1", 1),), "k80": (("b-2", 1), ("c-3", 4))}
    rig.backend.stop("b-2", 1)
    assert _stamped(_end(rig)) == JobStopped(0.0, "b-2", 1, work_done=40.0)
    rig.reopen()
    assert rig.alive == {"v100": (("a-1", 1),), "k80": (("c-3", 4),)}


@_promise
def _a_restarted_backend_takes_up_what_runs(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.up()
    rig.reopen()
    assert rig.alive["v100"] == (("a-1", 1),)
    rig.backend.stop("a-1", 1)
    assert _stamped(_end(rig)) == JobStopped(0.0, "a-1", 1, work_done=40.0)
    assert rig.begun() == 1


@_promise
def _an_end_is_told_again_after_a_restart_until_it_is_forgotten(rig: _ObservedRig) -> None:
    rig.start("fails")
    first = _stamped(_end(rig))
    rig.reopen()
    assert _stamped(_end(rig)) == first
    rig.backend.forget("a-1", 1)
    rig.reopen()
    assert rig.quiet()


@_promise
def _a_living_attempt_is_not_forgotten(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.forget("a-1", 1)
    rig.reopen()
    assert rig.alive["v100"] == (("a-1", 1),)


@_promise
def _an_attempt_that_cannot_be_launched_says_so_once(rig: _ObservedRig) -> None:
    rig.start("cannot launch")
    event = _end(rig)
    assert isinstance(event, LaunchFailed)
    assert event.why
    rig.start("cannot launch")
    assert rig.quiet()
    assert rig.begun() == 0
    rig.reopen()
    assert rig.alive["v100"] == ()


def _discard(rig: _ObservedRig, *jobs: str) -> None:
    """Discard jobs, and wait until their files are gone."""
    left, end_s = set(jobs), time.monotonic() + PATIENCE_S
    while left:
        left -= set(rig.backend.discard(sorted(left), []))
        assert time.monotonic() < end_s, f"the files of {sorted(left)} are not gone"
        time.sleep(0.01)


@_promise
def _a_job_is_discarded_once_its_attempts_are_forgotten(rig: _ObservedRig) -> None:
    rig.start("finishes")
    assert rig.backend.discard(["a-1"], []) == []
    _until_told(rig, JobFinished)
    assert rig.backend.discard(["a-1"], []) == []
    rig.backend.forget("a-1", 1)
    _discard(rig, "a-1", "never-ran-2")
    assert not rig.backend.log("a-1", 1).is_file()
    _discard(rig, "a-1")  # asking twice changes nothing


@_promise
def _a_job_that_runs_is_not_discarded(rig: _ObservedRig) -> None:
    rig.start("runs")
    rig.up()
    rig.reopen()
    assert rig.backend.discard(["a-1"], []) == []
    rig.backend.stop("a-1", 1)
    _until_told(rig, JobStopped)
