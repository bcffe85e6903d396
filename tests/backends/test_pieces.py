"""The runner as a piece of an attempt on a folder that machines share. Tests backends/local/runner.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json
from horae.backends.local.runner_order import make_order
from horae.backends.piece_files import PieceFiles
from tests.backends.real import bash, start, text_of, until

_PATIENT = "trap 'echo noticed; exit 75' USR1; echo up; sleep 60 & wait"


class Piece:
    """A piece on node v1, and the runners that were started for it."""

    def __init__(self, shared: Path, script: str, beat_limit_s: float = 60.0, grace_s: float = 20.0) -> None:
        self.attempt = shared / "jobs" / "a-1" / "1"
        self.folder = self.attempt / "v1"
        self.folder.mkdir(parents=True)
        (self.attempt / "work").mkdir()
        order = make_order(start(bash(script), grace_s=grace_s), self.attempt, {}, None)
        order["ranks"][0].pop("CUDA_VISIBLE_DEVICES")
        extra = {"beat_limit_s": beat_limit_s, "take_over": ["CUDA_VISIBLE_DEVICES"]}
        runner.write_atomically(str(self.folder), runner.ORDER, {**order, **extra})

    def run(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-I", "-S", "-W", "ignore", runner.__file__, str(self.attempt), runner.PIECE]
        return subprocess.Popen(words, env={"HORAE_NODE": "v1", "CUDA_VISIBLE_DEVICES": "3,7"}, start_new_session=True)

    def stop(self, how: str = runner.STOP_NOTICE) -> None:
        (self.folder / ".stop").write_text(how)
        (self.folder / ".stop").rename(self.folder / runner.STOP)

    def up(self) -> None:
        until(lambda: "up" in text_of(self.folder / runner.LOG), "for the job")

    def last_word(self) -> dict[str, Any]:
        found: dict[str, Any] = until(lambda: read_json(self.folder / runner.EXIT), "for the last word")
        return found


def test_a_piece_has_the_gpus_that_the_cluster_manager_chose_and_leaves_a_last_word(tmp_path: Path) -> None:
    piece = Piece(tmp_path, """echo on $CUDA_VISIBLE_DEVICES; echo '{"step": 4}' > $HORAE_CHECKPOINT_DIR/saved.json""")
    assert piece.run().wait(30) == 0
    word = piece.last_word()
    assert (word["code"], word["stopped"], word["saved_before"], word["saved_after"]) == (0, False, None, {"step": 4})
    assert 0 < word["up_s"] < 30
    assert text_of(piece.folder / runner.LOG) == "on 3,7\n"


def test_two_runners_of_a_piece_begin_it_once(tmp_path: Path) -> None:
    piece = Piece(tmp_path, "echo begun; sleep 0.3")
    both = [piece.run(), piece.run()]
    assert [each.wait(30) for each in both] == [0, 0]
    assert piece.run().wait(30) == 0
    assert text_of(piece.folder / runner.LOG) == "begun\n"


def test_a_piece_that_somebody_else_has_claimed_never_begins(tmp_path: Path) -> None:
    piece = Piece(tmp_path, "echo begun")
    assert runner.claim(str(piece.folder), "the service")
    assert piece.run().wait(30) == 0
    assert not (piece.folder / runner.LOG).exists()


@pytest.mark.parametrize(
    ("how", "said", "code", "stopped"),
    [
        (runner.STOP_NOTICE, "up\nnoticed\n", 75, True),
        (runner.STOP_NOW, "up\n", 143, False),
        (runner.STOP_GRACE, "up\n", 143, False),
    ],
)
def test_a_stop_file_is_a_notice_or_an_order(tmp_path: Path, how: str, said: str, code: int, stopped: bool) -> None:
    piece = Piece(tmp_path, _PATIENT, grace_s=20.0 if how != runner.STOP_GRACE else 0.3)
    running = piece.run()
    piece.up()
    piece.stop(how)
    assert running.wait(10) == 0
    word = piece.last_word()
    assert (text_of(piece.folder / runner.LOG), word["code"], word["stopped"]) == (said, code, stopped)


def test_a_stop_before_the_start_starts_nothing(tmp_path: Path) -> None:
    piece = Piece(tmp_path, "echo begun")
    piece.stop()
    piece.run().wait(30)
    assert (piece.last_word()["code"], piece.last_word()["up_s"]) == (75, None)


def test_a_piece_beats_and_kills_its_job_if_it_cannot(tmp_path: Path) -> None:
    piece = Piece(tmp_path, _PATIENT, beat_limit_s=2.0)
    running = piece.run()
    piece.up()
    beat = piece.folder / runner.BEAT
    first = until(lambda: beat.exists() and beat.stat().st_mtime, "for a beat")
    until(lambda: (piece.folder / runner.BEAT).stat().st_mtime > first, "for another beat")
    away = tmp_path / "away"
    piece.folder.rename(away)
    until(lambda: "could not be written" in text_of(away / runner.LOG), "for the kill")
    piece.folder.parent.mkdir(exist_ok=True)
    shutil.copytree(away, piece.folder)
    assert running.wait(30) == 0
    assert (piece.last_word()["code"], piece.last_word()["stopped"]) == (137, True)


def test_a_piece_that_the_service_took_for_dead_kills_its_job_and_leaves_the_end_as_it_is(tmp_path: Path) -> None:
    piece = Piece(tmp_path, _PATIENT)
    running = piece.run()
    piece.up()
    PieceFiles(piece.folder).end_as_killed(silent=True)
    given = piece.last_word()
    assert running.wait(10) == 0
    assert "took the job for dead" in text_of(piece.folder / runner.LOG)
    assert piece.last_word() == given


def test_a_runner_counts_the_time_for_which_its_machine_was_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = {"task": {}, "checkpoint_dir": str(tmp_path), "beat_limit_s": 60.0}
    (tmp_path / runner.ORDER).write_text(json.dumps(order))
    made = runner.Runner(str(tmp_path))
    real = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + 90.0 * (clock == time.CLOCK_BOOTTIME))
    made._beat()
    assert not (tmp_path / runner.BEAT).exists(), "a sign of life from a job that others have given up"
    made._check_beat()
    assert made.stopped


def test_a_machine_that_was_suspended_before_runs_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clocks differ by the time for which it was suspended."""
    piece = Piece(tmp_path, "echo up")
    program = "import time; real = time.clock_gettime; BOOT = time.CLOCK_BOOTTIME\n"
    program += "time.clock_gettime = lambda clock: real(clock) + 3600.0 * (clock == BOOT)\n"
    program += f"import runpy; runpy.run_path({runner.__file__!r}, run_name='__main__')"
    words = [sys.executable, "-c", program, str(piece.attempt), runner.PIECE]
    subprocess.run(words, env={"HORAE_NODE": "v1"}, start_new_session=True, timeout=30, check=True)
    assert (piece.last_word()["code"], piece.last_word()["stopped"]) == (0, False)
    assert (piece.folder / runner.BEAT).exists()


