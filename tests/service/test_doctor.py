"""What `horae doctor` finds. Tests service/doctor.py and cli/doctor.py."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from horae.cli.main import main
from horae.service import doctor
from tests.backends.real import until
from tests.service.live import in_state, submit
from tests.service.two_gpus import served

Capture = pytest.CaptureFixture[str]


def examined(state: Path, capsys: Capture, *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--state", str(state), "-o", "json", *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["ok"] is (code == 0)
    return code, found


def wrong(found: dict[str, Any]) -> str:
    return " ".join(one["what"] for one in found["findings"] if not one["ok"])


def test_a_sound_service_is_found_sound_while_it_runs_and_after(tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "state"
    with served(state) as (_, client):
        (job,) = submit(client)
        in_state(client, job, "finished")
        code, found = examined(state, capsys)
        assert (code, wrong(found)) == (0, "")
        assert "all is well" in str(found)
    code, found = examined(state, capsys)
    assert (code, wrong(found)) == (0, "")
    assert main(["doctor", "--state", str(state)]) == 0
    assert "the chain is whole" in capsys.readouterr().out


def test_each_fault_is_named_with_what_to_do(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    with served(state) as (_, client):
        (job,) = submit(client)
        in_state(client, job, "finished")
    (state / "token").chmod(0o644)
    monkeypatch.setattr(doctor, "LITTLE_SPACE", 2**62)
    with closing(sqlite3.connect(state / "journal.db")) as journal, journal:
        journal.execute("UPDATE journal SET body = '{}' WHERE seq = 2")
    code, found = examined(state, capsys)
    assert code == 1
    told = wrong(found)
    for part in ("chmod go=", "free some", "record 2 is not what was written", "horae restore"):
        assert part in told
    for file in state.glob("journal.db*"):
        file.unlink()
    assert "is gone" in wrong(examined(state, capsys)[1])
    assert not (state / "journal.db").exists()
    (state / "journal.mark").write_bytes(b"x" * 8192)
    assert "mark" in wrong(examined(state, capsys)[1])
    assert "There is no folder" in wrong(examined(tmp_path / "nowhere", capsys)[1])


def test_orphans_are_listed_and_ended(tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "state"
    with served(state) as (_, client):
        (runs,) = submit(client, {"run": ["sleep", "600"]})
        until(lambda: (state / "jobs" / runs / "1" / "runner.json").exists(), "for the job")
    for file in state.glob("journal.db*"):
        file.unlink()
    with served(state, accept_loss=True) as (_, client):
        until(lambda: client.get("/v1/orphans").json()["orphans"], "for the orphan")
        code, found = examined(state, capsys)
        assert code == 1
        assert f"Attempt 1 of job {runs}" in wrong(found)
        _, found = examined(state, capsys, "--end-orphans")
        assert f"Told to stop: {runs}@1" in str(found)
        until(lambda: not client.get("/v1/orphans").json()["orphans"], "for its end")
        assert examined(state, capsys)[0] == 0
    assert "start it" in wrong(examined(state, capsys, "--end-orphans")[1])
