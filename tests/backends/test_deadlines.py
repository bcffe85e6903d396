"""Launches and stops that hear nothing: frozen runners, processes that do not die, disks that are slow.

Tests backends/local/backend.py, backends/local/disk_workers.py and backends/silent_ends.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from horae.backends.local import attempt_fate, runner
from horae.backends.local import backend as local
from horae.backends.local.attempt_fate import Fate
from horae.backends.local.attempt_folders import AttemptFolder, AttemptFolders
from horae.backends.local.backend import LocalBackend, RunnerDeadlines
from horae.backends.local.disk_workers import DiskWorkers, Then
from horae.backends.protocol import Attempt
from horae.backends.silent_ends import SilentEnds
from horae.core.events import JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed
from tests.backends.real import NODES, bash, folder, lives, next_events, opened, pid_in, start, text_of, until, watched

#: RunnerDeadlines that a test can wait for.
SOON = RunnerDeadlines(launch_s=60.0, stop_s=0.5, kill_s=0.5)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


# --- frozen runners


def test_a_job_that_freezes_its_runner_is_killed_after_its_grace_period(state: Path) -> None:
    with opened(state, deadlines=SOON) as backend:
        backend.start(start(bash("echo $$ > pid; kill -STOP $PPID; sleep 60"), grace_s=0.3))
        job = pid_in(folder(state).path / "work" / "pid")
        asked_s = time.monotonic()
        backend.stop("a-1", 1)
        assert next_events(backend) == [JobStopped(7.0, "a-1", 1, 0.0)]
        assert time.monotonic() - asked_s >= 0.8
        assert not lives(job)
        assert not backend.trouble


def test_a_stop_of_a_frozen_runner_has_a_deadline_after_a_restart_too(state: Path) -> None:
    with opened(state) as backend:
        backend.start(start(bash("echo $$ > pid; kill -STOP $PPID; sleep 60"), grace_s=0.3))
        pid_in(folder(state).path / "work" / "pid")
        backend.stop("a-1", 1)
        assert backend._workers.wait(30)
        backend.close()
        with opened(state, deadlines=SOON) as restarted:
            assert isinstance(next_events(restarted)[0], JobStopped)


_FROZEN = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
_BEGUN_AND_FROZEN = f"""
import sys; sys.path.insert(0, {str(Path(runner.__file__).parent)!r})
import os, runner
lock = runner.take_lock(sys.argv[1])
me = {{"pid": os.getpid(), "start_time": runner.start_time(os.getpid()), "boot_id": runner.boot_id(), "up_at": None}}
runner.write_atomically(sys.argv[1], "runner.json", me)
{_FROZEN}
"""


@pytest.mark.parametrize("program", [_FROZEN, _BEGUN_AND_FROZEN], ids=["before it began", "before the job was up"])
def test_a_runner_that_never_says_that_its_job_is_up_is_a_failed_launch(
    state: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    def spawn(of: AttemptFolder, control: int | None) -> int:
        argv = [sys.executable, "-S", "-c", program, str(of.path)]
        return os.posix_spawn(sys.executable, argv, {}, setsid=True)

    monkeypatch.setattr(local, "_spawn", spawn)
    with opened(state, deadlines=RunnerDeadlines(launch_s=1.0)) as backend:
        backend.start(start())
        (event,) = next_events(backend)
        assert isinstance(event, LaunchFailed)
        assert event.why == "its processes were not up after 1 s"
        child = backend._tracked["a-1", 1].child
        assert child
        assert not child.is_alive()
        backend.forget("a-1", 1)
        monkeypatch.undo()
        backend.start(start(bash("true"), attempt=2))
        assert isinstance(next_events(backend)[0], JobFinished)


def test_a_job_that_is_up_in_time_is_not_killed_however_long_it_says_nothing(state: Path) -> None:
    with opened(state, deadlines=RunnerDeadlines(launch_s=0.8)) as backend:
        begun_s = time.monotonic()
        backend.start(start(bash("until [ -e go ]; do sleep .02; done")))
        until(lambda: watched(backend) or time.monotonic() > begun_s + 1.2, "for the deadline")
        (folder(state).path / "work" / "go").touch()
        assert isinstance(next_events(backend)[0], JobFinished)


def test_processes_that_cannot_be_killed_close_their_node_until_they_are_gone(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(state, deadlines=SOON) as backend:
        assert all(node.open for node in backend.sight().nodes)
        with monkeypatch.context() as patch:
            # As a process in an uninterruptible sleep, which SIGKILL does not end.
            patch.setattr(attempt_fate, "leftovers", lambda *_: [2**22 + 5])
            backend.start(start(bash("echo up; sleep 60")))
            until(lambda: "up" in text_of(backend.log("a-1", 1)))
            os.kill(until(lambda: folder(state).runner_process()).pid, signal.SIGKILL)
            until(lambda: watched(backend) or backend.trouble, "for the trouble")
            assert backend.trouble == (
                "Processes of a job do not end although they were killed: v100 closed until they are gone."
            )
            assert [node.open for node in backend.sight().nodes] == [False, True]
            assert backend.sight().nodes[0].why
        assert isinstance(next_events(backend)[0], JobStopped)
        watched(backend)
        assert backend.trouble == ""
        assert all(node.open for node in backend.sight().nodes)


def test_an_attempt_whose_folder_was_used_before_is_a_failed_launch(state: Path) -> None:
    with opened(state) as backend:
        backend.start(start(bash("true")))
        next_events(backend)
        backend.forget("a-1", 1)
        # A journal that was restored gives out the same id again.
        backend.start(start(bash("echo twice")))
        (event,) = next_events(backend)
        assert isinstance(event, LaunchFailed)
        assert "was used by another attempt" in event.why
        assert "twice" not in text_of(backend.log("a-1", 1))


# --- slow disks


def test_launches_do_not_wait_for_each_others_disk(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_s, fsync, never = 0.15, os.fsync, threading.Event()

    def slow(handle: int) -> None:
        never.wait(slow_s)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    with opened(state, ready_s=0.0) as backend:
        begun_s = time.monotonic()
        for number in range(8):
            backend.start(start(bash("sleep 60"), job=f"a-{number}"))
            backend.watch(7.0)
        assert time.monotonic() - begun_s < slow_s, "the loop waits for none of them"
        started: list[str] = []
        while len(started) < 8:
            started += [event.job for event in next_events(backend) if isinstance(event, JobStarted)]
        assert time.monotonic() - begun_s < 8 * 2 * slow_s + 2.0


def test_the_end_of_an_attempt_costs_no_fsync_here(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(state) as backend:
        backend.start(start(bash("true")))
        next_events(backend)
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", synced.append)
        backend.forget("a-1", 1)
        assert backend._workers.wait(30)
        assert synced == []


def test_work_for_one_attempt_is_done_in_order_and_for_several_side_by_side() -> None:
    workers, both = DiskWorkers(threads=2), threading.Barrier(2, timeout=20)
    done: list[str] = []

    def work(name: str) -> Then:
        both.wait()
        done.append(name)
        return lambda: None

    for name in ("first", "second", "third"):
        workers.submit(("a-1", 1), partial(work, f"a {name}"))
        workers.submit(("b-1", 1), partial(work, f"b {name}"))
    assert workers.wait(20)
    assert [name for name in done if name.startswith("a")] == ["a first", "a second", "a third"]
    assert len(workers.take_done()) == 6
    workers.close(1.0)


def test_threads_that_hang_are_replaced_and_told() -> None:
    now_s = [0.0]
    workers, answers = DiskWorkers(threads=2, patience_s=5.0, clock=lambda: now_s[0]), threading.Event()

    def hang() -> Then:
        answers.wait(30)
        return lambda: None

    workers.submit(("a-1", 1), hang)
    workers.submit(("a-2", 1), hang)
    workers.submit(("b-1", 1), lambda: lambda: None)
    assert not workers.wait(0.2)
    assert not workers.take_done()
    now_s[0] = 6.0
    until(workers.take_done, "for a thread in the place of those that hang")
    assert sorted(workers.hanging()) == [("a-1", 1), ("a-2", 1)]
    assert workers.is_busy(("a-1", 1))
    assert workers.jobs() == {"a-1", "a-2"}
    answers.set()
    assert workers.wait(20)
    workers.close(1.0)


def test_a_folder_that_never_answers_closes_the_node_and_nothing_else(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, find_out = threading.Event(), attempt_fate.find_out

    def hang(folders: AttemptFolders, attempt: Attempt, *rest: Any) -> Fate:
        if attempt[0] == "a-1":
            answers.wait(30)
        return find_out(folders, attempt, *rest)

    monkeypatch.setattr(local, "find_out", hang)
    with opened(state, deadlines=SOON) as backend:
        backend._workers._patience_s = 0.3
        backend.start(start(bash("true")))
        backend.start(start(bash("true"), job="b-1"))
        assert next_events(backend) == [JobFinished(7.0, "b-1", 1)]
        until(lambda: watched(backend) or backend.trouble, "for the trouble")
        answers.set()
        assert isinstance(next_events(backend)[0], JobFinished)
        until(lambda: not watched(backend) and not backend.trouble)


# --- ends without a word


def test_three_ends_without_a_word_and_without_progress_in_a_row_are_a_failure() -> None:
    ends = SilentEnds()
    assert [ends.add(("a", 1), 5.0), ends.add(("a", 2), 5.0), ends.add(("a", 3), 6.0)] == [False] * 3
    assert [ends.add(("a", 4), 6.0), ends.add(("b", 1), 0.0), ends.add(("a", 5), 6.0)] == [False, False, True]
    ends.note_end(("a", 5), JobFailed(0.0, "a", 5, 137, 6.0))
    assert not ends.add(("a", 6), 6.0)


def test_a_backend_that_is_closed_leaves_no_work_half_done(state: Path) -> None:
    backend = LocalBackend(state, NODES)
    for number in range(4):
        backend.stop(f"a-{number}", 1)
    backend.close()
    assert all(folder(state, f"a-{number}").exit() for number in range(4))
