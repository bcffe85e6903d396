"""The guard of a piece, without Ray: kills, deaths, and locks of GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from horae.backends.ray import gang
from tests.backends.real import lives, pid_in, text_of, until

#: Stands in for the runner: it notes its number, and SIGTERM.
_RUNNER = """
echo $$ > "$0/pid"
trap 'echo TERM > "$0/told"; exit 0' TERM
while :; do sleep 0.02; done
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = tmp_path / "v1"
    made.mkdir()
    return made


def guard(folder: Path, *command: str, gpus: str = "0,1", parent: int | None = None) -> subprocess.Popen[bytes]:
    words = [str(parent or os.getpid()), str(folder), "v1", gpus, *command]
    return subprocess.Popen([sys.executable, "-I", "-S", gang.__file__, "guard", *words], start_new_session=True)


def check_not_begun(folder: Path) -> None:
    """Check for a while that a piece does not begin."""
    for _ in range(10):
        assert not (folder / "begun").exists()
        time.sleep(0.03)


def test_the_guard_ends_with_its_runner(folder: Path) -> None:
    assert guard(folder, "/bin/sh", "-c", "exit 75").wait(20) == 0


def test_the_runner_is_told_when_its_guard_is_killed(folder: Path) -> None:
    process = guard(folder, "/bin/bash", "-c", _RUNNER, str(folder))
    runner = pid_in(folder / "pid")
    process.kill()
    process.wait()
    until(lambda: text_of(folder / "told") == "TERM\n", "for SIGTERM")
    until(lambda: not lives(runner), "for the end")


def test_a_killed_piece_leaves_nobody_behind(folder: Path) -> None:
    script = f"trap '' TERM; setsid sleep 60 & echo $! > {folder}/orphan; {_RUNNER}"
    process = guard(folder, "/bin/bash", "-c", script, str(folder))
    pids = [pid_in(folder / "orphan"), pid_in(folder / "pid")]
    (folder / gang.KILL).touch()
    assert process.wait(20) == 0
    assert not any(map(lives, pids))


def test_a_guard_without_its_actor_does_not_begin(folder: Path) -> None:
    assert guard(folder, "/bin/sh", "-c", f"touch {folder}/begun", parent=1).wait(20) == gang.LOST_PIECE
    assert not (folder / "begun").exists()


def test_gpus_are_free_when_the_last_process_of_the_piece_before_is_gone(folder: Path) -> None:
    before = guard(folder, "/bin/bash", "-c", "trap '' TERM; echo $$ > $0/pid; sleep 60 & wait; wait", str(folder))
    runner = pid_in(folder / "pid")
    before.kill()
    before.wait()
    after = guard(folder, "/bin/sh", "-c", f"touch {folder}/begun", gpus="1,2")
    other = guard(folder, "/bin/sh", "-c", f"touch {folder}/other", gpus="3")
    assert other.wait(20) == 0
    check_not_begun(folder)
    os.killpg(os.getpgid(runner), signal.SIGKILL)
    assert after.wait(20) == 0
    assert (folder / "begun").exists()


def test_a_piece_that_waits_for_gpus_leaves_when_it_is_stopped(folder: Path) -> None:
    before = guard(folder, "/bin/bash", "-c", _RUNNER, str(folder))
    pid_in(folder / "pid")
    after = guard(folder, "/bin/sh", "-c", f"touch {folder}/begun")
    check_not_begun(folder)
    (folder / gang.STOP).touch()
    assert after.wait(20) == gang.STILL_USED
    (folder / gang.KILL).touch()
    assert before.wait(20) == 0
    assert not (folder / "begun").exists()


def _make_link(place: Path) -> None:
    (place.parent / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(place.parent / "elsewhere")


def _make_anothers(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, os.getuid() + 1, -1)


def _make_open(place: Path) -> None:
    place.mkdir()
    place.chmod(0o755)


_needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")


@pytest.mark.parametrize("make", [_make_link, pytest.param(_make_anothers, marks=_needs_root), _make_open, Path.touch])
def test_a_folder_of_locks_that_others_may_use_is_a_failed_launch(
    folder: Path, make: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    place = folder.parent / f"horae-gpus-{os.getuid()}"
    make(place)
    assert guard(folder, "/bin/sh", "-c", f"touch {folder}/begun").wait(20) == gang.NO_LOCKS
    assert not (folder / "begun").exists()
    assert f"the GPUs of v1 cannot be locked: {place} is not a folder that only this account" in capfd.readouterr().err


def test_a_lock_that_is_a_link_is_not_followed(folder: Path) -> None:
    place = folder.parent / f"horae-gpus-{os.getuid()}"
    place.mkdir(mode=0o700)
    (place / "v1-0").symlink_to(folder / "made")
    assert guard(folder, "/bin/sh", "-c", "true").wait(20) == gang.NO_LOCKS
    assert not (folder / "made").exists()


def test_a_piece_that_never_began_ends_the_driver_with_its_code() -> None:
    made = gang.Gang({"pieces": [], "command": [], "patience_s": 1.0})
    made._note_end(0)
    assert (made.code, made.stopping) == (0, False)
    made._note_end(gang.NO_LOCKS)
    made._note_end(gang.STILL_USED)
    assert (made.code, made.stopping) == (gang.NO_LOCKS, True)


def test_a_program_that_is_not_there_is_no_endless_wait(folder: Path) -> None:
    assert guard(folder, "/no/such/program").wait(20) == 0


def test_a_driver_without_ray_says_so(tmp_path: Path) -> None:
    words = ["drive", json.dumps({"pieces": [], "command": [], "patience_s": 1})]
    ran = subprocess.run(
        [sys.executable, "-I", "-S", gang.__file__, *words], capture_output=True, text=True, timeout=20
    )
    assert ran.returncode == gang.NO_RAY
    assert "cannot import ray" in ran.stderr


def test_a_stop_that_is_there_is_kept(folder: Path) -> None:
    (folder / gang.STOP).write_text("now")
    gang._ask_to_stop(str(folder))
    assert (folder / gang.STOP).read_text() == "now"
    assert [path.name for path in folder.iterdir()] == [gang.STOP]
