"""Backups of a service's journal, from either database into either.

Tests service/backup.py and cli/backup.py.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from horae.cli.main import main
from horae.core.events import JobHeld, NumbersRaised
from horae.service.backup import BadBackup, make_backup, restore_backup
from horae.service.server import ServeOptions, Server
from horae.service.store.opening import open_store
from horae.service.store.store import Store
from horae.service.store.store_lock import StoreInUse
from tests.contracts.filled_store import fill, opened
from tests.service.live import in_state, submit
from tests.service.two_gpus import served


def records(store: Store) -> list[str]:
    return [repr(record) for _, record in store.tail(whole=True)]


def test_a_backup_made_while_the_service_writes_comes_back_whole(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        fill(store)
        written, tokens, tasks = records(store), store.tokens(), store.tasks()
        made = make_backup(tmp_path / "state", url, tmp_path / "backup")
        store.append([JobHeld(9.0, "a-1")])
    assert (made.seq, made.jobs) == (6, 5)
    assert {path.stat().st_mode & 0o777 for path in made.path.iterdir()} == {0o600}
    done = restore_backup(made.path, tmp_path / "state", url)
    assert done.aside is not None
    assert done.aside.exists()
    with opened(url, tmp_path / "state") as store:
        assert (records(store)[:-1], store.tokens(), store.tasks()) == (written, tokens, tasks)
        raised = dict(store.tail())[store.last_seq()]
        assert isinstance(raised, NumbersRaised)
        assert raised.job_number == 5
        assert "restored from a backup" in raised.why


def test_a_backup_goes_from_one_database_to_the_other_and_to_a_new_machine(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        fill(store)
        written = records(store)
    made = make_backup(tmp_path / "state", url, tmp_path / "backup.tar.gz")
    done = restore_backup(made.path, tmp_path / "new")
    assert done.aside is None
    assert done.job_number > 5, "what came after the backup is unknown there"
    with closing(open_store(f"sqlite:///{tmp_path}/new/journal.db", tmp_path / "new").store) as store:
        assert records(store)[:-1] == written


def test_a_restore_is_refused_while_a_service_runs(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        fill(store)
        made = make_backup(tmp_path / "state", url, tmp_path / "backup")
        with pytest.raises(StoreInUse):
            restore_backup(made.path, tmp_path / "state", url)


def test_a_damaged_backup_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state/journal.db"
    with opened(url, tmp_path / "state") as store:
        fill(store)
    made = make_backup(tmp_path / "state", None, tmp_path / "backup")
    before = (tmp_path / "state" / "journal.db").read_bytes()
    content = bytearray((made.path / "journal.db").read_bytes())
    content[len(content) // 2] ^= 1
    (made.path / "journal.db").write_bytes(content)
    with pytest.raises(BadBackup, match=r"journal.db is not what was written"):
        restore_backup(made.path, tmp_path / "state")
    (made.path / "journal.db").unlink()
    with pytest.raises(BadBackup, match="is missing"):
        restore_backup(made.path, tmp_path / "state")
    with pytest.raises(BadBackup, match="cannot be read as a backup"):
        restore_backup(tmp_path / "state" / "journal.mark", tmp_path / "state")
    assert (tmp_path / "state" / "journal.db").read_bytes() == before


def test_after_a_restore_new_jobs_run_under_new_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup"
    with served(state) as (_, client):
        (first,) = submit(client)
        in_state(client, first, "finished")
        part = state / "jobs" / first / "1" / "log.txt.50000"
        part.write_text("the end of a long log")
        assert main(["backup", str(backup), "--state", str(state), "--logs"]) == 0
        assert "1 jobs" in capsys.readouterr().out
        used = {first, *submit(client, {}, {}, {})}
        for job in used:
            in_state(client, job, "finished")
    token = (state / "token").read_text().strip()
    assert all(token.encode() not in path.read_bytes() for path in backup.rglob("*") if path.is_file())
    assert (backup / "logs" / first / "1.txt").exists()
    part.unlink()
    assert main(["restore", str(backup), "--state", str(state), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job_number"] == 4
    assert part.read_text() == "the end of a long log"
    with served(state) as (_, client):
        new = submit(client, *({"name": "job"} for _ in range(20)))
        for job in new:
            in_state(client, job, "finished")
        assert not used & {*new}
    assert main(["backup", str(backup), "--state", str(state)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_a_journal_whose_folder_is_lost_is_restored_on_a_new_machine(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, client):
        (first,) = submit(client)
        in_state(client, first, "finished")
        make_backup(tmp_path / "state", None, tmp_path / "backup.tar")
    with tarfile.open(tmp_path / "backup.tar") as archive:
        assert {entry.mode & 0o077 for entry in archive} == {0}
    shutil.rmtree(tmp_path / "state")
    restore_backup(tmp_path / "backup.tar", tmp_path / "state")
    server = Server(ServeOptions(tmp_path / "state", port=0, gpus="v100:2"))
    try:
        assert len(server.daemon.status) == 1
    finally:
        server.close()