def test_a_link_that_was_made_though_the_answer_was_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lose_answer(draft: str, path: str) -> None:
        link(draft, path)
        raise FileExistsError

    monkeypatch.setattr(os, "link", lose_answer)
    assert runner.claim(str(tmp_path), "me")
    assert not runner.claim(str(tmp_path), "me")
    assert json.loads(text_of(tmp_path / runner.CLAIM)) == {"by": "me"}


def test_files_are_not_written_through_links_that_a_job_made(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (f".exit.json.{os.uname().nodename}.{os.getpid()}", f".stop.{os.getpid()}"):
        (tmp_path / name).symlink_to(victim)
    assert runner.write_atomically(str(tmp_path), runner.EXIT, {"code": 0})
    PieceFiles(tmp_path).ask_to_stop(runner.STOP_NOW)
    assert victim.read_text() == "precious"
    assert json.loads((tmp_path / runner.EXIT).read_text()) == {"code": 0}
    assert (tmp_path / runner.STOP).read_text() == runner.STOP_NOW


@pytest.mark.parametrize(("beat_limit_s", "expected_s"), [(600.0, 600.0), (30.0, 60.0)])
def test_a_runner_tries_to_tell_the_end_for_as_long_as_storage_may_be_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beat_limit_s: float, expected_s: float
) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def fail(*_: object, **__: object) -> bool:
        raise OSError("away")

    order = {"task": {}, "checkpoint_dir": str(tmp_path), "beat_limit_s": beat_limit_s}
    (tmp_path / runner.ORDER).write_text(json.dumps(order))
    made = runner.Runner(str(tmp_path))
    monkeypatch.setattr(runner, "write_atomically", fail)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now_s)
        patch.setattr(time, "sleep", sleep)
        made._write_exit()
    assert now_s == pytest.approx(expected_s, abs=1.0)
