"""`kill -9` at random moments under load, a full disk and a locked journal: nothing acknowledged is ever lost.

HORAE_KILLS=100 makes it long (`make soak`) and shows figures; HORAE_SEED chooses another storm.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from horae.core.errors import UserError
from horae.service.server import ServeOptions, Server
from tests.service.crashes import LONG, Findings, Service, Storm, examine, service
from tests.service.mortal import POINTS
from tests.service.small_disk import small_disk

KILLS = int(os.environ.get("HORAE_KILLS", "0"))
SEED = int(os.environ.get("HORAE_SEED", "1"))
#: Far more than anything takes, so that a busy machine fails no test.
PATIENCE_S = 60.0
#: Short leases, so that jobs are preempted all the time.
TURNS, LEASES = ("time-slice", ("quantum=1",)), ("themis", ("lease=2", "answer=0.2"))

Show = Callable[[Findings], None]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Show:
    """Prints what a long storm came to: it is run to see the figures."""

    def printed(found: Findings) -> None:
        if KILLS:
            with capsys.disabled():
                print(f"\n{request.node.name}: {asdict(found)}")  # noqa: T201

    return printed


@pytest.mark.long
@pytest.mark.parametrize("policy", [TURNS, LEASES] if KILLS else [TURNS], ids=lambda policy: policy[0])
def test_killed_at_any_moment_the_daemon_loses_no_job_and_runs_none_twice(
    tmp_path: Path, policy: tuple[str, tuple[str, ...]], show: Show
) -> None:
    with service(tmp_path, *policy) as running:
        storm = Storm(running, SEED, (400, 1000) if KILLS else LONG)
        storm.begin()
        storm.kill_daemons(KILLS or 3)
        storm.end()
        found = examine(storm)
    show(found)
    assert found.daemon_kills == (KILLS or 3)
    assert found.went_on > 0
    assert found.failed_attempts == 0, "a job fails because the daemon is killed"


@pytest.mark.parametrize("point", POINTS)
def test_every_point_at_which_a_service_dies_is_there(point: str) -> None:
    """In a process of its own, in which nothing else has been imported."""
    look = f"from tests.service.mortal import *; place, name = POINTS[{point!r}]; getattr(owner(place), name)"
    subprocess.run([sys.executable, "-c", look], check=True, cwd=Path(__file__).parent.parent.parent)


@pytest.mark.long
def test_killed_between_two_steps_of_one_thing_the_daemon_ends_what_it_began(tmp_path: Path, show: Show) -> None:
    with service(tmp_path, *TURNS) as running:
        storm = Storm(running, SEED + 1)
        storm.begin()
        storm.kill_daemons(KILLS // 2 or 2, inside=1.0)
        storm.end()
        found = examine(storm)
    show(found)
    assert found.daemon_kills >= (KILLS // 2 or 2)
    assert found.failed_attempts == 0, "a job fails because the daemon is killed"


@pytest.mark.long
def test_killed_jobs_and_runners_are_run_again_from_what_they_saved(tmp_path: Path, show: Show) -> None:
    with service(tmp_path, *TURNS) as running:
        storm = Storm(running, SEED + 2)
        storm.begin()
        storm.kill_processes(KILLS or 8, with_daemon=0.15)
        storm.end()
        found = examine(storm)
    show(found)
    assert found.failed_attempts > 0


# -------------------------------------------------------------------- a full disk


def fill(folder: Path) -> Path:
    """Write a file until there is no room at all; gives the file."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    assert shutil.disk_usage(folder).free == 0
    return ballast


def refusal(storm: Storm) -> httpx.Response:
    """Submit until a job is refused; those before it count as all others do."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        answer = storm.submitter.submit([storm.submitter.job()])
        assert answer is not None
        if answer.status_code != 200:
            return answer
    raise AssertionError("no job was refused")


def accepted(storm: Storm) -> str:
    """Submit until a job is taken; gives its id."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        answer = storm.submitter.submit([storm.submitter.job(steps=5)])
        if answer is not None and answer.status_code == 200:
            return str(answer.json()["ids"][0])
        time.sleep(0.2)
    raise AssertionError("no job was taken")


def steps_done(saved: Path) -> int:
    """Steps in all that jobs have saved."""
    return sum(int(json.loads(path.read_text())["step"]) for path in saved.rglob("saved.json"))


@pytest.mark.long
def test_a_full_disk_refuses_jobs_in_one_sentence_lets_others_run_and_loses_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with small_disk(tmp_path / "state", megabytes=64), service(tmp_path, *TURNS) as running:
        storm = Storm(running, SEED)
        running.start()
        assert running.ready()
        for number in range(6):
            job = {**storm.submitter.job(steps=150, kind="plain"), "checkpoint": {"dir": str(saved / str(number))}}
            assert storm.submitter.submit([job]) is not None
        wait_until(lambda: steps_done(saved) > 20)
        ballast = fill(running.state)
        refused = refusal(storm)
        assert refused.status_code == 503, refused.text
        assert "nearly full" in refused.json()["error"]
        before = steps_done(saved)
        wait_until(lambda: steps_done(saved) > before + 20)
        assert httpx.get(f"{running.url}/healthz", trust_env=False, verify=False).status_code == 503
        check_start_on_a_full_disk(running)
        ballast.unlink()
        assert running.ready()
        accepted(storm)
        storm.finish()
        examine(storm)


def check_start_on_a_full_disk(running: Service) -> None:
    """A service that dies while the disk is full comes back: its reserve is enough for what it has to write."""
    running.kill()
    running.start()
    wait_until(lambda: "nearly full" in health_of(running))


def health_of(running: Service) -> str:
    try:
        return httpx.get(f"{running.url}/healthz", trust_env=False, verify=False).text
    except httpx.HTTPError:
        return ""


def test_a_service_cannot_begin_on_a_full_disk_and_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state"):
        fill(tmp_path / "state")
        with pytest.raises(UserError, match="No space is left"):
            Server(ServeOptions(state=tmp_path / "state", port=0, gpus="v100:2"))


def wait_until(look: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.05)


# --------------------------------------------------------------- a locked journal


@pytest.mark.long
def test_a_locked_journal_refuses_jobs_in_one_sentence_and_all_goes_on_when_it_is_free(tmp_path: Path) -> None:
    with service(tmp_path, *TURNS) as running:
        storm = Storm(running, SEED)
        storm.begin()
        wait_until(lambda: storm.submitter.finished > 2)
        storm.submitter.stop()
        with closing(sqlite3.connect(running.state / "journal.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = refusal(storm)
            assert refused.status_code == 503, refused.text
            assert "Another program has locked the journal" in refused.json()["error"]
            other.execute("ROLLBACK")
        accepted(storm)
        storm.finish()
        examine(storm)
