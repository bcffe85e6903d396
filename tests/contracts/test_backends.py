"""What every backend promises, checked on the fake one and on real processes.

Tests backends/fake.py, backends/protocol.py and backends/task.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.backends.local.backend import LocalBackend
from horae.backends.protocol import Backend, Place, Start
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed
from tests.backends.real import NODES, bash, end_all, task, text_of, until

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
_SAVE = """cd $HORAE_CHECKPOINT_DIR; echo begun >> begun; echo '{"step": 40, "total": 100}' > saved.json"""
SCRIPTS = {
    "runs": "trap 'exit 75' USR1; echo up; sleep 60 & wait",
    "finishes": "exit 0",
    "finishes late": "trap 'exit 0' USR1; echo up; sleep 60 & wait",
    "fails": "exit 3",
    "asks to run again": "exit 75",
    "asks in vain": "exit 75",
    "cannot launch": "exit 0",
}


class Rig(Protocol):
    """A backend in a world where jobs can be made to behave."""

    @property
    def backend(self) -> Backend: ...
    def start(self, behaviour: str, job: str = "a-1", attempt: int = 1, node: str = "v100") -> None: ...
    def up(self, job: str = "a-1", attempt: int = 1) -> None: ...
    def events(self) -> list[Event]: ...
    def quiet(self) -> bool: ...
    def begun(self, job: str = "a-1") -> int: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...


class FakeRig:
    def __init__(self) -> None:
        self.world = FakeWorld()
        self.backend = FakeBackend(NODES, self.world)

    def start(self, behaviour: str, job: str = "a-1", attempt: int = 1, node: str = "v100") -> None:
        self.world.jobs[job] = BEHAVIOURS[behaviour]
        self.world.saved.setdefault(job, 40.0)
        self.backend.start(Start(job, attempt, task(job=job), node, (Place(node, (0,)),)))

    def up(self, job: str = "a-1", attempt: int = 1) -> None:
        pass

    def events(self) -> list[Event]:
        for _ in range(100):
            if found := self.backend.watch(self.world.now_s + 1.0):
                return found
        raise AssertionError("nothing happens")

    def quiet(self) -> bool:
        return not any(self.backend.watch(self.world.now_s + 10.0) for _ in range(10))

    def begun(self, job: str = "a-1") -> int:
        return sum(one[0] == job for one in self.world.started)

    def reopen(self) -> None:
        self.backend = FakeBackend(NODES, self.world)

    def close(self) -> None:
        pass


class LocalRig:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.backend: LocalBackend
        self._open()

    def _open(self) -> None:
        self.backend = LocalBackend(self.state, NODES, ready_s=0.0)

    def start(self, behaviour: str, job: str = "a-1", attempt: int = 1, node: str = "v100") -> None:
        signal = "SIGNONE" if behaviour == "cannot launch" else "SIGUSR1"
        what = task(bash(f"{_SAVE}; {SCRIPTS[behaviour]}"), job, stop_signal=signal)
        self.backend.start(Start(job, attempt, what, node, (Place(node, (0,)),)))

    def up(self, job: str = "a-1", attempt: int = 1) -> None:
        until(lambda: "up" in text_of(self.backend.log_path(job, attempt)), "for a job to come up")

    def events(self) -> list[Event]:
        found: list[Event] = until(lambda: self.backend.watch(7.0), "for an event")
        return found

    def quiet(self) -> bool:
        try:
            until(lambda: self.backend.watch(7.0), patience_s=0.3)
        except AssertionError:
            return True
        return False

    def begun(self, job: str = "a-1") -> int:
        return text_of(self.state / "jobs" / job / "checkpoint" / "begun").count("begun")

    def reopen(self) -> None:
        self.backend.close()
        self._open()

    def close(self) -> None:
        self.backend.close()
        end_all(self.state)


@pytest.fixture(params=["fake", "local"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made: Rig = FakeRig() if request.param == "fake" else LocalRig(tmp_path / "state")
    yield made
    made.close()


def end(rig: Rig) -> Event:
    """The next event that is not a start."""
    while True:
        found = [event for event in rig.events() if not isinstance(event, JobStarted)]
        if found:
            assert len(found) == 1
            return found[0]


def stamped(event: Event) -> Event:
    """Make a time of its own of when it was told, which the rigs differ in."""
    object.__setattr__(event, "at_s", 0.0)
    return event


def test_it_has_the_nodes_it_was_given(rig: Rig) -> None:
    assert rig.backend.nodes() == NODES


def test_a_job_that_runs_is_started_once(rig: Rig) -> None:
    rig.start("runs")
    (started,) = rig.events()
    assert isinstance(started, JobStarted)
    assert (started.job, started.attempt, started.up_s >= 0) == ("a-1", 1, True)
    assert rig.quiet()


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ("finishes", JobFinished(0.0, "a-1", 1)),
        ("fails", JobFailed(0.0, "a-1", 1, exit_code=3, work_done=40.0)),
    ],
)
def test_an_end_is_told_once(rig: Rig, behaviour: str, expected: Event) -> None:
    rig.start(behaviour)
    assert stamped(end(rig)) == expected
    assert rig.quiet()
    assert rig.backend.alive() == {"v100": (), "k80": ()}


def test_a_job_may_ask_to_be_run_again(rig: Rig) -> None:
    rig.start("asks to run again")
    event = end(rig)
    assert isinstance(event, JobStopped)
    assert event.work_done >= 40.0


def test_a_job_that_asks_to_be_run_again_and_has_done_nothing_has_failed(rig: Rig) -> None:
    rig.start("fails")
    end(rig)
    rig.start("asks in vain", attempt=2)
    assert stamped(end(rig)) == JobFailed(0.0, "a-1", 2, exit_code=75, work_done=40.0)


def test_events_carry_the_time_of_the_watch(rig: Rig) -> None:
    rig.start("runs")
    rig.events()
    rig.up()
    rig.backend.stop("a-1", 1)
    found: list[Event] = until(lambda: rig.backend.watch(1234.5))
    assert [event.at_s for event in found] == [1234.5]


def test_a_stopped_job_reports_what_its_checkpoint_holds(rig: Rig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.stop("a-1", 1)
    assert stamped(end(rig)) == JobStopped(0.0, "a-1", 1, work_done=40.0)
    assert rig.backend.alive()["v100"] == ()


def test_stopping_twice_changes_nothing(rig: Rig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.stop("a-1", 1)
    rig.backend.stop("a-1", 1)
    assert isinstance(end(rig), JobStopped)
    rig.backend.stop("a-1", 1)
    assert rig.quiet()


def test_a_job_that_finishes_after_its_notice_has_finished(rig: Rig) -> None:
    rig.start("finishes late")
    rig.up()
    rig.backend.stop("a-1", 1)
    assert stamped(end(rig)) == JobFinished(0.0, "a-1", 1)


def test_an_attempt_is_started_once_however_often_it_is_ordered(rig: Rig) -> None:
    rig.start("runs")
    rig.start("runs")
    rig.events()
    rig.start("runs")
    rig.reopen()
    rig.start("runs")
    rig.up()
    assert rig.begun() == 1
    assert rig.backend.alive()["v100"] == (("a-1", 1),)


def test_an_attempt_that_is_over_never_starts_again(rig: Rig) -> None:
    rig.start("fails")
    end(rig)
    rig.start("fails")
    assert rig.quiet()
    rig.backend.forget("a-1", 1)
    rig.start("fails")
    assert rig.quiet()
    rig.reopen()
    rig.start("fails")
    assert rig.quiet()
    assert rig.begun() == 1


def test_the_next_attempt_of_a_job_is_another_one(rig: Rig) -> None:
    rig.start("fails")
    end(rig)
    rig.start("fails", attempt=2)
    assert stamped(end(rig)) == JobFailed(0.0, "a-1", 2, exit_code=3, work_done=40.0)
    assert rig.begun() == 2


def test_an_unknown_attempt_is_reported_as_stopped_and_never_begins(rig: Rig) -> None:
    rig.backend.stop("new-1", 1)
    assert stamped(end(rig)) == JobStopped(0.0, "new-1", 1, work_done=0.0)
    rig.start("runs", job="new-1")
    assert rig.quiet()
    assert rig.begun("new-1") == 0


def test_an_unknown_attempt_of_a_known_job_reports_its_checkpoint(rig: Rig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.stop("a-1", 1)
    end(rig)
    rig.backend.forget("a-1", 1)
    rig.backend.stop("a-1", 2)
    assert stamped(end(rig)) == JobStopped(0.0, "a-1", 2, work_done=40.0)


def test_a_stop_is_told_again_after_a_restart_until_it_is_forgotten(rig: Rig) -> None:
    rig.backend.stop("new-1", 1)
    rig.reopen()
    assert isinstance(end(rig), JobStopped)
    rig.backend.forget("new-1", 1)
    rig.reopen()
    assert rig.quiet()


def test_the_living_are_told_by_node(rig: Rig) -> None:
    rig.start("runs", "a-1")
    rig.start("runs", "b-2", node="k80")
    rig.start("runs", "c-3", attempt=4, node="k80")
    assert rig.backend.alive() == {"v100": (("a-1", 1),), "k80": (("b-2", 1), ("c-3", 4))}
    rig.up("b-2")
    rig.backend.stop("b-2", 1)
    assert stamped(end(rig)) == JobStopped(0.0, "b-2", 1, work_done=40.0)
    assert rig.backend.alive() == {"v100": (("a-1", 1),), "k80": (("c-3", 4),)}


def test_a_restarted_backend_takes_up_what_runs(rig: Rig) -> None:
    rig.start("runs")
    rig.up()
    rig.reopen()
    assert rig.backend.alive()["v100"] == (("a-1", 1),)
    rig.backend.stop("a-1", 1)
    assert stamped(end(rig)) == JobStopped(0.0, "a-1", 1, work_done=40.0)
    assert rig.begun() == 1


def test_an_end_is_told_again_after_a_restart_until_it_is_forgotten(rig: Rig) -> None:
    rig.start("fails")
    first = stamped(end(rig))
    rig.reopen()
    assert stamped(end(rig)) == first
    rig.backend.forget("a-1", 1)
    rig.reopen()
    assert rig.quiet()


def test_a_living_attempt_is_not_forgotten(rig: Rig) -> None:
    rig.start("runs")
    rig.up()
    rig.backend.forget("a-1", 1)
    rig.reopen()
    assert rig.backend.alive()["v100"] == (("a-1", 1),)


def test_an_attempt_that_cannot_be_launched_says_so_once(rig: Rig) -> None:
    rig.start("cannot launch")
    event = end(rig)
    assert isinstance(event, LaunchFailed)
    assert event.why
    rig.start("cannot launch")
    assert rig.quiet()
    assert rig.backend.alive()["v100"] == ()
    assert rig.begun() == 0


def test_a_job_is_discarded_once_its_attempts_are_forgotten(rig: Rig) -> None:
    rig.start("finishes")
    assert rig.backend.discard(["a-1"], []) == []
    while JobFinished not in {type(event) for event in rig.events()}:
        pass
    assert rig.backend.discard(["a-1"], []) == []
    rig.backend.forget("a-1", 1)
    assert rig.backend.discard(["a-1", "never-ran-2"], []) == ["a-1", "never-ran-2"]
    assert not rig.backend.log_path("a-1", 1).is_file()
    assert rig.backend.discard(["a-1"], []) == ["a-1"], "asking twice changes nothing"


def test_a_job_that_runs_is_not_discarded(rig: Rig) -> None:
    rig.start("runs")
    rig.up()
    rig.reopen()
    assert rig.backend.discard(["a-1"], []) == []
    rig.backend.stop("a-1", 1)
    while JobStopped not in {type(event) for event in rig.events()}:
        pass
