"""Attempts of one job that save in one folder: a machine that was cut off wakes up, and must not overwrite anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae_train import checkpoint
from horae_train.checkpoint import Checkpoints, JobAttempt, SavedCheckpoint, Superseded
from horae_train.run import STOPPED
from tests.train.service import inside_horae, start, wait_for

COUNTER = Path(__file__).with_name("counter.py")


def count(folder: Path, attempt: int, *arguments: object, **env: str) -> subprocess.Popen[str]:
    return start(COUNTER, *arguments, env=inside_horae(folder) | {"HORAE_ATTEMPT": str(attempt)} | env)


def ended(process: subprocess.Popen[str], code: int) -> tuple[list[str], str]:
    out, complaints = process.communicate(timeout=120)
    assert process.returncode == code, (process.returncode, complaints)
    return out.splitlines(), complaints


def saved(folder: Path) -> tuple[int, int]:
    """The attempt and step of what is saved."""
    told = json.loads((folder / "saved.json").read_text())
    return told["attempt"], told["step"]


# Real processes


def test_an_attempt_that_was_frozen_saves_nothing_after_the_next_one_has_begun(tmp_path: Path) -> None:
    frozen = count(tmp_path, 1, "--step-s", 0.02, "--every-s", 0.05)
    wait_for(lambda: (tmp_path / "saved.json").exists())
    os.kill(frozen.pid, signal.SIGSTOP)
    lines, _ = ended(count(tmp_path, 2), 0)
    assert lines[0].startswith("loaded ")
    os.kill(frozen.pid, signal.SIGCONT)
    _, complaints = ended(frozen, STOPPED)
    assert complaints == (
        f"horae: attempt 2 of night-1 saves in {tmp_path} now, so attempt 1 saves nothing more; "
        "it ends with exit code 75\n"
    )
    assert saved(tmp_path) == (2, 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "horae-100-2",
        "horae-attempt-2-night-1",
        "saved.json",
    ]


def test_an_attempt_that_was_frozen_in_the_middle_of_saving_saves_nothing(tmp_path: Path) -> None:
    frozen = count(tmp_path, 1, "--every-s", 0.01, "--step-s", 0.005, "--padding", 100_000)
    wait_for(lambda: (tmp_path / "saved.json").exists() and (tmp_path / "horae-saving-1" / "checkpoint").exists())
    os.kill(frozen.pid, signal.SIGSTOP)
    ended(count(tmp_path, 2), 0)
    os.kill(frozen.pid, signal.SIGCONT)
    _, complaints = ended(frozen, STOPPED)
    assert complaints.count("\n") == 1, complaints
    assert "attempt 2 of night-1 saves in" in complaints
    assert saved(tmp_path) == (2, 100)
    assert ended(count(tmp_path, 3), 0)[0] == ["loaded 100", "all done False"]


def test_an_attempt_that_begins_late_ends_at_once(tmp_path: Path) -> None:
    ended(count(tmp_path, 2, "--steps", 5), 0)
    lines, complaints = ended(count(tmp_path, 1, "--steps", 9), STOPPED)
    assert lines == []
    assert "so attempt 1 saves nothing more" in complaints
    assert saved(tmp_path) == (2, 5)


def test_in_another_thread_the_process_ends_all_the_same(tmp_path: Path) -> None:
    ended(count(tmp_path, 2, "--steps", 5), 0)
    ended(count(tmp_path, 1, "--thread"), STOPPED)


# What counts as a newer attempt of the same job


@pytest.mark.parametrize("other", [{"HORAE_JOB_ID": "night-2"}, {"HORAE_SERVICE": "18f2"}])
def test_another_job_may_go_on_from_there(tmp_path: Path, other: dict[str, str]) -> None:
    ended(count(tmp_path, 5, "--steps", 5), 0)
    assert ended(count(tmp_path, 1, "--steps", 7, **other), 0)[0][:2] == ["loaded 5", "step 5"]
    assert saved(tmp_path) == (1, 7)


def test_what_older_versions_saved_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "horae-3").mkdir()
    (tmp_path / "horae-3" / "checkpoint").write_text("[0, 1, 2]\nend")
    (tmp_path / "saved.json").write_text('{"step": 3, "total": 5, "loss": null}')
    assert ended(count(tmp_path, 2, "--steps", 5), 0)[0][:2] == ["loaded 3", "step 3"]
    assert saved(tmp_path) == (2, 5)
    assert not (tmp_path / "horae-3").exists()


def test_a_mark_is_not_needed_where_saved_json_names_a_newer_attempt(tmp_path: Path) -> None:
    Checkpoints(tmp_path, JobAttempt("a", 2)).write(Path.touch, SavedCheckpoint(1, 2, None))
    assert not list(tmp_path.glob("horae-attempt-*"))
    with pytest.raises(Superseded):
        Checkpoints(tmp_path, JobAttempt("a", 1)).write(Path.touch, SavedCheckpoint(2, 2, None))


@pytest.mark.parametrize("attempt", ["", "x", "-1", "1.5"])
def test_without_a_number_there_is_no_attempt(attempt: str) -> None:
    assert JobAttempt.from_environment({"HORAE_JOB_ID": "a", "HORAE_ATTEMPT": attempt}) is None


# Any order of events


class Saver:
    """An attempt: what it has loaded and saved is a list of (attempt, step)."""

    def __init__(self, folder: Path, number: int, steps: int) -> None:
        self.number, self.steps = number, steps
        self.checkpoints = Checkpoints(folder, JobAttempt("job", number))
        self.history: list[list[int]] = []

    def run(self, events: list[str]) -> None:
        """Load, and save once a step, until a newer attempt begins."""
        try:
            self.checkpoints.take_over()
            events.append(f"begin {self.number}")
            found = self.checkpoints.newest()
            if found:
                self.checkpoints.read(self._load, found)
                assert [found.attempt, found.step] == self.history[-1]
            self.checkpoints.tidy(found)
            for _ in range(self.steps):
                self._save()
        except Superseded:
            events.append(f"superseded {self.number}")

    def _load(self, path: Path) -> None:
        self.history = json.loads(path.read_text())

    def _save(self) -> None:
        step = len(self.history) + 1
        self.history.append([self.number, step])
        self.checkpoints.write(
            lambda path: path.write_text(json.dumps(self.history)), SavedCheckpoint(step, None, None)
        )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_in_any_order_of_file_operations_the_newest_attempt_wins(data: st.DataObject) -> None:
    """At each file operation of an attempt, the next attempt may begin and run to its end."""
    events: list[str] = []
    waiting = [2, 3, 4]

    def interrupt() -> None:
        if waiting and data.draw(st.integers(0, 9)) == 0:
            number = waiting.pop(0)
            Saver(folder, number, data.draw(st.integers(0, 3))).run(events)

    def remove(path: Path) -> None:
        interrupt()
        really_remove(path)

    def replace(path: Path, text: str, scratch: Path) -> None:
        told = json.loads(text)
        events.append(f"saved {told['attempt']} {told['step']}")
        really_replace(path, text, scratch)

    really_remove, really_replace = checkpoint._remove, checkpoint._write_atomically
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setattr(checkpoint, "_sync", lambda path: interrupt())
        patch.setattr(checkpoint, "_remove", remove)
        patch.setattr(checkpoint, "_write_atomically", replace)
        patch.setattr(os, "fsync", lambda file: None)
        Saver(folder, 1, 4).run(events)
        check_events(events)
        if saves := [event.split()[1:] for event in events if event.startswith("saved")]:
            newest = Checkpoints(folder).newest()
            assert newest
            assert [str(newest.attempt), str(newest.step)] == saves[-1]
            Checkpoints(folder).read(lambda path: check_history(path, newest), newest)


def check_events(events: list[str]) -> None:
    """Attempts begin in their order, and nobody replaces saved.json after a newer one has begun."""
    newest = 0
    for event in events:
        what, number, *_ = event.split()
        assert what == "superseded" or int(number) >= newest, events
        newest = max(newest, int(number))


def check_history(path: Path, newest: SavedCheckpoint) -> None:
    """Steps are counted without a gap, and attempts follow each other."""
    history = json.loads(path.read_text())
    assert history[-1] == [newest.attempt, newest.step]
    assert [step for _, step in history] == list(range(1, len(history) + 1))
    assert [attempt for attempt, _ in history] == sorted(attempt for attempt, _ in history)
