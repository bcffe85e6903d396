"""A backend that raises, though it should not: the service goes on, says so, and tries again."""

from __future__ import annotations

import errno
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from horae.backends.fake import FakeJob
from horae.core.events import LaunchFailed
from horae.service.failing_backends import SteadyBackend
from horae.service.health import what_is_wrong
from tests.service.stepped_service import ANN, SteppedService

ERRORS = [
    (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
    (subprocess.TimeoutExpired("sbatch", 9.0), "TimeoutExpired"),
    (KeyError("job"), "KeyError"),
]


@pytest.fixture(params=ERRORS, ids=[why for _, why in ERRORS])
def error(request: pytest.FixtureRequest) -> tuple[Exception, str]:
    found: tuple[Exception, str] = request.param
    return found


@pytest.fixture
def cell(tmp_path: Path) -> SteppedService:
    return SteppedService(tmp_path)


def raises(error: Exception, before: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A method that fails, maybe after it has done what it should."""

    def method(*words: Any) -> Any:
        if before:
            before(*words)
        raise error

    return method


def test_a_start_that_fails_is_tried_again(cell: SteppedService, error: tuple[Exception, str]) -> None:
    start, cell.backend.start = cell.backend.start, raises(error[0])
    job = cell.submit()
    assert (cell.state(job), cell.world.started) == ("launching", [])
    assert what_is_wrong(cell.daemon) == f"The backend failed to start a job: {error[1]}."
    cell.backend.start = start
    cell.to(2)
    assert (cell.state(job), cell.world.started) == ("running", [(job, 1)])
    assert what_is_wrong(cell.daemon) == ""


def test_a_start_is_not_given_up_while_the_machine_is_short_of_descriptors(cell: SteppedService) -> None:
    start, cell.backend.start = cell.backend.start, raises(OSError(errno.EMFILE, "Too many open files"))
    job = cell.submit()
    cell.to(30)
    assert cell.state(job) == "launching"
    assert what_is_wrong(cell.daemon) == "The backend failed to start a job: Too many open files."
    cell.backend.start = start
    cell.to(32)
    assert (cell.state(job), cell.world.started) == ("running", [(job, 1)])


def test_a_start_that_fails_each_time_is_a_failed_launch(cell: SteppedService, error: tuple[Exception, str]) -> None:
    start, cell.backend.start = cell.backend.start, raises(error[0])
    job = cell.submit()
    cell.to(3)
    failed = [record for _, record in cell.store.tail() if isinstance(record, LaunchFailed)]
    assert [(event.job, event.attempt) for event in failed] == [(job, 1)]
    assert error[1] in failed[0].why
    cell.backend.start = start
    cell.to(30)
    assert cell.state(job) == "finished"
    assert cell.world.started == [(job, 2)]
    assert what_is_wrong(cell.daemon) == ""


def test_a_start_that_happened_and_failed_all_the_same_does_not_run_twice(cell: SteppedService) -> None:
    cell.world.default = FakeJob(lasts_s=100.0, stop_s=5.0)
    start, cell.backend.start = cell.backend.start, raises(RuntimeError(), before=cell.backend.start)
    job = cell.submit()
    cell.to(4)
    assert cell.world.running[job, 1].stop_requested
    assert cell.world.started == [(job, 1)], "the next attempt waits until this one is gone"
    cell.backend.start = start
    cell.to(12)
    assert cell.world.started == [(job, 1), (job, 2)]
    assert list(cell.world.running) == [(job, 2)]


def test_a_job_whose_start_fails_can_be_cancelled(cell: SteppedService) -> None:
    cell.backend.start = raises(RuntimeError())
    job = cell.submit()
    cell.ask(lambda: cell.operations.request(ANN, "cancel", [job]))
    cell.to(1)
    assert cell.state(job) == "cancelled"


def test_a_stop_that_fails_is_tried_again(cell: SteppedService, error: tuple[Exception, str]) -> None:
    job = cell.submit()
    stop, cell.backend.stop = cell.backend.stop, raises(error[0])
    cell.ask(lambda: cell.operations.request(ANN, "cancel", [job]))
    cell.to(2.5)
    assert cell.state(job) == "cancelling"
    assert what_is_wrong(cell.daemon) == f"The backend failed to stop a job: {error[1]}."
    cell.backend.stop = stop
    cell.to(4)
    assert cell.state(job) == "cancelled"
    assert what_is_wrong(cell.daemon) == ""


@pytest.mark.parametrize("method", ["watch", "sight"])
def test_a_backend_that_says_nothing_stops_nobody(
    cell: SteppedService, error: tuple[Exception, str], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [cell.submit() for _ in range(3)]
    works = getattr(cell.backend, method)
    setattr(cell.backend, method, raises(error[0]))
    with caplog.at_level(logging.WARNING):
        cell.to(5)
    assert [cell.state(job) for job in jobs] == ["running", "running", "waiting"]
    assert error[1] in what_is_wrong(cell.daemon)
    assert len(caplog.records) == 1, "it is told once, not in each cycle"
    setattr(cell.backend, method, works)
    cell.to(40)
    assert {cell.state(job) for job in jobs} == {"finished"}
    assert cell.world.started == [(job, 1) for job in jobs]
    assert what_is_wrong(cell.daemon) == ""


def test_an_attempt_that_is_not_forgotten_is_reported_and_forgotten_by_the_next_daemon(cell: SteppedService) -> None:
    cell.backend.forget = raises(RuntimeError())
    job = cell.submit()
    cell.to(12)
    assert (cell.state(job), list(cell.world.ends)) == ("finished", [(job, 1)])
    cell.crash()
    cell.reopen()
    assert cell.world.ends == {}


def test_files_that_cannot_be_deleted_and_trouble_that_cannot_be_told_end_nothing(cell: SteppedService) -> None:
    class Broken:
        @property
        def trouble(self) -> str:
            raise RuntimeError

        def discard(self, *_: Any) -> list[str]:
            raise RuntimeError

    backend = SteadyBackend(Broken())  # type: ignore[arg-type]
    assert backend.trouble == "The backend failed to say what is wrong: RuntimeError."
    assert backend.discard(["a-1"], []) == []
    assert backend.trouble == "The backend failed to delete files: RuntimeError."


def test_a_daemon_that_runs_by_itself_survives_a_backend_that_fails_in_everything(cell: SteppedService) -> None:
    for method in ("start", "stop", "watch", "sight", "forget"):
        setattr(cell.backend, method, raises(OSError()))
    cell.daemon.start()
    try:
        cell.operations.submit(ANN, [])
        assert cell.daemon.crashed is None
    finally:
        cell.daemon.close()
