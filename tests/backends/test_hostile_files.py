"""Whatever a job puts in the place of its files, the backend goes on, and so do other jobs.

Tests backends/saved_work.py, backends/local/attempt_fate.py and backends/local/attempt_folders.py.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.backends.local import runner
from horae.backends.local.backend import LocalBackend
from horae.backends.piece_files import PieceFiles
from horae.backends.saved_work import TimedReads, work_saved
from horae.backends.shared_folder import SharedFolder, piece_log
from horae.core.events import Event, JobFailed, JobFinished, JobStopped, LaunchFailed
from tests.backends.hostile_things import SPECIAL, THINGS, put
from tests.backends.real import NODES, bash, folder, opened, start, task, until, watched

#: Files that a job can write, by their paths from the folder of its attempt.
_FILES = ["../checkpoint/saved.json", "runner.json", "exit.json", "order.json", "stop", "lock", "log.txt"]
_ENDS = (JobFinished, JobFailed, JobStopped, LaunchFailed)
#: What a backend takes at most for a call that must not wait.
_AT_ONCE_S = 1.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def make_dead_attempt(state: Path, job: str = "a-1") -> Path:
    """The folder of an attempt whose runner is gone."""
    backend = LocalBackend(state, NODES)
    backend._order(start(job=job))
    backend.close()
    path = folder(state, job).path
    gone = {"pid": 2**22 + 1, "start_time": 1, "boot_id": runner.boot_id(), "up_at": 1.0}
    (path / "runner.json").write_text(json.dumps(gone))
    (path.parent / "checkpoint").mkdir()
    return path


def watch_at_once(backend: LocalBackend) -> list[Event]:
    begun_s = time.monotonic()
    events = watched(backend)
    assert time.monotonic() - begun_s < _AT_ONCE_S
    return events


def ends_of(backend: LocalBackend, jobs: set[str]) -> dict[str, Event]:
    """The ends of these jobs, once all are told."""
    ends: dict[str, Event] = {}

    def all_told() -> bool:
        for event in watch_at_once(backend):
            if isinstance(event, _ENDS):
                ends[event.job] = event
        return ends.keys() >= jobs

    until(all_told, f"for the ends of all of {jobs}")
    return ends


def test_jobs_that_put_anything_in_the_place_of_their_files_harm_nobody_else(state: Path) -> None:
    files = [(name, thing) for name in _FILES for thing in SPECIAL]
    jobs = {f"h-{number}": file for number, file in enumerate(files)}
    for job, (name, thing) in jobs.items():
        put(thing, make_dead_attempt(state, job) / name)
    for restart in range(2):
        begun_s = time.monotonic()
        with opened(state) as backend:
            assert time.monotonic() - begun_s < 10.0
            backend.start(start(bash("true"), job=f"good-{restart}"))
            ends = ends_of(backend, {*jobs, f"good-{restart}"})
            assert ends[f"good-{restart}"] == JobFinished(7.0, f"good-{restart}", 1)
            backend.forget(f"good-{restart}", 1)
    with opened(state) as backend:
        ends_of(backend, set(jobs))
        for job in jobs:
            backend.forget(job, 1)
        assert backend._workers.wait(30)
        assert sorted(jobs) == sorted(backend.discard(jobs, []))
        assert not list((state / "attempts").iterdir())


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(_FILES), thing=THINGS)
def test_whatever_is_in_a_file_of_a_dead_attempt_it_has_an_end(name: str, thing: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as made:
        state = Path(made).resolve()
        put(thing, make_dead_attempt(state) / name)
        for _ in ("at once", "after a restart"):
            backend = LocalBackend(state, NODES)
            end = ends_of(backend, {"a-1"})["a-1"]
            assert not isinstance(end, JobFinished) or name == "exit.json"
            assert 0.0 <= getattr(end, "work_done", 0.0) <= 100.0
            assert not backend.trouble
            backend.close()


@pytest.mark.parametrize("deed", ["mkfifo", "mkdir", "truncate -s 10G", "ln -s /dev/zero"])
def test_a_job_that_replaces_all_its_files_while_it_runs_ends(state: Path, deed: str) -> None:
    script = "".join(f"(rm -rf $HORAE_ATTEMPT_DIR/{name}; {deed} $HORAE_ATTEMPT_DIR/{name});" for name in _FILES)
    with opened(state) as backend:
        backend.start(start(bash(f"{script} exit 75")))
        end = ends_of(backend, {"a-1"})["a-1"]
        assert isinstance(end, JobFailed | JobStopped)


def test_stray_files_among_the_markers_are_skipped_and_told_once(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_dead_attempt(state)
    for name in (".nfs0001", "a-1@", "a-1@\u00b2", "@1", "..@1", "a-1@1x", "a-1@99999999999999999999"):
        (state / "attempts" / name).touch()
    (state / "attempts" / "b-1@1").mkdir()
    os.mkfifo(state / "attempts" / "pipe")
    with caplog.at_level(logging.WARNING), opened(state) as backend:
        assert ends_of(backend, {"a-1"}).keys() == {"a-1"}
        for _ in range(5):
            assert watched(backend) == []
    assert [record.getMessage().split(" in ")[0] for record in caplog.records] == ["9 files"]


# --- pieces


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(
        ["exit.json", "runner.json", "order.json", "claim", "beat", "stop", "../order.json", "../stop"]
    ),
    thing=THINGS,
)
def test_whatever_is_in_a_file_of_a_piece_it_can_be_read(name: str, thing: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as made:
        shared = SharedFolder(Path(made).resolve(), None)
        assert shared.order(start())
        ordered = shared.attempt(("a-1", 1))
        files = PieceFiles(ordered.path / "v100")
        files.path.mkdir()
        put(thing, files.path / name)
        begun_s = time.monotonic()
        files.last_word()
        assert min(files.ended_s(), files.up_since_s(), files.last_sign_s(), files.beat_limit_s()) >= 0.0
        (found,) = shared.tracked()
        assert found.is_broken or found.order
        assert 0.0 <= shared.work_done(found) <= 100.0
        assert piece_log(shared.path, ("a-1", 1), 0).is_relative_to(shared.path)
        found.why_not_ordered()
        files.ask_to_stop(runner.STOP_NOW)
        files.cancel()
        files.remove_environment()
        shared.forget(("a-1", 1))
        assert time.monotonic() - begun_s < 5.0
        assert shared.tracked() == []


# --- checkpoint folders that never answer


def test_a_read_that_hangs_is_given_up_and_does_not_hold_up_others() -> None:
    hangs, reads = threading.Event(), TimedReads(limit_s=0.2, haste_s=0.05, most=3)
    begun_s = time.monotonic()
    assert [reads.read(hangs.wait, None) for _ in range(5)] == [None] * 5
    assert time.monotonic() - begun_s < 2.0
    assert reads.hanging == 3, "no more threads than that wait in vain"
    hangs.set()
    until(lambda: reads.hanging == 0, "for the threads")
    assert reads.read(lambda: 4.0, 0.0) == 4.0


def test_a_job_whose_checkpoint_folder_never_answers_ends_with_nothing_saved(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a dead file server: an open that does not return."""
    answers, read = threading.Event(), runner.read_object

    def dead(path: str, most: int = runner.LARGEST_FILE, sure: bool = False) -> object:
        if "/dead/" in path:
            answers.wait(60)
        return read(path, most, sure)

    monkeypatch.setattr(runner, "read_object", dead)
    monkeypatch.setattr("horae.backends.saved_work.READS", TimedReads(limit_s=1.0))
    with opened(state) as backend:
        try:
            checkpoint = state / "dead"
            backend.start(start(bash("exit 75"), checkpoint_dir=str(checkpoint)))
            backend.start(start(bash("true"), job="b-1"))
            ends = ends_of(backend, {"a-1", "b-1"})
            assert ends["a-1"] == JobFailed(7.0, "a-1", 1, 75, 0.0)
            assert isinstance(ends["b-1"], JobFinished)
        finally:
            answers.set()


@pytest.mark.parametrize("step", ["1" + "0" * 400, '"1e400"', "[1]", "NaN", "-1", "true", "null", '{"a": 1}'])
def test_a_step_that_is_no_number_of_steps_is_no_work(tmp_path: Path, step: str) -> None:
    (tmp_path / "saved.json").write_text(f'{{"step": {step}, "total": 100}}')
    assert work_saved(task(checkpoint_dir=str(tmp_path)), tmp_path / "1") in (0.0, 1.0)
